# `make` alone lists the targets. The virtual environment is .venv; `make VENV=elsewhere test` uses another.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install format lint typecheck test kernels docs docs-output bench all

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## Make the virtual environment, with the development tools and the measured data
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[dev,silicon]'

format: ## Rewrite the code in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: ## Check format and lint, change nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

typecheck: ## Run mypy in strict mode over perfmodel/, kernels/ and validation/
	$(BIN)/mypy

test: ## Run the tests
	$(BIN)/pytest -n $(JOBS)

kernels: ## Compile every kernel for every architecture, without a GPU
	$(BIN)/perfmodel kernels check --no-sass --jobs $(JOBS)

docs: export NO_MKDOCS_2_WARNING = 1
docs: ## Build the documentation into site/; any warning is an error
	$(BIN)/mkdocs build --strict

docs-output: ## Print anew what the commands in README.md and docs/ print
	$(BIN)/python tests/doc_blocks.py --write

bench: ## Predictions a second on this machine, and seconds for a million simulated requests
	$(BIN)/perfmodel bench predictor
	$(BIN)/perfmodel bench simulator

all: format lint typecheck test kernels docs ## All of the above but install, docs-output and bench
