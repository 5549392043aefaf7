package config

import (
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// functions are those that an expression can call. All are pure: no clock, no randomness, no files, so
// that the same texts and variables always give the same configuration.
func functions() map[string]function.Function {
	return map[string]function.Function{
		"abs":    stdlib.AbsoluteFunc,
		"ceil":   stdlib.CeilFunc,
		"floor":  stdlib.FloorFunc,
		"log":    stdlib.LogFunc,
		"max":    stdlib.MaxFunc,
		"min":    stdlib.MinFunc,
		"pow":    stdlib.PowFunc,
		"signum": stdlib.SignumFunc,

		"coalesce": stdlib.CoalesceFunc,
		"compact":  stdlib.CompactFunc,
		"concat":   stdlib.ConcatFunc,
		"contains": stdlib.ContainsFunc,
		"distinct": stdlib.DistinctFunc,
		"element":  stdlib.ElementFunc,
		"flatten":  stdlib.FlattenFunc,
		"keys":     stdlib.KeysFunc,
		"length":   stdlib.LengthFunc,
		"lookup":   stdlib.LookupFunc,
		"merge":    stdlib.MergeFunc,
		"range":    stdlib.RangeFunc,
		"reverse":  stdlib.ReverseListFunc,
		"slice":    stdlib.SliceFunc,
		"sort":     stdlib.SortFunc,
		"values":   stdlib.ValuesFunc,
		"zipmap":   stdlib.ZipmapFunc,

		"format":     stdlib.FormatFunc,
		"formatlist": stdlib.FormatListFunc,
		"join":       stdlib.JoinFunc,
		"lower":      stdlib.LowerFunc,
		"parseint":   stdlib.ParseIntFunc,
		"replace":    stdlib.ReplaceFunc,
		"split":      stdlib.SplitFunc,
		"substr":     stdlib.SubstrFunc,
		"trimspace":  stdlib.TrimSpaceFunc,
		"upper":      stdlib.UpperFunc,

		"tobool":   stdlib.MakeToFunc(cty.Bool),
		"tonumber": stdlib.MakeToFunc(cty.Number),
		"tostring": stdlib.MakeToFunc(cty.String),
	}
}
