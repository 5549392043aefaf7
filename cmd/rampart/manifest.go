package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/libvirt"
)

// manifest gathers the provenance of a study on the testbed that is up.
func (s *study) manifest(ctx context.Context, exe string) (record.Manifest, error) {
	lab, err := experiments.Connect(ctx, s.bench.current, s.cfg.Testbed, exe)
	if err != nil {
		return record.Manifest{}, err
	}
	defer lab.Close()
	s.log.Debug("helpers answer on all nodes")
	nodes, err := lab.Describe(ctx)
	if err != nil {
		return record.Manifest{}, err
	}
	booted := map[string]record.Image{}
	for _, level := range s.cfg.ImageLevels() {
		booted[level] = imageRecord(s.bench.provider(level).image)
	}
	mine := booted[s.bench.image]
	mine.Nodes = nodes
	booted[s.bench.image] = mine
	m, err := s.provenance(ctx, s.bench.current.Features(), booted)
	if err == nil {
		err = s.describeFarHost(ctx, &m)
	}
	return m, err
}

// describeFarHost puts the host of the virtual machines in the place of this one, where it is another.
func (s *study) describeFarHost(ctx context.Context, m *record.Manifest) error {
	provider, ok := s.bench.provider(s.bench.image).Provider.(*libvirt.Provider)
	if !ok || !provider.Remote() {
		return nil
	}
	facts, err := provider.HostFacts(ctx)
	if err != nil {
		return err
	}
	m.Host = farEnvironment(facts)
	return nil
}

// farEnvironment is what a host says of itself in words.
func farEnvironment(facts map[string]string) record.Environment {
	env := record.Environment{
		Hostname:    facts["hostname"],
		OS:          facts["os"],
		Kernel:      facts["kernel"],
		CPU:         facts["cpu"],
		Governor:    facts["governor"],
		Clocksource: facts["clocksource"],
		Mitigations: map[string]string{},
	}
	env.CPUs, _ = strconv.Atoi(facts["cpus"])
	kib, _ := strconv.ParseInt(facts["memory_kib"], 10, 52)
	env.MemoryBytes = kib << 10
	for name, value := range facts {
		if name, ok := strings.CutPrefix(name, "mitigation."); ok {
			env.Mitigations[name] = value
		}
	}
	return env
}

// imageRecord is what the manifest has of an image before anything booted from it.
func imageRecord(image images.Image) record.Image {
	return record.Image{Digest: image.Digest, Lock: image.LockDigest}
}

// booted takes down what the nodes of an image say of themselves when they are first up. It is nil where
// there is but one image, whose nodes are in the manifest from the beginning.
func (s *study) booted(folder *record.Folder) func(image string, nodes map[string]record.Environment) error {
	if len(s.cfg.Images) == 0 {
		return nil
	}
	return func(image string, nodes map[string]record.Environment) error {
		return describeNodes(folder, image, nodes)
	}
}

// describeNodes adds nodes to the manifest, unless those of the image are there already. An empty image is
// that of the testbed.
func describeNodes(folder *record.Folder, image string, nodes map[string]record.Environment) error {
	manifest := folder.Manifest()
	switch {
	case image == "" && len(manifest.Nodes) == 0:
		manifest.Nodes = nodes
	case image != "" && len(manifest.Images[image].Nodes) == 0:
		manifest.Images = maps.Clone(manifest.Images)
		described := manifest.Images[image]
		described.Nodes = nodes
		manifest.Images[image] = described
	default:
		return nil
	}
	return folder.SetManifest(manifest)
}

// provenance is the program, the configuration, the plan, and what this machine and every node say of
// themselves. booted are the images and nodes by level of the factor image; empty: those of the testbed.
func (s *study) provenance(ctx context.Context, features testbed.Features, booted map[string]record.Image) (record.Manifest, error) {
	m := record.Manifest{
		Schema:        record.Schema,
		Rampart:       describeBuild(),
		Created:       time.Now().UTC().Truncate(time.Second),
		Configuration: s.cfg.Files,
		Variables:     s.cfg.Variables,
		ConfigDigest:  s.cfg.Digest,
		PlanDigests:   planDigests(s.schedules),
		Image:         booted[""].Digest,
		ImageLock:     booted[""].Lock,
		Clock:         string(features.Clock),
		Provider:      features.Provider,
		Host:          experiments.DescribeMachine(ctx),
		Nodes:         map[string]record.Environment{},
		Command:       os.Args,
		Sessions:      []record.Session{},
	}
	if nodes := booted[""].Nodes; nodes != nil {
		m.Nodes = nodes
	}
	for level, image := range booted {
		if level == "" {
			continue
		}
		if m.Images == nil {
			m.Images = map[string]record.Image{}
		}
		m.Images[level] = image
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
