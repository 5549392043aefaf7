package libvirt

import (
	"log/slog"
	"testing"
)

// testLog sends what the provider says to the test's output.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
