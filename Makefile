# Legato. `make help` lists what there is. Everything is installed below this directory (.venv, .venv-engine, models/, .legato/).
PYTHON ?= python3
ENGINE ?= sglang
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup setup-engine demo up test test-fast check format bench chaos sim documents lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(STAMP)  ## install the control plane into .venv (exact versions with hashes)

$(STAMP): requirements.lock pyproject.toml
	@echo "installing the control plane into $(VENV) (about a minute)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Legato needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	@touch $@

setup-engine: setup  ## install SGLang for the CPU into .venv-engine and build the small model (minutes, 3 GB)
	@bash deploy/engine/setup.sh

demo: $(if $(filter sglang,$(ENGINE)),setup-engine,setup)  ## the whole way once, with a kill in the middle (ENGINE=simulated for a quick one)
	@$(BIN)/legato demo --engine $(ENGINE)

up: $(if $(filter sglang,$(ENGINE)),setup-engine,setup)  ## run everything here until Ctrl-C (ENGINE=simulated for a quick one)
	@$(BIN)/legato up --engine $(ENGINE)

test: setup-engine  ## all tests, with real nats-server, Postgres and SGLang
	@$(BIN)/pytest

test-fast: setup  ## the tests that need no SGLang
	@$(BIN)/pytest -m "not sglang"

check: setup  ## format, lint, types, import rules, sizes, documents
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python deploy/check_files.py
	@$(BIN)/hadolint --failure-threshold error deploy/Dockerfile deploy/engine/Dockerfile
	@$(BIN)/python docs/generate.py --check

format: setup  ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup  ## what the control plane costs (simulated engine, zero compute time)
	@$(BIN)/python -m bench $(BENCH)

chaos: setup  ## a storm of signals on a whole fleet: nothing may be lost (SEED=7 SECONDS=60 CHAOS="--engine sglang")
	@$(BIN)/python -m bench.chaos $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(CHAOS)

sim: setup  ## a thousand whole fleets in simulated worlds, with faults (SEED=7 for one, SEEDS=200, SIM="--mutations")
	@$(BIN)/python -m bench.sim $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(SIM)

documents: setup  ## write docs/asyncapi.json and docs/schemas anew from the contracts
	@$(BIN)/python docs/generate.py

lock: setup  ## renew requirements.lock after a change of pyproject.toml
	@$(BIN)/pip install --quiet uv==0.13.9
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras --no-header --output-file requirements.lock pyproject.toml deploy/build-requirements.in

clean:  ## remove what was installed and stored here
	rm -rf $(VENV) .venv-engine models build .legato .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
