# Everything a fresh clone needs: each target sets up its own virtual environment first. What is run more rarely is in
# docs/extending.md, as commands.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests run side by side, one process more than there are processors, since many wait; each takes up to 2 GB.
PROCESSES ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
# A process takes a share of neighbouring tests, so that they share their fixtures, and at the end steals from the others.
SIDE_BY_SIDE = --numprocesses $(PROCESSES) --dist worksteal
# Some images set it: hundreds of processes would each compile all that they import.
unexport PYTHONDONTWRITEBYTECODE

FRAMEWORKS := .venv-frameworks
SITE := .venv-docs
CLIENTS := .venv-clients
FEDERATED := .venv-federated

.PHONY: demo test check test-frameworks test-huggingface test-federated test-clients gpu-check papers docs lint bench simulate library release lock clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

# The quick half of the tests: a minute on two processors from a fresh clone, whose kernels are compiled meanwhile.
check: PROCESSES = $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
check: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" $(SIDE_BY_SIDE)

# The adapters against the real torch, Opacus, JAX and jax_privacy, which the main environment does not get. The processes
# share the processors already: threads of their own would wait for one another.
test-frameworks test-federated: export OMP_NUM_THREADS = 1
test-frameworks: $(FRAMEWORKS)/.installed
	$(FRAMEWORKS)/bin/python -m pytest tests/frameworks papers/tests/test_convolutional.py papers/tests/test_rate_study.py papers/tests/test_torch_gradients.py $(SIDE_BY_SIDE)

# Bits, law and speed of the noise on a GPU, in a few minutes; without one nothing is checked, and the status is 2. Where
# torch and Opacus have CUDA: make gpu-check GPU_PYTHON=python3
GPU_PYTHON ?= $(FRAMEWORKS)/bin/python
gpu-check: $(if $(filter $(FRAMEWORKS)/%,$(GPU_PYTHON)),$(FRAMEWORKS)/.installed)
	$(GPU_PYTHON) -m benchmarks.gpu_check

# The adapters against the real Flower and NVFlare.
test-federated: $(FEDERATED)/.installed
	$(FEDERATED)/bin/python -m pytest $(SIDE_BY_SIDE) tests/federated

# The five papers' systems: their tests, and the quick form of every reproduction, of the leaderboard and of its studies.
papers: $(STAMP) $(FRAMEWORKS)/.installed
	$(BIN)/python -m pytest papers/tests $(SIDE_BY_SIDE)
	$(BIN)/python -m papers.reproductions --quick
	$(BIN)/python -m papers.leaderboard --quick
	$(BIN)/python -m papers.leaderboard.accuracy_predictors
	$(FRAMEWORKS)/bin/python -m papers.leaderboard.rate_study --quick

# Clients that other projects' generators make of the OpenAPI document, each from a spec to a proved file.
test-clients: $(CLIENTS)/.installed
	$(CLIENTS)/bin/python -m pytest tests/clients

# By hand: transformers and peft are another 280 MB.
test-huggingface: $(FRAMEWORKS)/.huggingface
	$(FRAMEWORKS)/bin/python -m pytest tests/huggingface

# The site in build/site, and beside those of earlier versions in SITES, which a web server shows. A broken link, a page without a place, or a page that asks another site for something is an error.
SITES ?= build/sites
docs: $(STAMP) $(SITE)/.installed
	$(BIN)/python -m website
	$(BUILD_SITE) --clean
	$(BIN)/python -m website --keep $(SITES)
	$(BIN)/python -m pytest tests/website

# The times in the site are those of the commit, so that two builds are the same bytes.
BUILD_SITE = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) NO_MKDOCS_2_WARNING=1 \
  $(SITE)/bin/python -m mkdocs --quiet build --strict

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Ten minutes of the simulated cluster, some 2,000 runs with ten faults each; one integer repeats a run (docs/notes/simulation.md).
simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --minutes 10 --processes 2

# The library of factors: solves what its store does not have yet, and mirrors it; KEY=file.pem signs the index.
LIBRARY ?= build/library
library: $(STAMP)
	$(BIN)/factorize batch library/specs.jsonl --store $(LIBRARY)/store --report $(LIBRARY)/report.csv
	$(BIN)/factorize mirror $(LIBRARY)/store $(LIBRARY)/mirror $(if $(KEY),--private-key $(KEY))

# Wheel and source distribution in dist/, built twice to the same bytes, with materials, provenance and SHA256SUMS.
release: $(STAMP) $(CLIENTS)/.installed
	$(BIN)/python -m release

# Exact versions and hashes, so that two installs are the same install. First uv, which takes a quarter of pip's time, and
# a newer pip for environments that see others: the one that comes with Python 3.11 takes three times as long to read what
# an index has. Where uv finds no index, since it reads none of pip's settings, pip installs.
# The checkout is what is installed, so links that an archive or a clone has turned into files are made again.
$(STAMP): requirements-pip.lock requirements-dev.lock pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "factorize needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	@test -e $@ || echo "First an environment in $(VENV), once: about a minute and 1.3 GB"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-pip.lock
	$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.lock \
	  || $(BIN)/python -m pip install --quiet --no-compile --require-hashes -r requirements-dev.lock
	for room in api solvers; do test -d factorize/$$room || ln -sfn ../$$room factorize/$$room; done
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	touch $(STAMP)

# Environments of their own that see what the lock installed, pip too; their own packages come first.
SEES_THE_LOCK = $(BIN)/python -c 'import os, sysconfig; print(os.getcwd(), sysconfig.get_path("purelib"), sep="\n")' \
  > $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/locked.pth

$(FRAMEWORKS)/.installed: $(STAMP) requirements-frameworks.txt
	test -x $(FRAMEWORKS)/bin/python || $(BIN)/python -m venv --without-pip $(FRAMEWORKS)
	$(call SEES_THE_LOCK,$(FRAMEWORKS))
	$(FRAMEWORKS)/bin/python -m pip install --quiet --no-compile -r requirements-frameworks.txt
	touch $(FRAMEWORKS)/.installed

$(FEDERATED)/.installed: $(STAMP) requirements-federated.txt
	test -x $(FEDERATED)/bin/python || $(BIN)/python -m venv --without-pip $(FEDERATED)
	$(call SEES_THE_LOCK,$(FEDERATED))
	$(FEDERATED)/bin/python -m pip install --quiet --no-compile --no-deps -r requirements-federated.txt
	touch $(FEDERATED)/.installed

$(CLIENTS)/.installed: $(STAMP) requirements-clients.txt
	test -x $(CLIENTS)/bin/python || $(BIN)/python -m venv --without-pip $(CLIENTS)
	$(call SEES_THE_LOCK,$(CLIENTS))
	$(CLIENTS)/bin/python -m pip install --quiet --no-compile -r requirements-clients.txt
	touch $(CLIENTS)/.installed

$(SITE)/.installed: $(STAMP) requirements-docs.lock
	test -x $(SITE)/bin/python || $(BIN)/python -m venv --without-pip $(SITE)
	$(call SEES_THE_LOCK,$(SITE))
	$(SITE)/bin/python -m pip install --quiet --no-compile --require-hashes -r requirements-docs.lock
	touch $(SITE)/.installed

$(FRAMEWORKS)/.huggingface: $(FRAMEWORKS)/.installed requirements-huggingface.txt
	$(FRAMEWORKS)/bin/python -m pip install --quiet -r requirements-huggingface.txt
	touch $(FRAMEWORKS)/.huggingface

# Refresh the locks from pyproject.toml: what the service runs on, that with the tools of the tests, and what makes the site.
LOCK = uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
  --no-annotate
lock:
	printf 'pip\nuv\n' | $(subst pyproject.toml,-,$(LOCK)) --output-file requirements-pip.lock
	$(LOCK) --extra serve --extra cloud --extra postgres --output-file requirements.lock
	$(LOCK) --extra serve --extra test --output-file requirements-dev.lock
	$(subst pyproject.toml,--group docs,$(LOCK)) --constraint requirements-dev.lock --output-file requirements-docs.lock

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(SITE) $(CLIENTS) $(FEDERATED) .demo build dist *.egg-info
