# Each target creates the environment that it needs; `make PYTHON=python3.12 test` selects the interpreter.

PYTHON ?= python3
PIP_INSTALL = -m pip install -qq --disable-pip-version-check
ARGS ?=
# Tests sometimes wait for disks, servers and processes, so there is one worker more than cores.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(1 + len(os.sched_getaffinity(0)))' 2>/dev/null || echo auto)
# Tests with other tools wait half of their time.
CLIENT_WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 + len(os.sched_getaffinity(0)))' 2>/dev/null || echo auto)
PYTEST = -m pytest -q --dist worksteal --ignore=tests/clients -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help demo docs reference test test-all lint bench soak interop clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

demo: export PATH := $(CURDIR)/.venv/bin:$(PATH)
demo: .venv/.installed  ## pack the sample photographs into ./demo, show the files, and reshard them
	rm -rf demo
	shardtool create sample_data/photos 'demo/photos-{000000..}.tar' --max-size 500kB --label-from-folder
	@echo
	ls -l demo
	@echo
	tar tvf demo/photos-000000.tar | sed -n 1,6p
	@echo
	shardtool inspect demo/photos.json
	@echo
	shardtool verify demo/photos.json
	@echo
	shardtool inspect demo/photos.json --html demo/photos.html
	@echo
	shardtool reshard demo/photos.json 'demo/shuffled-{000000..}.tfrecord' --max-size 500kB --shuffle --seed 1
	@echo
	shardtool verify demo/shuffled.json

test: .venv/.dev  ## run the quick tests; ARGS='-k name' selects some
	PYTHONDONTWRITEBYTECODE= .venv/bin/python $(PYTEST) -m 'not slow' $(ARGS)

test-all: .venv/.dev  ## run all tests; ARGS='-m slow' runs only the slow ones
	PYTHONDONTWRITEBYTECODE= .venv/bin/python $(PYTEST) $(ARGS)

lint: .venv/.dev  ## check style, formatting and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

reference: .venv/.dev  ## write docs/reference.md and the man page from the options
	.venv/bin/python -m tests.reference

bench: .venv/.bench  ## compare with tar, ShardWriter and a C program, in minutes; ARGS='--rounds 1 --only small' is quick
	.venv/bin/python benchmarks/bench.py $(ARGS)

soak: .venv/.dev  ## put a cache under load, with kills, for two minutes; ARGS='--seconds 600' for longer
	.venv/bin/python -m tests.verbs.cache.load $(ARGS)

interop: export PATH := $(PATH):$(CURDIR)/.venv-clients/azurite/node_modules/.bin
interop: .venv-clients/.installed .venv-clients/azurite/.installed  ## read our shards with other tools: tar, webdataset, wids, datasets, DuckDB, TensorFlow, DALI ...
	.venv-clients/bin/python -m pytest -q -n $(CLIENT_WORKERS) --dist loadfile --no-loadscope-reorder -m clients --confcutdir=tests/clients tests/clients $(ARGS)

docs: .venv-docs/.installed  ## build the documentation site in build/site; broken links are errors
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet

clean:  ## delete all generated files, with the environments
	rm -rf .venv .venv-clients .venv-docs benchmarks/.venv-wds benchmarks/.venv-tf demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each environment has a stamp file; a newer pyproject.toml installs again.

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP_INSTALL) -e .
	@touch $@

.venv/.dev: .venv/.installed
	.venv/bin/python $(PIP_INSTALL) -e '.[dev]'
	@touch $@

.venv-docs/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python $(PIP_INSTALL) -e '.[docs]'
	@touch $@

.venv/.bench: .venv/.installed
	.venv/bin/python $(PIP_INSTALL) numpy pillow
	@touch $@

# torch is installed first and in a fixed release. Otherwise, another package would choose a different build.
.venv-clients/.installed: pyproject.toml tests/clients/requirements.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python $(PIP_INSTALL) torch==2.13.0
	.venv-clients/bin/python $(PIP_INSTALL) -e '.[audio,hf,remote,urls]' -r tests/clients/requirements.txt
	@touch $@

# Azure's test server is a Node program. If npm cannot install it, its tests are skipped.
.venv-clients/azurite/.installed: Makefile | .venv-clients/.installed
	mkdir -p $(@D)
	npm install --silent --no-audit --no-fund --prefix $(@D) azurite@3.37.0 || echo 'continuing without azurite'
	@touch $@
