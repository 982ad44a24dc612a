# Everything happens in .venv; only Python 3.11+, pip and make are assumed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
JOBS ?= 3
PYTEST := $(BIN)/pytest -n $(JOBS) --dist worksteal

# pip compiles nothing here: Python does, as it imports, and must be let to keep the result.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-unit test-all lint style types quick browser clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/python.ok:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "stepscope needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/demo.ok: $(VENV)/python.ok pyproject.toml constraints.txt
	$(PIP) -e '.[torch]'
	touch $@

$(VENV)/test.ok: $(VENV)/python.ok pyproject.toml constraints.txt
	$(PIP) -e '.[test]'
	touch $@ $(VENV)/demo.ok

demo: $(VENV)/demo.ok ## the whole loop on a bundled slow program: observe, findings, tune, proof
	$(BIN)/stepscope demo

lint: style types ## ruff, mypy --strict, import-linter

style: $(VENV)/test.ok
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.ok
	$(BIN)/mypy
	$(BIN)/lint-imports

browser: $(VENV)/test.ok ## find a Chromium for the browser tests, or install Playwright's
	@$(BIN)/python tests/support/find_browser.py

test-unit: $(VENV)/test.ok ## the tests that start no other process
	$(PYTEST) -m unit

test: style browser ## lint and all tests but the long ones: minutes
	@$(MAKE) -j 2 types quick

quick: $(VENV)/test.ok
	$(PYTEST) -m "not slow"

test-all: lint browser ## the long tests too
	$(PYTEST)

clean: ## remove the venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build src/*.egg-info
