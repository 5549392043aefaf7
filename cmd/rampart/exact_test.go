package main_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestExact runs the program with provider exact. Its scripts need QEMU, and the tools that build an
// image unless one is there; they need neither root nor KVM.
func TestExact(t *testing.T) {
	for _, program := range []string{"qemu-system-x86_64", "mmdebstrap"} {
		if _, err := exec.LookPath(program); err == nil {
			continue
		}
		if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
			t.Fatalf("%s is needed, and this run may not skip", program)
		}
		t.Skipf("%s is needed", program)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/exact",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			// The user's own store of images: a script has no home.
			for _, name := range []string{"HOME", "XDG_CACHE_HOME"} {
				env.Setenv(name, os.Getenv(name))
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": exitsWith,
			"spawn":  spawn,
			"signal": signalJob,
			"await":  await,
		},
	})
}
