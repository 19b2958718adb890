# `make chat` and `make test` do all their own set-up in $(VENV): environment, packages, starter model.
#
#   make chat                      chat in the terminal          make chat ARGS="--drafter prompt_lookup"
#   make chat TORCH='torch>=2.7'   for a GPU that nvidia-smi does not show
#   make test                      all tests: about 11 minutes on two cores
#   make test ARGS="tests/app -x"  some of them
#   make test ARGS="-m 'not real and not thorough'"              the quick ones: about 4 minutes
#   make test-lowest               all tests with the lowest versions that pyproject.toml claims, in an environment of its own
#   make test-newest               the same with the newest; PYTHON=python3.13 for another Python
#   make check                     ruff, pyright, import rules
#   make fix                       format and repair what ruff can
#   make clean                     take the environment away; models and chats stay

PYTHON ?= python3
# Linux gets the CPU build of PyTorch from its own index (a download of 0.2 GB), but where there is a GPU or TORCH is given; elsewhere all
# builds are alike.
CPU := $(and $(filter undefined,$(origin TORCH)),$(filter Linux,$(shell uname -s)),$(if $(shell command -v nvidia-smi),,yes))
TORCH ?= $(if $(shell command -v nvidia-smi),torch>=2.7,$(shell sed -n '/^torch/{p;q;}' packaging/constraints-cpu.txt))
TORCH_INDEX ?= $(if $(CPU),https://download.pytorch.org/whl/cpu)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PLUGIN := tests/fixtures/third_party

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help chat test test-lowest test-newest check fix clean starter always

help:
	@sed -n '/^#  /s/^#  //p' Makefile

chat: $(VENV)/.app starter
	$(BIN)/outrider chat $(ARGS)

test: $(VENV)/.plugin starter
	$(BIN)/python -m pytest -n auto --maxprocesses 6 --dist worksteal $(ARGS)

# Both make `make test` do its work in an environment of their own: what it installs is held by other constraints.
test-lowest:
	mkdir -p .venv-lowest
	$(PYTHON) packaging/bounds.py > .venv-lowest/lowest.txt
	$(MAKE) test VENV=.venv-lowest TORCH="$$(sed -n '/^torch=/p' .venv-lowest/lowest.txt)" HELD='-c .venv-lowest/lowest.txt' ARGS="$(ARGS)"

test-newest:
	$(MAKE) test VENV=.venv-newest TORCH='torch>=2.7' HELD='--upgrade' ARGS="$(ARGS)"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

fix: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest .pytest_cache .ruff_cache .import_linter_cache dist

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Outrider needs Python 3.11 or newer, and '$(PYTHON)' is not. Name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	@touch $@

# Rewritten only when TORCH changes, so that a change of it, and nothing else, installs anew.
$(VENV)/constraints.txt: $(VENV)/.python always
	@printf '%s\n' '$(TORCH)' | cmp -s - $@ || printf '%s\n' '$(TORCH)' > $@

$(VENV)/.app: pyproject.toml $(VENV)/constraints.txt
	$(if $(TORCH_INDEX),$(PIP) install --quiet --retries 1 --index-url $(TORCH_INDEX) '$(TORCH)' || \
	  echo "That index cannot be reached or has no such version. The usual one may bring the CUDA build (5.3 GB)." >&2)
	$(PIP) install -c $(VENV)/constraints.txt $(HELD) '$(TORCH)' -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.app
	$(PIP) install -c $(VENV)/constraints.txt $(filter-out --upgrade,$(HELD)) --group dev
	@touch $@

# Beside the environment, so that only the tests know the plugin: `make chat` uses the same environment.
$(VENV)/.plugin: $(VENV)/.dev $(shell find $(PLUGIN) -type f -not -path '*/__pycache__/*')
	@$(PIP) uninstall --quiet --yes outrider-echo 2>/dev/null
	rm -rf $(VENV)/test-plugins
	$(PIP) install --no-deps --no-build-isolation --target $(VENV)/test-plugins ./$(PLUGIN)
	@touch $@

starter: $(VENV)/.app
	@$(BIN)/outrider models pull starter
