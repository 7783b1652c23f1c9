# `make demo` and `make test` do all the set-up on a fresh machine with Python 3.11 or later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MATRIX ?= all

.PHONY: demo test test-slow test-gpu lint format clean

demo: $(VENV)/kernels
	PATH="$(CURDIR)/$(BIN):$$PATH" MATRIX="$(MATRIX)" sh benchmarks/demo.sh

test: $(VENV)/dev
	$(BIN)/python -m pytest -q -m "not slow" -n auto --dist loadfile

test-slow: $(VENV)/dev
	$(BIN)/python -m pytest -q -m slow

test-gpu: $(VENV)/dev
	HARNESS_TEST_GPU=1 $(BIN)/python -m pytest -q -m gpu

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/jactionlint --strict-exit --shellcheck=$(BIN)/shellcheck --pyflakes=
	$(BIN)/zizmor --offline --no-progress --quiet .github/workflows

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A marker file a set of packages, newer than what it was installed from.
$(VENV)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/core: $(VENV)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/fleet: $(VENV)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[all]'
	touch $@

$(VENV)/kernels: $(VENV)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[kernels]'
	touch $@

$(VENV)/dev: $(VENV)/kernels
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[kernels,fleet,dev]'
	touch $@

clean:
	rm -rf $(VENV) .harness .mypy_cache .ruff_cache .pytest_cache .hypothesis
