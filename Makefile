# `make` alone lists the targets. The virtual environment is .venv; `make VENV=elsewhere test` uses another.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install format lint typecheck test kernels bench all

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

bench: ## Predictions a second on this machine, and seconds for a million simulated requests
	$(BIN)/perfmodel bench predictor
	$(BIN)/perfmodel bench simulator

all: format lint typecheck test kernels ## All of the above but install and bench
