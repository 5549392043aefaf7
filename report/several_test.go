package report

import (
	"strings"
	"testing"
)

// threeClocks is one synthetic study under three clocks; the last has a claim that nobody else makes.
func threeClocks() []Folder {
	var out []Folder
	for _, clock := range []string{"host", "tcg", "virtual"} {
		s := small()
		s.clock = clock
		out = append(out, Folder{Name: clock + " study", Input: s.input()})
	}
	last := &out[2].Findings
	last.Claims = append(last.Claims[:0:0], last.Claims...)
	last.Claims[0].Verdict = "disagrees"
	last.Claims[1].Claim.Name = "own"
	return out
}

func TestSeveralStandSideBySide(t *testing.T) {
	files, err := filesOfSeveral(threeClocks(), Spec{Title: "Three clocks"})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, f := range files {
		have[f.path] = string(f.data)
	}
	page := have["index.html"]
	for _, want := range []string{"host study", "tcg study", "virtual study", "verdicts differ", "Instructions are not time", "Nothing is pooled"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	// J1, J3 and J4 by three studies, J2 by two, and one by the last alone.
	if got := strings.Count(have["tables/claims.csv"], "\n"); got != 1+3*3+2+1 {
		t.Errorf("the table of claims has %d lines", got)
	}
	for _, link := range links(page) {
		id, inside := strings.CutPrefix(link, "#")
		if _, written := have[link]; !written && !strings.HasPrefix(link, "data:") && !(inside && strings.Contains(page, `id="`+id+`"`)) {
			t.Errorf("the page points to %q, which is not there", link)
		}
	}
}

func TestSeveralNeedsTwoNames(t *testing.T) {
	folders := threeClocks()[:1]
	if _, err := RenderSeveral(t.TempDir(), folders, Spec{}); err == nil {
		t.Error("one folder was accepted")
	}
	if _, err := RenderSeveral(t.TempDir(), append(folders, folders...), Spec{}); err == nil {
		t.Error("one name for two folders was accepted")
	}
}
