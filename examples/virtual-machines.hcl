# Every setting of the testbed: three virtual machines by libvirt, the firewall tuned for steady times, larger
# frames on both links, and the place of the matching rule as the question. It needs a host with four CPUs,
# huge pages and vhost-net; rampart doctor says what is missing.

image "bookworm" {
  suite      = "bookworm"
  kernel     = "linux-image-cloud-amd64"
  components = ["main", "non-free"]
  packages   = ["netperf"]
}

testbed {
  name     = "position"
  provider = "libvirt"
  image    = image.bookworm

  node "sender" {
    memory = "384MiB"
  }

  node "firewall" {
    vcpus         = 2
    memory        = "512MiB"
    queues        = 2      # virtio queue pairs, at most one a CPU
    pin           = [2, 3] # CPUs of the host, one entry a virtual CPU
    emulator_pin  = "0-1"  # for what QEMU does beside the virtual CPUs
    hugepages     = "2MiB" # reserved beforehand: 256 of them
    rx_queue_size = 1024
    tx_queue_size = 256
  }

  link "inside" {
    nodes    = ["sender", "firewall"]
    network  = "10.99.1.0/24"
    mtu      = 9000
    offloads = false # gro, gso, tso, lro, checksum: off at both ends, and read back
  }

  link "outside" {
    nodes   = ["firewall", "receiver"]
    network = "10.99.2.0/24"
    mtu     = 9000
  }

  libvirt {
    uri         = "qemu:///system"
    accelerator = "kvm" # rather fail than measure an emulation
    machine     = "q35" # or one version of it, such as "pc-q35-7.2", for the same machine next year
    cpu         = "host-passthrough"
    vhost       = true # the host's kernel carries frames to the bridges
  }
}

firewall "match-last" {
  engine = "nftables"
}

firewall "match-first" {
  engine   = "nftables"
  position = "first"
}

experiment "throughput" {
  measurement "udp_iperf3" {
    duration = "10s"
    omit     = "1s"
    rate     = "1G"
  }
  matrix {
    firewall   = ["match-last", "match-first"]
    rules      = [10, 1000, 10000]
    frame_size = [64, 1518, 9018]
  }
  repetitions = 12
  boots       = 3 # four blocks on each of three boots
  compare     = [["match-last", "match-first"]]
}

claim "position" {
  statement = "A rule that matches first is cheaper than one that matches last"
  compare   = ["match-first", "match-last"]
  where     = { rules = "> 10" }
  expect    = "faster"
}

report {
  title   = "Where the matching rule stands"
  formats = ["html"]
}
