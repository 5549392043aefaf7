package config

import (
	"embed"
	"slices"
)

//go:embed presets/*.hcl
var presetFiles embed.FS

// A Preset is a configuration that comes with the program.
type Preset struct {
	Name    string
	Summary string // in a line
	Text    []byte
}

// Presets lists the presets, the shortest study first.
func Presets() []Preset {
	list := []Preset{
		{Name: "quick", Summary: "claims J1 to J4 on few levels, in about two and a half minutes"},
		{Name: "westphal-2014", Summary: "what connection tracking and reverse-path filtering cost, and what route cache and flowtable win back, in about ten minutes"},
		{Name: "jonsson-2018", Summary: "ten rule-set sizes, seven frame sizes, latency and throughput, in about six hours"},
	}
	for i := range list {
		text, err := presetFiles.ReadFile("presets/" + list[i].Name + ".hcl")
		if err != nil {
			panic("config: a preset is not embedded: " + err.Error())
		}
		list[i].Text = text
	}
	return list
}

// FindPreset returns the preset called name.
func FindPreset(name string) (Preset, bool) {
	all := Presets()
	i := slices.IndexFunc(all, func(p Preset) bool { return p.Name == name })
	if i < 0 {
		return Preset{}, false
	}
	return all[i], true
}
