// Package testbed says what a testbed is: three nodes in a chain, sender – firewall – receiver,
// joined by two links, and nothing else that could carry a frame from one end to the other.
//
// A [Spec] is plain data and says everything about the data plane before anything exists: names,
// addresses and routes follow from it by pure functions, so the configuration, the provider and the
// measurement agree without asking each other. A [Provider] makes the live [Testbed] from it. The
// providers are in the folders below this one and all pass the suite in testbedtest.
package testbed

import (
	"context"
	"errors"
	"io"
	"io/fs"
)

// A Role is the part a node plays in the chain.
type Role string

// The three roles. The firewall is the device under test (DUT) of RFC 2544.
const (
	Sender   Role = "sender"
	Firewall Role = "firewall"
	Receiver Role = "receiver"
)

// Roles lists every role in the order of the chain.
func Roles() []Role { return []Role{Sender, Firewall, Receiver} }

// A Clock says what time means in a record. Records of different clocks are never pooled.
type Clock string

// The clocks of DESIGN §1.
const (
	ClockHost    Clock = "host"    // the host's own kernel, in real time (netns)
	ClockKVM     Clock = "kvm"     // a guest under hardware virtualisation
	ClockTCG     Clock = "tcg"     // a guest under QEMU's emulation, in real time
	ClockVirtual Clock = "virtual" // one nanosecond an instruction (exact)
)

// A Provider makes testbeds. A provider may also be an [Attacher] or a [Lister].
type Provider interface {
	// Up makes the whole testbed or nothing: when it returns an error, everything that it had
	// made is gone again.
	Up(ctx context.Context, spec Spec) (Testbed, error)

	// Down removes whatever is left of the testbed called name. It is idempotent and works from
	// the name alone, in another process, after a crash.
	Down(ctx context.Context, name string) error
}

// ErrClosed is wrapped by what a command on a node ends with because its testbed was closed: whoever did
// that need not be told.
var ErrClosed = errors.New("the testbed was closed")

// A Testbed is live. Close lets go of connections and helper processes; only [Provider.Down]
// removes what was made. It may be called while commands run, and more than once. A testbed may also be
// a [Renewer].
type Testbed interface {
	Name() string
	Features() Features
	// Node returns the node that plays role; every testbed has all three.
	Node(role Role) Node
	Close() error
}

// Features says what differs between providers and matters to a measurement.
type Features struct {
	Provider string `json:"provider"` // libvirt, netns or exact
	Clock    Clock  `json:"clock"`
	// DedicatedKernel is true where the DUT runs a kernel that nobody else uses, so that the
	// helper may load and remove kernel modules and change any sysctl.
	DedicatedKernel bool `json:"dedicated_kernel"`
	// Program is the path of this program on every node, where it is there without being pushed.
	Program string `json:"program,omitempty"`
	// SentCountLag is by how many frames an interface's count of what it sent may be behind.
	SentCountLag int64 `json:"sent_count_lag,omitempty"`
	// Parameters are the provider's own facts for the manifest, such as QEMU's version, the
	// machine type and the accelerator with the reason for its choice.
	Parameters map[string]string `json:"parameters,omitempty"`
}

// Conn is a running command on a node: Read is its standard output, Write its standard input, and
// Close closes only standard input, after which a well-behaved command ends. Wait waits for the end
// and returns nil for exit status 0, else an error that has a method ExitCode() int. Cancelling the
// context given to Start ends the command.
//
// It is an alias of an interface literal so that package provision, which must not import this one,
// can name the identical type.
type Conn = interface {
	io.ReadWriteCloser
	Wait() error
}

// A Node is one end of the testbed that commands can be run on.
type Node interface {
	// Put writes a file atomically: under a temporary name, with mode, synced, then renamed. A
	// relative path is below the node's scratch folder, which goes away with the testbed.
	Put(ctx context.Context, path string, mode fs.FileMode, content io.Reader) error

	// Start runs a command. Arguments are passed as they are, with no shell between. argv[0] that
	// begins with "./" is below the scratch folder, which is also the working directory. Standard
	// error goes to the debug log, and its end is in the error of Wait.
	Start(ctx context.Context, argv ...string) (Conn, error)
}

// An Answerer is a node that can be asked for a sign of life on the way that its commands go. That costs
// frames there and the node a moment of its processor, so nobody asks while something is measured.
type Answerer interface {
	// Answers returns nil if the node answers before ctx ends.
	Answers(ctx context.Context) error
}

// A Renewer can replace one node by a pristine one with the same addresses: for kernel state that
// cannot be unloaded, and for a node that died. Connections to the old node end.
type Renewer interface {
	Renew(ctx context.Context, role Role) error
}

// An Attacher finds a testbed that another process brought up.
type Attacher interface {
	// Attach returns an error that wraps fs.ErrNotExist when there is no such testbed.
	Attach(ctx context.Context, name string) (Testbed, error)
}

// A Lister finds every testbed of its provider on this machine, whoever made it.
type Lister interface {
	List(ctx context.Context) ([]Info, error)
}

// Info is what can be said of a testbed from outside.
type Info struct {
	Name     string          `json:"name"`
	Provider string          `json:"provider"`
	Nodes    map[Role]string `json:"nodes"` // state in a word: running, gone, …
	// Leftovers names what belongs to the testbed though no node does: after a crash.
	Leftovers []string `json:"leftovers,omitempty"`
}

// An UnableError says that this machine cannot make the testbed: a program, a permission or a kernel
// feature is missing. Callers branch on it: it is nobody's mistake and has a remedy.
type UnableError struct {
	Provider string
	Reason   string
	Mend     string // the command or step that mends it
}

func (e *UnableError) Error() string {
	return "provider " + e.Provider + " cannot run on this machine: " + e.Reason
}

// A Terminal testbed says which command of this machine opens a shell on a node, or runs a command
// there, with a person's terminal as it is.
type Terminal interface {
	Terminal(role Role, command ...string) (argv []string, err error)
}
