# One command for each thing. Needs python3.11 or newer and make; `make test` also Node.js 20 and Java 17.

VENV := .venv
BIN := $(VENV)/bin
SUITE := tests/conformance
INTEROP := tests/client/interop

# Which Python the venv is made with, such as PYTHON=python3.12; by itself the fastest build that is found.
PYTHON ?=

# More options for serve, test, bench and torture, such as ARGS="-k settings".
ARGS ?=

# Two makes at once must not build one venv together: the second waits for the first.
ALONE := $(if $(shell command -v flock),flock .venv.lock)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help serve demo test lint format types bench torture clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(VENV)/.stamp-serve ## serve on 127.0.0.1:4437, with ./data unless ARGS says otherwise
	@$(BIN)/millstream serve $(ARGS)

demo: $(VENV)/.stamp-spark ## the pipeline on Spark in about a minute: load, fold, export, report; needs Java 17
	@command -v java >/dev/null || { echo "Spark needs Java 17 or newer; please install it." >&2; exit 1; }
	@$(BIN)/python examples/demo.py $(ARGS)

# pytest comes last: its closing line is the result that CI reads.
test: $(VENV)/.stamp-dev $(SUITE)/node_modules/.stamp $(INTEROP)/node_modules/.stamp ## lint, check format and types, run all quick tests
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(BIN)/pytest $(ARGS)

lint: $(VENV)/.stamp-dev ## find mistakes and bad formatting
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

format: $(VENV)/.stamp-dev ## format the source and repair what can be repaired
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

types: $(VENV)/.stamp-dev ## check types
	@$(BIN)/mypy

bench: $(VENV)/.stamp-dev ## run the benchmarks; ARGS chooses
	@$(BIN)/python bench/run.py $(ARGS)

torture: $(VENV)/.stamp-dev ## the long tests: kills, histories, simulations, hostile inputs, a soak; an hour or more
	@$(BIN)/pytest -m torture $(ARGS)

clean: ## remove what tools made; ./data stays
	rm -rf $(VENV) .venv.lock $(SUITE)/node_modules $(INTEROP)/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what the targets above stand on; a stamp says when it was last done

$(VENV)/.stamp-venv:
	@$(ALONE) sh tools/make_venv.sh $(VENV) "$(PYTHON)"

$(VENV)/.stamp-serve: pyproject.toml | $(VENV)/.stamp-venv
	@echo "Installing Millstream into $(VENV): about half a minute the first time."
	@$(ALONE) $(BIN)/pip install --quiet --editable '.[arrow]'
	@touch $@

$(VENV)/.stamp-spark: pyproject.toml | $(VENV)/.stamp-venv
	@echo "Installing Millstream with Spark into $(VENV): a minute or two the first time."
	@$(ALONE) $(BIN)/pip install --quiet --editable '.[spark]'
	@touch $(VENV)/.stamp-serve $@

# The development install includes what the others need, hence all stamps.
$(VENV)/.stamp-dev: pyproject.toml | $(VENV)/.stamp-venv
	@echo "Installing Millstream and what its tests need into $(VENV): two minutes the first time."
	@$(ALONE) $(BIN)/pip install --quiet --editable '.[arrow,spark,delta,iceberg,pipelines,dev]'
	@touch $(VENV)/.stamp-serve $(VENV)/.stamp-spark $@

$(SUITE)/node_modules/.stamp $(INTEROP)/node_modules/.stamp: %/node_modules/.stamp: %/package.json %/package-lock.json
	@command -v npm >/dev/null || { echo "The tests need Node.js 20 or newer with npm; please install it." >&2; exit 1; }
	@cd $* && npm ci --loglevel=error
	@touch $@
