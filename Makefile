# make demo | demo-spark | speedups | test | test-pure | test-plugins | test-faults | test-benchmarks | test-spark | test-packaging | sanitize | compare-speedups | test-python | lint | docs | interop | bench | clean
# Each target sets itself up: a virtual environment in .venv with this checkout installed editable. For the demo the core is enough; the extras and
# the tools of development are added by the first target that needs them.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# Four processes more than cores, for many tests wait for programs and timeouts; a file's tests stay together, for they may share a broker or
# a JVM.
IN_PARALLEL := --numprocesses $(shell expr $$(getconf _NPROCESSORS_ONLN) + 4) --maxprocesses 6 --dist loadfile --no-loadscope-reorder
# A change of these installs again, which builds the compiled part again.
COMPILED_FROM := hatch_build.py $(shell find rmqkit plugins hooks stores transports spark_connector -name "*.pyx" -o -name "*.pxd" -o -name "*.h")
CORE := $(VENV)/.core
READY := $(VENV)/.ready
# PYTEST_OPTIONS of the environment are options for every run of tests.
PYTEST := $(BIN)/python -m pytest $(PYTEST_OPTIONS)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Everything that starts a broker, over one store or one transport: see rmqkit.testing.pytest_plugin.
BROKER_TESTS := tests/broker tests/e2e tests/hooks tests/plugins/delay tests/plugins/pop tests/plugins/timer tests/plugins/retention tests/plugins/test_contracts.py
PURE_TESTS := tests/protocol tests/speedups tests/broker tests/stores/mmap/test_store.py tests/stores/mmap/test_appending.py
STORES := mmap lmdb
TRANSPORTS := tcp tls unix memory quic

# Each process would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: speedups demo demo-spark test test-pure sanitize compare-speedups test-plugins test-stores test-transports test-faults test-benchmarks test-spark test-packaging test-python lint docs interop bench clean

# The compiled part again, beside its sources, after a change of a .pyx file.
speedups:
	$(BIN)/python hatch_build.py

demo: $(CORE)
	$(BIN)/rmqkit demo

# Orders through a broker into Spark and back, all sums compared. Needs Java 17.
demo-spark: $(READY)
	$(BIN)/rmqkit demo-spark --picture build/demo-spark.png

# The tests are imported once before: otherwise each process would rewrite the assertions of all files.
test: $(READY)
	-$(PYTEST) --collect-only -qq > /dev/null
	$(PYTEST) $(IN_PARALLEL)

# Tests of what has a compiled part, over the Python that stands behind it.
test-pure: $(READY)
	RMQKIT_PURE=1 $(PYTEST) $(PURE_TESTS)

# Programs that are killed, lose power, run out of disk or network, and simulated clusters: nothing acknowledged may be lost.
test-faults: $(READY)
	$(PYTEST) tests/faults tests/sim $(IN_PARALLEL)

# The programs of benchmarks/, each with little work.
test-benchmarks: $(READY)
	$(PYTEST) tests/benchmarks

# The Spark connector, over one session of Spark. Needs Java 17.
test-spark: $(READY)
	$(PYTEST) tests/spark

# Source distribution and wheels, built as an installation does, with and without a compiler.
test-packaging: $(READY)
	$(PYTEST) tests/packaging

# The compiled part built with AddressSanitizer and UndefinedBehaviorSanitizer, under its tests. Needs gcc.
sanitize: $(READY)
	$(BIN)/python -m tests.speedups.sanitize

# Each compiled function beside its twin in Python: a million random cases in all, or what eight minutes allow.
compare-speedups: $(READY)
	$(BIN)/python -m tests.speedups.compare --cases 1000000 --seconds 480

# The broker's tests over each transport, and each built-in store but the one in memory, over which `make test` runs them. Over one alone, also a plugin's: make test-store-NAME, make test-transport-SCHEME.
test-plugins: test-stores test-transports

# The first run writes down which files use a store, or a transport; the next ones run these alone.
test-stores: $(READY)
	rm -f build/store-users
	set -e; for name in $(STORES); do $(PYTEST) --store $$name --users build/store-users $(BROKER_TESTS); done

test-transports: $(READY)
	rm -f build/transport-users
	set -e; for name in $(TRANSPORTS); do $(PYTEST) --transport $$name --users build/transport-users $(BROKER_TESTS); done

test-store-%: $(READY)
	$(PYTEST) --store $* $(BROKER_TESTS)

test-transport-%: $(READY)
	$(PYTEST) --transport $* $(BROKER_TESTS)

# The tests under another Python, in a virtual environment of its own: make test-python PYTHON=/path/to/python3.14
test-python:
	$(MAKE) test VENV=.venv-$(notdir $(PYTHON)) PYTHON=$(PYTHON)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site of the documents, into build/site. Warnings, such as of a broken link, are errors.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Apache's Java clients and the Go client against rmqkit, and our client against Apache's broker. Needs Maven and Go. Fewer processes than for
# other tests: each has up to three JVMs, whose clients have time limits.
interop: $(READY)
	$(PYTEST) tests/interop $(IN_PARALLEL) --maxprocesses 4

# rmqkit and Apache's broker in one run, as ratios. Needs Maven.
bench: $(READY)
	$(BIN)/python -m benchmarks.compare

clean:
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(CORE): pyproject.toml $(COMPILED_FROM)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rmqkit needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $(CORE)

$(READY): $(CORE)
	$(PIP) --editable '.[all,dev]'
	touch $(READY)
