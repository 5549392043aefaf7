package main

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// newLogger writes one plain line a record, `level: message key=value`, for people first.
func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(&lineHandler{w: w, level: level, mu: new(sync.Mutex)})
}

// lineHandler is slog's text handler without what a person at a terminal does not want to read: the
// time, and the level of ordinary lines.
type lineHandler struct {
	w     io.Writer
	level slog.Level
	mu    *sync.Mutex
	attrs []slog.Attr
	group string
}

func (h *lineHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

func (h *lineHandler) Handle(_ context.Context, r slog.Record) error {
	var line strings.Builder
	if r.Level != slog.LevelInfo {
		line.WriteString(strings.ToLower(r.Level.String()) + ": ")
	}
	line.WriteString(r.Message)
	write := func(a slog.Attr) bool {
		value := a.Value.Resolve().String()
		if strings.ContainsAny(value, " \t\n\"") && !strings.Contains(value, "\n") {
			value = `"` + strings.ReplaceAll(value, `"`, `'`) + `"`
		}
		line.WriteString(" " + h.group + a.Key + "=" + value)
		return true
	}
	for _, a := range h.attrs {
		write(a)
	}
	r.Attrs(write)
	line.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.w, line.String())
	return err
}

func (h *lineHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = append(append([]slog.Attr(nil), h.attrs...), attrs...)
	return &c
}

func (h *lineHandler) WithGroup(name string) slog.Handler {
	c := *h
	c.group += name + "."
	return &c
}
