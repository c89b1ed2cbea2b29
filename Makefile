# `make demo` and `make test` need nothing but Python 3.11+ and make: they create .venv, install
# the pinned versions into it, and do so again only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Of the thousands of modules that are installed few are imported, and these alone are compiled.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Each process of a run would compile all that it imports where no bytecode is kept: with what is
# compiled below, a first step takes 3 s and not 7, also in a shell that has this variable.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-gpt2 test test-nightly test-extras check format docs bench bench-gpt2 bench-large bench-diloco bench-failures bench-nvflare-table bench-peers bench-flower-app against science digests clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "flstream needs Python 3.11 or newer; name one with: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
# torch first and alone: a resolver that meets it among others may look at newer builds, with CUDA.
	$(PIP) torch
	$(PIP) --editable '.[jobs,tensorboard,privacy,dev]'
	$(BIN)/python -m compileall -q flstream
	$(BIN)/python -c 'import jinja2, matplotlib.pyplot, psutil, pydantic, pyhocon, rich.live, safetensors.torch, sklearn.datasets, torch, typer'
	@touch $@

demo: $(STAMP) ## Install into .venv if need be, then run the main job (jobs/digits)
	$(BIN)/flstream simulate jobs/digits/job.conf

# Two processes on any machine, for what is measured depends on what runs beside it. What several
# tests share on disk is made once a session, by the first process that asks (tests/shared_results.py).
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test: $(STAMP) ## Install into .venv if need be, then run the tests (minutes; ARGS=... goes to pytest)
	$(PYTEST) -m "not nightly and not extras" $(ARGS)

# Each list of extras is installed once, by the first target that needs it.
$(VENV)/.installed-%: $(STAMP)
	$(PIP) --editable '.[$*]'
	@touch $@

EXTRAS := $(VENV)/.installed-hf,lightning,tracking,notebook,ray,browser

test-extras: $(EXTRAS) ## Install the extras too, then run the tests that need them, but for the long ones
	$(PYTEST) -m "extras and not nightly" tests/extras tests/docs $(ARGS)

test-nightly: $(EXTRAS) ## Install the extras too, then run all long tests, and all examples of Hypothesis
	$(PYTEST) -m "nightly or hypothesis" $(ARGS)

demo-gpt2: $(VENV)/.installed-hf $(VENV)/.installed-tensorboard ## Install what it imports too, then train a small GPT-2 (jobs/gpt2)
	$(BIN)/flstream simulate jobs/gpt2/job.conf

check: $(STAMP) ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## Write docs/reference/ anew from the code
	$(BIN)/python docs/make_reference.py

digests: $(STAMP) ## Write what the rows of tests/matrix end in (ARGS=fedavg for some), for a reviewer to read
	PYTHONPATH=tests:tests/matrix $(BIN)/python tests/matrix/record.py $(ARGS)

bench: $(STAMP) ## Measure start-up, streaming, rounds and modes against the machine (20 GiB of memory)
	$(BIN)/python benchmarks/transfer.py
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/fairness.py
	$(BIN)/flstream bench --model-size 256MiB --clients 2

SIZE    ?= 256MiB
CLIENTS ?= 2
PEERS   := benchmarks/peers

bench-gpt2: $(VENV)/.installed-hf ## Measure jobs/gpt2 at 124M and 774M (10 GiB of memory; ARGS='--only 124M-train')
	$(BIN)/python benchmarks/gpt2.py $(ARGS)

bench-large: $(VENV)/.installed-hf ## Measure models larger than memory at every site (12 GiB of memory, 30 GiB of disk; ARGS='--only files')
	$(BIN)/python benchmarks/large.py $(ARGS)

bench-diloco: $(STAMP) ## Measure DiLoCo beside data-parallel training over thin links (90 minutes, resumes; ARGS=--quick for 10)
	$(BIN)/python benchmarks/diloco.py $(ARGS)

bench-failures: $(STAMP) ## Measure DiLoCo with learners that fail, on the virtual clock (20 minutes; ARGS='--seconds 60')
	$(BIN)/python benchmarks/failures.py $(ARGS)

bench-nvflare-table: $(STAMP) ## Write NVFlare's table of GPT-2 Large at six sites (20 GiB of memory, 45 GiB of disk; resumes)
	$(BIN)/python benchmarks/nvflare_table.py $(ARGS)

bench-peers: $(STAMP) ## Measure beside NVFlare, Flower and pfl-research; SIZE=256MiB CLIENTS=2,4 (4 GiB of disk)
	$(BIN)/python $(PEERS)/compare.py --size $(SIZE) --clients $(CLIENTS) $(ARGS) \
		--json $(PEERS)/.work/peers.json --markdown $(PEERS)/.work/peers.md --plot $(PEERS)/.work/peers.png

bench-flower-app: $(STAMP) ## Measure one Flower app under Flower and under flstream; SIZE=256MiB CLIENTS=2
	$(BIN)/python $(PEERS)/compare.py --size $(SIZE) --clients $(CLIENTS) --no-race \
		--only flower-app flower flower-1cpu $(ARGS) --markdown $(PEERS)/.work/flower-app.md

against: $(STAMP) ## Compare rows with another checkout in pairs; OTHER=path ARGS='--scale 8 --rows growth'
	@test -n "$(OTHER)" || { echo 'name the other checkout: make against OTHER=path' >&2; exit 2; }
	$(BIN)/python benchmarks/against.py $(OTHER) $(ARGS)

science: $(STAMP) ## Measure what workflows, rules and privacy are worth, and write docs/science.md (an hour)
	$(BIN)/python benchmarks/science.py --markdown docs/science.md $(ARGS)

clean: ## Remove the virtual environment and caches (runs/ is left alone)
	rm -rf $(VENV) benchmarks/.diloco benchmarks/.nvflare-table $(PEERS)/.venvs $(PEERS)/.work .pytest_cache .mypy_cache .ruff_cache .hypothesis
