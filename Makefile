# make demo: set everything up and run the main job on real data. make test: set up and test.
PYTHON ?= python3
VENV ?= .venv
# The version that everything is tested with; any of 2.11 to 2.14 works.
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
READY := $(VENV)/.lowtide-ready
# Two cores are enough for everything here, and one thread gives steady clocks.
export OMP_NUM_THREADS ?= 1
# Tests that run at the same time.
WORKERS ?= 2

.PHONY: demo test test-slow lint format setup clean

demo: setup
	$(BIN)/python -m experiments.demo --out demo-out

test: setup
	$(BIN)/python -m pytest -q -n $(WORKERS)

test-slow: setup
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "slow or not slow"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "lowtide needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	# PyTorch first and by version, so that nothing else chooses another build.
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) build demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
