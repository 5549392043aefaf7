package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/rampart-bench/rampart/experiments"
)

// A display shows how far the measurement is: a bar on a terminal, plain lines elsewhere.
type display interface {
	// show tells of one finished run.
	show(p experiments.Progress)
	// done ends the display.
	done()
}

func (c *cli) newDisplay(total, already int) display {
	switch {
	case c.quiet:
		return silent{}
	case c.onTerminal():
		return newBar(c, total, already)
	}
	return &lines{c: c, started: time.Now(), already: already}
}

type silent struct{}

func (silent) show(experiments.Progress) {}
func (silent) done()                     {}

// bar is a progress bar with an estimate of the time left.
type bar struct {
	bar     *progressbar.ProgressBar
	out     io.Writer
	started time.Time
	already int
}

func newBar(c *cli, total, already int) *bar {
	b := progressbar.NewOptions(total,
		progressbar.OptionSetWriter(c.stderr),
		progressbar.OptionSetWidth(24),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionFullWidth(),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "=", SaucerHead: ">", SaucerPadding: " ", BarStart: "[", BarEnd: "]"}),
		progressbar.OptionClearOnFinish(),
	)
	_ = b.Add(already)
	return &bar{b, c.stderr, time.Now(), already}
}

func (b *bar) show(p experiments.Progress) {
	t := p.Record.Treatment
	left := short(p.Left(time.Since(b.started), b.already)) + " left"
	room := b.room(p.Total)
	for _, text := range []string{fmt.Sprintf("%s  %s %d rules %d B", left, t.Firewall, t.Rules, t.FrameSize), left, ""} {
		if len(text) <= room {
			b.bar.Describe(text)
			break
		}
	}
	_ = b.bar.Set(p.Done)
}

// room is how many columns are left for words: a line that is wider than the terminal is not drawn over
// by the next one, and fills the screen.
func (b *bar) room(total int) int {
	width := 80
	if f, ok := b.out.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil {
			width = columns
		}
	}
	return width - len(fmt.Sprintf(" 100%% [=>] (%d/%d) ", total, total))
}

func (b *bar) done() { _ = b.bar.Clear() }

// lines prints a line every few seconds, and one for every run that is not ok.
type lines struct {
	c       *cli
	started time.Time
	already int
	last    time.Time
}

// lineEvery keeps a log of a study of hours readable.
const lineEvery = 10 * time.Second

func (l *lines) show(p experiments.Progress) {
	if p.Done < p.Total && time.Since(l.last) < lineEvery {
		return
	}
	l.last = time.Now()
	l.c.sayf("%d of %d runs, %s left", p.Done, p.Total, short(p.Left(time.Since(l.started), l.already)))
}

func (l *lines) done() {}

// short is a duration as people say it.
func short(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()+0.5))
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}
