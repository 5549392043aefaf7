// Package design turns factors and their levels into a plan: which treatment is measured when.
//
// Runs are ordered in complete blocks, and inside a block all treatments are shuffled by a recorded
// seed (randomised multiple interleaved trials: Abedi and Brecht, ICPE 2017), so that drift of the
// machine falls on every treatment alike. The package is pure: the same Spec gives the same Plan, to
// the byte, on every machine.
//
// Changing the image takes a boot, which no study can afford for every run. So images are whole plots
// (a split-plot design: Yates, JRSS Supplement 2, 1935): in every boot of the plan the images take
// turns, in an order shuffled by the seed, and the machines of an image stay up while all treatments of
// its blocks are measured. What an image does to a value can then be told only from boot to boot.
package design

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
)

// A Treatment is one combination of levels.
type Treatment struct {
	Image     string `json:"image,omitempty"` // what the nodes boot; empty where that is no factor
	Firewall  string `json:"firewall"`
	Rules     int    `json:"rules"`      // entries; 0 where the firewall has none by definition
	FrameSize int    `json:"frame_size"` // bytes of Ethernet frame, FCS included (RFC 2544)
}

// Spec is the design of one experiment.
type Spec struct {
	Treatments []Treatment `json:"treatments"`
	// Repetitions is the number of runs of each treatment, and so of blocks.
	Repetitions int `json:"repetitions"`
	// Boots spreads the blocks evenly over that many fresh boots of the nodes, with each image.
	Boots int    `json:"boots"`
	Seed  uint64 `json:"seed"`
	// Grouped keeps images, and the treatments of a block, in the order given, where the clock cannot drift.
	Grouped bool `json:"grouped,omitempty"`
}

// A Run is one treatment to be measured once.
type Run struct {
	Sequence  int       `json:"sequence"` // from 1, over the whole plan
	Block     int       `json:"block"`    // from 1
	Boot      int       `json:"boot"`     // from 1; of each image by itself
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
	if err := spec.check(); err != nil {
		return Plan{}, err
	}
	runs := make([]Run, 0, len(spec.Treatments)*spec.Repetitions)
	for boot := 1; boot <= spec.Boots; boot++ {
		runs = spec.appendBoot(runs, boot)
	}
	text, err := json.Marshal(runs)
	if err != nil {
		return Plan{}, fmt.Errorf("encode plan: %w", err)
	}
	sum := sha256.Sum256(text)
	return Plan{Runs: runs, Digest: "sha256:" + hex.EncodeToString(sum[:])}, nil
}

func (s Spec) check() error {
	switch {
	case len(s.Treatments) == 0:
		return errors.New("the matrix has no treatment: give every factor at least one level")
	case s.Repetitions < 1:
		return fmt.Errorf("repetitions = %d: at least 1 is needed", s.Repetitions)
	case s.Boots < 1 || s.Boots > s.Repetitions:
		return fmt.Errorf("boots = %d: use 1 to the number of repetitions (%d)", s.Boots, s.Repetitions)
	}
	seen := make(map[Treatment]bool, len(s.Treatments))
	for _, t := range s.Treatments {
		if seen[t] {
			return fmt.Errorf("treatment %+v is there twice", t)
		}
		seen[t] = true
	}
	return nil
}

// appendBoot appends the runs of one boot of every image: image after image, and for each all blocks of
// the boot.
func (s Spec) appendBoot(runs []Run, boot int) []Run {
	orders := map[int]map[string][]Treatment{}
	var blocks []int
	for block := 1; block <= s.Repetitions; block++ {
		if (block-1)*s.Boots/s.Repetitions+1 == boot {
			blocks = append(blocks, block)
			orders[block] = s.order(block)
		}
	}
	for _, image := range s.imageOrder(boot) {
		for _, block := range blocks {
			for _, t := range orders[block][image] {
				runs = append(runs, Run{Sequence: len(runs) + 1, Block: block, Boot: boot, Treatment: t})
			}
		}
	}
	return runs
}

// Images are the levels of the factor image in the order given; one that is empty where it is no factor.
func (s Spec) Images() []string {
	var images []string
	for _, t := range s.Treatments {
		if !slices.Contains(images, t.Image) {
			images = append(images, t.Image)
		}
	}
	return images
}

// imageOrder is the order in which images take their turns in a boot. Its generator is none that a block has.
func (s Spec) imageOrder(boot int) []string {
	images := s.Images()
	if !s.Grouped {
		rng := rand.New(rand.NewPCG(s.Seed, 1<<63+uint64(boot)))
		rng.Shuffle(len(images), func(i, j int) { images[i], images[j] = images[j], images[i] })
	}
	return images
}

// order is the order of treatments in a block, for each image.
func (s Spec) order(block int) map[string][]Treatment {
	of := map[string][]Treatment{}
	for _, t := range s.Treatments {
		of[t.Image] = append(of[t.Image], t)
	}
	if s.Grouped {
		return of
	}
	rng := rand.New(rand.NewPCG(s.Seed, uint64(block)))
	for _, image := range s.Images() {
		order := of[image]
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	return of
}
