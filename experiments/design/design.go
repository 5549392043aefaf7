// Package design turns factors and their levels into a plan: which treatment is measured when.
//
// Runs are ordered in complete blocks, and inside a block all treatments are shuffled by a recorded
// seed (randomised multiple interleaved trials: Abedi and Brecht, ICPE 2017), so that drift of the
// machine falls on every treatment alike. The package is pure: the same Spec gives the same Plan, to
// the byte, on every machine.
package design

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
)

// A Treatment is one combination of levels.
type Treatment struct {
	Firewall  string `json:"firewall"`
	Rules     int    `json:"rules"`      // entries; 0 where the firewall has none by definition
	FrameSize int    `json:"frame_size"` // bytes of Ethernet frame, FCS included (RFC 2544)
}

// Spec is the design of one experiment.
type Spec struct {
	Treatments []Treatment `json:"treatments"`
	// Repetitions is the number of runs of each treatment, and so of blocks.
	Repetitions int `json:"repetitions"`
	// Boots spreads the blocks evenly over that many fresh boots of the nodes.
	Boots int    `json:"boots"`
	Seed  uint64 `json:"seed"`
	// Grouped keeps the treatments of a block in the order given, where the clock cannot drift.
	Grouped bool `json:"grouped,omitempty"`
}

// A Run is one treatment to be measured once.
type Run struct {
	Sequence  int       `json:"sequence"` // from 1, over the whole plan
	Block     int       `json:"block"`    // from 1
	Boot      int       `json:"boot"`     // from 1
	Treatment Treatment `json:"treatment"`
}

// A Plan lists every run in order.
type Plan struct {
	Runs   []Run  `json:"runs"`
	Digest string `json:"digest"` // SHA-256 of the runs
}

// New makes the plan. The shuffle of block b depends on the seed and b alone, so that a plan with
// more repetitions begins like the one with fewer (when both have one boot).
func New(spec Spec) (Plan, error) {
	switch {
	case len(spec.Treatments) == 0:
		return Plan{}, errors.New("the matrix has no treatment: give every factor at least one level")
	case spec.Repetitions < 1:
		return Plan{}, fmt.Errorf("repetitions = %d: at least 1 is needed", spec.Repetitions)
	case spec.Boots < 1 || spec.Boots > spec.Repetitions:
		return Plan{}, fmt.Errorf("boots = %d: use 1 to the number of repetitions (%d)", spec.Boots, spec.Repetitions)
	}
	seen := make(map[Treatment]bool, len(spec.Treatments))
	for _, t := range spec.Treatments {
		if seen[t] {
			return Plan{}, fmt.Errorf("treatment %+v is there twice", t)
		}
		seen[t] = true
	}
	runs := make([]Run, 0, len(spec.Treatments)*spec.Repetitions)
	for block := range spec.Repetitions {
		order := append([]Treatment(nil), spec.Treatments...)
		if !spec.Grouped {
			rng := rand.New(rand.NewPCG(spec.Seed, uint64(block)+1))
			rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		for _, t := range order {
			runs = append(runs, Run{
				Sequence:  len(runs) + 1,
				Block:     block + 1,
				Boot:      block*spec.Boots/spec.Repetitions + 1,
				Treatment: t,
			})
		}
	}
	text, err := json.Marshal(runs)
	if err != nil {
		return Plan{}, fmt.Errorf("encode plan: %w", err)
	}
	sum := sha256.Sum256(text)
	return Plan{Runs: runs, Digest: "sha256:" + hex.EncodeToString(sum[:])}, nil
}
