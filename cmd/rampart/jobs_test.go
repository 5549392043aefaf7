package main_test

import (
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// jobs holds the background commands of all scripts.
var jobs = jobTable{all: map[*testscript.TestScript]map[string]*job{}}

type jobTable struct {
	mu  sync.Mutex
	all map[*testscript.TestScript]map[string]*job
}

func (t *jobTable) put(ts *testscript.TestScript, name string, j *job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[ts] == nil {
		t.all[ts] = map[string]*job{}
	}
	t.all[ts][name] = j
}

func (t *jobTable) get(ts *testscript.TestScript, name string) *job {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.all[ts][name]
	if j == nil {
		ts.Fatalf("no job %s was spawned", name)
	}
	return j
}
