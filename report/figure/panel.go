package figure

import (
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/rampart-bench/rampart/report/document"
)

// height of a panel at a scale.
func height(p document.Plot, scale float64) vg.Length {
	h := 230.0
	switch p := p.(type) {
	case document.HeatMap:
		h = 66 + 25*float64(len(p.Rows))
	case document.Dots:
		if p.Compact {
			h = min(max(90+2.2*float64(len(p.Rows)), 130), 260)
		} else {
			h = 66 + 20*float64(len(p.Rows))
		}
	case document.Bars:
		h = 62 + 20*float64(len(p.Rows))
	}
	return vg.Length(h * scale)
}

// painter adapts a function to plot.Plotter.
type painter func(c draw.Canvas, p *plot.Plot)

func (f painter) Plot(c draw.Canvas, p *plot.Plot) { f(c, p) }

// drawPanel draws one set of axes with its title into a part of a canvas.
func drawPanel(c draw.Canvas, p document.Panel, pen pen) {
	c = draw.Crop(c, pen.points(3), -pen.points(8), pen.points(3), -pen.points(3))
	title := pen.title()
	title.YAlign = draw.YTop
	c.FillText(title, vg.Point{X: c.Min.X, Y: c.Max.Y}, fit(p.Title, title, c.Max.X-c.Min.X))
	c.Max.Y -= pen.points(18)

	pl := plot.New()
	pl.BackgroundColor = nil
	for _, a := range []*plot.Axis{&pl.X, &pl.Y} {
		a.LineStyle = pen.line(colour(mutedColour), 0.7)
		a.Tick.LineStyle = pen.line(colour(mutedColour), 0.7)
		a.Tick.Length = pen.points(4)
		a.Padding = 0
		label, tick := pen.text(), pen.text()
		label.Color = colour(mutedColour)
		label.XAlign, label.YAlign = draw.XCenter, draw.YBottom
		tick.XAlign, tick.YAlign = a.Tick.Label.XAlign, a.Tick.Label.YAlign
		a.Label.TextStyle, a.Tick.Label = label, tick
		a.Label.Padding = pen.points(2)
	}
	switch d := p.Plot.(type) {
	case document.Lines:
		lines(pl, d, pen)
	case document.HeatMap:
		heatMap(pl, d, pen)
	case document.Dots:
		dots(pl, d, pen, c)
	case document.Bars:
		bars(pl, d, pen, c)
	}
	pl.Draw(c)
}

// logarithmic makes an axis logarithmic over a range of positive numbers.
func logarithmic(a *plot.Axis, lo, hi float64) {
	a.Scale, a.Min, a.Max = plot.LogScale{}, lo, hi
}

func lines(pl *plot.Plot, d document.Lines, pen pen) {
	pl.X.Label.Text = latin(d.X.Label)
	pl.Y.Label.Text = fit(d.Y.Label, pl.Y.Label.TextStyle, pen.points(150))
	xlo, xhi := extent(d.X.Levels)
	logarithmic(&pl.X, xlo/1.15, xhi*1.15)
	pl.X.Tick.Marker = plot.ConstantTicks(levelTicks(d.X.Levels))

	ylo, yhi := d.Y.Lo, d.Y.Hi
	if yhi <= ylo {
		ylo, yhi = linesExtent(d)
	}
	room := math.Pow(yhi/ylo, 0.06) * 1.01
	logarithmic(&pl.Y, ylo/room, yhi*room)
	pl.Y.Tick.Marker = plot.ConstantTicks(logTicks(pl.Y.Min, pl.Y.Max))
	pl.Add(grid(pen))

	for _, l := range d.Levels {
		if positive(l.Y) {
			pl.Add(level(l, pen))
		}
	}
	for _, s := range d.Series {
		pl.Add(band(s), series(s, pen))
	}
}

func positive(e document.Estimate) bool { return e.Value > 0 && (e.Level == 0 || e.Lo > 0) }

func finite(e document.Estimate) bool {
	sum := e.Value
	if e.Level > 0 {
		sum += e.Lo + e.Hi
	}
	return !math.IsNaN(sum) && !math.IsInf(sum, 0)
}

// linesExtent is the range of all that is drawn.
func linesExtent(d document.Lines) (lo, hi float64) {
	var all []float64
	add := func(e document.Estimate) {
		if !positive(e) {
			return
		}
		all = append(all, e.Value)
		if e.Level > 0 {
			all = append(all, e.Lo, e.Hi)
		}
	}
	for _, s := range d.Series {
		for _, p := range s.Points {
			add(p.Y)
		}
	}
	for _, l := range d.Levels {
		add(l.Y)
	}
	return extent(all)
}

// extent is the range of positive numbers; of none, one decade.
func extent(xs []float64) (lo, hi float64) {
	lo, hi = math.Inf(1), 0
	for _, x := range xs {
		if x > 0 && !math.IsInf(x, 0) {
			lo, hi = min(lo, x), max(hi, x)
		}
	}
	if hi == 0 {
		return 1, 10
	}
	return lo, hi
}

func grid(pen pen) painter {
	return func(c draw.Canvas, p *plot.Plot) {
		_, y := p.Transforms(&c)
		for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
			if !t.IsMinor() {
				c.StrokeLine2(pen.line(colour(gridColour), 0.7), c.Min.X, y(t.Value), c.Max.X, y(t.Value))
			}
		}
	}
}

func gridX(pen pen) painter {
	return func(c draw.Canvas, p *plot.Plot) {
		x, _ := p.Transforms(&c)
		for _, t := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
			if !t.IsMinor() {
				c.StrokeLine2(pen.line(colour(gridColour), 0.7), x(t.Value), c.Min.Y, x(t.Value), c.Max.Y)
			}
		}
	}
}

// band shades the intervals of a series. Points without an interval break it.
func band(s document.Line) painter {
	return func(c draw.Canvas, p *plot.Plot) {
		x, y := p.Transforms(&c)
		var upper, lower []vg.Point
		flush := func() {
			if len(upper) > 1 {
				for i := len(lower) - 1; i >= 0; i-- {
					upper = append(upper, lower[i])
				}
				fill(c, translucent(seriesColour(s.Style.Index), 0.2), upper)
			}
			upper, lower = nil, nil
		}
		for _, pt := range s.Points {
			if pt.Y.Level == 0 || !positive(pt.Y) {
				flush()
				continue
			}
			upper = append(upper, vg.Point{X: x(pt.X), Y: y(pt.Y.Hi)})
			lower = append(lower, vg.Point{X: x(pt.X), Y: y(pt.Y.Lo)})
		}
		flush()
	}
}

func series(s document.Line, pen pen) painter {
	return func(c draw.Canvas, p *plot.Plot) {
		x, y := p.Transforms(&c)
		var pts []vg.Point
		for _, pt := range s.Points {
			if positive(pt.Y) {
				pts = append(pts, vg.Point{X: x(pt.X), Y: y(pt.Y.Value)})
			}
		}
		if len(pts) > 1 {
			c.StrokeLines(pen.seriesLine(s.Style.Index), pts)
		}
		for _, pt := range pts {
			pen.marker(c, s.Style.Index, pt)
		}
	}
}

func level(l document.Level, pen pen) painter {
	return func(c draw.Canvas, p *plot.Plot) {
		_, y := p.Transforms(&c)
		if l.Y.Level > 0 {
			fill(c, translucent(colour(mutedColour), 0.15), rectangle(c.Min.X, y(l.Y.Lo), c.Max.X, y(l.Y.Hi)))
		}
		c.StrokeLine2(pen.referenceLine(l.Style.Index), c.Min.X, y(l.Y.Value), c.Max.X, y(l.Y.Value))
	}
}

func heatMap(pl *plot.Plot, d document.HeatMap, pen pen) {
	pl.X.Label.Text, pl.Y.Label.Text = latin(d.X), latin(d.Y)
	nominal(&pl.X, d.Columns, false, pen)
	nominal(&pl.Y, d.Rows, true, pen)
	pl.Add(painter(func(c draw.Canvas, p *plot.Plot) {
		x, y := p.Transforms(&c)
		label := pen.text()
		label.Color, label.XAlign, label.YAlign = onShade, draw.XCenter, draw.YCenter
		label.Font.Size = pen.points(9)
		for i, cell := range d.Cells {
			row, col := float64(i/len(d.Columns)), float64(i%len(d.Columns))
			if cell.Text == "" {
				continue
			}
			fill(c, shade(cell.Shade, d.Limit), rectangle(x(col-0.48), y(row-0.47), x(col+0.48), y(row+0.47)))
			pen.verdict(c, cell.Verdict, vg.Point{X: x(col), Y: y(row - 0.19)}, pen.points(3.4), onShade)
			c.FillText(label, vg.Point{X: x(col), Y: y(row + 0.22)}, latin(cell.Text))
		}
	}))
}

// nominal puts names at the whole numbers of an axis, from the top down where it is inverted.
func nominal(a *plot.Axis, names []string, inverted bool, pen pen) {
	ticks := make([]plot.Tick, len(names))
	for i, n := range names {
		ticks[i] = plot.Tick{Value: float64(i), Label: latin(n)}
	}
	a.Tick.Marker = plot.ConstantTicks(ticks)
	a.Tick.Length, a.LineStyle.Width, a.Tick.LineStyle.Width = 0, 0, 0
	a.Min, a.Max = -0.5, float64(len(names))-0.5
	a.Padding = pen.points(3)
	if inverted {
		a.Scale = plot.InvertedScale{Normalizer: plot.LinearScale{}}
	}
}

// shade goes from blue (better) through white to orange (worse); every step bears dark letters.
func shade(x, limit float64) color.NRGBA {
	if limit <= 0 {
		limit = 1
	}
	t := math.Max(-1, math.Min(1, x/limit))
	end := color.NRGBA{0xf2, 0x8e, 0x2c, 0xff}
	if t < 0 {
		end = color.NRGBA{0x62, 0xa8, 0xe0, 0xff}
		t = -t
	}
	mid := color.NRGBA{0xf6, 0xf6, 0xf6, 0xff}
	mix := func(a, b uint8) uint8 { return uint8(math.Round(float64(a) + t*(float64(b)-float64(a)))) }
	return color.NRGBA{mix(mid.R, end.R), mix(mid.G, end.G), mix(mid.B, end.B), 0xff}
}

func dots(pl *plot.Plot, d document.Dots, pen pen, c draw.Canvas) {
	names := make([]string, len(d.Rows))
	style := pl.Y.Tick.Label
	for i, r := range d.Rows {
		names[i] = fit(r.Label, style, (c.Max.X-c.Min.X)*0.4)
	}
	nominal(&pl.Y, names, true, pen)
	if d.Compact {
		pl.Y.Tick.Marker = plot.ConstantTicks(nil)
	}
	pl.X.Label.Text = latin(d.X.Label)
	lo, hi := d.X.Lo, d.X.Hi
	if hi <= lo {
		lo, hi = dotsExtent(d)
	}
	room := math.Pow(hi/lo, 0.05)
	logarithmic(&pl.X, lo/room, hi*room)
	pl.X.Tick.Marker = plot.ConstantTicks(logTicks(pl.X.Min, pl.X.Max))
	pl.Add(gridX(pen), painter(func(c draw.Canvas, p *plot.Plot) {
		x, y := p.Transforms(&c)
		if d.Margin > 0 {
			left, right := max(1/(1+d.Margin), p.X.Min), min(1+d.Margin, p.X.Max)
			fill(c, translucent(colour(mutedColour), 0.16), rectangle(x(left), c.Min.Y, x(right), c.Max.Y))
		}
		for _, f := range []float64{1 / d.Floor, d.Floor} {
			if d.Floor > 1 && f > p.X.Min && f < p.X.Max {
				c.StrokeLine2(pen.floorLine(), x(f), c.Min.Y, x(f), c.Max.Y)
			}
		}
		c.StrokeLine2(pen.line(colour(inkColour), 0.9), x(d.Middle), c.Min.Y, x(d.Middle), c.Max.Y)
		for i, r := range d.Rows {
			dot(c, r, x, y(float64(i)), pen, d.Compact)
		}
	}))
}

func dot(c draw.Canvas, r document.Dot, x func(float64) vg.Length, y vg.Length, pen pen, compact bool) {
	if !positive(r.Value) {
		return
	}
	clr, at := verdictColour(r.Verdict), vg.Point{X: x(r.Value.Value), Y: y}
	differs := r.Verdict == document.Slower || r.Verdict == document.Faster
	width := 1.5
	if compact {
		width = 0.8
		if !differs {
			clr = colour(mutedColour)
		}
	}
	if r.Value.Level > 0 {
		c.StrokeLine2(pen.line(clr, width), x(r.Value.Lo), y, x(r.Value.Hi), y)
	}
	if r.Verdict == document.None || compact && !differs {
		pen.plain(c, at)
		return
	}
	pen.verdict(c, r.Verdict, at, pen.points(4), clr)
}

// dotsExtent is the range of the estimates, the middle, the floor and the margin.
func dotsExtent(d document.Dots) (lo, hi float64) {
	all := []float64{d.Middle, 1.01 * d.Middle, d.Middle / 1.01}
	if d.Floor > 1 {
		all = append(all, d.Floor, 1/d.Floor)
	}
	if d.Margin > 0 {
		all = append(all, 1+d.Margin, 1/(1+d.Margin))
	}
	for _, r := range d.Rows {
		if !positive(r.Value) {
			continue
		}
		all = append(all, r.Value.Value)
		if r.Value.Level > 0 {
			all = append(all, r.Value.Lo, r.Value.Hi)
		}
	}
	return extent(all)
}

func bars(pl *plot.Plot, d document.Bars, pen pen, c draw.Canvas) {
	names := make([]string, len(d.Rows))
	style := pl.Y.Tick.Label
	for i, r := range d.Rows {
		names[i] = fit(r.Label, style, (c.Max.X-c.Min.X)*0.4)
	}
	nominal(&pl.Y, names, true, pen)
	pl.X.Label.Text = latin(d.X.Label)
	pl.X.Min, pl.X.Max = d.X.Lo, d.X.Hi
	if pl.X.Max <= pl.X.Min {
		pl.X.Min, pl.X.Max = BarsExtent(d.Rows)
	}
	pl.X.Tick.Marker = plot.ConstantTicks(linearTicks(pl.X.Min, pl.X.Max))
	pl.Add(gridX(pen), painter(func(c draw.Canvas, p *plot.Plot) {
		x, y := p.Transforms(&c)
		for i, r := range d.Rows {
			if !finite(r.Value) {
				continue
			}
			top, bottom := y(float64(i)-0.32), y(float64(i)+0.32)
			fill(c, translucent(seriesColour(r.Style.Index), 0.75), rectangle(x(0), bottom, x(r.Value.Value), top))
			if r.Value.Level > 0 {
				whisker(c, pen, x(r.Value.Lo), x(r.Value.Hi), y(float64(i)))
			}
		}
		c.StrokeLine2(pen.line(colour(inkColour), 0.9), x(0), c.Min.Y, x(0), c.Max.Y)
	}))
}

func whisker(c draw.Canvas, pen pen, x0, x1, y vg.Length) {
	line, h := pen.line(colour(inkColour), 1), pen.points(3)
	c.StrokeLine2(line, x0, y, x1, y)
	c.StrokeLine2(line, x0, y-h, x0, y+h)
	c.StrokeLine2(line, x1, y-h, x1, y+h)
}

// BarsExtent is the range of the bars, zero included.
func BarsExtent(rows []document.Bar) (lo, hi float64) {
	for _, r := range rows {
		if !finite(r.Value) {
			continue
		}
		lo, hi = min(lo, r.Value.Value), max(hi, r.Value.Value)
		if r.Value.Level > 0 {
			lo, hi = min(lo, r.Value.Lo), max(hi, r.Value.Hi)
		}
	}
	if lo == hi {
		return -1, 1
	}
	room := (hi - lo) * 0.06
	if lo < 0 {
		lo -= room
	}
	return lo, hi + room
}

// levelTicks has a tick at every level and a name at those that leave room: all where they are few,
// else the powers of ten.
func levelTicks(levels []float64) []plot.Tick {
	ticks := make([]plot.Tick, len(levels))
	for i, l := range levels {
		ticks[i] = plot.Tick{Value: l}
		if e := math.Log10(l); len(levels) <= 5 || math.Abs(e-math.Round(e)) < 1e-9 {
			ticks[i].Label = short(l)
		}
	}
	return ticks
}

// logTicks names round numbers on a logarithmic axis: the coarsest series that gives at least three.
func logTicks(lo, hi float64) []plot.Tick {
	for _, steps := range [][]float64{{1}, {1, 3}, {1, 2, 5}, {1, 2, 3, 5}, {1, 1.5, 2, 3, 4, 6, 8}} {
		var ticks []plot.Tick
		for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
			for _, s := range steps {
				if v := s * math.Pow(10, e); v >= lo && v <= hi {
					ticks = append(ticks, plot.Tick{Value: v, Label: short(v)})
				}
			}
		}
		if len(ticks) >= 3 {
			return ticks
		}
	}
	return linearTicks(lo, hi)
}

// linearTicks names three to six round numbers.
func linearTicks(lo, hi float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10(hi-lo)))
	for _, f := range []float64{2, 1, 0.5, 0.2, 0.1} {
		first, last := math.Ceil(lo/(step*f)-1e-9), math.Floor(hi/(step*f)+1e-9)
		if n := last - first + 1; n >= 3 && n <= 6 {
			var ticks []plot.Tick
			for k := first; k <= last; k++ {
				v := k * step * f
				// Rounded to the step, so that 0.30000000000000004 is 0.3.
				v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 12, 64), 64)
				v += 0 // no negative zero
				ticks = append(ticks, plot.Tick{Value: v, Label: short(v)})
			}
			return ticks
		}
	}
	return []plot.Tick{{Value: lo, Label: short(lo)}, {Value: hi, Label: short(hi)}}
}

// short prints a tick's number, thousands as k and millions as M.
func short(x float64) string {
	switch a := math.Abs(x); {
	case a >= 1e6:
		return trim(x/1e6) + "M"
	case a >= 1e4 || a >= 1e3 && math.Mod(a, 1000) == 0:
		return trim(x/1e3) + "k"
	}
	return trim(x)
}

func trim(x float64) string {
	s := strconv.FormatFloat(x, 'g', 6, 64)
	return strings.Replace(s, "e-0", "e-", 1)
}
