// Package figure draws the figures of a document: each panel as a small SVG picture that stands in a
// page and takes the page's colours, and the whole figure as one SVG and one PDF file for elsewhere.
//
// Every series differs in colour, mark and dash, every verdict in shape; the colours are those of
// Okabe and Ito (2008), which most people with a colour vision deficiency can tell apart. The same
// figure gives the same bytes everywhere.
package figure

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"html"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"codeberg.org/go-pdf/fpdf"
	"golang.org/x/text/encoding/charmap"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgpdf"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/rampart-bench/rampart/report/document"
)

// Width of a panel in a page, in the units of its view box. A phone shows it at about its size, so
// its letters must be readable at that.
const pageWidth vg.Length = 320

// Inline draws one panel as an SVG element for an HTML page. Its colours are the page's variables
// (see [Variables]), so that the page decides what they are in the dark or on paper. id must be
// unique in the page.
func Inline(p document.Panel, id string) string {
	size := vg.Point{X: pageWidth, Y: height(p.Plot, 1)}
	canvas := vgsvg.NewWith(vgsvg.UseWH(size.X, size.Y))
	drawPanel(draw.NewCanvas(canvas, size.X, size.Y), p, pen{scale: 1})
	head := fmt.Sprintf(`<svg viewBox="0 0 %g %g" role="img" aria-labelledby="%s-t %s-d"><title id="%s-t">%s</title><desc id="%s-d">%s</desc>`,
		size.X.Points(), size.Y.Points(), id, id, id, escape(p.Title), id, escape(p.Alt))
	return head + inPage.Replace(body(canvas)) + "</svg>"
}

// Sample draws the style of a legend's entry as an SVG element.
func Sample(s document.Style) string {
	const w, h vg.Length = 30, 14
	canvas := vgsvg.NewWith(vgsvg.UseWH(w, h))
	drawSample(draw.NewCanvas(canvas, w, h), s, pen{scale: 1})
	return fmt.Sprintf(`<svg viewBox="0 0 %g %g" aria-hidden="true">`, w.Points(), h.Points()) + inPage.Replace(body(canvas)) + "</svg>"
}

// SVG draws the whole figure, panels side by side and the legend below, black on white.
func SVG(f *document.Figure) []byte {
	page := arrange(f)
	canvas := vgsvg.NewWith(vgsvg.UseWH(page.size.X, page.size.Y))
	page.draw(draw.NewCanvas(canvas, page.size.X, page.size.Y), f)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%gpt" height="%gpt" viewBox="0 0 %g %g" role="img"><title>%s</title><desc>%s</desc>`,
		page.size.X.Points(), page.size.Y.Points(), page.size.X.Points(), page.size.Y.Points(), escape(f.Title), escape(f.Alt))
	b.WriteString(standAlone.Replace(body(canvas)))
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// PDF draws the whole figure as a page of its size, fonts embedded.
func PDF(f *document.Figure) ([]byte, error) {
	sameBytes()
	page := arrange(f)
	canvas := vgpdf.New(page.size.X, page.size.Y)
	page.draw(draw.NewCanvas(codePage{canvas}, page.size.X, page.size.Y), f)
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("draw figure %s as PDF: %w", f.ID, err)
	}
	return b.Bytes(), nil
}

// sameBytes makes the PDF library write no time of day and keep its catalogues in order. The library
// offers that through its own defaults only, since vgpdf keeps the document to itself.
var sameBytes = sync.OnceFunc(func() {
	epoch := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	fpdf.SetDefaultCreationDate(epoch)
	fpdf.SetDefaultModificationDate(epoch)
	fpdf.SetDefaultCatalogSort(true)
})

// codePage hands text to vgpdf in the encoding that its fonts have: it wants Windows-1252 and does not
// convert, so that a micro sign would come out as two letters.
type codePage struct{ *vgpdf.Canvas }

func (c codePage) FillString(face font.Face, at vg.Point, s string) {
	encoded, err := charmap.Windows1252.NewEncoder().String(s)
	if err != nil {
		encoded = "?" // latin leaves nothing that the code page lacks
	}
	c.Canvas.FillString(face, at, encoded)
}

// body is what vgsvg drew, without its prologue and its outer element.
func body(canvas *vgsvg.Canvas) string {
	var b bytes.Buffer
	canvas.WriteTo(&b) // a bytes.Buffer never fails
	s := b.String()
	s = s[strings.Index(s, "<g "):]
	s = strings.TrimSuffix(strings.TrimSpace(s), "</svg>")
	return measured(strings.ReplaceAll(strings.ReplaceAll(s, "\n\t", " "), "\n", ""))
}

// textElement is a text as vgsvg writes it: attributes, the size among them, and content.
var textElement = regexp.MustCompile(`<text ([^>]*font-size:([0-9.]+)px[^>]*)>([^<]*)</text>`)

// measured fixes the width of each text to that which it was placed by. Where neither our typeface nor one of
// its widths is to be had, the substitute is squeezed instead of running into what stands beside it.
func measured(svg string) string {
	style := pen{scale: 1}.text()
	return textElement.ReplaceAllStringFunc(svg, func(element string) string {
		part := textElement.FindStringSubmatch(element)
		size, err := strconv.ParseFloat(part[2], 64)
		if err != nil || part[3] == "" {
			return element
		}
		style.Font.Size = vg.Points(size)
		return fmt.Sprintf(`<text textLength="%.4g" lengthAdjust="spacingAndGlyphs" %s>%s</text>`,
			style.Width(html.UnescapeString(part[3])).Points(), part[1], part[3])
	})
}

// escape makes text safe inside an XML element.
func escape(s string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(document.Clean(s, false))) // a strings.Builder never fails
	return b.String()
}

// plainText is how vgsvg begins the style of text.
const plainText = `style="font-family:Liberation Sans;font-variant:normal;font-weight:normal;font-style:normal;`

// inPage turns fixed colours into the page's variables and leaves the typeface to the page.
// standAlone names typefaces with the same widths for machines without ours.
var (
	inPage     = pageReplacer()
	standAlone = strings.NewReplacer("font-family:Liberation Sans;font-variant:normal", "font-family:'Liberation Sans',Arial,Helvetica,sans-serif")
)

func pageReplacer() *strings.Replacer {
	pairs := []string{plainText, `style="`}
	for _, c := range palette() {
		pairs = append(pairs, c.hex(), "var(--"+c.name+")")
	}
	return strings.NewReplacer(pairs...)
}

// layout is where the panels of a whole figure go.
type layout struct {
	size    vg.Point
	columns int
	panel   vg.Point
	legend  vg.Length // height
}

const (
	fileScale             = 0.8 // of letters and lines against those in a page
	fileWidth   vg.Length = 570
	legendLine  vg.Length = 15
	legendTitle vg.Length = 4
)

// arrange puts panels in rows of at most three.
func arrange(f *document.Figure) layout {
	l := layout{columns: min(3, max(1, len(f.Panels)))}
	l.panel.X = fileWidth / vg.Length(l.columns)
	if l.columns == 1 {
		l.panel.X = fileWidth / 2
	}
	for _, p := range f.Panels {
		l.panel.Y = max(l.panel.Y, height(p.Plot, fileScale))
	}
	rows := (len(f.Panels) + l.columns - 1) / l.columns
	l.size.X = l.panel.X * vg.Length(l.columns)
	l.legend = legendLine*vg.Length(len(legendRows(f.Legend, l.size.X))) + legendTitle
	l.size.Y = l.panel.Y*vg.Length(rows) + l.legend
	return l
}

func (l layout) draw(c draw.Canvas, f *document.Figure) {
	pen := pen{scale: fileScale}
	c.FillPolygon(white, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
	for i, p := range f.Panels {
		x := c.Min.X + l.panel.X*vg.Length(i%l.columns)
		y := c.Max.Y - l.panel.Y*vg.Length(i/l.columns)
		drawPanel(draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: x, Y: y - l.panel.Y}, Max: vg.Point{X: x + l.panel.X, Y: y},
		}}, p, pen)
	}
	drawLegend(c, f.Legend, l, pen)
}

const (
	sampleWidth vg.Length = 26
	entryGap    vg.Length = 12
)

// legendRows breaks a legend into rows that fit the width.
func legendRows(keys []document.Key, width vg.Length) [][]document.Key {
	var rows [][]document.Key
	var used vg.Length
	for _, k := range keys {
		w := entryWidth(k)
		if len(rows) == 0 || used+w > width {
			rows, used = append(rows, nil), 0
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], k)
		used += w
	}
	return rows
}

func entryWidth(k document.Key) vg.Length {
	return sampleWidth + pen{scale: fileScale}.text().Width(latin(k.Name)) + entryGap
}

func drawLegend(c draw.Canvas, keys []document.Key, l layout, pen pen) {
	text := pen.text()
	text.YAlign = draw.YCenter
	for i, row := range legendRows(keys, l.size.X) {
		x := c.Min.X + 4
		y := c.Min.Y + l.legend - legendLine*(vg.Length(i)+0.5)
		for _, k := range row {
			drawSample(draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{
				Min: vg.Point{X: x, Y: y - legendLine/2}, Max: vg.Point{X: x + sampleWidth - 4, Y: y + legendLine/2},
			}}, k.Style, pen)
			c.FillText(text, vg.Point{X: x + sampleWidth, Y: y}, latin(k.Name))
			x += entryWidth(k)
		}
	}
}
