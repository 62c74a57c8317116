# make demo | demo-spark | test | test-plugins | lint | interop | bench | clean
# Each target sets itself up: a virtual environment in .venv with this checkout installed editable.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Everything that starts a broker, over one store or one transport: see rmqkit.testing.pytest_plugin.
BROKER_TESTS := tests/broker tests/e2e tests/hooks tests/plugins/delay tests/plugins/retention tests/plugins/test_contracts.py
STORES := memory mmap lmdb
TRANSPORTS := tcp tls unix memory quic

.PHONY: demo demo-spark test test-plugins lint interop bench clean

demo: $(READY)
	$(BIN)/rmqkit demo

# Orders through a broker into Spark and back, all sums compared. Needs Java 17.
demo-spark: $(READY)
	$(BIN)/rmqkit demo-spark --picture build/demo-spark.png

test: $(READY)
	$(BIN)/python -m pytest

# The broker's tests over each built-in store and each transport. Over one alone, also a plugin's: make test-store-NAME, make test-transport-SCHEME.
test-plugins: $(STORES:%=test-store-%) $(TRANSPORTS:%=test-transport-%)

test-store-%: $(READY)
	$(BIN)/python -m pytest --store $* $(BROKER_TESTS)

test-transport-%: $(READY)
	$(BIN)/python -m pytest --transport $* $(BROKER_TESTS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Apache's Java clients and the Go client against rmqkit, and our client against Apache's broker. Needs Maven and Go.
interop: $(READY)
	$(BIN)/python -m pytest tests/interop

# rmqkit and Apache's broker in one run, as ratios. Needs Maven.
bench: $(READY)
	$(BIN)/python -m benchmarks.compare

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rmqkit needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	touch $(READY)
