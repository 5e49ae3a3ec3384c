# Everything a contributor runs. `make demo` and `make test` work on a fresh machine that has
# Python >= 3.11, git and make: they create the virtual environment themselves.
#
#   PYTHON=/path/to/python3.12 make venv     another interpreter
#   VENV=/tmp/venv make test                 another place for the virtual environment

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

VENV ?= .venv
BIN := $(VENV)/bin

# pip, matplotlib and others keep caches below HOME; without one they would write to `/`.
ifeq ($(strip $(HOME)),)
export HOME := $(abspath $(VENV))/home
endif
export PIP_DISABLE_PIP_VERSION_CHECK := 1

DEMO_ARGS ?=
TEST_ARGS ?=
LOCK_ARGS ?=
SEARCH_ARGS ?=
FUZZ_SECONDS ?= 600
FUZZ_ARGS ?=
BENCH_ARGS ?=
PEERS ?=

# A bench is a program `tests/bench/bench_*.py` that takes `--quick` (seconds instead of minutes; the
# numbers are then worthless, the code paths are the same).
BENCHES := $(sort $(wildcard tests/bench/bench_*.py))

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) \
		| awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

# ---------------------------------------------------------------------------- environment

# The interpreter is PYTHON, or the first one on PATH that is new enough and can make a venv.
# Searched only when the venv is missing, so that a working one never depends on PATH.
$(BIN)/python:
	@for candidate in $${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do \
		if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
				2>/dev/null; then \
			echo "creating $(VENV) with $$("$$candidate" --version) ($$candidate)"; \
			exec "$$candidate" -m venv --clear "$(VENV)"; \
		fi; \
	done; \
	echo "make: no Python >= 3.11 with the modules venv and ensurepip found among:" \
		"$${PYTHON:-python3 python3.13 python3.12 python3.11 python}." \
		"On Debian: apt-get install python3-venv. Or name one: make PYTHON=/path/to/python" >&2; \
	exit 1

# Two stamps: a change of the lock installs packages, a change of pyproject.toml only registers the
# project again (entry points, metadata). The backend comes from the lock, hence no isolation.
$(VENV)/.locked: requirements.lock | $(BIN)/python
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.locked
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: venv
venv: $(VENV)/.installed ## create or update the virtual environment from requirements.lock

.PHONY: lock
lock: venv ## pin the dependencies again (LOCK_ARGS=--upgrade takes the newest)
	env -u PIP_FIND_LINKS -u UV_FIND_LINKS $(BIN)/uv pip compile --quiet --no-config --universal \
		--python-version 3.11 --generate-hashes --extra dev \
		--custom-compile-command "make lock" $(LOCK_ARGS) \
		--output-file requirements.lock pyproject.toml

.PHONY: clean
clean: ## remove the virtual environment, caches and build results
	rm -rf "$(VENV)" build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache demo-run
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------- run and check

.PHONY: demo
demo: venv ## a fleet of simulated engines, a proxy and a trainer, live (DEMO_ARGS=...)
	$(BIN)/steersman demo $(DEMO_ARGS)

.PHONY: test
test: venv ## all tests that need no cluster (TEST_ARGS="-k policy")
	$(BIN)/python -m pytest -m "not clean_clone" $(TEST_ARGS)

.PHONY: test-real
test-real: venv ## the tests with a real vLLM on this machine's CPU (2 GB once; docs/real-engine.md)
	$(BIN)/python -m tests.real_engine $(TEST_ARGS)

.PHONY: search
search: venv ## property tests with fresh random seeds, for hours (SEARCH_ARGS="-k exchange")
	$(BIN)/python -m pytest -m "not clean_clone" --timeout=0 --hypothesis-profile=search $(SEARCH_ARGS)

.PHONY: fuzz
fuzz: venv ## fuzz the downstream adapters with fresh seeds (FUZZ_SECONDS=600)
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

.PHONY: lint
lint: venv ## ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy scripts tests
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: venv ## format the code and apply the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: docs
docs: venv ## write the generated pages of docs/ again
	$(BIN)/python -m scripts.gen_docs

.PHONY: docs-check
docs-check: venv ## fail if a generated page of docs/ is out of date
	$(BIN)/python -m scripts.gen_docs --check

.PHONY: bench bench-smoke
bench: venv ## run every benchmark (a quarter of an hour; PEERS=DIR has other gateways)
	@status=0; for bench in $(BENCHES); do \
		name=$$(basename $$bench .py); echo "== $$bench"; more=; \
		if [[ $$name == bench_proxies && -n "$(PEERS)" ]]; then more="--peers $(PEERS)"; fi; \
		$(BIN)/python -m "tests.bench.$$name" $$more $(BENCH_ARGS) || status=$$?; \
	done; exit $$status

bench-smoke: venv ## run every benchmark for a moment, to see that it runs
	@for bench in $(BENCHES); do echo "== $$bench"; $(BIN)/python -m "tests.bench.$$(basename $$bench .py)" --quick; done

.PHONY: ci
ci: ## what is run on every submission
	bash .ci/run
