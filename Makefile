# Every target sets up what it needs; `make help` lists them.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
JOBS ?= 6
ARGS ?=
FAULT_SECONDS ?= 60
FAULT_PATIENCE ?= 240
TIMES ?= 50
SEEDS ?= 1000
FIRST ?= 1
PAIRS ?= 7
A ?= main
B ?= HEAD

# The modules that stand on frameworks, and their tests.
INTEGRATIONS := $(addprefix src/stepfast/django/,*.py management/commands/*.py) src/stepfast/celery.py \
	src/stepfast/langgraph.py src/stepfast/mcp.py src/stepfast/openai_agents.py src/stepfast/pydantic_ai.py tests/integrations/*/*.py examples/integrations/*.py

# What is tried on a server of somebody else's.
ENGINE_TESTS := tests/store tests/engine/test_start.py tests/engine/test_steps.py tests/engine/test_signals.py \
	tests/engine/test_children.py tests/engine/test_dags.py tests/engine/test_transactions.py \
	tests/engine/test_connection_argument.py tests/engine/test_from_sql.py tests/engine/test_streams.py \
	tests/faults/test_storms.py

# The files and folders in which retired words are refused.
WORDS := docs $(wildcard *.md) src

# Tests start hundreds of processes: what one has compiled, the next should find, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# The first Python on the PATH that is new enough and can make virtual environments; `make PYTHON=… setup` chooses another.
find_python = for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	echo "$$candidate"; break; fi; done

# The first that is 3.12 or later, also among those of pyenv.
find_newer_python = for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 \
	$(wildcard $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python3); do \
	if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then \
	echo "$$candidate"; break; fi; done

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## create .venv and install the package, its extras and the dev tools

$(STAMP): pyproject.toml tools/bootstrap.py
	@python="$${PYTHON:-$$($(find_python))}"; \
	if [ -z "$$python" ]; then \
		echo "stepfast needs Python 3.11 or newer with the venv module; none is on the PATH." >&2; \
		echo "Install one (Debian: python3 python3-venv) or name it: make PYTHON=/path/to/python3 setup" >&2; \
		exit 1; \
	fi; \
	"$$python" tools/bootstrap.py
	@touch $@

.PHONY: demo
demo: $(STAMP) ## watch a run survive the death of its worker
	@$(BIN)/python examples/demo.py $(ARGS)

.PHONY: test
test: $(STAMP) ## run the tests on their own private Postgres and on SQLite (ARGS="-k name", JOBS=2)
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not slow and not thorough" $(ARGS)

.PHONY: test-all
test-all: $(STAMP) ## run the tests on every database in full (longer)
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not slow" $(ARGS)

.PHONY: screenshots
screenshots: $(STAMP) ## take the pictures of the console that the documents show (needs chromium)
	STEPFAST_SCREENSHOTS=docs/images $(PYTEST) -n 0 tests/browser/test_looks.py $(ARGS)

.PHONY: test-oldest
test-oldest: ## run the tests with the oldest dependencies that the package says it works with
	@python="$${PYTHON:-$$($(find_python))}"; VENV=.venv-oldest "$$python" tools/bootstrap.py --oldest
	.venv-oldest/bin/python -m pytest -n $(JOBS) --dist worksteal -m "not slow and not thorough" $(ARGS)

.PHONY: test-engine
test-engine: $(STAMP) ## run the store suite, the calls of workflows and a short storm on a server (URL=postgresql://…)
	@test -n "$(URL)" || { echo "say on which: make test-engine URL=postgresql://user@host/empty_database" >&2; exit 2; }
	STEPFAST_TEST_ENGINE="$(URL)" $(PYTEST) -n 0 -m "not slow" $(ENGINE_TESTS) $(ARGS)

.PHONY: test-upgrade
test-upgrade: $(STAMP) ## try an earlier commit and this code on the same tables (REF=COMMIT; needs the git history)
	$(BIN)/python tools/upgrade.py $(REF)

.PHONY: interop
interop: $(STAMP) ## run remote workers beside the published packages of others, for Node and Python
	$(PYTEST) tests/interop $(ARGS)

# Frameworks have an environment of their own. The modules that stand on them are checked there too, with real types.
.venv-integrations/.installed: pyproject.toml tools/bootstrap.py
	@python="$${PYTHON:-$$($(find_python))}"; VENV=.venv-integrations "$$python" tools/bootstrap.py --frameworks
	@touch $@

.PHONY: test-integrations
test-integrations: .venv-integrations/.installed ## run the tests of the frameworks that Stepfast works in (Django, agents, …)
	.venv-integrations/bin/python -m mypy --strict tests/integrations/__init__.py $(wildcard $(INTEGRATIONS))
	.venv-integrations/bin/python -m pytest -n 2 --dist loadfile $(wildcard tests/integrations/*/) $(ARGS)
	@$(MAKE) test-django

# The newest Django needs a newer Python than Stepfast does.
.venv-django/.installed: pyproject.toml tools/bootstrap.py
	@python="$$($(find_newer_python))"; VENV=.venv-django "$$python" tools/bootstrap.py --django
	@touch $@

.PHONY: test-django
test-django: ## run the tests of Django on its newest release, if there is a Python 3.12 or later (test-integrations has 5.2)
	@if [ -z "$$($(find_newer_python))" ]; then \
		echo "there is no Python 3.12 or later: the newest Django is left out" >&2; \
	else \
		$(MAKE) .venv-django/.installed && \
		.venv-django/bin/python -m pytest -n 2 tests/integrations/django $(ARGS); \
	fi

.PHONY: faults
faults: $(STAMP) ## run the storms: kills, outages, lost replies (FAULT_SECONDS=60 for each), and all else that takes long
	FAULT_SECONDS=$(FAULT_SECONDS) FAULT_PATIENCE=$(FAULT_PATIENCE) $(PYTEST) -m "faults or slow" $(ARGS)

.PHONY: sim
sim: $(STAMP) ## play seeds of the simulation (SEEDS=1000, FIRST=1, JOBS=2; SEED=4711 for one of them)
	$(BIN)/python -m tests.simulation $(if $(SEED),$(SEED),--seeds $(SEEDS) --from $(FIRST) --jobs $(JOBS)) $(ARGS)

.PHONY: check
check: $(STAMP) ## lint, formatting, types (mypy and pyright), import rules and retired words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src tests examples bench tools
	$(BIN)/pyright src tests/typing
	$(BIN)/python tools/layering.py
	$(BIN)/python tools/unwinding.py
	$(BIN)/python tools/clockwork.py
	$(BIN)/python tools/words.py $(WORDS)
	$(BIN)/python tools/sizes.py

# The tools of the site live in an environment of their own: the set-up of demo and test does not grow.
.venv-docs/.installed: pyproject.toml tools/bootstrap.py
	@python="$${PYTHON:-$$($(find_python))}"; VENV=.venv-docs "$$python" tools/bootstrap.py --docs
	@touch $@

.PHONY: docs
docs: .venv-docs/.installed ## build the documents as a site below build/site, and refuse broken links
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict
	@echo "the site is in build/site; .venv-docs/bin/python -m mkdocs serve shows it while you write"

.PHONY: fmt
fmt: $(STAMP) ## format the code and repair what the linter can
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

# The alternatives that the benchmark runs beside Stepfast.
$(STAMP).bench: $(STAMP) bench/requirements.txt
	@$(BIN)/python tools/bootstrap.py bench/requirements.txt
	@touch $@

.PHONY: bench
bench: $(STAMP).bench ## measure the speed (minutes)
	$(BIN)/python -m bench $(ARGS)

.PHONY: bench-quick
bench-quick: $(STAMP).bench ## measure the speed, roughly (under two minutes)
	$(BIN)/python -m bench --quick $(ARGS)

.PHONY: bench-pairs
bench-pairs: $(STAMP) ## what a change costs: two commits beside each other (A=main, B=HEAD, PAIRS=7)
	$(BIN)/python -m bench --pairs $(PAIRS) $(A) $(B) $(ARGS)

.PHONY: db-up
db-up: $(STAMP) ## start a private Postgres to develop against: eval "$$(make -s db-up)"
	@$(BIN)/python tools/database.py up

.PHONY: db-down
db-down: $(STAMP) ## end it, and remove its data
	@$(BIN)/python tools/database.py down

.PHONY: flaky
flaky: $(STAMP) ## run some tests 50 times beside busy cores (ARGS="tests/… -k …", TIMES=50)
	$(BIN)/python tools/flaky.py $(TIMES) $(ARGS)

.PHONY: coverage
coverage: $(STAMP) ## run the tests once more and say which lines they reach
	$(BIN)/coverage erase
	COVERAGE_PROCESS_START=pyproject.toml $(BIN)/coverage run -m pytest -n $(JOBS) --dist worksteal -m "not slow and not thorough" $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

.PHONY: clean
clean: ## remove everything that these targets created
	rm -rf $(VENV) .venv-oldest .venv-docs .venv-integrations .venv-django .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
