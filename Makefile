# `make quickstart` trains a small model for real; `make test` runs the tests; `make check` is what a commit must pass.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.venv/.installed: pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints/cpu.txt -e ".[dev]"
	@touch $@

.PHONY: setup quickstart test test-slow test-gpu check format clean
setup: .venv/.installed

quickstart: setup
	$(BIN)/dapo train recipes/quickstart.yaml run.dir=runs run.name=quickstart run.if_exists=backup

test: setup
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m slow

test-gpu: setup
	$(BIN)/python -m pytest -m gpu

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
