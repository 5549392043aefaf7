# westphal-2014: what connection tracking and reverse-path filtering cost a forwarded packet, and how
# much of it a cache wins back.
#
# Florian Westphal measured this on the kernel of December 2014, for a patch that was never merged (netdev,
# "netfilter: conntrack: route cache for forwarded connections"): netperf UDP_STREAM, messages of 64 bytes,
# 120 s, two namespaces joined by veth through a forwarding kernel.
#
#   conntrack, rp_filter = 1                  112.36 · 10⁶ bit/s   1.000
#   the same with the route cache             147.24               1.310
#   rp_filter = 0, no connection tracking     180.43               1.606
#
# The kernel here is another, and so is the machine: his ratios stand beside ours in the report and decide
# nothing. The route cache is a module of this project, written anew from the idea; the flowtable is what
# Linux has had for the purpose since 4.16. Repetitions, durations and the other arms are ours.
#
#   rampart run --provider libvirt    all arms, in virtual machines of the image below
#   rampart run --provider netns      on this kernel: arms that it lacks are recorded as unavailable
#   rampart run --provider exact --var datagrams=2000
#                                     all arms, on a clock that counts instructions

variable "repetitions" { default = 10 }
variable "duration" { default = "4s" }
variable "datagrams" { default = 0 } # more than 0: a run ends after so many, not after duration

image "westphal" {
  components = ["main", "non-free"] # netperf is in non-free
  modules    = ["rtcache"]
}

testbed {
  provider = "auto"
  image    = image.westphal
}

# No arm has a rule: what is measured is the kernel's own path.

firewall "conntrack-rp_filter" {
  engine    = "none"
  conntrack = true
  rp_filter = 1
}

firewall "conntrack" {
  engine    = "none"
  conntrack = true
}

firewall "rp_filter" {
  engine    = "none"
  rp_filter = 1
}

firewall "rtcache" {
  engine    = "none"
  conntrack = true
  rp_filter = 1
  rtcache   = true
}

firewall "flowtable" {
  engine    = "none"
  conntrack = true
  rp_filter = 1
  flowtable = true
}

# A flowtable takes a flow when it has seen both directions of it. Every other arm shows the kernel both
# before it measures; this one does not, as a stream that goes one way does not in the field.
firewall "flowtable-unprimed" {
  engine    = "none"
  conntrack = true
  rp_filter = 1
  flowtable = true
  prime     = false
}

# The same three with one policy routing rule, which no packet matches: the kernel then leaves a short cut
# of its look-ups, and there is more for a cache to win back. These arms are ours.

firewall "none-rule" {
  engine        = "none"
  routing_rules = 1
}

firewall "conntrack-rp_filter-rule" {
  engine        = "none"
  conntrack     = true
  rp_filter     = 1
  routing_rules = 1
}

firewall "conntrack-rp_filter-rule-aa" {
  engine        = "none"
  conntrack     = true
  rp_filter     = 1
  routing_rules = 1
}

firewall "rtcache-rule" {
  engine        = "none"
  conntrack     = true
  rp_filter     = 1
  rtcache       = true
  routing_rules = 1
}

locals {
  base = "conntrack-rp_filter"
  his  = "Westphal 2014, another kernel and another machine"
}

# 9 arms with the controls, 10 times: 90 runs of 4 s and about 0.4 s to set, verify and put back:
# 90 · 4.4 s = 6.6 minutes.
experiment "throughput" {
  measurement "udp_netperf" {
    message   = 64
    duration  = var.duration
    datagrams = var.datagrams
  }
  matrix {
    # Controls are added: empty, and the first of these a second time, to see what this machine calls a
    # difference where there is none.
    firewall = [local.base, "none", "conntrack", "rp_filter", "rtcache", "flowtable", "flowtable-unprimed"]
  }
  repetitions = var.repetitions
}

# 3 arms and one of them twice, 10 times: 40 runs of 4.4 s: 3 minutes. None of them is without the rule, since
# a kernel that ever had one goes the long way until its namespace ends.
experiment "policy-routing" {
  measurement "udp_netperf" {
    message   = 64
    duration  = var.duration
    datagrams = var.datagrams
  }
  matrix {
    firewall = ["${local.base}-rule", "none-rule", "rtcache-rule", "${local.base}-rule-aa"]
  }
  repetitions = var.repetitions
  controls    = false
}

# Each claim was written down before measuring; the report gives its verdict.

claim "W1" {
  statement        = "Without connection tracking and reverse-path filtering, more gets through"
  experiment       = experiment.throughput
  compare          = ["none", local.base]
  expect           = "faster"
  reference        = 1.606
  reference_source = local.his
}

claim "W2" {
  statement        = "The route cache wins back part of what connection tracking and reverse-path filtering cost"
  experiment       = experiment.throughput
  compare          = ["rtcache", local.base]
  expect           = "faster"
  reference        = 1.310
  reference_source = local.his
}

claim "W3" {
  statement  = "A flowtable wins back part of it, too"
  experiment = experiment.throughput
  compare    = ["flowtable", local.base]
  expect     = "faster"
}

claim "W4" {
  statement  = "The route cache does not win back all of it"
  experiment = experiment.throughput
  compare    = ["rtcache", "none"]
  expect     = "slower"
}

claim "W5" {
  statement  = "Connection tracking alone costs something"
  experiment = experiment.throughput
  compare    = ["conntrack", "none"]
  expect     = "slower"
}

claim "W6" {
  statement  = "Reverse-path filtering alone costs something"
  experiment = experiment.throughput
  compare    = ["rp_filter", "none"]
  expect     = "slower"
}

claim "W7" {
  statement  = "A flowtable changes nothing for a flow that goes one way only"
  experiment = experiment.throughput
  compare    = ["flowtable-unprimed", local.base]
  expect     = "similar"
}

claim "W8" {
  statement  = "With a policy routing rule the route cache wins something back as well"
  experiment = experiment.policy-routing
  compare    = ["rtcache-rule", "${local.base}-rule"]
  expect     = "faster"
}

claim "W9" {
  statement  = "With a policy routing rule, too, the route cache does not win back all of it"
  experiment = experiment.policy-routing
  compare    = ["rtcache-rule", "none-rule"]
  expect     = "slower"
}

report {
  title   = "What connection tracking and reverse-path filtering cost, and what a cache wins back"
  formats = ["html", "markdown"]
}
