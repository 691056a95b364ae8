# `make quickstart` trains a small model for real; `make test` runs the tests; `make check` is what a commit must pass.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.venv/.installed: pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints/cpu.txt -e ".[dev]"
	@touch $@

# TRL beside us, for the benchmark: an environment of its own, the same torch and transformers.
.venv-trl/.installed: pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/pip install -q --disable-pip-version-check -c constraints/cpu.txt torch==2.13.0
	.venv-trl/bin/pip install -q --disable-pip-version-check -c constraints/cpu.txt -e . \
	  trl==1.16.0 accelerate==1.15.0 datasets==5.2.0
	@touch $@

.PHONY: setup quickstart test test-slow test-gpu check format clean bench-trl bench-sampling oracles mutation
setup: .venv/.installed

quickstart: setup
	$(BIN)/dapo train recipes/quickstart.yaml run.dir=runs run.name=quickstart run.if_exists=backup

test: setup
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m slow

test-gpu: setup
	$(BIN)/python -m pytest -m gpu

oracles: setup
	$(BIN)/python tests/oracles/live.py

mutation: setup
	$(BIN)/pip install -q --disable-pip-version-check "mutmut>=3.8"
	HYPOTHESIS_PROFILE=brief $(BIN)/mutmut run --max-children 2

bench-trl: .venv-trl/.installed
	.venv-trl/bin/python benchmarks/against_trl.py

bench-sampling: setup
	$(BIN)/python benchmarks/dynamic_sampling.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-trl build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
