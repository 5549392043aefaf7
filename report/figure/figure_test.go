package figure

import (
	"bytes"
	"compress/zlib"
	"image/color"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/report/document"
)

func luminance(c color.NRGBA) float64 {
	f := func(v uint8) float64 {
		x := float64(v) / 255
		if x <= 0.04045 {
			return x / 12.92
		}
		return math.Pow((x+0.055)/1.055, 2.4)
	}
	return 0.2126*f(c.R) + 0.7152*f(c.G) + 0.0722*f(c.B)
}

func contrast(a, b color.NRGBA) float64 {
	x, y := luminance(a), luminance(b)
	return (math.Max(x, y) + 0.05) / (math.Min(x, y) + 0.05)
}

// Letters on a heat map must be readable on every shade (WCAG 2.2, 1.4.3).
func TestLettersOnShades(t *testing.T) {
	for i := -100; i <= 100; i++ {
		if got := contrast(onShade, shade(float64(i), 100)); got < 7 {
			t.Errorf("shade %d: contrast %.2f", i, got)
		}
	}
}

// What is drawn must stand out from the card it is drawn on (WCAG 2.2, 1.4.11), in both schemes.
func TestColoursStandOut(t *testing.T) {
	darkCard := color.NRGBA{0x1e, 0x20, 0x24, 0xff}
	for _, c := range palette() {
		if c.name == "grid" {
			continue // decoration
		}
		want := 3.0
		if c.name == "ink" || c.name == "muted" || c.name == "good" || c.name == "bad" {
			want = 4.5 // also a colour of text
		}
		if got := contrast(c.rgb, white); got < want {
			t.Errorf("%s on white: contrast %.2f, want %.1f", c.name, got, want)
		}
		if got := contrast(c.dark, darkCard); got < want {
			t.Errorf("%s in the dark: contrast %.2f, want %.1f", c.name, got, want)
		}
	}
}

// The page finds a colour by its value, so no two may have the same.
func TestColoursDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, c := range palette() {
		if other, twice := seen[c.hex()]; twice {
			t.Errorf("%s and %s are the same colour", c.name, other)
		}
		seen[c.hex()] = c.name
	}
}

func example() *document.Figure {
	e := document.Estimate{Value: 20, Lo: 19, Hi: 21, Level: 0.95}
	return &document.Figure{ID: "x", Title: "Title", Alt: "Alt",
		Legend: []document.Key{{Name: "µ-firewall", Style: document.Style{Kind: document.Series}}},
		Panels: []document.Panel{{Title: "64-byte frames", Plot: document.Lines{
			X: document.Axis{Label: "rules", Levels: []float64{10, 100}}, Y: document.Axis{Label: "time, µs"},
			Series: []document.Line{{Name: "a", Points: []document.Point{{X: 10, Y: e}, {X: 100, Y: e}}}},
		}}}}
}

// vgpdf wants text in its code page: a micro sign is one byte there.
// Every text is as wide as it was measured, whatever typeface a reader has: Arial's "1" is 0.556 em.
func TestTextKeepsItsWidth(t *testing.T) {
	for name, svg := range map[string]string{"page": Inline(example().Panels[0], "x"), "file": string(SVG(example()))} {
		texts := strings.Count(svg, "<text ")
		if fixed := strings.Count(svg, `<text textLength="`); texts == 0 || fixed != texts {
			t.Errorf("%s: %d of %d texts have a fixed width", name, fixed, texts)
		}
	}
	got := measured(`<text x="1" style="font-size:10px;fill:red">1&amp;1</text>`)
	if want := `<text textLength="17.79" lengthAdjust="spacingAndGlyphs" x="1" style="font-size:10px;fill:red">1&amp;1</text>`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestMicroSignInPDF(t *testing.T) {
	pdf, err := PDF(example())
	if err != nil {
		t.Fatal(err)
	}
	text := inflated(t, pdf)
	if !strings.Contains(text, "time, \xb5s") || strings.Contains(text, "\xc2\xb5") {
		t.Error("the micro sign is not one byte of code page 1252")
	}
}

// inflated is the content of all compressed streams.
func inflated(t *testing.T, pdf []byte) string {
	t.Helper()
	var all strings.Builder
	for _, part := range bytes.Split(pdf, []byte("stream\n"))[1:] {
		r, err := zlib.NewReader(bytes.NewReader(part))
		if err != nil {
			continue
		}
		text, err := io.ReadAll(r)
		if err != nil && len(text) == 0 {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// Panels of nothing, of one point, of zero and of values without intervals must not panic: a study can
// fail in any way.
func TestDegeneratePanels(t *testing.T) {
	zero, bare := document.Estimate{}, document.Estimate{Value: 3}
	exact := document.Estimate{Value: 3, Lo: 3, Hi: 3, Level: 0.95}
	nan := document.Estimate{Value: math.NaN(), Lo: math.NaN(), Hi: math.NaN(), Level: 0.95}
	for _, e := range []document.Estimate{zero, bare, exact, nan, {Value: -1, Lo: -2, Hi: 1, Level: 0.95}, {Value: 1, Lo: 1e-9, Hi: 1e9, Level: 0.95}} {
		for _, p := range []document.Plot{
			document.Lines{}, document.Lines{X: document.Axis{Levels: []float64{10}},
				Series: []document.Line{{Points: []document.Point{{X: 10, Y: e}}}}, Levels: []document.Level{{Y: e}}},
			document.HeatMap{}, document.HeatMap{Columns: []string{"64"}, Rows: []string{"10"}, Cells: []document.HeatCell{{Text: "+1", Shade: e.Value}}},
			document.Dots{Middle: 1}, document.Dots{Middle: 1, Floor: 1, Margin: 0.03, Rows: []document.Dot{{Value: e}}},
			document.Bars{}, document.Bars{Rows: []document.Bar{{Label: "a", Value: e}}},
		} {
			f := &document.Figure{ID: "x", Panels: []document.Panel{{Title: "t", Plot: p}}}
			for _, bad := range []string{"NaN", "Inf"} {
				if strings.Contains(Inline(f.Panels[0], "x"), bad) {
					t.Errorf("%T of %+v: the picture holds %s", p, e, bad)
				}
			}
			if _, err := PDF(f); err != nil {
				t.Errorf("%T of %+v: %v", p, e, err)
			}
		}
	}
}
