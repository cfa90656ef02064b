# The commands of this repository; `make help` lists them. Each one first sets up a virtual environment.
#
#   PYTHON       the Python to set up with, 3.11 to 3.14     make test PYTHON=python3.12
#   VENV         the folder of the virtual environment       make test VENV=/tmp/zoo
#   TORCH        the torch to install                        make test TORCH=torch==2.11.0
#   MODEL        the model, a folder or an id of the Hub     make space MODEL=runs/m/model
#   FLAGS        the options of bench.reproduce              make reproduce FLAGS="--only dwa --seeds 1"
#   TORCH_INDEX  the index of torch without CUDA, for when pip's own index only has torch with CUDA
#
# pytest also reads options from PYTEST_ADDOPTS: PYTEST_ADDOPTS="-k alignment" make test

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

BIN := $(VENV)/bin
# the lower bounds of pyproject.toml, as pip takes them: transformers==5.17 huggingface_hub==1.5
OLDEST := $(shell sed -nE 's/^ *"(transformers|huggingface_hub)>=([0-9.]+).*/\1==\2/p' pyproject.toml)
PIP := $(BIN)/python -m pip
# those that begin with _ are what they share
BENCHMARKS := $(patsubst bench/%.py,bench.%,$(filter-out bench/_%.py bench/reproduce.py bench/objective_figures.py bench/aligner_adapter.py,$(wildcard bench/*.py)))

.DEFAULT_GOAL := help
.PHONY: help setup try demo test test-all test-install mutants dist docs check bench reproduce space

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 21
	@echo "The comment at the top of the Makefile lists the variables."

setup: $(VENV)/installed ## create the virtual environment and install everything into it

# Where the Hub cannot be reached, word-align says so in a line of its own.
TRY_RECIPE := pretraining/recipes/xlm_align/smoke.yaml
try: setup ## align the words of ten sentences and their translations into ten languages: a minute
	@folder=runs/try-$$(date +%Y%m%d-%H%M%S) && mkdir -p $$folder && \
	align="$(BIN)/word-align sample_corpus/alignments/ten_languages.txt --split --output $$folder/links.txt" && \
	{ $$align --html $$folder/links.html || { \
	    echo "Without this encoder, a tiny model of the sample corpus is trained and aligns. Most of its links are wrong." && \
	    $(BIN)/python -m crosslingual_zoo.pretraining.tools.train_tokenizer --config $(TRY_RECIPE) --vocab_size 2000 --output $$folder/tokenizer && \
	    $(BIN)/python pretraining/run.py --config $(TRY_RECIPE) tokenizer=$$folder/tokenizer output_dir=$$folder/tiny && \
	    $$align --html $$folder/links.html --model $$folder/tiny/model; }; } && \
	echo "Open this page in a browser: $(CURDIR)/$$folder/links.html"

demo: setup ## run the whole path of all four models on the sample corpus: offline, on the CPU, in minutes
	$(BIN)/python demo.py

test: setup ## run the tests of the first tier, on two processes: four minutes
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: setup ## run all tests, also of processes, kills, the browser and oldest versions
	$(BIN)/python -m pytest -n 2

# `build` may hold files of an earlier build that are gone since, and setuptools would pack them.
test-install: ## install only the wheel, without extras, into a new environment, and run the demo of one model there
	@rm -rf build; folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(MAKE) "$$folder/venv/torch" VENV="$$folder/venv" && \
	"$$folder/venv/bin/python" -m pip install --quiet . "$(TORCH)" && \
	cp demo.py "$$folder" && cd "$$folder" && \
	env -u PYTHONPATH venv/bin/python demo.py --models xlm_align

mutants: setup ## plant faults one at a time in a copy, and run the tests that should see them: a quarter of an hour
	$(BIN)/python tests/mutants.py

dist: setup ## build the sdist and the wheel into dist/, and check them
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

docs: setup ## build the documentation site into docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx -E -W --keep-going -c docs -d docs/_build/doctrees . docs/_build/html

space: setup ## try a model in the browser: make space MODEL=runs/m/model, or an id of the Hub
	@test -n "$(MODEL)" || { echo "Name the model: make space MODEL=runs/m/model, or an id of the Hub" >&2; exit 1; }
	$(BIN)/python hub_cards/space/app.py --model $(MODEL)

check: setup ## check lint, formatting, types, and that the installed packages are compatible
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(PIP) check

bench: setup ## run every benchmark of bench/ with its defaults, one after the other; results in runs/
	@for module in $(BENCHMARKS); do echo "== $$module" && $(BIN)/python -m $$module --output runs/$$module.json || exit 1; done

# The dry run below must not download torch, and pip before 23.3 downloads whole wheels in a dry run.
$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || { \
	    echo "'$(PYTHON)' is not Python 3.11 to 3.14, which torch and this project need." >&2; \
	    echo "Name one: make setup PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade "pip>=23.3"
	@touch $@

# torch comes first, because as a dependency of another package it would come with gigabytes of CUDA libraries. Without
# an NVIDIA GPU, a dry run of pip first shows which build it would take, from the indexes that this machine is configured to use:
# if that one requires CUDA, the build without it is taken from TORCH_INDEX.
$(VENV)/torch: $(VENV)/created Makefile
	@if nvidia-smi -L >/dev/null 2>&1; then \
	    echo "NVIDIA GPU found: installing $(TORCH)"; $(PIP) install --quiet "$(TORCH)"; \
	elif $(PIP) install --quiet --dry-run --ignore-installed --no-deps --report $@-plan.json "$(TORCH)" 2>/dev/null \
	        && ! grep -qE '"(nvidia|cuda|triton)' $@-plan.json; then \
	    echo "No NVIDIA GPU: installing $(TORCH), which comes without CUDA"; $(PIP) install --quiet "$(TORCH)"; \
	else \
	    echo "No NVIDIA GPU: installing $(TORCH) from $(TORCH_INDEX)"; \
	    $(PIP) install --quiet --index-url "$(TORCH_INDEX)" "$(TORCH)" || { \
	        echo "There is no NVIDIA GPU here, and pip found no $(TORCH) without CUDA in its own index" >&2; \
	        echo "or in $(TORCH_INDEX), which may be unreachable or have no build" >&2; \
	        echo "for this Python (see pip's message above). Name an index that has one:" >&2; \
	        echo "make setup TORCH_INDEX=<address>" >&2; \
	        echo "or take the build with CUDA, 4 GB more: make setup TORCH_INDEX=https://pypi.org/simple" >&2; exit 1; }; \
	fi
	@touch $@

# Naming $(TORCH) again keeps pip from replacing it. The oldest transformers gets a folder of its own, for the test that
# loads saved folders with it.
$(VENV)/installed: $(VENV)/torch pyproject.toml
	$(PIP) install --quiet --editable ".[dev]" "$(TORCH)"
	rm -rf $(VENV)/oldest-transformers
	$(PIP) install --quiet --no-deps --target $(VENV)/oldest-transformers $(OLDEST)
	@touch $@

reproduce: setup ## test the papers' claims on a real encoder: takes core hours, and can be resumed (bench/reproduce.md)
	$(BIN)/python -m bench.reproduce $(FLAGS)
