# Two commands matter on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FLOWER := $(VENV)/.ready-flower
DOCS := $(VENV)/.ready-docs

.DEFAULT_GOAL := help
.PHONY: help run test test-slow mutants fuzz lint types same-bits bench lock docs report flower-demo clean

help:  ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing unskew into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# mkdocs and its plugins: only `make docs` needs them.
$(DOCS): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

# Only tests and the Flower demo need the extras: `make run` works without them.
$(FLOWER): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[figures,flower,onnx,privacy,ray,track,tune]'
	@touch $@

run: $(READY)  ## train on the embedded demo data, print the table, write the report
	@$(BIN)/unskew demo --out runs/demo

lint: $(READY)  ## ruff: style and mistakes
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)  ## mypy, strict
	@$(BIN)/mypy

test: lint types $(FLOWER)  ## lint, types, tests
	@$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

test-slow: $(FLOWER)  ## tests that take minutes: the wheel, real Flower nodes, kills, every table
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

mutants: $(FLOWER)  ## plant mistakes in the core and list those that no test notices
	@$(BIN)/python -c "import mutmut" 2>/dev/null || $(BIN)/python -m pip install --quiet mutmut
	@$(BIN)/python -m benchmarks.mutants

# N, SEED and SECONDS set the number of cases, what they are, and when to stop.
N := 20000
SEED := 0
SECONDS := 3600

fuzz: $(FLOWER)  ## wrong input of every kind, seeded: make fuzz N=20000 SEED=0
	@$(BIN)/python -m benchmarks.fuzz --cases $(N) --seed $(SEED) --seconds $(SECONDS)

same-bits: $(FLOWER)  ## compare all results with those of another commit: make same-bits BASE=COMMIT
	@$(BIN)/python -m benchmarks.same_bits $(BASE)

bench: $(READY)  ## speed ratios, measured in one run
	@$(BIN)/python -m benchmarks

lock: $(FLOWER)  ## the versions and hashes of a deployment, in requirements-deploy.txt
	@$(BIN)/python .ci/lock

docs: $(DOCS)  ## the documentation site, in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Read it with: $(PYTHON) -m http.server -d site, then http://localhost:8000"

flower-demo: $(FLOWER)  ## real processes on loopback with Flower, compared with the simulator
	@$(BIN)/unskew deploy demo --out runs/flower-demo

report: $(READY)  ## the HTML report of the last demo run
	@$(BIN)/unskew report runs/demo/*

clean:  ## remove the environment and what was built
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache runs
