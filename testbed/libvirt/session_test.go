package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/testbedtest"
)

// sessionImage is where the test that runs as nobody finds the image, as JSON.
const sessionImage = "RAMPART_TEST_SESSION_IMAGE"

// The suite without any privilege. The test begins as root and goes on as nobody, in a process of its own
// with a home of its own.
func TestSessionConformance(t *testing.T) {
	long(t)
	if text := os.Getenv(sessionImage); text != "" {
		var image Image
		if err := json.Unmarshal([]byte(text), &image); err != nil {
			t.Fatal(err)
		}
		sessionConformance(t, image)
		return
	}
	if os.Geteuid() != 0 {
		skip(t, "to become somebody without privileges needs root")
	}
	if _, err := findProgram(sessionDaemons...); err != nil {
		skip(t, err.Error())
	}
	image, err := testImage()
	if err != nil {
		skip(t, err.Error())
	}
	text, err := json.Marshal(image)
	if err != nil {
		t.Fatal(err)
	}
	asNobody(t, sessionImage+"="+string(text))
}

// asNobody runs this very test as nobody.
func asNobody(t *testing.T, variable string) {
	nobody, err := user.Lookup("nobody")
	if err != nil {
		skip(t, err.Error())
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	home, err := os.MkdirTemp("", "rn") // libvirt puts sockets far below: the name is short
	if err != nil {
		t.Fatal(err)
	}
	run, program := filepath.Join(home, "run"), filepath.Join(home, "test")
	t.Cleanup(func() {
		stopDaemons(t, filepath.Join(run, "libvirt"))
		os.RemoveAll(home)
	})
	if out, err := exec.Command("cp", os.Args[0], program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, err := range []error{os.Mkdir(run, 0o700), os.Chown(run, uid, gid), os.Chown(home, uid, gid)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "-test.v", "-test.run", "^"+t.Name()+"$")
	cmd.Dir = home
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + home, "XDG_RUNTIME_DIR=" + run, "RAMPART_TEST_LONG=1", "RAMPART_TEST_NO_SKIP=1", variable}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}

// stopDaemons ends the daemons that listen in that folder; by themselves they would after two minutes.
func stopDaemons(t *testing.T, folder string) {
	files, _ := filepath.Glob(filepath.Join(folder, "*.pid"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		} else {
			t.Errorf("%s holds %q", file, text)
		}
	}
}

func sessionConformance(t *testing.T, image Image) {
	l := &lab{t, Options{URI: SessionURI, Image: image, Accelerator: TCG, Log: testLog(t)}}
	testbedtest.Run(t, func() testbed.Provider { return l.provider() }, testbedtest.Options{
		Prefix:        "own",
		Leftovers:     l.leftovers,
		Adjust:        smallest,
		Interruptions: []float64{0, 0.1, 0.6},
	})
}

// A daemon that is there but broken is told of with its own words, at once.
func TestSessionThatDoesNotStart(t *testing.T) {
	bin := t.TempDir()
	daemon := "#!/bin/sh\necho 'first' >&2\necho 'no room for me' >&2\nexit 7\n"
	if err := os.WriteFile(filepath.Join(bin, "virtqemud"), []byte(daemon), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	begin := time.Now()
	err := startSession(t.Context(), silent)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "exit status 7; it said: no room for me") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("finding out took %v", took)
	}
}

// silent is a daemon that cannot be reached.
func silent(context.Context) error { return fs.ErrNotExist }

// One that never listens is given up.
func TestSessionThatDoesNotListen(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "virtqemud"), []byte("#!/bin/sh\nexec sleep 5\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := startSession(ctx, silent)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "virtqemud for this user") {
		t.Errorf("got %v", err)
	}
}

// Links and management of a machine that libvirt makes no networks for.
func TestSessionDomainXML(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	s := exampleState()
	p := newProvider(t, Options{URI: SessionURI, StateDir: "/state"})
	m, err := p.nodeMachine(s, testbed.Firewall, "/pool/overlay", "/pool/seed")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := m.xml().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "firewall-session.xml", doc+"\n")
}

// A folder whose name leaves no room for a socket is refused before anything is made.
func TestSocketPathTooLong(t *testing.T) {
	p := newProvider(t, Options{URI: SessionURI, StateDir: "/" + strings.Repeat("x", 100)})
	s := exampleState()
	if err := p.endpoint.wiring.prepare(t.Context(), p, nil, &s); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "has room for 107 bytes") {
		t.Errorf("got %v", err)
	}
}
