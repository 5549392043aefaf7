# "iptables" is two programs: iptables-legacy talks to the kernel's old rule engine, iptables-nft
# translates for the new one, and the second is what current distributions install. All three ways to
# load the same rules, linear and indexed, at sizes computed as powers of two.

locals {
  engines = ["iptables", "iptables-nft", "nftables"]
  sizes   = [for n in range(3, 13, 3) : pow(2, n)] # 8, 64, 512, 4096
}

experiment "latency" {
  matrix {
    firewall   = flatten([for e in local.engines : ["${e}-linear", "${e}-indexed"]])
    rules      = local.sizes
    frame_size = [64, 1518]
  }
  seed = 7
}

claim "same-engine" {
  statement  = "nftables costs what iptables-nft costs, as the same kernel code runs"
  experiment = experiment.latency
  compare    = [firewall.nftables-linear, firewall.iptables-nft-linear]
  where      = { rules = ">= 64 and <= 4096" }
  expect     = "similar"
}
