package ssh

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// receive is what the node's shell runs to take a file from its standard input. Its arguments: the
// file's path, a temporary one beside it, the mode, the folder of both. After the content come the 64
// hexadecimal digits of its SHA-256, so that a stream which was cut short, by a lost connection too,
// looks to the node like what it is: it then removes what it has and leaves the old file alone. (A
// complaint that nobody reads any more must not end it before that, hence the trap for PIPE.)
const receive = `set -e
trap 'rm -f -- "$2"' EXIT
trap '' PIPE
umask 022
mkdir -p -- "$4"
umask 077
cat >"$2"
want=$(tail -c 64 -- "$2")
truncate -s -64 -- "$2"
got=$(sha256sum <"$2")
[ "${got%% *}" = "$want" ] || { echo "what arrived is not what was sent" >&2; exit 1; }
chmod -- "$3" "$2"
sync -- "$2"
mv -fT -- "$2" "$1"
sync -- "$4"
`

// Put writes a file on the node atomically: under a temporary name beside it, its hash compared with
// what was sent, with mode, synced, renamed. Folders are made. An error, the end of ctx
// or a lost connection leaves the target as it was; the node then removes the temporary file by itself.
func (c *Client) Put(ctx context.Context, name string, mode fs.FileMode, content io.Reader) error {
	target, err := c.target(name)
	if err != nil {
		return fmt.Errorf("put %q: %w", name, err)
	}
	folder := path.Dir(target)
	temporary := path.Join(folder, ".put-"+rand.Text())
	line, err := Quote([]string{"sh", "-c", receive, "sh", target, temporary, fmt.Sprintf("%04o", mode.Perm()), folder})
	if err != nil {
		return fmt.Errorf("put %q: %w", name, err)
	}
	// A context of its own, so that a reader that fails ends the session before the hash is sent.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := c.start(ctx, "sh", "exec "+line)
	if err != nil {
		return fmt.Errorf("put %s: %w", target, cause(ctx, err))
	}
	if err := send(s, content); err != nil {
		cancel(err)
		return fmt.Errorf("put %s: %w", target, err)
	}
	if err := s.Wait(); err != nil {
		return fmt.Errorf("put %s: %w", target, err)
	}
	return nil
}

// send writes content and then its hash. It returns the reader's error only: one in writing means
// that the other end has stopped, and how it ended says more.
func send(w io.WriteCloser, content io.Reader) error {
	hash := sha256.New()
	in := &readErr{r: io.TeeReader(content, hash)}
	_, writing := io.Copy(w, in)
	if in.err != nil {
		return fmt.Errorf("read content: %w", in.err)
	}
	if writing == nil {
		_, _ = io.WriteString(w, hex.EncodeToString(hash.Sum(nil)))
	}
	_ = w.Close()
	return nil
}

// readErr remembers what a reader failed with, which io.Copy does not tell from a writer's failure.
type readErr struct {
	r   io.Reader
	err error
}

func (r *readErr) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// target is the absolute path that name means.
func (c *Client) target(name string) (string, error) {
	if name == "" || strings.HasSuffix(name, "/") {
		return "", errors.New("this is not the name of a file")
	}
	if path.IsAbs(name) {
		return path.Clean(name), nil
	}
	target := path.Join(c.config.Scratch, name)
	if !strings.HasPrefix(target, path.Clean(c.config.Scratch)+"/") {
		return "", errors.New("a relative path must stay below the scratch folder")
	}
	return target, nil
}
