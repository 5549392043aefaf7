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
	// maxUnits is the number of blocks up to which each is drawn by itself.
	maxUnits = 64
	// maxGroups and minGroupSize shape the groups of consecutive blocks that are drawn beyond it.
	maxGroups    = 32
	minGroupSize = 4
)

// A resampler draws the blocks of an experiment. All statistics of the experiment share its draws and
// so are paired by block.
//
// Blocks are units. With several boots whole boots are drawn. More than maxUnits blocks are put into
// groups of consecutive blocks (or boots) that are drawn as one (batch means), so that a million runs
// take seconds; a group's value is the mean of its blocks'.
type resampler struct {
	boot  *stats.Bootstrap
	unit  map[int]int // block -> unit
	units int
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

// tooFewBoots refuses an interval between images where one has been booted less often than tells how boots
// differ, however many blocks were measured in them. It is nil for other factors.
func (d *data) tooFewBoots(factor string, level float64) error {
	if boots := d.bootCount(); factor == FactorImage && boots < stats.MinClusters {
		return &stats.TooFewError{What: bootsOfEach, Have: boots, Need: stats.MinClusters, Level: level}
	}
	return nil
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

// mean of one value a block, with the same as a statistic of the units.
func (r *resampler) mean(values []observation) (float64, stats.Each) {
	sums, counts, sum := make([]float64, r.units), make([]float64, r.units), 0.0
	for _, o := range values {
		unit := r.unit[o.block]
		sums[unit] += o.value
		counts[unit]++
		sum += o.value
	}
	each := make(stats.Each, r.units)
	for u := range each {
		each[u] = sums[u] / counts[u] // 0/0 is NaN: this unit has no value
	}
	return sum / float64(len(values)), each
}

// estimate is the mean of one value a block with its replicates.
func (r *resampler) estimate(values []observation) stats.Estimate {
	mean, each := r.mean(values)
	return r.boot.Estimate(mean, each)
}
