# A gate for continuous integration: `rampart run --gate` exits with status 3 unless every claim agrees.
# Here: with 5000 rules, an indexed rule-set must be faster than a linear one, and it must not
# matter to an indexed one how the kernel is told about it.
#
# 10 combinations, 9 times, 0.44 s of probes and about 0.3 s around them: a good minute.

variable "margin" {
  description = "The largest difference that still counts as none."
  default     = 0.05
}

testbed {
  name     = "gate"
  provider = "netns" # the kernel of the CI machine; needs CAP_NET_ADMIN or a user namespace
}

experiment "latency" {
  matrix {
    firewall   = ["nftables-linear", "nftables-indexed", "iptables-indexed"]
    rules      = [100, 5000]
    frame_size = [64]
  }
  repetitions = 9
}

claim "sets-pay" {
  statement = "With 5000 entries a set is faster than a list of rules"
  compare   = ["nftables-indexed", "nftables-linear"]
  where     = { rules = 5000 }
  expect    = "faster"
}

claim "sets-alike" {
  statement = "A set of nftables is as fast as one of ipset"
  compare   = ["nftables-indexed", "iptables-indexed"]
  expect    = "similar"
}

# Whoever widens the margin after seeing a failure must do so here, in the open.
analysis {
  margin = var.margin
}
