package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/testbed"
)

// manifest gathers the provenance of a study on the testbed that is up.
func (s *study) manifest(ctx context.Context, exe string) (record.Manifest, error) {
	lab, err := experiments.Connect(ctx, s.bench.current, s.cfg.Testbed, exe)
	if err != nil {
		return record.Manifest{}, err
	}
	defer lab.Close()
	nodes, err := lab.Describe(ctx)
	if err != nil {
		return record.Manifest{}, err
	}
	return s.provenance(ctx, s.bench.current.Features(), s.bench.provider.image, nodes)
}

// provenance is the program, the configuration, the plan, and what this machine and every node say of
// themselves. image is the digest of what the nodes booted from, if anything.
func (s *study) provenance(ctx context.Context, features testbed.Features, image string, nodes map[string]record.Environment) (record.Manifest, error) {
	m := record.Manifest{
		Schema:        record.Schema,
		Rampart:       describeBuild(),
		Created:       time.Now().UTC().Truncate(time.Second),
		Configuration: s.cfg.Files,
		Variables:     s.cfg.Variables,
		ConfigDigest:  s.cfg.Digest,
		PlanDigests:   planDigests(s.schedules),
		Image:         image,
		Clock:         string(features.Clock),
		Provider:      features.Provider,
		Host:          experiments.DescribeMachine(ctx),
		Nodes:         nodes,
		Command:       os.Args,
		Sessions:      []record.Session{},
	}
	for field, value := range map[*json.RawMessage]any{
		&m.Study: s.cfg.Study, &m.Testbed: s.cfg.Testbed, &m.Features: features,
	} {
		text, err := json.Marshal(value)
		if err != nil {
			return record.Manifest{}, fmt.Errorf("encode manifest: %w", err)
		}
		*field = text
	}
	return m, nil
}
