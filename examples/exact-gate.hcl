# A gate without noise: what does a change of the rule-set cost a packet, in instructions?
#
#   rampart run --config exact-gate.hcl --out before                          on the main branch, once
#   rampart run --config exact-gate.hcl --out after --var position=last       with the change
#   rampart compare --metric rtt_median before after                          exit status 3: it costs more
#
# Provider exact counts the instructions of an emulated machine, so both figures are the same on any
# computer and a difference of a few instructions is seen. It says how much work a change makes, not
# how long that takes on a real processor: see docs/exact.md.
#
# 8 combinations, 3 times: about half a minute on two processors.

variable "position" {
  description = "Where the entry that the traffic matches stands: first, uniform or last."
  default     = "uniform"
}

testbed {
  name     = "gate"
  provider = "exact"
}

firewall "site-legacy" {
  engine   = "iptables-legacy"
  position = var.position
}

firewall "site-nftables" {
  engine   = "nftables"
  position = var.position
}

experiment "latency" {
  measurement "icmp_rtt" {
    count    = 20
    interval = "4300us" # waiting costs nothing: the clock jumps; no multiple of the kernel's tick, 4 ms
    warmup   = 5
  }
  matrix {
    firewall   = ["site-legacy", "site-nftables"]
    rules      = [10, 100]
    frame_size = [64]
  }
  # Three blocks: a change counts when all moved the same way, and compare asks for three at least.
  repetitions = 3
}
