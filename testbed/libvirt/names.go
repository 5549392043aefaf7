package libvirt

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"

	"github.com/rampart-bench/rampart/testbed"
)

// ident is what every name on the host begins with: the testbed's name, and an id that differs from
// one making of it to the next.
type ident struct {
	Name string `json:"name"`
	ID   string `json:"id"` // six hexadecimal digits
}

func newIdent(name string) ident {
	var b [3]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return ident{name, hex.EncodeToString(b[:])}
}

func (i ident) String() string { return i.Name + "-" + i.ID }

// Parts of a testbed, as they end its names. The set is closed, and the id has a fixed length, so
// that a name can be taken apart again whatever the testbed is called.
const (
	partManagement = "mgmt"
	partLink       = "link" // and the index of the link in the Spec
	partSeed       = "seed" // and the role
)

func (i ident) domain(role testbed.Role) string  { return i.part(string(role)) }
func (i ident) overlay(role testbed.Role) string { return i.part(string(role)) + ".qcow2" }
func (i ident) seed(role testbed.Role) string    { return i.part(string(role)) + "-" + partSeed + ".img" }
func (i ident) management() string               { return i.part(partManagement) }
func (i ident) link(index int) string            { return i.part(fmt.Sprint(partLink, index)) }
func (i ident) part(p string) string             { return "rampart-" + i.Name + "-" + i.ID + "-" + p }

// bridge is the name of a network's bridge, at most 15 bytes (IFNAMSIZ - 1): the testbed's name does
// not fit, its id does.
func (i ident) bridge(p string) string { return "rp" + i.ID + "-" + p }

var partName = regexp.MustCompile(`^rampart-([a-z0-9-]+)-([0-9a-f]{6})-(mgmt|link[0-9]+|(?:sender|firewall|receiver)(?:\.qcow2|-seed\.img)?)$`)

// parseName takes apart the name of a domain, network or volume. ok is false for what is not ours.
func parseName(name string) (id ident, part string, ok bool) {
	m := partName.FindStringSubmatch(name)
	if m == nil {
		return ident{}, "", false
	}
	return ident{m[1], m[2]}, m[3], true
}

// mac is the hardware address of the interface of role with that index (0 is management, links
// follow). It depends on nothing else, so a renewed node has the addresses of its predecessor. The
// first three bytes are those that QEMU and libvirt use; the last byte keeps the interfaces of one
// testbed apart for certain.
func (i ident) mac(role testbed.Role, index int) string {
	h := sha256.Sum256([]byte(i.String()))
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", h[0], h[1], roleNumber(role)<<4|index&0xf)
}

func roleNumber(role testbed.Role) int {
	for i, r := range testbed.Roles() {
		if r == role {
			return i
		}
	}
	return len(testbed.Roles())
}
