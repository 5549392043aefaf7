# Which release made it slower? Two Debian releases in one run, with the same firewalls on both. Every boot of the
# nodes takes one image, so images are compared by boots; see docs/statistics.md.

image "debian" {
  suite = ["bookworm", "trixie"] # two images: debian-bookworm and debian-trixie
}

testbed {
  name     = "releases"
  provider = "exact" # instructions, the same on every machine; libvirt with KVM for time
}

experiment "latency" {
  measurement "icmp_rtt" {
    count    = 50
    interval = "4300us"
    warmup   = 5
  }
  matrix {
    image      = image.debian
    firewall   = ["nftables-linear", "iptables-linear"]
    rules      = [10, 1000]
    frame_size = [64]
  }
  repetitions = 8 # and so eight boots of each image
}

claim "release" {
  statement = "From bookworm to trixie a long rule-set became slower"
  compare   = [image.debian-trixie, image.debian-bookworm]
  where     = { rules = ">= 1000" }
  expect    = "slower"
}

claim "engine" {
  statement = "On trixie, nftables is slower than iptables when the rule-set is large"
  compare   = ["nftables-linear", "iptables-linear"]
  where     = { image = image.debian-trixie, rules = ">= 1000" }
  expect    = "slower"
}

report {
  title = "Which release made it slower"
}
