package main

import (
	"slices"
	"testing"
)

func TestFolderNames(t *testing.T) {
	for _, tt := range [][2][]string{
		{{"results/kvm/", "./results/host"}, {"kvm", "host"}},
		{{"kvm/out", "host/out/", "third"}, {"kvm/out", "host/out", "third"}},
	} {
		if got := folderNames(tt[0]); !slices.Equal(got, tt[1]) {
			t.Errorf("%q are called %q, want %q", tt[0], got, tt[1])
		}
	}
}
