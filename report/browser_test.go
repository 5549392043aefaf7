package report

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// cannot skips a test with its reason, or fails it where every test has to run.
func cannot(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// browse starts a browser of its own, with nothing in it that talks to the network by itself.
func browse(t *testing.T) context.Context {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil && path == "" {
			path = p
		}
	}
	if path == "" {
		cannot(t, "there is no Chromium: apt-get install chromium")
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.NoFirstRun, chromedp.DisableGPU, chromedp.Headless,
		chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(60 * time.Second),
	}
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "disable-dev-shm-usage"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	// The browser lives as long as the context that is first used with it.
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatalf("start browser: %v", err)
	}
	return ctx
}

// written renders the page into a folder of its own.
func written(t *testing.T, in Input, title string) (url string) {
	t.Helper()
	dir := t.TempDir()
	if _, err := Render(dir, in, Spec{Title: title, Formats: []string{HTML}}); err != nil {
		t.Fatal(err)
	}
	return "file://" + filepath.Join(dir, "index.html")
}

// The largest page must fit and stay quiet; the most unpleasant one, which has every kind of block in
// it, goes through all checks. They share a browser, since starting one is what takes time.
func TestPageInBrowser(t *testing.T) {
	ctx := browse(t)
	t.Run("full", func(t *testing.T) {
		quiet(t, ctx, written(t, full(), ""))
		t.Run("phone", func(t *testing.T) { fitsPhone(t, ctx) })
		t.Run("dark", func(t *testing.T) { legible(t, ctx, "dark") })
		t.Run("print", func(t *testing.T) { printsOpen(t, ctx) })
	})
	t.Run("hostile", func(t *testing.T) {
		quiet(t, ctx, written(t, hostileInput(), hostile))
		t.Run("phone", func(t *testing.T) { fitsPhone(t, ctx) })
		t.Run("light", func(t *testing.T) { legible(t, ctx, "light") })
		t.Run("dark", func(t *testing.T) { legible(t, ctx, "dark") })
		t.Run("axe", func(t *testing.T) { accessible(t, ctx) })
		t.Run("print", func(t *testing.T) { printable(t, ctx) })
	})
}

// see sets the size of the window and the colour scheme.
func see(t *testing.T, ctx context.Context, width int64, scheme string) {
	t.Helper()
	_, err := chromedp.Call(ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: 900, DeviceScaleFactor: 1, Mobile: width < 500,
	})
	if err == nil {
		_, err = chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// evaluate returns the value of an expression in the page, or of its promise.
func evaluate[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// quiet loads the page and reports every request but that for itself, and all that the console says.
func quiet(t *testing.T, parent context.Context, url string) {
	t.Helper()
	ctx, stop := context.WithCancel(parent)
	defer stop()
	var mu sync.Mutex
	var heard []string
	loaded := false
	err := chromedp.Listen(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			loaded = loaded || e.Request.URL == url
			if e.Request.URL != url && !strings.HasPrefix(e.Request.URL, "data:") {
				heard = append(heard, "request for "+e.Request.URL)
			}
		case *runtime.EventConsoleAPICalled:
			heard = append(heard, fmt.Sprintf("console: %v", e.Type))
		case *runtime.EventExceptionThrown:
			heard = append(heard, "exception: "+e.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			heard = append(heard, "log: "+e.Entry.Text)
		}
	})
	if err != nil {
		t.Fatalf("listen to the page: %v", err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	see(t, ctx, 1280, "light")
	if err := chromedp.Do(ctx, chromedp.Navigate(url), chromedp.Sleep(300*time.Millisecond)); err != nil {
		t.Fatalf("load page: %v", err)
	}
	if evaluate[string](t, ctx, `document.title`) == "" {
		t.Error("the page has no title")
	}
	mu.Lock()
	defer mu.Unlock()
	if !loaded {
		t.Error("no request for the page itself was seen: the test is deaf")
	}
	for _, h := range heard {
		t.Error(h)
	}
}

// unfold opens everything that is folded away.
const unfold = `document.querySelectorAll("details").forEach(d => d.open = true), true`

// fold closes it again.
const fold = `document.querySelectorAll("details").forEach(d => d.open = false), true`

func fitsPhone(t *testing.T, ctx context.Context) {
	evaluate[bool](t, ctx, unfold)
	for _, width := range []int64{360, 320} {
		see(t, ctx, width, "light")
		if got := evaluate[int64](t, ctx, `document.documentElement.scrollWidth`); got > width {
			wide := evaluate[[]string](t, ctx, fmt.Sprintf(`[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > %d + 1 && !e.closest(".scroll, pre, svg, .skip, .vh")).slice(0, 5).map(e => e.outerHTML.slice(0, 120))`, width))
			t.Errorf("the page is %d wide on a screen of %d: %q", got, width, wide)
		}
	}
	see(t, ctx, 360, "light")
	smallest := evaluate[float64](t, ctx, `Math.min(...[...document.querySelectorAll(".panel svg text")].map(e => parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getBoundingClientRect().width / e.ownerSVGElement.viewBox.baseVal.width))`)
	if smallest < 8.5 {
		t.Errorf("the smallest letters in figures have %.1f pixels on a phone", smallest)
	}
}

// contrasts finds text whose contrast with what is behind it is below 4.5:1 (WCAG 2.2, 1.4.3), as
// computed style has it. Letters on heat maps have a background of their own, which a test of package
// figure looks at.
const contrasts = `(() => {
  const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m };
  const lum = c => { const f = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 }; return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]) };
  const behind = e => { for (; e; e = e.parentElement) { const b = parse(getComputedStyle(e).backgroundColor); if (b[3] > 0.99) return b } return [255, 255, 255, 1] };
  const bad = new Map(); let seen = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const n = walk.currentNode, e = n.parentElement;
    if (!n.data.trim() || e.closest("title, desc, style")) continue;
    const s = getComputedStyle(e), c = parse(e.namespaceURI.endsWith("svg") ? s.fill : s.color);
    if (e.namespaceURI.endsWith("svg") && c.slice(0, 3).join() === "17,17,17") continue;
    const a = lum(c), b = lum(behind(e)), r = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    seen++;
    if (r < 4.5) bad.set(e.tagName + "." + e.getAttribute("class") + " " + c, r.toFixed(2) + " " + n.data.trim().slice(0, 40));
  }
  return JSON.stringify({seen, bad: [...bad]});
})()`

func legible(t *testing.T, ctx context.Context, scheme string) {
	see(t, ctx, 1280, scheme)
	evaluate[bool](t, ctx, unfold)
	text := evaluate[string](t, ctx, contrasts)
	background := evaluate[string](t, ctx, `getComputedStyle(document.body).backgroundColor`)
	var result struct {
		Seen int
		Bad  [][2]string
	}
	if err := json.Unmarshal([]byte(text), &result); err != nil {
		t.Fatal(err)
	}
	if result.Seen < 100 {
		t.Errorf("only %d pieces of text were seen", result.Seen)
	}
	for _, b := range result.Bad {
		t.Errorf("%s: contrast %s", b[0], b[1])
	}
	var r, g, b int
	fmt.Sscanf(background, "rgb(%d, %d, %d)", &r, &g, &b)
	if dark := r+g+b < 3*128; dark != (scheme == "dark") {
		t.Errorf("background %s in the %s scheme", background, scheme)
	}
}

// accessible runs axe-core over the page. RAMPART_AXE names its file axe.min.js, which is not part of
// this repository (MPL-2.0): npm install --prefix DIR axe-core puts it into DIR/node_modules/axe-core.
func accessible(t *testing.T, ctx context.Context) {
	path := os.Getenv("RAMPART_AXE")
	if path == "" {
		cannot(t, "RAMPART_AXE does not name axe.min.js: npm install --prefix DIR axe-core, then set it")
	}
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	see(t, ctx, 1280, "light")
	evaluate[int](t, ctx, string(source)+"\n;1")
	text := evaluate[string](t, ctx, `axe.run(document, {resultTypes: ["violations"]}).then(r => JSON.stringify({rules: r.passes.length, violations: r.violations.map(v => [v.id, v.impact, v.help, v.nodes.length, v.nodes[0].html.slice(0, 200)].join(" | "))}))`)
	var result struct {
		Rules      int
		Violations []string
	}
	if err := json.Unmarshal([]byte(text), &result); err != nil {
		t.Fatal(err)
	}
	if result.Rules < 10 {
		t.Errorf("axe-core applied only %d rules", result.Rules)
	}
	for _, v := range result.Violations {
		t.Error(v)
	}
}

func printable(t *testing.T, ctx context.Context) {
	pdf, err := chromedp.Run(ctx, chromedp.PrintToPDF(chromedp.PDFPaper(chromedp.PaperA4), chromedp.PDFPrintBackground()))
	if err != nil {
		t.Fatalf("print to PDF: %v", err)
	}
	pages := len(regexp.MustCompile(`/Type\s*/Page\b`).FindAll(pdf, -1))
	if !bytes.HasPrefix(pdf, []byte("%PDF-")) || pages < 2 {
		t.Errorf("%d bytes of PDF with %d pages", len(pdf), pages)
	}
}

// printsOpen wants on paper what is folded away on a screen: who holds a sheet cannot open anything. Chromium
// writes the elements of a page into the PDF as a tree, with a TR for every row of a table.
func printsOpen(t *testing.T, ctx context.Context) {
	evaluate[bool](t, ctx, fold)
	rows := evaluate[int](t, ctx, `document.querySelectorAll("tr").length`)
	hidden := evaluate[int](t, ctx, `document.querySelectorAll("details:not([open]) tr").length`)
	pdf, err := chromedp.Run(ctx, chromedp.PrintToPDF(chromedp.PDFPaper(chromedp.PaperA4), chromedp.PDFOutlineAndTagged()))
	if err != nil {
		t.Fatalf("print to PDF: %v", err)
	}
	printed := len(regexp.MustCompile(`/S\s*/TR\b`).FindAll(pdf, -1))
	if hidden == 0 || printed != rows {
		t.Errorf("%d rows of tables on paper, want %d, %d of them folded away on a screen", printed, rows, hidden)
	}
}
