# jonsson-2018: a replication of
#
#   Jonsson: Latency and throughput comparison between iptables and nftables at different frame and
#   rule-set sizes. University of Skövde, 2018.
#
# That study compared ten rule-set sizes and seven frame sizes, with linear look-ups and with indexed
# data structures; latency was the round-trip time of ICMP packets, throughput UDP traffic made by
# iPerf3. Only its abstract was at hand when this was written. Its exact sizes, hardware and tests are
# not known to us: the levels, durations and statistics below are ours and must not be quoted as its.
#
# In all: 364 combinations, 10 times, in each of two experiments, 7280 runs, about five and three
# quarter hours (2 h 22 min and 3 h 20 min). A run takes about 0.3 s beyond measuring and warming up,
# so at least 0.80 of the wall time is measuring:
#
#   latency       3640 · (2.00 s measured + 0.04 s warm-up + 0.3 s), share 0.85
#   throughput    3640 · (3.00 s measured                  + 0.3 s), share 0.91

#
# With provider exact, where the clock counts instructions:
#
#   rampart run --provider exact --var exact=true
#
# Three repetitions, since a clock without noise needs no more to see a difference. (So few let no p pass
# Holm's correction: read the effects and the claims, not the stars.) Probes 4.3 ms apart: longer than a
# round trip over 10,000 rules, and no multiple of the kernel's tick (see docs/exact.md). 1000 datagrams
# instead of seconds. 2184 runs, some 25 minutes of one processor's time, shared by as many as there are.

variable "exact" {
  description = "Take the numbers for provider exact."
  default     = false
}

variable "repetitions" {
  description = "Runs of each combination. Ten give a median a 98 % interval, and let p pass Holm's correction over 70 cells."
  default     = 10
}

locals {
  # Ours: three steps a decade over three decades.
  rules = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]

  # RFC 2544, section 9.1: the frame sizes to be used on Ethernet.
  frames = [64, 128, 256, 512, 1024, 1280, 1518]

  # Each is added: none and empty, and nftables-linear a second time as an A/A pair.
  firewalls = ["iptables-linear", "iptables-indexed", "nftables-linear", "nftables-indexed"]

  linear  = ["nftables-linear", "iptables-linear"]
  indexed = ["nftables-indexed", "iptables-indexed"]
}

# What virtual machines boot from; network namespaces need no image.
image "bookworm" {
  suite  = "bookworm"
  kernel = "linux-image-cloud-amd64"
}

testbed {
  provider = "auto"
  image    = image.bookworm
}

# The firewalls of the matrix are predeclared. Written out, so that a reader need not look them up:

firewall "iptables-linear" {
  engine = "iptables-legacy"
  lookup = "linear"
}

firewall "iptables-indexed" {
  engine = "iptables-legacy"
  lookup = "indexed" # ipset hash:ip
}

firewall "nftables-linear" {
  engine = "nftables"
  lookup = "linear"
}

firewall "nftables-indexed" {
  engine = "nftables"
  lookup = "indexed" # a set of ipv4_addr
}

experiment "latency" {
  measurement "icmp_rtt" {
    count    = var.exact ? 50 : 1000
    interval = var.exact ? "4300us" : "2ms"
    warmup   = var.exact ? 5 : 20
  }
  matrix {
    firewall   = local.firewalls
    rules      = local.rules
    frame_size = local.frames
  }
  repetitions = var.exact ? 3 : var.repetitions
  seed        = 2018
}

experiment "throughput" {
  measurement "udp_iperf3" {
    duration  = "3s"
    datagrams = var.exact ? 1000 : 0 # 0: by duration
    rate      = "0"                  # as fast as the sender can
  }
  matrix {
    firewall   = local.firewalls
    rules      = local.rules
    frame_size = local.frames
  }
  repetitions = var.exact ? 3 : var.repetitions
  seed        = 2018
}

# What the study found, as claims. "Small", "large" and "few" are our reading of its words.

claim "J1-latency" {
  statement  = "With linear look-ups and small frames, nftables has the higher latency"
  experiment = experiment.latency
  compare    = local.linear
  where      = { frame_size = "<= 128" }
  expect     = "slower"
}

claim "J1-throughput" {
  statement  = "With linear look-ups and small frames, nftables has the lower throughput"
  experiment = experiment.throughput
  compare    = local.linear
  where      = { frame_size = "<= 128" }
  expect     = "slower"
}

claim "J2-latency" {
  statement  = "With linear look-ups and large rule-sets, nftables has the higher latency"
  experiment = experiment.latency
  compare    = local.linear
  where      = { rules = ">= 1000" }
  expect     = "slower"
}

claim "J2-throughput" {
  statement  = "With linear look-ups and large rule-sets, nftables has the lower throughput"
  experiment = experiment.throughput
  compare    = local.linear
  where      = { rules = ">= 1000" }
  expect     = "slower"
}

claim "J3-latency" {
  statement  = "With linear look-ups, large frames and small rule-sets, nftables has the slightly lower latency"
  experiment = experiment.latency
  compare    = local.linear
  where      = { rules = "<= 100", frame_size = ">= 1024" }
  expect     = "faster"
}

claim "J3-throughput" {
  statement  = "With linear look-ups, large frames and small rule-sets, nftables has the slightly higher throughput"
  experiment = experiment.throughput
  compare    = local.linear
  where      = { rules = "<= 100", frame_size = ">= 1024" }
  expect     = "faster"
}

claim "J4-latency" {
  statement  = "With indexed look-ups, both have the same latency"
  experiment = experiment.latency
  compare    = local.indexed
  expect     = "similar"
}

claim "J4-throughput" {
  statement  = "With indexed look-ups, both have the same throughput"
  experiment = experiment.throughput
  compare    = local.indexed
  expect     = "similar"
}

# "Mixed" is about single cells: some differ significantly, in both directions, and none by more than
# "within", which is our reading of "little".

claim "J5-latency" {
  statement  = "With indexed look-ups, some latencies differ significantly, in both directions and by little"
  experiment = experiment.latency
  compare    = local.indexed
  expect     = "mixed"
  within     = 0.1
}

claim "J5-throughput" {
  statement  = "With indexed look-ups, some throughputs differ significantly, in both directions and by little"
  experiment = experiment.throughput
  compare    = local.indexed
  expect     = "mixed"
  within     = 0.1
}

report {
  title   = "Latency and throughput of iptables and nftables by frame and rule-set size"
  formats = ["html", "markdown"]
}
