# Everything a person types: `make demo` (root) and `make test` (root). Both do all the set-up they need.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# tests/conftest.py says which tests stay together; one process: make test PARALLEL=
PARALLEL ?= -n auto --max-worker-restart=1
# Container images often set it. Then every process of a test compiles all its modules again, which doubles its CPU time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup apt demo test test-all vm lint unit bench scorecard gpu gpu-wheels lab-down docs docs-site dashboards lock release packages clean

setup: $(VENV)/.done ## .venv with fairlead and every developer tool; the machine trees in .cache/machines
	@$(BIN)/python -m tests.lab.trees >/dev/null

$(VENV)/.done: pyproject.toml tests/lab/setup.sh
	@tests/lab/setup.sh "$(PYTHON)" "$(VENV)"

apt: ## distribution packages that the lab needs (asks nothing)
	@tests/lab/apt.sh

demo: ## the whole job on a rack of simulated GPU nodes; KEEP=1 leaves it up
	@tests/lab/preflight.sh
	@tests/lab/apt.sh
	@$(MAKE) --no-print-directory setup
	@$(BIN)/python -m tests.lab.demo $(if $(KEEP),--keep)

lab-down: ## end what `make demo KEEP=1` and killed runs left; labs in use stay
	@$(BIN)/python -m tests.lab.clean --dead

lint: setup
	@$(BIN)/python -m pytest -q tests/lint

unit: setup ## ROOM=checks: the tests of one room, in seconds
	@$(BIN)/python -m pytest -q -m "not rack and not slurm and not root and not slow$(if $(ROOM), and not trees and not heavy)" $(if $(ROOM),tests/$(ROOM))

test: ## lint, unit, hooks, contracts, real Slurm, rack
	@tests/lab/apt.sh
	@$(MAKE) --no-print-directory setup
	@$(BIN)/python -m pytest -p tests.second_run $(PARALLEL) -m "not slow"

test-all: ## also what takes long: kill loops, fuzzing
	@tests/lab/apt.sh
	@$(MAKE) --no-print-directory setup
	@$(BIN)/python -m pytest $(PARALLEL) -m "not vm"

SUITE ?= trixie
vm: ## a stock Debian with its own kernel in a virtual machine: make vm SUITE=forky
	@tests/lab/preflight.sh
	@tests/lab/apt.sh
	@$(MAKE) --no-print-directory setup
	@$(BIN)/python -m tests.vm.image --known $(SUITE)
	@tests/lab/apt.sh mmdebstrap
	@$(BIN)/python -m tests.vm.image $(SUITE)
	@FAIRLEAD_VM_SUITE=$(SUITE) $(BIN)/python -m pytest -v -rP --durations=10 -m vm tests/vm

bench: ## the budgets of the design, measured now, beside what they are compared to
	@tests/lab/apt.sh
	@$(MAKE) --no-print-directory setup
	@$(BIN)/python -m tests.bench

scorecard: ## faults and their harmless twins, noticed by whom and how soon: fairlead and the peers found here (NHC= GCM=)
	@tests/lab/apt.sh
	@$(MAKE) --no-print-directory setup
	@$(BIN)/python -m tests.scorecard --page

gpu: ## proof on a real GPU, in under 8 minutes and without network, into .cache/gpu/report: make gpu GPU="--gpu 1 --no-settings"
	@tests/gpu/run.sh $(GPU)

gpu-wheels: ## what `make gpu` needs where there is no network and no `make setup`: make gpu-wheels FOR="3.11 3.12"
	@tests/gpu/wheels.sh "$(PYTHON)" $(or $(FOR),3.11 3.12 3.13)

docs: setup ## generated tables: README, docs/reference
	@$(BIN)/python -m tests.docs_write

docs-site: setup ## the documentation as a site of static files, into dist/docs-site/VERSION; fetches nothing
	@$(BIN)/python -m release.docs_site

dashboards: setup ## the Grafana dashboards in agent/fairlead/dashboards, from the code in release/dashboards
	@$(BIN)/python -m release.dashboards

lock: setup ## exact versions and hashes of the Python packages that fairlead brings along (asks pip's index; PYTHON: 3.11)
	@$(BIN)/python release/lock.py

RELEASE := .cache/release
$(RELEASE)/.done: release/build.txt
	@rm -rf $(RELEASE) && $(PYTHON) -m venv $(RELEASE)
	@$(RELEASE)/bin/python -m pip install -qq --disable-pip-version-check --require-hashes --only-binary=:all: -r release/build.txt
	@touch $@

release: $(RELEASE)/.done ## wheel, sdist, SBOM, checksums and their signature into dist/: make release KEY=FILE
	@$(RELEASE)/bin/python release/build.py --key "$(KEY)"

packages: $(RELEASE)/.done ## RPM and .deb packages into dist/: make packages GPG_KEY=FILE (without it they are not signed)
	@$(RELEASE)/bin/python release/packages.py --gpg-key "$(GPG_KEY)" --compression "$(or $(COMPRESSION),xz)"

clean:
	rm -rf .cache/release .cache/packages .cache/machines $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
