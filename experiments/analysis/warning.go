package analysis

import (
	"errors"
	"fmt"

	"github.com/rampart-bench/rampart/experiments/stats"
)

// warnings collects what limits the findings, each text once.
type warnings struct {
	list  []Warning
	index map[string]int
}

// add returns the index of the warning, for the results that it concerns.
func (w *warnings) add(text, next string) int {
	if i, ok := w.index[text]; ok {
		return i
	}
	if w.index == nil {
		w.index = map[string]int{}
	}
	w.list = append(w.list, Warning{Text: text, Next: next})
	w.index[text] = len(w.list) - 1
	return len(w.list) - 1
}

// tooFew turns the refusal of an interval into a warning.
func (w *warnings) tooFew(err error) int {
	var few *stats.TooFewError
	if !errors.As(err, &few) {
		return w.add(err.Error(), "")
	}
	switch few.What {
	case bootsOfEach:
		return w.add(few.Error(), moreBoots(few.Need))
	case stats.Clusters:
		return w.add(few.Error(), fmt.Sprintf("set repetitions, and boots where there are several, to %d or more", few.Need))
	}
	return w.add(few.Error(), moreRuns(few.Need))
}

// moreRuns says how to get that many runs a cell.
func moreRuns(need int) string {
	return fmt.Sprintf("set repetitions = %d or more; if they are, see why runs do not count", need)
}

// bootsOfEach is what is counted where images are compared.
const bootsOfEach = "boots of each image"

// countedBy words the refusal of an interval for the unit that levels of the factor are compared by.
func countedBy(factor string, err error) error {
	var few *stats.TooFewError
	if factor != FactorImage || !errors.As(err, &few) {
		return err
	}
	return &stats.TooFewError{What: bootsOfEach, Have: few.Have, Need: few.Need, Level: few.Level}
}

// moreBoots says how to get that many boots of each image.
func moreBoots(need int) string {
	return fmt.Sprintf("set boots = %d or more, and repetitions to no less; if they are, see why runs do not count", need)
}
