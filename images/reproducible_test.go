package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A workshop is where and as whom an image is built: what must not be seen in it.
type workshop struct {
	name  string
	user  uint32 // that builds
	umask string
	env   []string
}

// workshops differ in everything that a build could let in: user, umask, time zone, language, home, hash
// seeds, what is first on PATH. The folder and the time differ by themselves.
func workshops() []workshop {
	return []workshop{
		{"root", 0, "022", []string{"TZ=UTC", "LC_ALL=C", "HOME=/root", "PERL_HASH_SEED=1"}},
		{"root elsewhere", 0, "077", []string{"TZ=Asia/Kolkata", "LC_ALL=C.UTF-8", "HOME=/nonexistent", "PERL_HASH_SEED=2", "SOURCE_DATE_EPOCH=1", "LS_COLORS=x", "XDG_CONFIG_HOME=/nonexistent"}},
		{"another user", someUser, "022", []string{"TZ=America/Lima", "LC_ALL=C", "HOME=/", "PERL_HASH_SEED=3"}},
	}
}

// someUser is nobody on any machine; where programs ask, [strangers] tells them.
const someUser = 61987

// buildVariable makes the test binary build an image, in the folder that the variable names, and print it.
const buildVariable = "RAMPART_TEST_BUILD"

// TestBuildHelper is not a test: it is what a workshop runs.
func TestBuildHelper(t *testing.T) {
	dir := os.Getenv(buildVariable)
	if dir == "" {
		t.Skip("it is a part of other tests")
	}
	var spec Spec
	text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "spec.json"))
	if err := errors.Join(err, json.Unmarshal(text, &spec)); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	image, err := s.Build(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err = json.Marshal(image)
	fmt.Printf("\nbuilt: %s\n", text)
	if err != nil {
		t.Fatal(err)
	}
}

// buildIn builds spec in a workshop, in a process of its own and in a folder that every user can reach.
func buildIn(t *testing.T, w workshop, spec Spec) Image {
	t.Helper()
	dir, err := os.MkdirTemp("", "rampart "+strings.ReplaceAll(w.name, " ", "-")+" ") // spaces, too
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	program, store := filepath.Join(dir, "test"), filepath.Join(dir, "store")
	text, err := json.Marshal(spec)
	binary, err2 := os.ReadFile("/proc/self/exe")
	if err := errors.Join(err, err2,
		os.Chmod(dir, 0o755), os.WriteFile(program, binary, 0o755), os.Mkdir(store, 0o700), os.Chown(store, int(w.user), int(w.user)),
		os.WriteFile(filepath.Join(dir, "spec.json"), text, 0o644),
	); err != nil {
		t.Fatal(err)
	}
	run := `umask "$1"; shift; exec "$@"`
	argv := []string{w.umask, program, "-test.run=^TestBuildHelper$", "-test.count=1"}
	if w.user != 0 {
		run = strangers + run
		argv = append([]string{w.umask, "setpriv", fmt.Sprint("--reuid=", w.user), fmt.Sprint("--regid=", w.user), "--clear-groups"}, argv[1:]...)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "sh", "-ec", run, "sh"}, argv...)...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), w.env...), buildVariable+"="+store)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	_, found, ok := strings.Cut(string(out), "\nbuilt: ")
	if err != nil || !ok {
		t.Fatalf("%s: %v\n%s", w.name, err, out)
	}
	found, _, _ = strings.Cut(found, "\n")
	var image Image
	if err := json.Unmarshal([]byte(found), &image); err != nil {
		t.Fatal(err)
	}
	return image
}

// strangers makes the user known, with a range of subordinate ids, in a mount namespace that goes away: nothing on
// the machine changes.
var strangers = fmt.Sprintf(`
scratch=$(mktemp -d)
for file in passwd group subuid subgid; do
	case $file in
	passwd) line=stranger:x:%[1]d:%[1]d::/:/bin/sh ;;
	group) line=stranger:x:%[1]d: ;;
	*) line=stranger:3000000:65536 ;;
	esac
	{ cat /etc/$file; echo $line; } >$scratch/$file
	mount --bind $scratch/$file /etc/$file
done
rm -r $scratch
`, someUser)

// sameEverywhere builds spec in every workshop, each of which prepare may get ready.
func sameEverywhere(t *testing.T, spec Spec, prepare func()) {
	if os.Geteuid() != 0 {
		skip(t, "building as several users needs root")
	}
	for _, tool := range []string{"fakeroot", "setpriv", "unshare", "newuidmap"} {
		if _, err := lookPath(tool); err != nil {
			skip(t, tool+" is not installed: apt-get install fakeroot util-linux uidmap")
		}
	}
	var first Image
	for i, w := range workshops() {
		prepare()
		began := time.Now()
		image := buildIn(t, w, spec)
		t.Logf("%-14s %s in %.1f s", w.name, image.Digest, time.Since(began).Seconds())
		if i == 0 {
			first = image
			continue
		}
		if image.Digest != first.Digest || !slices.Equal(image.Files, first.Files) {
			t.Errorf("%s built another image:\n%v\n%v", w.name, image.Files, first.Files)
		}
	}
}

// TestSameContentSameBytes holds the part of a build that follows the bootstrap to the byte.
func TestSameContentSameBytes(t *testing.T) {
	spec := Spec{Mirror: newArchive(t).url}
	sameEverywhere(t, spec, func() {
		time.Sleep(1100 * time.Millisecond) // file times have seconds
		standIn(t, copyArchive)             // the same root file system, made later
	})
}

// TestReproducible builds the real image, with our modules, once in every workshop from the packages that the first
// one chose, which takes a few minutes.
func TestReproducible(t *testing.T) {
	if os.Getenv("RAMPART_TEST_SLOW") != "1" {
		t.Skip("set RAMPART_TEST_SLOW=1 to build an image three times")
	}
	sameEverywhere(t, Spec{Name: "test", Modules: Modules()}, func() {})
}
