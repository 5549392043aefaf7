package analysis

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/rampart-bench/rampart/experiments/stats"
)

const (
	// maxUnits is the number of blocks up to which every draw works a statistic out anew.
	maxUnits = 64
	// maxGroups and minGroupSize shape the groups that stand in for more blocks than that.
	maxGroups    = 32
	minGroupSize = 4
)

// A resampler draws the blocks of an experiment. All statistics of the experiment share its draws and
// so are paired by block.
//
// Blocks are units. With several boots whole boots are drawn. More than maxUnits blocks are put into
// groups of consecutive blocks (or boots); a statistic is then worked out once in each group, and a draw
// is the mean over the groups drawn (batch means), so that a million runs take seconds.
type resampler struct {
	boot    *stats.Bootstrap
	unit    map[int]int // block -> unit
	units   int
	grouped bool
}

func newResampler(d *data, study *Study) *resampler {
	blocks := slices.Sorted(maps.Keys(d.boots))
	cluster := rank(blocks)
	if boots := slices.Compact(slices.Sorted(maps.Values(d.boots))); len(boots) > 1 {
		number := rank(boots)
		for _, b := range blocks {
			cluster[b] = number[d.boots[b]]
		}
	}
	r := &resampler{unit: rank(blocks)}
	if len(blocks) > maxUnits {
		r.grouped = true
		r.unit = group(cluster)
		cluster = r.unit
	}
	var clusterOfUnit []int
	for _, b := range blocks {
		if u := r.unit[b]; u == len(clusterOfUnit) {
			clusterOfUnit = append(clusterOfUnit, cluster[b])
		}
	}
	r.units = len(clusterOfUnit)
	r.boot = stats.NewBootstrap(clusterOfUnit, study.Bootstrap, seeded(study.Seed, d.experiment.Name))
	return r
}

// rank numbers sorted distinct values from 0.
func rank(sorted []int) map[int]int {
	out := make(map[int]int, len(sorted))
	for i, v := range sorted {
		out[v] = i
	}
	return out
}

// group joins consecutive clusters of blocks: into groups of at least minGroupSize, and at most
// maxGroups of them. Boots that are fewer than that stay what they are.
func group(cluster map[int]int) map[int]int {
	clusters := 0
	for _, c := range cluster {
		clusters = max(clusters, c+1)
	}
	groups := clusters
	if clusters > maxGroups {
		groups = min(maxGroups, clusters/minGroupSize)
	}
	out := make(map[int]int, len(cluster))
	for block, c := range cluster {
		out[block] = c * groups / clusters
	}
	return out
}

// seeded is a generator that depends on the study's seed and the name alone.
func seeded(seed uint64, name string) *rand.Rand {
	sum := sha256.Sum256(fmt.Appendf(nil, "bootstrap %d %q", seed, name))
	return rand.New(rand.NewPCG(binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16])))
}

// differences log x - log y in the blocks that have both, one value a unit (the mean over its blocks, NaN
// for none), with the mean over all blocks and the number of blocks.
func (r *resampler) differences(x, y *series) (each stats.Each, mean float64, n int) {
	sums, counts := make([]float64, r.units), make([]float64, r.units)
	other := map[int]float64{}
	for _, o := range y.observations {
		other[o.block] = o.value
	}
	sum := 0.0
	for _, o := range x.observations {
		if v := other[o.block]; v > 0 && o.value > 0 {
			difference := stats.Log(o.value) - stats.Log(v)
			unit := r.unit[o.block]
			sums[unit] += difference
			counts[unit]++
			sum += difference
			n++
		}
	}
	each = make(stats.Each, r.units)
	for u := range each {
		each[u] = sums[u] / counts[u] // NaN for 0/0
	}
	return each, sum / float64(n), n
}

// slope of the points as a statistic of the units.
func (r *resampler) slope(points []stats.Point) stats.Statistic {
	if !r.grouped {
		return stats.NewSlope(points)
	}
	each := make(stats.Each, r.units)
	for u, part := range r.byUnit(points) {
		each[u] = stats.TheilSen(part).Slope
	}
	return each
}

func (r *resampler) byUnit(points []stats.Point) [][]stats.Point {
	out := make([][]stats.Point, r.units)
	for _, p := range points {
		out[p.Unit] = append(out[p.Unit], p)
	}
	return out
}
