# What the gateway's rule-set costs a packet, in instructions: firewall-cost.yml measures this file as it
# is on the base branch and as the pull request has it, and fails when a packet costs more.
#
# The clock of provider exact counts instructions, so the figures are the same on every machine and three
# repetitions are plenty: they differ in nothing but the layout of memory and the keys of hash tables.
# How much that matters is seen on none, one of the controls that are added to every experiment.
#
# 10 combinations, 3 times.

testbed {
  name     = "firewall-cost"
  provider = "exact"
}

# The firewall that is looked after here. Whoever changes it sees what that costs.
firewall "gateway" {
  engine = "nftables"
  lookup = "indexed"
}

experiment "latency" {
  measurement "icmp_rtt" {
    count    = 30
    interval = "4300us" # no multiple of the tick of the kernel, 4 ms
    warmup   = 5
  }
  matrix {
    firewall   = ["gateway", "nftables-linear"]
    rules      = [100]
    frame_size = [64, 1518]
  }
  repetitions = 3
}

# A claim needs no base branch to be held against.
claim "set-pays" {
  statement = "The gateway's set costs less than the same entries one by one"
  compare   = ["gateway", "nftables-linear"]
  expect    = "faster"
}
