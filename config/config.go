// Package config reads HCL configuration into plain values. It is the only package that knows HCL.
//
// Reading is total: every mistake in every file is reported at once, with its place, the lines around
// it and what would be right, and nothing outside this package ever sees a configuration that has one.
package config

import (
	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/report"
	"github.com/rampart-bench/rampart/testbed"
)

// Config is a configuration, resolved and checked.
type Config struct {
	Provider    string // libvirt, netns, exact or auto
	Testbed     testbed.Spec
	Image       images.Spec
	Libvirt     Libvirt
	Experiments []experiments.Spec
	Study       analysis.Study
	Report      report.Spec

	// Files are the texts as read, by name, and Variables the values given from outside: both go
	// into the manifest. Digest covers both.
	Files     map[string]string
	Variables map[string]string
	Digest    string
}

// Libvirt is the libvirt block of the testbed.
type Libvirt struct {
	URI         string // default qemu:///system
	Accelerator string // kvm, tcg or auto (default)
}
