package netns

import "github.com/rampart-bench/rampart/testbed"

var _ testbed.Terminal = (*bed)(nil)

// Terminal enters the node's namespace as `ip netns` does, with an ordinary shell when no command is
// given.
func (b *bed) Terminal(role testbed.Role, command ...string) ([]string, error) {
	if len(command) == 0 {
		command = []string{"/bin/sh"}
	}
	return append([]string{"ip", "netns", "exec", namespaceName(b.spec.Name, role)}, command...), nil
}
