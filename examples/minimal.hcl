# The smallest useful configuration. Everything else has a default: round-trip times through four
# firewalls with 10, 100 and 1000 rules, at three frame sizes, on virtual machines where KVM works, else
# on network namespaces.

experiment "latency" {}
