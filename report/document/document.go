// Package document is what a report says, as plain data: sections, paragraphs, tables, figures and
// notes, with no word about how any of it looks. One document is built from the findings and then
// rendered several times, so that a page, a table for a paper and a file for a spreadsheet cannot
// say different things.
package document

// A Document is a whole report, in reading order.
type Document struct {
	Title    string
	Lede     []string // one or two sentences under the title
	Claims   []Claim
	Sections []Section
	Notes    []Note // footnotes; a reference n (from 1) means Notes[n-1]
	Beside   []File // the same in other forms, in the same folder
}

// A File is another form of the report.
type File struct{ Path, For string }

// A Section has a title and an identifier that is unique in the document.
type Section struct {
	ID     string
	Title  string
	Blocks []Block
}

// A Block is one of Paragraph, List, *Table, *Figure, Code and Definitions.
type Block interface{ block() }

// A Paragraph is running text.
type Paragraph string

// A Heading divides a section.
type Heading string

// A List holds items of running text.
type List []string

// Code is text to be shown letter by letter, such as a command or a file.
type Code struct {
	Name string // of the file, or what the text is
	Text string
	Fold bool // long: out of sight until asked for
}

// Definitions are terms with what is known of them.
type Definitions struct {
	Caption string
	Items   []Definition
}

// A Definition is a term and its text.
type Definition struct{ Term, Text string }

func (Paragraph) block()   {}
func (Heading) block()     {}
func (List) block()        {}
func (Code) block()        {}
func (Definitions) block() {}
func (*Table) block()      {}
func (*Figure) block()     {}

// A Note is a footnote: what limits a number, and what to do about it.
type Note struct{ Text, Next string }

// A Claim is a statement under test, with its verdict.
type Claim struct {
	Name      string
	Statement string
	Region    string // such as "rules ≥ 1000"
	Verdict   Verdict
	Sentence  string // the effect, in one line
	Notes     []int
}

// A Table is a grid with a header. Every row has as many values as there are columns.
type Table struct {
	ID      string // the stem of its files, and unique in the document
	Title   string // what it is, in a few words
	Caption string // what a reader must know of its numbers
	Columns []Column
	Rows    []Row
	Notes   []int // that hold for every row
	Fold    bool  // long: out of sight until asked for
}

// A Column has a name for readers (Title) and one for programs (Key).
type Column struct {
	Key   string
	Title string
	Unit  Unit
	Head  bool // its values name the row
}

// A Row is one line of a table.
type Row struct {
	Values []Value
	Notes  []int
}

// A Figure is one or more panels of the same kind that answer one question.
type Figure struct {
	ID      string // the stem of its files, and unique in the document
	Title   string // the question
	Caption string
	Alt     string   // what a reader who does not see the figure should know
	Data    []string // the tables with the same numbers, by their IDs
	Legend  []Key
	Panels  []Panel
}

// A Key explains one style of a figure.
type Key struct {
	Name  string
	Style Style
}

// A Panel is one set of axes.
type Panel struct {
	Title string
	Alt   string
	Plot  Plot
}

// A Plot is one of Lines, HeatMap, Dots and Bars.
type Plot interface{ plot() }

func (Lines) plot()   {}
func (HeatMap) plot() {}
func (Dots) plot()    {}
func (Bars) plot()    {}

// A Style says how a thing is told from its neighbours. Renderers map it to a colour, and to a mark
// and a dash as well, since colour alone does not serve everyone.
type Style struct {
	Kind  StyleKind
	Index int // among the series
}

// StyleKind is what is drawn.
type StyleKind int

// The kinds of style.
const (
	Series    StyleKind = iota // a line with points, the Index-th of them
	Reference                  // a level that something is held against, the Index-th of them
	Mark                       // a verdict; Index is the Verdict
	Plain                      // a point without a verdict of interest
	Band                       // the noise floor
	Margin                     // the margin of equivalence
)

// Lines is a value against a number, both on logarithmic axes, with interval bands.
type Lines struct {
	X, Y   Axis
	Series []Line
	Levels []Level
}

// An Axis has a label, and ticks where the factor has levels.
type Axis struct {
	Label  string
	Levels []float64
	Lo, Hi float64 // 0, 0: from the data of the panel
}

// A Line is a series of points with intervals.
type Line struct {
	Name   string
	Style  Style
	Points []Point
}

// A Point has an estimate at X.
type Point struct {
	X float64
	Y Estimate
}

// A Level is an estimate that does not depend on X.
type Level struct {
	Name  string
	Style Style
	Y     Estimate
}

// HeatMap has a ratio for every row and column, and a verdict for each. Shade is log(ratio) counted
// so that positive is worse; Limit is the shade of the deepest colour.
type HeatMap struct {
	X, Y    string // labels of the axes
	Columns []string
	Rows    []string
	Cells   []HeatCell // row by row
	Limit   float64
}

// A HeatCell is a field of a HeatMap. Absent fields have no Text.
type HeatCell struct {
	Text    string
	Shade   float64
	Verdict Verdict
}

// Dots are estimates beside each other, one a row, against bands around a middle: a forest plot.
// The axis is logarithmic.
type Dots struct {
	X       Axis
	Middle  float64
	Floor   float64 // noise floor as a ratio; 0 for none
	Margin  float64 // δ of equivalence; 0 for none
	Rows    []Dot
	Compact bool // many rows: no labels, and marks only for what differs
}

// A Dot is one row of Dots.
type Dot struct {
	Label   string
	Value   Estimate
	Verdict Verdict
}

// Bars are estimates from zero, one a row.
type Bars struct {
	X    Axis
	Rows []Bar
}

// A Bar is one row of Bars.
type Bar struct {
	Label string
	Style Style
	Value Estimate
}
