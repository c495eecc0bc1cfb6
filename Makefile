# Everything a fresh clone needs: each target sets up its own virtual environment first.
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

.PHONY: demo cluster test test-cluster check test-products test-warm slow-tests test-clients test-federated test-frameworks test-huggingface docs lint papers openapi fuzz probes forgeries tampered-mirrors release sbom advisories bench bench-quick bench-page soak simulate lock clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# Two services behind a balancer, a scheduler, two workers, PostgreSQL and a bucket, all on this machine, until Ctrl-C.
cluster: $(STAMP)
	$(BIN)/python tests/support/cluster.py

test: $(STAMP)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

# The quick half of the tests: a minute on two processors from a fresh clone, whose kernels are compiled meanwhile.
check: PROCESSES = $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
check: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" $(SIDE_BY_SIDE)

# The HTTP tests against two services behind a balancer, with PostgreSQL, a bucket, a scheduler and two workers.
test-cluster: $(STAMP)
	ON_A_CLUSTER=1 $(BIN)/python -m pytest tests/contract/test_http_contract.py tests/contract/test_http_refusals.py \
	  tests/api/http/test_routes.py tests/api/http/test_downloads.py tests/api/http/test_hostile_requests.py \
	  tests/api/http/test_predictions.py tests/api/http/test_comparisons.py tests/api/http/test_events.py \
	  tests/factorize/client/test_client.py tests/api/http/test_calibrations.py

# Every mechanism on every small spec with every objective, twenty times what `make test` takes of them.
test-products: $(STAMP)
	WHOLE_PRODUCTS=1 $(BIN)/python -m pytest tests/contract/test_mechanism_contract.py $(SIDE_BY_SIDE)

# The image's step that compiles the kernels, in an empty folder: no spec of any family compiles another one after it.
test-warm: $(STAMP)
	WHOLE_WARM=1 $(BIN)/python -m pytest tests/api/test_warm.py

# Measures every test and lists anew what `make check` leaves out.
slow-tests: $(STAMP)
	rm -f build/seconds && mkdir -p build
	$(BIN)/python -m pytest --seconds $(CURDIR)/build/seconds $(SIDE_BY_SIDE)
	$(BIN)/python tests/support/slow_tests.py build/seconds

# The adapters against the real torch, Opacus, JAX and jax_privacy, which the main environment does not get. The processes
# share the processors already: threads of their own would wait for one another.
test-frameworks test-federated: export OMP_NUM_THREADS = 1
test-frameworks: $(FRAMEWORKS)/.installed
	$(FRAMEWORKS)/bin/python -m pytest tests/frameworks papers/tests/test_convolutional.py papers/tests/test_rate_study.py papers/tests/test_torch_gradients.py $(SIDE_BY_SIDE)

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

# The site in build/site. A broken link, a page without a place, or a page that asks another site for something is an error.
docs: $(STAMP) $(SITE)/.installed
	$(BIN)/python -m website
	$(BUILD_SITE) --clean
	$(BIN)/python -m pytest tests/website

# The times in the site are those of the commit, so that two builds are the same bytes.
BUILD_SITE = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) NO_MKDOCS_2_WARNING=1 \
  $(SITE)/bin/python -m mkdocs --quiet build --strict

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

# Keeps the OpenAPI document as it is now; tests/contract/test_openapi.py says what was taken away from the kept one.
openapi: $(STAMP)
	$(BIN)/python tests/support/kept_openapi.py

# Schemathesis sends tens of thousands of requests made from the OpenAPI document, most of them a little wrong, with and
# without keys; `make test` has it send some hundred.
fuzz: $(STAMP)
	FUZZED_EXAMPLES=500 $(BIN)/python -m pytest tests/contract/test_openapi.py

# 10,000 probes of one caller's jobs and uploads by others, beside names that nobody has; `make test` sends some hundred.
probes: $(STAMP)
	PROBES=10000 $(BIN)/python -m pytest tests/api/http/test_tenancy.py

# 3,000 receipts with two fields changed, each refused or no stronger than the truth; `make test` tries 200.
forgeries: $(STAMP)
	FORGERIES=3000 $(BIN)/python -m pytest tests/factorize/checker/test_receipt_forgeries.py

# 1,000 mirrors that somebody has tampered with: none is accepted by a client with the key; `make test-clients` tries 36.
tampered-mirrors: $(CLIENTS)/.installed
	TAMPERED_MIRRORS=1000 $(CLIENTS)/bin/python -m pytest tests/clients/test_mirror_signatures.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Tiny sizes and no other library: whether all runs, not how fast.
bench-quick: $(STAMP)
	$(BIN)/python -m benchmarks --quick

# On a quiet machine: measures all but scale anew and writes the measured part of docs/benchmarks.md.
bench-page: $(STAMP)
	$(BIN)/python -m benchmarks --to benchmarks/results
	$(BIN)/python -m benchmarks.page

soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak

# Ten minutes of the simulated cluster, some 2,000 runs with ten faults each; one integer repeats a run (docs/notes/simulation.md).
simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --minutes 10 --processes 2

# Wheel and source distribution in dist/, built twice to the same bytes, with materials, provenance and SHA256SUMS.
release: $(STAMP)
	$(BIN)/python -m release

# The bill of materials of a service, CycloneDX 1.6, in dist/.
sbom: $(STAMP)
	$(BIN)/python -m release --materials

# Ends with 1 where a pinned package has a known advisory, and with 75 where that could not be asked.
advisories: $(STAMP)
	$(BIN)/python -m release.advisories

# Exact versions and hashes, so that two installs are the same install. First a newer pip: the one that comes with
# Python 3.11 takes three times as long to read what an index has.
# The checkout is what is installed, so links that an archive or a clone has turned into files are made again.
$(STAMP): requirements-pip.lock requirements-dev.lock pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "factorize needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	@test -e $@ || echo "First an environment in $(VENV), once: about a minute and 1.3 GB"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-pip.lock
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes -r requirements-dev.lock
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
	echo pip | $(subst pyproject.toml,-,$(LOCK)) --output-file requirements-pip.lock
	$(LOCK) --extra serve --extra cloud --extra postgres --output-file requirements.lock
	$(LOCK) --extra serve --extra test --output-file requirements-dev.lock
	$(subst pyproject.toml,--group docs,$(LOCK)) --constraint requirements-dev.lock --output-file requirements-docs.lock

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(SITE) $(CLIENTS) $(FEDERATED) .demo build dist *.egg-info
