# Everything a checkout needs, from a machine that has Python 3.11 and make and nothing else. `make help` lists it.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup demo docs pages screenshots test long lowest lint types unit scripts integration bench goals bench-chaos sparkbench failover chaos calibration soak lock clean

VENV := .venv
BIN := $(VENV)/bin
# Set up once for each state of the lock: the stamp is as new as the last set-up that went through.
READY := $(VENV)/.ready
CODE := $(wildcard bridge routing spark tasks tests benchmarks docs celeryconfig.py)
# Types: `bridge` has links to `routing` and `spark`, which would otherwise be found under two names.
TYPED := $(filter-out routing spark,$(CODE))
# Options for pytest, as in: make unit PYTEST_ARGS="-k lease -x"
PYTEST_ARGS ?=
# Options for the demo, as in: make demo DEMO_ARGS="--events log.csv.gz"
DEMO_ARGS ?=
# Test files that run beside each other: most of what the integration tests do is wait. The last of these processes runs
# only tests that start no processes, with a lower priority, in the time that the others leave (tests/scheduling.py).
JOBS ?= 7
# In the order of tests/conftest.py: xdist would begin with the files that have the most tests, which take the least.
BESIDE = -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Options for the goals: .venv/bin/python -m benchmarks.goals --help
GOALS_ARGS ?=
# Options for the chaos benchmark: .venv/bin/python -m benchmarks.chaos --help
BENCH_CHAOS_ARGS ?=
# Options for the soak: .venv/bin/python -m tests.chaos.soak --help
SOAK_ARGS ?=

# Variables of the caller's shell must not change the checkout's own environment.
unexport PYTHONHOME PYTHONPATH VIRTUAL_ENV PIP_REQUIRE_VIRTUALENV PIP_USER PIP_TARGET PIP_PREFIX
# Nor keep compiled modules from being stored: every process of the tests would compile all of them anew.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv and install the pinned versions

# A Python that is new enough but cannot make an environment (Debian splits that off) is passed over for another one.
# Half-made environments are made anew, since only the stamp says that one is complete.
$(READY): requirements.lock pyproject.toml
	@found=; lame=; \
	for candidate in $${PYTHON:-python3.11 python3 python3.12 python3.13 python3.14}; do \
	  "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  if "$$candidate" -c 'import ensurepip, venv' 2>/dev/null; then found=$$candidate; break; fi; \
	  lame=$$candidate; \
	done; \
	if [ -z "$$found" ] && [ -n "$$lame" ]; then \
	  echo "error: $$lame has no venv module; install it (Debian, Ubuntu: the package python3-venv), then run make again" >&2; exit 1; \
	elif [ -z "$$found" ]; then \
	  echo "error: no Python 3.11 or newer found; install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
	  echo "Creating $(VENV) with $$found"; "$$found" -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "Installing the pinned versions into $(VENV) (1.1 GB, most of it Spark and Java)"
	@$(BIN)/python -m pip install -qq --require-hashes -r requirements.lock
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## The whole stack with data on this machine, a worker killed on the way, a verdict at the end
	$(BIN)/bridge demo $(DEMO_ARGS)

# The long tests start many Javas with Spark. Where this fails, they start slower. The others start five, which gain less
# than the recording takes; where there is one, they use it.
CLASSES := $(VENV)/spark-classes/classes.jsa
$(CLASSES): $(READY)
	@echo "Recording the classes that Spark loads, once for this environment (half a minute)" >&2
	-@$(BIN)/python -m tests.spark_java >/dev/null

# Not $(MAKE) in the recipe itself: make -n would run it.
CHECKS := $(MAKE) --no-print-directory --keep-going lint types
test: $(READY) ## Lint, strict types and the tests, beside each other: everything once
	@shown=$$(mktemp); trap 'rm -f "$$shown"' EXIT; trap 'exit 130' INT TERM; \
	$(CHECKS) >"$$shown" 2>&1 & checks=$$!; \
	$(BIN)/python -m pytest $(BESIDE) tests $(PYTEST_ARGS); tested=$$?; \
	wait $$checks; checked=$$?; cat "$$shown"; \
	exit $$((tested | checked))

long: $(READY) $(CLASSES) ## What make test leaves out: the same in other modes, pools and on other servers, and longer looks
	$(BIN)/python -m pytest $(BESIDE) --tier long tests $(PYTEST_ARGS)

# An environment of its own, made anew each time. The generated pages are those of the newest versions: not tested here.
LOWEST := .venv-lowest
lowest: $(READY) ## The tests with the oldest versions of the dependencies that pyproject.toml allows
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -r pyproject.toml --extra dev
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps -e .
	$(LOWEST)/bin/python -m pytest $(BESIDE) tests/unit tests/scripts tests/integration --ignore tests/unit/pages $(PYTEST_ARGS)

lint: $(READY) ## ruff: rules and format; import-linter: imports run one way
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/lint-imports --no-logo

types: $(READY) ## mypy --strict, tests included
	$(BIN)/mypy $(TYPED)

unit: $(READY) ## Tests without a server
	$(BIN)/python -m pytest tests/unit -m "not server" $(PYTEST_ARGS)

scripts: $(READY) ## Lua transitions on Valkey 9.1 and Redis 6.2
	$(BIN)/python -m pytest tests/scripts $(PYTEST_ARGS)

integration: $(READY) ## Real workers and masters as processes
	$(BIN)/python -m pytest tests/integration $(PYTEST_ARGS)

chaos: $(READY) ## Faults of every kind, drawn by a seed (CHAOS_SEED, CHAOS_FAULTS), under load
	$(BIN)/python -m pytest tests/chaos $(PYTEST_ARGS)

calibration: $(READY) ## Every invariant broken on purpose, and caught; also what make test leaves out
	$(BIN)/python -m pytest --tier all tests/calibration $(PYTEST_ARGS)

soak: $(READY) ## 300,000 messages of an incident log, 300 faults, a report (SOAK_ARGS="--log FILE --hours 1")
	$(BIN)/python -m tests.chaos.soak $(SOAK_ARGS)

pages: $(READY) ## The generated parts of pages, after a change of settings, commands, keys, errors, rooms or the audit
	$(BIN)/python docs/generate.py

docs: pages ## The pages as HTML in docs/_build/html; a dead link or a missing reference is an error
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

screenshots: $(READY) ## The pictures of the pages, taken again from a stack at work; needs Chromium
	$(BIN)/python docs/screenshots.py

bench: $(READY) ## The bridge against plain Celery and against a lock per ticket
	$(BIN)/python -m benchmarks

# Peers that run in Node. Where there is no npm, their rows are left out, and the run says so.
PEERS := benchmarks/peers/node_modules/.package-lock.json
$(PEERS): benchmarks/peers/package-lock.json
	-@npm install --silent --no-save --prefix benchmarks/peers

goals: $(READY) ## Each goal against its peer, as reached or not (GOALS_ARGS="--rounds 1 --scale 0.1")
	-@$(MAKE) --no-print-directory --silent $(PEERS)
	$(BIN)/python -m benchmarks.goals $(GOALS_ARGS)

bench-chaos: $(READY) ## What the bridge and its peers do with order while processes die (BENCH_CHAOS_ARGS="--rounds 1 --seconds 20")
	-@$(MAKE) --no-print-directory --silent $(PEERS)
	$(BIN)/python -m benchmarks.chaos $(BENCH_CHAOS_ARGS)

sparkbench: $(READY) ## Spark writing and reading a stream, against the server alone and the usual ways; needs redis-benchmark
	$(BIN)/python -m benchmarks.spark_write
	$(BIN)/python -m benchmarks.spark_read

# Names, versions and hashes only: the installing machine chooses where packages come from.
PIN := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --group build \
  --no-header --no-annotate --no-emit-index-url --no-emit-find-links

failover: $(READY) ## How long tickets stand still when a process dies: 100 kills of each kind, about an hour
	$(BIN)/python -m benchmarks.failover

lock: $(READY) ## Pin anew what pyproject.toml asks for (UPGRADE=--upgrade takes newer versions)
	$(PIN) $(UPGRADE) --all-extras --output-file requirements.lock pyproject.toml
	$(PIN) --extra flower --extra http --constraints requirements.lock --output-file requirements-image.lock pyproject.toml
	$(PIN) --extra flower --extra http --extra spark --extra java --constraints requirements.lock --output-file requirements-image-spark.lock pyproject.toml

clean: ## Remove the environment, caches and what runs left behind
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis run spark-warehouse metastore_db derby.log
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
