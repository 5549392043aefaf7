# make reproduce   a report from this machine, from nothing (PROVIDER=libvirt forces virtual machines)
# make test        everything that can be tested: real namespaces, real libvirt and QEMU, a real browser
# make test-long   what takes too long for each time: 1,000 loads of the kernel module, images built by several users,
#                  other releases and kernels, every libvirt of every kind, a disk with cloud-init, a
#                  study across two kernels, machines lost in every way, fifty kills
# make bench       the project's own figures, as ratios measured in one run
# make bench-exact what provider exact promises, measured
# make bench-up    how long three virtual machines take to be ready, as ratios measured in one run, and vagrant with
#                  the same three where it is
SHELL    := /bin/bash
PROVIDER ?= auto
SUDO     := $(if $(filter 0,$(shell id -u)),,sudo)
AS_ROOT  := $(SUDO) env "PATH=$(PATH):/usr/sbin:/sbin" "HOME=$(HOME)"
export CGO_ENABLED := 0

.PHONY: build reproduce test test-long lint bench bench-exact bench-up clean
build:
	go build -trimpath -ldflags '-s -w' -o rampart ./cmd/rampart

reproduce: build
	./scripts/packages reproduce $(PROVIDER)
	mkdir -p results && ./rampart init --force --preset quick --output results/quick.hcl
	$(AS_ROOT) ./rampart run --config results/quick.hcl --provider $(PROVIDER)

test: build
	./scripts/packages test
	./scripts/services
	$(MAKE) lint
	$(AS_ROOT) RAMPART_AXE="$$(./scripts/axe)" RAMPART_TEST_NO_SKIP=$(if $(CI),1) go test -count=1 -timeout 40m ./...

test-long:
	./scripts/packages test
	$(AS_ROOT) RAMPART_TEST_LONG=1 RAMPART_TEST_SLOW=1 RAMPART_TEST_NO_SKIP=1 go test -count=1 -timeout 2h -v -run 'TestRtcache|TestReproducible|TestReleases' ./images
	$(AS_ROOT) RAMPART_TEST_LONG=1 RAMPART_TEST_NO_SKIP=1 go test -count=1 -timeout 2h -v -run 'TestSessionConformance|TestRemoteConformance|TestRemoteLosses|TestCloudDisk' ./testbed/libvirt
	$(AS_ROOT) RAMPART_TEST_LONG=1 RAMPART_TEST_NO_SKIP=1 go test -count=1 -timeout 2h -v -run 'TestLongScripts|TestMachinesKilledAtAnyMoment' ./cmd/rampart

lint:
	test -z "$$(gofmt -l .)"
	go vet ./...
	go tool staticcheck ./...

bench: build
	./scripts/packages test
	$(AS_ROOT) ./scripts/bench

bench-exact: build
	./scripts/bench-exact

bench-up:
	./scripts/packages test
	$(AS_ROOT) ./scripts/bench-up

clean:
	rm -rf rampart results
