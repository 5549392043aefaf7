# quick: what rampart does, in about two and a half minutes of measuring.
#
# It tests four claims of a published comparison (see preset jonsson-2018) on few levels, enough to see
# each of them and too few to publish: every level and duration here is ours.
#
#   rampart plan      shows every combination and the estimated time, and touches nothing
#   rampart run       brings the testbed up, measures, writes the report, takes it down

testbed {
  # Three virtual machines where KVM works, else three network namespaces on this kernel. Nodes,
  # links and image have defaults; see docs/configuration.md.
  provider = "auto"
}

locals {
  linear  = ["nftables-linear", "iptables-linear"]
  indexed = ["nftables-indexed", "iptables-indexed"]

  # Six is the least number of runs whose median has a 95 % interval (2 · 0.5⁶ = 3 %), and lets the
  # smallest possible p of six against six, 0.002, pass Holm's correction over these few cells.
  repetitions = 6
}

# 34 combinations, 6 times: 204 runs of 110 probes · 1 ms and about 0.25 s to load, verify and unload:
# 204 · 0.36 s = 73 s.
experiment "latency" {
  measurement "icmp_rtt" {
    count    = 100
    interval = "1ms"
    warmup   = 10
  }
  matrix {
    # Predeclared firewalls. "iptables" here is iptables-legacy. Controls are added to them: none and
    # empty, and nftables-linear a second time, to see what this machine calls a difference where
    # there is none.
    firewall   = ["iptables-linear", "iptables-indexed", "nftables-linear", "nftables-indexed"]
    rules      = [10, 100, 1000]
    frame_size = [64, 1518]
  }
  repetitions = local.repetitions
}

# 8 combinations, 6 times: 48 runs of 1 s, the shortest that iperf3 knows, and about 0.35 s:
# 48 · 1.35 s = 65 s.
experiment "throughput" {
  measurement "udp_iperf3" {
    duration = "1s"
  }
  matrix {
    firewall   = local.linear
    rules      = [100, 1000]
    frame_size = [64]
  }
  repetitions = local.repetitions
}

# Each claim was written down before measuring; the report gives its verdict.

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

claim "J4-latency" {
  statement  = "With indexed look-ups, both have the same latency"
  experiment = experiment.latency
  compare    = local.indexed
  expect     = "similar"
}

report {
  title   = "iptables and nftables, quickly"
  formats = ["html", "markdown"]
}
