# What a contributor runs. `make` lists the targets.

.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

test: ## run the tests (those that need redis-server are skipped without it)
	go test ./...

full: ## run the tests in full size, as CI does
	DELAYQ_FULL=1 go test ./...

race: ## run the tests with the race detector
	go test -race -short -timeout 40m ./...

roles: ## run the tests as the users of docs/acl/delayq.acl
	DELAYQ_ROLES=docs/acl/delayq.acl go test ./lua ./tests

rings: ## run the tests with servers that wait for rings, however few topics they have
	DELAYQ_RINGS=1 go test ./tests

explore: ## explore the scripts to the end of each scope (some minutes)
	DELAYQ_EXPLORE=all go test -run TestExplore -timeout 30m -v ./lua

faults: ## run the fault rig's tests
	cd faults && go test ./...

soak: ## run the soak for MINUTES (default 5) against killed, frozen and cut processes
	cd faults && go run ./soak -minutes $(or $(MINUTES),5)

cli: ## run the tests of the command line
	cd cmd/delayq && go test ./...

prom: ## run the tests of the metrics
	cd prom && go test ./...

otel: ## run the tests of the traces
	cd otel && go test ./...

outbox: ## run the tests of the outbox on every database that is installed
	cd outbox && go test ./...

handlers: ## run the tests of the ready-made handlers, with every database that is installed
	cd handlers && go test ./...

observe: ## run the tests of the example with metrics, traces and health
	cd example/observe && go test ./...

deploy: ## check the board, the rules and the files for Docker and Kubernetes
	cd deploy && go test ./...
	promtool check config deploy/prometheus.yml
	promtool test rules deploy/delayq.rules.test.yml

bench: ## compare with asynq; ROWS is a pattern like 'enqueue|work' (default: all)
	cd bench && go run . $(if $(ROWS),-rows '$(ROWS)')

lint: ## check format, vet, staticcheck and go mod tidy in every module
	bash .ci/lint

tidy: ## go mod tidy of every module, with its siblings of this clone
	go run ./cmd/release tidy

licenses: ## write docs/licenses.md
	go run ./cmd/release licenses -write

api: ## compare the exported API with that of the last tag
	go run ./cmd/release api

stranger: ## fetch, build and install the modules as a user does
	cd cmd/release && go test -run 'TestStranger' -v .

stored: ## write what the version VERSION (0.1.0) stores, for the tests of later ones
	go test ./tests -run TestWriteStored -write-stored v$(or $(VERSION),$(error make stored VERSION=0.1.0))
	go test ./tests -run TestStoredByEarlierReleases -update

release: ## check and set the version VERSION (0.1.0), and print the tags to push
	go run ./cmd/release prepare $(or $(VERSION),$(error make release VERSION=0.1.0))

next: ## begin the next version, after the tags of the last one are pushed
	go run ./cmd/release next

dist: ## build the program, its Debian package and its SBOM into DIR (default dist)
	go run ./cmd/release dist $(or $(DIR),dist)

vuln: ## look up known vulnerabilities of the dependencies (needs vuln.go.dev)
	for dir in $$(git ls-files go.mod '*/go.mod' | xargs -n1 dirname); do \
		(cd $$dir && go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...) || exit 1; done

ci: ## run everything that must hold before a change lands
	bash .ci/run

.PHONY: help test full race roles rings explore faults soak cli prom otel outbox handlers observe deploy bench lint tidy licenses api stranger stored release next dist vuln ci
