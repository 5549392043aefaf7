// Package images makes what a virtual machine boots from: a Debian root file system built from
// packages, with its kernel and initrd beside it, in a store that is addressed by content.
package images

// Spec describes an image.
type Spec struct {
	Name       string   `json:"name"`
	Suite      string   `json:"suite"`                // Debian suite, such as bookworm
	Kernel     string   `json:"kernel"`               // package of the kernel
	Mirror     string   `json:"mirror,omitempty"`     // default: the one that apt uses here
	Components []string `json:"components,omitempty"` // default: main
	Packages   []string `json:"packages,omitempty"`   // beyond what the nodes need
}
