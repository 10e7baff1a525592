# The daily verbs. On a fresh machine nothing is needed before them but Python >= 3.11 and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup run test lint types unit gpu-test kernels-compile schema clean

help: ## list the verbs
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(READY) ## make .venv with everything the checks need

$(READY): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile -c constraints.txt torch
	@# torch's build for Linux brings its own triton; a CPU build brings none
	$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("triton") is None)' \
	  || [ "$$(uname -s)" != Linux ] || $(BIN)/pip install -q --no-compile triton==3.6.0
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[torch,dev]'
	touch $(READY)

run: $(READY) ## run the quickstart: every layer kind of V4-Flash beside V3.2
	$(BIN)/dsv4bench run quickstart

test: lint types unit ## lint, type-check and test (no GPU needed)

lint: $(READY) ## ruff and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=.:kernels $(BIN)/lint-imports

types: $(READY) ## mypy --strict
	$(BIN)/mypy

unit: $(READY) ## the tests, without those that need a GPU
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadgroup -m 'not gpu'

gpu-test: $(READY) ## the tests that need an NVIDIA GPU
	$(BIN)/pytest -m gpu

kernels-compile: $(READY) ## compile every kernel for sm_90 and sm_100 and report registers, spills and shared memory
	$(BIN)/python kernels/compile_report.py

schema: $(READY) ## rewrite scenarios/schema.json from the code
	$(BIN)/dsv4bench schema > scenarios/schema.json

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build
