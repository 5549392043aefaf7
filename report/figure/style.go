package figure

import (
	"fmt"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"gonum.org/v1/plot"

	"github.com/rampart-bench/rampart/report/document"
)

// A named colour becomes a variable of the page that holds the picture.
type named struct {
	name string
	rgb  color.NRGBA // in files, on white
	dark color.NRGBA // in a dark page
}

func (n named) hex() string { return fmt.Sprintf("#%02X%02X%02X", n.rgb.R, n.rgb.G, n.rgb.B) }

// The palette's parts that are not series.
const (
	inkColour = iota
	mutedColour
	gridColour
	goodColour
	badColour
	seriesColours // and on
)

// palette lists every colour that a page may change. No two are alike, as the page finds them by
// their value. Series follow Okabe and Ito (2008), in an order that begins with those of the highest
// contrast on white; the light ones are darkened a little to reach 3:1.
func palette() []named {
	rgb := func(v uint32) color.NRGBA { return color.NRGBA{uint8(v >> 16), uint8(v >> 8), uint8(v), 0xff} }
	return []named{
		{"ink", rgb(0x1b1b1f), rgb(0xe8e8ea)},
		{"muted", rgb(0x5f6368), rgb(0xa8adb5)},
		{"grid", rgb(0xe2e4e8), rgb(0x3a3d44)},
		{"good", rgb(0x0a6cae), rgb(0x6cb8ee)},
		{"bad", rgb(0xb84c00), rgb(0xf09a5a)},
		{"s0", rgb(0x0072b2), rgb(0x56a9e0)},
		{"s1", rgb(0xd55e00), rgb(0xf0813a)},
		{"s2", rgb(0x009e73), rgb(0x2cc99b)},
		{"s3", rgb(0xb8578f), rgb(0xdb94bf)},
		{"s4", rgb(0xb87d00), rgb(0xe6a724)},
		{"s5", rgb(0x3b93c9), rgb(0x8ccbf2)},
		{"s6", rgb(0x6d6a00), rgb(0xd6cf3e)},
		{"s7", rgb(0x4a4a52), rgb(0xc4c4cc)},
	}
}

// Variables are the palette as declarations of CSS custom properties.
func Variables(dark bool) string {
	var b strings.Builder
	for _, n := range palette() {
		if dark {
			n.rgb = n.dark
		}
		fmt.Fprintf(&b, "--%s:%s;", n.name, n.hex())
	}
	return b.String()
}

func colour(i int) color.NRGBA { return palette()[i].rgb }

var white = color.NRGBA{0xff, 0xff, 0xff, 0xff}

// onShade is the ink on a heat map's fields, which are light in every page.
var onShade = color.NRGBA{0x11, 0x11, 0x11, 0xff}

func seriesColour(i int) color.NRGBA {
	p := palette()[seriesColours:]
	return p[i%len(p)].rgb
}

func verdictColour(v document.Verdict) color.NRGBA {
	switch v {
	case document.Slower, document.Disagrees:
		return colour(badColour)
	case document.Faster, document.Agrees:
		return colour(goodColour)
	case document.Equivalent, document.EquivalentMinor:
		return colour(inkColour)
	}
	return colour(mutedColour)
}

// A pen holds the scale of letters and lines.
type pen struct{ scale float64 }

func (p pen) points(x float64) vg.Length { return vg.Length(x * p.scale) }

func (p pen) text() text.Style {
	return text.Style{
		Color:   colour(inkColour),
		Font:    font.Font{Typeface: "Liberation", Variant: "Sans", Size: p.points(10.5)},
		Handler: plot.DefaultTextHandler,
	}
}

// title is larger and not bold: vgpdf v0.17 registers every font as plain and then cannot find the
// bold one.
func (p pen) title() text.Style {
	s := p.text()
	s.Font.Size = p.points(12)
	return s
}

func (p pen) line(c color.Color, width float64) draw.LineStyle {
	return draw.LineStyle{Color: c, Width: p.points(width)}
}

// dash tells series apart in black and white.
func (p pen) dash(i int) []vg.Length {
	patterns := [][]float64{nil, {5, 2}, {1.5, 1.5}, {7, 2, 1.5, 2}}
	var out []vg.Length
	for _, x := range patterns[i%len(patterns)] {
		out = append(out, p.points(x))
	}
	return out
}

func (p pen) seriesLine(i int) draw.LineStyle {
	s := p.line(seriesColour(i), 1.4)
	s.Dashes = p.dash(i)
	return s
}

func (p pen) referenceLine(i int) draw.LineStyle {
	s := p.line(colour(mutedColour), 1.1)
	s.Dashes = p.dash(i + 2)
	return s
}

// marker draws the mark of series i.
func (p pen) marker(c draw.Canvas, i int, at vg.Point) {
	r := p.points(2.6)
	switch i % 8 {
	case 0:
		fill(c, seriesColour(i), polygon(at, r, 24, 0))
	case 1:
		fill(c, seriesColour(i), polygon(at, r*1.25, 4, math.Pi/4))
	case 2:
		fill(c, seriesColour(i), polygon(at, r*1.3, 3, math.Pi/2))
	case 3:
		fill(c, seriesColour(i), polygon(at, r*1.3, 4, 0))
	case 4:
		fill(c, seriesColour(i), polygon(at, r*1.3, 3, -math.Pi/2))
	case 5:
		c.StrokeLines(p.line(seriesColour(i), 1.3), closed(polygon(at, r, 16, 0)))
	case 6:
		c.StrokeLines(p.line(seriesColour(i), 1.3), closed(polygon(at, r*1.2, 4, math.Pi/4)))
	case 7:
		cross(c, p.line(seriesColour(i), 1.3), at, r)
	}
}

// verdict draws the mark of a verdict.
func (p pen) verdict(c draw.Canvas, v document.Verdict, at vg.Point, r vg.Length, clr color.Color) {
	line := draw.LineStyle{Color: clr, Width: r * 0.36}
	row := func(dy vg.Length, wave vg.Length) {
		c.StrokeLines(line, []vg.Point{
			{X: at.X - r, Y: at.Y + dy - wave}, {X: at.X - r/3, Y: at.Y + dy + wave},
			{X: at.X + r/3, Y: at.Y + dy - wave}, {X: at.X + r, Y: at.Y + dy + wave},
		})
	}
	switch v {
	case document.Slower:
		fill(c, clr, polygon(at, r*1.15, 3, math.Pi/2))
	case document.Faster:
		fill(c, clr, polygon(at, r*1.15, 3, -math.Pi/2))
	case document.Equivalent:
		row(r*0.4, 0)
		row(-r*0.4, 0)
	case document.EquivalentMinor:
		row(r*0.45, r*0.2)
		row(-r*0.45, r*0.2)
	case document.Inconclusive:
		c.StrokeLines(line, closed(polygon(at, r*0.85, 16, 0)))
	case document.Agrees:
		c.StrokeLines(line, []vg.Point{{X: at.X - r, Y: at.Y}, {X: at.X - r/4, Y: at.Y - r*0.8}, {X: at.X + r, Y: at.Y + r*0.9}})
	case document.Disagrees:
		cross(c, line, at, r*0.8)
	}
}

func cross(c draw.Canvas, line draw.LineStyle, at vg.Point, r vg.Length) {
	c.StrokeLine2(line, at.X-r, at.Y-r, at.X+r, at.Y+r)
	c.StrokeLine2(line, at.X-r, at.Y+r, at.X+r, at.Y-r)
}

// polygon has n corners on a circle, the first at the angle start.
func polygon(at vg.Point, r vg.Length, n int, start float64) []vg.Point {
	out := make([]vg.Point, n)
	for i := range out {
		sin, cos := math.Sincos(start + 2*math.Pi*float64(i)/float64(n))
		out[i] = vg.Point{X: at.X + r*vg.Length(cos), Y: at.Y + r*vg.Length(sin)}
	}
	return out
}

func closed(pts []vg.Point) []vg.Point { return append(pts, pts[0]) }

func fill(c draw.Canvas, clr color.Color, pts []vg.Point) { c.FillPolygon(clr, pts) }

func rectangle(x0, y0, x1, y1 vg.Length) []vg.Point {
	return []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}}
}

// drawSample draws a legend's entry in the middle of the canvas.
func drawSample(c draw.Canvas, s document.Style, p pen) {
	mid := c.Center()
	across := func(line draw.LineStyle) { c.StrokeLine2(line, c.Min.X, mid.Y, c.Max.X, mid.Y) }
	switch s.Kind {
	case document.Series:
		across(p.seriesLine(s.Index))
		p.marker(c, s.Index, mid)
	case document.Reference:
		across(p.referenceLine(s.Index))
	case document.Mark:
		v := document.Verdict(s.Index)
		p.verdict(c, v, mid, p.points(4), verdictColour(v))
	case document.Plain:
		p.plain(c, mid)
	case document.Band:
		across(p.floorLine())
	case document.Margin:
		fill(c, translucent(colour(mutedColour), 0.22), rectangle(c.Min.X, c.Min.Y+2, c.Max.X, c.Max.Y-2))
	}
}

// plain draws the point of an estimate that needs no verdict.
func (p pen) plain(c draw.Canvas, at vg.Point) {
	fill(c, colour(inkColour), polygon(at, p.points(1.7), 10, 0))
}

func (p pen) floorLine() draw.LineStyle {
	s := p.line(colour(mutedColour), 1)
	s.Dashes = p.dash(1)
	return s
}

func translucent(c color.NRGBA, alpha float64) color.NRGBA {
	c.A = uint8(math.Round(alpha * 255))
	return c
}

// latin replaces what the PDF's fonts cannot show (code page 1252) by words or a question mark, so
// that every rendering of a figure says the same.
func latin(s string) string {
	var b strings.Builder
	for _, r := range document.Clean(s, false) {
		switch {
		case r == '≥':
			b.WriteString(">=")
		case r == '≤':
			b.WriteString("<=")
		case r == '−':
			b.WriteByte('-')
		case r < 0x7f, r >= 0xa0 && r <= 0xff, strings.ContainsRune("–—…‘’“”€•", r):
			b.WriteRune(r)
		default:
			b.WriteByte('?')
		}
	}
	return b.String()
}

// fit shortens text to a width.
func fit(s string, style text.Style, width vg.Length) string {
	s = latin(s)
	if style.Width(s) <= width {
		return s
	}
	runes := []rune(s)
	for len(runes) > 1 && style.Width(string(runes)+"…") > width {
		runes = runes[:len(runes)-1]
	}
	return string(runes) + "…"
}
