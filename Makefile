# Everything starts here; each target makes .venv first if it must, from PYTHON: 3.11, 3.12 or 3.13 (scripts/versions.py). VENV=.venv-newest
# and the like make one of another name, with its own others beside it. See README.md.
PYTHON ?= python3
PYTHON312 ?= python3.12
DEVICE ?= cpu
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed-$(DEVICE)
# On a terminal pip shows what it fetches.
QUIET := $(shell [ -t 2 ] || echo --quiet)

.PHONY: quickstart demo docs test-fast test test-slow test-defaults test-all test-nightly layouts check setup lock pods golden parity bench-peers clean

quickstart: $(STAMP)  ## data, training, scores, translations and a page with pictures
	$(PY) -m scripts.quickstart

demo: $(STAMP)  ## what released weights do: a transcript, answers, and texts by topic, with pictures on a page
	$(PY) -m scripts.demo

WORKERS := 2
PYTEST = $(PY) -m pytest -q -n $(WORKERS) --dist loadfile tests

test-fast: $(STAMP)  ## what is tested in one process: no training program, no TensorFlow, no network
	$(PYTEST) --fast

test: $(STAMP)  ## before a commit: all but the slow tests
	$(PYTEST) -m "not slow and not nightly"

# Of two cores, since processes that these tests start wait for each other.
test-slow: WORKERS := 3
test-slow: $(STAMP)  ## what test-all has beside test
	$(PYTEST) -m "slow and not nightly"
	if [ -x $(VENV)-beam/bin/python ]; then $(VENV)-beam/bin/python -m pytest -q tests/data/test_beam.py; fi

# A family, its layouts and the trainer: what depends on what is drawn, or on how it is compiled.
DEFAULTS := tests/models/test_gpt.py tests/multi_device/test_gpt_layouts.py tests/trainers/test_trainer.py tests/test_old_checkpoints.py

test-defaults: $(STAMP)  ## a part of test with JAX's own generator and XLA's own optimisation, which the other tests replace by cheaper ones
	SHARDZOO_DEFAULTS=1 $(PY) -m pytest -q -n 2 --dist loadfile -m "not slow and not nightly" $(DEFAULTS)

test-all: test test-defaults test-slow  ## what CI runs

test-nightly: $(STAMP)  ## more layouts of more experiments than test-all has
	$(PYTEST) -m nightly

layouts: $(STAMP)  ## every layout of every family against one device: more than an hour of CPU
	$(PY) -m scripts.layouts

check: $(STAMP)  ## style, types, links between documents, and known vulnerabilities of the locked packages
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --pythonpath $(PY)
	$(PY) -m pytest -q tests/test_docs.py
	$(PY) -m scripts.lab.audit

docs: $(VENV)-docs/.installed  ## the documents as a site, site/html/index.html, in an environment of its own
	$(VENV)-docs/bin/python -m scripts.lab.site

$(VENV)-docs/.installed: requirements-docs.lock
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@

setup: $(STAMP) $(VENV)/bin/shardzoo  ## the environment, and in it the command `shardzoo`, which runs from any folder; DEVICE=gpu or tpu adds JAX's own packages for it, DEVICE=plan the TPU compiler, plan-gpu XLA's GPU compiler, launch the schemas of Kubernetes and JobSet, gs the client for checkpoints at gs://, beam Apache Beam

$(STAMP): requirements.lock requirements-plan.lock requirements-plan-gpu.lock requirements-launch.lock requirements-gs.lock requirements-beam.lock
	@$(or $(wildcard $(PY)),$(PYTHON)) scripts/versions.py
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
# The lock names all packages, so that nothing is to be resolved. Modules are compiled when they are first imported.
	$(PY) -m pip install $(QUIET) --disable-pip-version-check --no-deps --no-compile --require-hashes -r requirements.lock
# The packages that JAX's extras bring for GPUs and TPUs are in no lock and have no hashes; those of the lock keep their versions.
	sed -n '/^[a-zA-Z0-9]/s/ *\\$$//p' requirements.lock > $(VENV)/constraints.txt
	if [ $(DEVICE) = gpu ]; then $(PY) -m pip install $(QUIET) -c $(VENV)/constraints.txt "jax[cuda12]"; fi
	if [ $(DEVICE) = tpu ]; then $(PY) -m pip install $(QUIET) -c $(VENV)/constraints.txt "jax[tpu]"; fi
	if [ $(DEVICE) = plan ]; then $(PY) -m pip install $(QUIET) --upgrade --no-deps --require-hashes --target $(VENV)/plan -r requirements-plan.lock; fi
	if [ $(DEVICE) = plan-gpu ]; then $(PY) -m pip install $(QUIET) --upgrade --no-deps --require-hashes --target $(VENV)/plan-gpu -r requirements-plan-gpu.lock; fi
	if [ $(DEVICE) = launch ]; then $(PY) -m pip install $(QUIET) --upgrade --no-deps --require-hashes --target $(VENV)/launch -r requirements-launch.lock; fi
	if [ $(DEVICE) = gs ]; then $(PY) -m pip install $(QUIET) --no-deps --require-hashes -r requirements-gs.lock; fi
	if [ $(DEVICE) = beam ]; then $(PYTHON) -m venv $(VENV)-beam && $(VENV)-beam/bin/python -m pip install $(QUIET) --require-hashes -r requirements-beam.lock; fi
	touch $@

$(VENV)/bin/shardzoo: Makefile
	mkdir -p $(@D)
	printf '#!/bin/sh\nexec "%s" "%s" "$$@"\n' "$(abspath $(PY))" "$(CURDIR)/scripts/__main__.py" > $@
	chmod +x $@

COMPILE := uv pip compile --quiet --universal --no-header --no-annotate --generate-hashes --upgrade --python-version 3.11

lock:  ## resolves requirements.in anew, for every Python from 3.11 on; the files hold versions and hashes, and no addresses. Then see scripts/versions.py
	$(COMPILE) requirements.in -o requirements.lock
	$(COMPILE) --no-deps requirements-plan.in -o requirements-plan.lock
	$(COMPILE) requirements-plan-gpu.in -o requirements-plan-gpu.lock
	$(COMPILE) requirements-docs.in -o requirements-docs.lock
	$(COMPILE) --constraints requirements.lock requirements-gs.in -o requirements-gs.lock

pods:  ## compiles every pod experiment that it has not compiled before, and models its step: an hour and a half
	$(MAKE) setup DEVICE=plan
	$(PY) -m scripts.plan --all

golden: $(STAMP)  ## rewrites the dumps in configs/golden/ after a change that is meant
	$(PY) -m tests.helpers.golden

parity: $(STAMP) $(VENV)-parity/.installed  ## compares with PyTorch's transformers, both ways, rewrites the fixtures, and continues texts with released weights on both sides
	JAX_PLATFORMS=cpu $(PY) -m tests.parity.live
	JAX_PLATFORMS=cpu $(PY) -m tests.parity.greedy
	JAX_PLATFORMS=cpu $(PY) -m tests.parity.talks

$(VENV)-parity/.installed: tests/parity/requirements.txt tests/parity/requirements-version4.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade --target $(@D)/version4 -r $(word 2,$^)
	touch $@

bench-peers: $(STAMP) $(VENV)-parity/.installed  ## training speed beside transformers and MaxText; ARGS="--peers hf" and the like
	-$(MAKE) $(VENV)-maxtext/.installed  # without a Python for it, MaxText is left out
	$(PY) -m scripts.lab.peers.compare $(ARGS)

$(VENV)-maxtext/.installed: scripts/lab/peers/maxtext.txt
	$(PYTHON312) -c 'import sys; sys.exit(sys.version_info < (3, 12) and "MaxText needs Python 3.12 or newer; name one with PYTHON312=...")'
	test -x $(@D)/bin/python || $(PYTHON312) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-beam $(VENV)-docs $(VENV)-goodput $(VENV)-parity $(VENV)-maxtext .data runs site
