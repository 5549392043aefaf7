# make reproduce   a report from this machine, from nothing (PROVIDER=libvirt forces virtual machines)
# make test        everything that can be tested, with real namespaces, libvirt and a real browser
# make bench       the project's own figures, as ratios measured in one run
SHELL    := /bin/bash
PROVIDER ?= auto
export CGO_ENABLED := 0
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: all build reproduce test lint bench clean
all: build

build:
	go build -trimpath -o rampart ./cmd/rampart

reproduce: build
	./scripts/packages reproduce $(PROVIDER)
	mkdir -p results && ./rampart init --preset quick --output - > results/quick.hcl
	$(SUDO) ./rampart run --config results/quick.hcl --provider $(PROVIDER)

test: build lint
	./scripts/packages test
	./scripts/services
	RAMPART_TEST_NO_SKIP=$(if $(CI),1) $(SUDO) env "PATH=$$PATH" go test -count=1 -timeout 40m ./...

lint:
	test -z "$$(gofmt -l .)"
	go vet ./...
	go tool staticcheck ./...

bench: build
	$(SUDO) env "PATH=$$PATH" ./scripts/bench

clean:
	rm -rf rampart bin
