package report

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// hostile is text that means something in every format we write.
const hostile = `"'><script>alert(1)</script>{{.}}</style></pre>|$x^2$\input{/etc/passwd}%#_&~@evil www.evil.example [x](http://evil.example) <!-- ` + "`" + `x` + "`" + " \u202e\u200b\x1b[31m\x00 :bomb: ```"

// hostileShape puts it before every name of a small study, with what a spreadsheet would run first.
func hostileShape() shape {
	s := released()
	s.names = func(name string) string { return "=1+2;" + name + hostile }
	return s
}

// hostileInput is made once.
var hostileInput = sync.OnceValue(func() Input { return hostileShape().input() })

func hostileFiles(t *testing.T) map[string]string {
	t.Helper()
	list, err := files(hostileInput(), Spec{Title: "=" + hostile})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range list {
		out[f.path] = string(f.data)
	}
	return out
}

func TestHostileFileNames(t *testing.T) {
	safe := regexp.MustCompile(`^((figures|tables)/)?[a-z0-9.-]{1,90}$`)
	for path := range hostileFiles(t) {
		if !safe.MatchString(path) {
			t.Errorf("file name %q", path)
		}
	}
}

func TestHostileTextIsInertInHTML(t *testing.T) {
	page := hostileFiles(t)["index.html"]
	for _, bad := range []string{"<script", "<!-- ", "\x1b", "\x00", "\u202e", "\u200b", "{{.}}</style>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	if !strings.Contains(page, "&lt;script&gt;") {
		t.Error("the hostile text is nowhere: the test tests nothing")
	}
	if n := strings.Count(page, "<style"); n != 1 {
		t.Errorf("%d style elements", n)
	}
}

func TestHostileTextIsInertInSVG(t *testing.T) {
	seen := false
	for path, data := range hostileFiles(t) {
		if !strings.HasSuffix(path, ".svg") {
			continue
		}
		d := xml.NewDecoder(strings.NewReader(data))
		for {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if e, ok := token.(xml.StartElement); ok && !strings.Contains(" svg g path text title desc ", " "+e.Name.Local+" ") {
				t.Errorf("%s holds element %s", path, e.Name.Local)
			}
			if c, ok := token.(xml.CharData); ok && bytes.Contains(c, []byte("<script>")) {
				seen = true
			}
		}
	}
	if !seen {
		t.Error("the hostile text is in no picture: the test tests nothing")
	}
}

func TestHostileTextIsInertInMarkdown(t *testing.T) {
	text := hostileFiles(t)["report.md"]
	outside := stripFences(text)
	// In an HTML element Markdown is not read; there, no tag may come from outside.
	element := regexp.MustCompile(`<summary>([^<]*)</summary>`)
	if n := strings.Count(outside, "<summary>"); n == 0 || n != len(element.FindAllString(outside, -1)) {
		t.Errorf("of %d summaries not all are plain text", n)
	}
	outside = element.ReplaceAllString(outside, "")
	for _, bad := range []string{"<script", "<!--", "[x](", "@evil", "www.evil", "http://evil", "$x", ":bomb:", "\u202e", "\x1b"} {
		if strings.Contains(unescaped(outside), bad) {
			_, after, _ := strings.Cut(unescaped(outside), bad)
			before, _, _ := strings.Cut(unescaped(outside), bad)
			t.Errorf("the Markdown holds %q: %.60q before %.60q", bad, before[max(0, len(before)-60):], after)
		}
	}
	if !strings.Contains(outside, "script") {
		t.Error("the hostile text is nowhere: the test tests nothing")
	}
	for _, table := range tablesOf(outside) {
		want := strings.Count(unescaped(table[0]), "|")
		for _, line := range table {
			if got := strings.Count(unescaped(line), "|"); got != want {
				t.Errorf("row has %d borders, want %d: %.120s", got, want, line)
			}
		}
	}
}

// stripFences drops fenced code, the one place where GitHub shows text as it is, after making sure
// that nothing in it closes the fence.
func stripFences(s string) string {
	var out []string
	fence := ""
	for _, line := range strings.Split(s, "\n") {
		ticks := line[:len(line)-len(strings.TrimLeft(line, "`"))]
		switch {
		case fence == "" && len(ticks) >= 3:
			fence = ticks
		case fence != "" && len(ticks) >= len(fence) && strings.Trim(line, "` ") == "":
			fence = ""
		case fence == "":
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

// unescaped drops characters that a backslash takes the meaning from, with it.
func unescaped(s string) string { return regexp.MustCompile(`\\.`).ReplaceAllString(s, "") }

func tablesOf(s string) [][]string {
	var out [][]string
	var table []string
	for _, line := range append(strings.Split(s, "\n"), "") {
		if strings.HasPrefix(line, "|") {
			table = append(table, line)
		} else if table != nil {
			out, table = append(out, table), nil
		}
	}
	return out
}

func TestHostileTextIsInertInCSV(t *testing.T) {
	guarded := false
	for path, data := range hostileFiles(t) {
		if !strings.HasSuffix(path, ".csv") {
			continue
		}
		rows, err := csv.NewReader(strings.NewReader(data)).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, row := range rows {
			for _, field := range row {
				if _, err := strconv.ParseFloat(field, 64); err == nil || field == "" {
					continue
				}
				if strings.ContainsAny(field[:1], "=+-@\t\r") {
					t.Errorf("%s: field begins like a formula: %.60q", path, field)
				}
				guarded = guarded || strings.HasPrefix(field, "'=1+2")
			}
		}
	}
	if !guarded {
		t.Error("no field needed a guard: the test tests nothing")
	}
}

func TestNumbersInCSVStayNumbers(t *testing.T) {
	list, err := files(small().input(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	negative := false
	for _, f := range list {
		if !strings.HasPrefix(f.path, "tables/cost") || !strings.HasSuffix(f.path, ".csv") {
			continue
		}
		rows, err := csv.NewReader(bytes.NewReader(f.data)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range rows[0] {
			if !strings.HasPrefix(name, "slope") && !strings.HasPrefix(name, "ratio") {
				continue
			}
			for _, row := range rows[1:] {
				if row[i] == "" {
					continue
				}
				x, err := strconv.ParseFloat(row[i], 64)
				if err != nil {
					t.Errorf("%s: %s = %q is no number", f.path, name, row[i])
				}
				negative = negative || x < 0
			}
		}
	}
	if !negative {
		t.Error("no number is negative: the test tests nothing")
	}
}

func TestHostileTextIsInertInLaTeX(t *testing.T) {
	seen := false
	for path, data := range hostileFiles(t) {
		if !strings.HasSuffix(path, ".tex") {
			continue
		}
		for _, line := range strings.Split(data, "\n") {
			if strings.HasPrefix(line, "%") {
				continue
			}
			if strings.Contains(line, `\input{`) || strings.Contains(unescaped(line), "$x") {
				t.Errorf("%s: %.100q", path, line)
			}
			seen = seen || strings.Contains(line, `\textbackslash{}input`)
			if strings.HasSuffix(line, `\\`) && unbalanced(line) {
				t.Errorf("%s: braces do not balance: %.200q", path, line)
			}
		}
	}
	if !seen {
		t.Error("the hostile text is nowhere: the test tests nothing")
	}
}

func unbalanced(line string) bool {
	depth := 0
	line = strings.NewReplacer(`\\`, "", `\{`, "", `\}`, "").Replace(line)
	for _, r := range line {
		switch r {
		case '{':
			depth++
		case '}':
			depth--
		}
		if depth < 0 {
			return true
		}
	}
	return depth != 0
}

func TestHostileTextInSummary(t *testing.T) {
	s := Summary(hostileInput().Findings)
	for _, bad := range []string{"\x1b", "\x00", "\u202e"} {
		if strings.Contains(s, bad) {
			t.Errorf("the summary holds %q", bad)
		}
	}
}
