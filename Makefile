# The targets of this project. `setup` makes .venv if it is missing; all others call it.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
TESTABLE := .venv/.testable

.PHONY: setup run test test-federation test-faults bench lint types clean

setup: $(INSTALLED)

$(INSTALLED): requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -r requirements.txt
	touch $@

$(TESTABLE): $(INSTALLED)
	$(BIN)/pip install --quiet -e '.[test,efficientnet,clustering]'
	touch $@

run: setup
	$(BIN)/nvflare simulator jobs/fedproin -w /tmp/ws -n 10

test: $(TESTABLE)
	$(BIN)/pytest

test-federation: $(TESTABLE)
	$(BIN)/pytest -m federation tests/federation_runs

test-faults: $(TESTABLE)
	$(BIN)/pytest -m fault tests/faults --junitxml=.faults.xml  # with what was measured

bench: $(TESTABLE)
	@test -n "$$FEDPROIN_DATA" || { echo "Say where the pictures are: FEDPROIN_DATA=../shared/data/ham10000_28px.zip make bench"; exit 2; }
	$(BIN)/fedproin bench benchmarks/ham28.toml --out benchmarks/results/ham28

# Whether a module is our own depends on other files than the one that ruff caches, so a cached answer may be wrong.
lint: $(TESTABLE)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .

types: $(TESTABLE)
	$(BIN)/mypy

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis custom/*.egg-info
