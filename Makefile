# oncelog: `make` alone lists the targets. Each makes the virtual environment it needs; only Python >= 3.11 and make must be there.

.DEFAULT_GOAL := help
# plyvel has wheels for 3.11 and 3.12; on a later Python the tests of LevelDB are passed over. So look for those first.
# A name on PATH may be a version manager's empty shell, hence the try.
PYTHON ?= $(shell for name in python3.12 python3.11 python3; do $$name -c 'import venv' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): constraints.txt pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "oncelog needs Python 3.11 or later; set PYTHON=/path/to/python3"; exit 1; }
	"$(PYTHON)" -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

.PHONY: venv
venv: $(READY) ## make the virtual environment in .venv

# The tests start hundreds of Python processes: none is to compile everything anew. (Empty is unset.)
test test-real test-all test-slow calm demo fight bench once: export PYTHONDONTWRITEBYTECODE :=

.PHONY: test
test: $(READY) ## run the tests that need nothing but Python: no process, no port, no clock but their own (ARGS="-k name" to choose)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(ARGS)

.PHONY: test-all
test-all: test test-real ## run these, and then those of test-real

.PHONY: test-real
test-real: $(READY) ## run those about the real world: sockets, signals, forks, PostgreSQL, a JVM, a browser, services that are killed
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m "real and not slow" -p tests.again $(ARGS)

.PHONY: test-slow
test-slow: $(READY) ## run the slow tests, and every property with seeds by chance: minutes of kill -9, millions of messages
	SEEDS=random $(BIN)/python -m pytest -m "slow or hypothesis" --timeout 1800 $(ARGS)

.PHONY: calm
calm: $(READY) ## run the tests that were changed since main, or in the last commit of main, 20 times beside busy processors (ARGS=names)
	$(BIN)/python -m tests.calm $(ARGS)

.PHONY: accept
accept: $(READY) ## have scenarios expect what comes of them now; each that changed is to be read, and judged anew (ARGS=names)
	$(BIN)/python -m tests.scenarios_text.accept $(ARGS)

.PHONY: demo
demo: $(READY) ## flights published and bookings made while everything is killed; proofs that each is there once (STORE=postgresql)
	$(BIN)/python examples/demo.py $(if $(STORE),--store $(STORE)) $(ARGS)

.PHONY: fight
fight: $(READY) ## two leaders of a key-value store fight under kill -9; a checker proves one serial history (ARGS="--operations 1000")
	$(BIN)/python -m examples.key_value.fight $(ARGS)

.PHONY: bench
bench: $(READY) ## measure speed and memory; prints a table, writes benchmarks/results/*.json
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: once
once: $(READY) ## what is stored once: oncelog, and Kafka and Pulsar where Java and Maven are (ARGS=--page: write docs/pip6.md)
	$(BIN)/python -m benchmarks.pip6 $(ARGS)

.PHONY: faces
faces: $(READY) ## make the SDK's classes for threads anew from those for asyncio
	$(BIN)/python sdk/faces.py

.PHONY: pictures
pictures: $(READY) ## take the pictures of the console that the documentation shows; needs Chromium
	$(BIN)/python -m docs.pictures

.PHONY: site
site: $(READY) ## make the site of the documentation in build/site, with search and the API's reference
	$(BIN)/sphinx-build -q -W --keep-going -c docs/site -b html . build/site
	@echo build/site/index.html

.PHONY: lint
lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: format
format: $(READY) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: types
types: $(READY) ## mypy, strict
	$(BIN)/mypy

.PHONY: contracts
contracts: $(READY) ## import-linter: who may import whom
	$(BIN)/lint-imports

.PHONY: rooms
rooms: $(READY) ## count the modules that a send, a poll and a publish lead through, and what threads and loops are made of there (ARGS=--long)
	$(BIN)/python -m tests.rooms $(ARGS)

.PHONY: check
check: lint types contracts test ## what every change must pass; CI runs test-all besides

.PHONY: dist
dist: $(READY) ## build wheel and sdist of what is committed into dist
	rm -rf dist
	$(BIN)/python -c 'import pathlib, tempfile; from release.building import build_twice; build_twice(pathlib.Path(), "HEAD", pathlib.Path(tempfile.mkdtemp()), pathlib.Path("dist").absolute())'

.PHONY: release
release: $(READY) ## check, test, build and tag VERSION=X.Y.Z; uploads nothing (ARGS=--rehearse: without tests and tag)
	@test -n "$(VERSION)" || { echo "make release VERSION=X.Y.Z"; exit 1; }
	$(BIN)/python -m release $(VERSION) $(ARGS)

COMPILE := pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-strip-extras --no-annotate --no-header

.PHONY: constraints
constraints: $(READY) ## pin what pyproject.toml asks for and constraints.txt has not yet (ARGS=--upgrade: everything anew)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv $(COMPILE) --extra service --extra postgresql --extra jwt --extra spark --extra otel --group dev $(ARGS) -o constraints.txt
	$(BIN)/uv $(subst pyproject.toml,--group pyproject.toml:release,$(COMPILE)) $(ARGS) -o release/constraints.txt
	$(BIN)/uv $(subst pyproject.toml,--group pyproject.toml:brokers,$(COMPILE)) $(ARGS) -o benchmarks/brokers/constraints.txt

.PHONY: clean
clean: ## remove what make made
	rm -rf $(VENV) .venv-brokers dist build .pytest_cache .hypothesis .mypy_cache .ruff_cache .coverage benchmarks/results
