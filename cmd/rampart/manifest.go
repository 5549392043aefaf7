package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/record"
)

// manifest gathers the provenance of the study: the program, the configuration, the plan, and what
// this machine and every node say of themselves.
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
	features := s.bench.current.Features()
	m := record.Manifest{
		Schema:        record.Schema,
		Rampart:       describeBuild(),
		Created:       time.Now().UTC().Truncate(time.Second),
		Configuration: s.cfg.Files,
		Variables:     s.cfg.Variables,
		ConfigDigest:  s.cfg.Digest,
		PlanDigests:   planDigests(s.schedules),
		Image:         s.bench.provider.image,
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
