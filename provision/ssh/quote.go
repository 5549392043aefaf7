package ssh

import (
	"errors"
	"fmt"
	"strings"
)

// errNUL is what Quote says of an argument that no Unix command line can carry.
var errNUL = errors.New("argument contains a NUL byte")

// Quote joins argv into one line that a POSIX shell splits into exactly argv again: sshd gives the
// command to the user's login shell, whatever the client does (RFC 4254 §6.5 leaves it open, sshd
// always does). Within single quotes every byte but the quote itself stands for itself.
func Quote(argv []string) (string, error) {
	var b strings.Builder
	for i, arg := range argv {
		if strings.ContainsRune(arg, 0) {
			return "", fmt.Errorf("quote argument %d: %w", i, errNUL)
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteByte('\'')
		b.WriteString(strings.ReplaceAll(arg, "'", `'\''`))
		b.WriteByte('\'')
	}
	return b.String(), nil
}
