# `make demo` and `make test` each do all of their own set-up from a bare checkout.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt
SETUP := pyproject.toml constraints.txt
# The oldest versions that pyproject.toml allows; numpy 1.26 needs Python 3.11 or 3.12.
OLDEST := torch==2.6.0 numpy==1.26.0 numba==0.61.0
# The method, reparameterization and distributed training need torch and numpy alone, and their tests these tools.
CORE_TESTS := tests/sgs tests/utils tests/reparam
WORKERS := -n 2 --dist loadgroup
PYTEST := $(VENV)/bin/python -m pytest $(WORKERS)
CORE_TOOLS := pytest pytest-timeout pytest-xdist hypothesis scikit-learn scipy matplotlib

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow docs results benchmark clean lint bits oldest newest mutants browser

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
	@echo
	@grep -E '^[a-z-]+:.*##- ' $(MAKEFILE_LIST) | sed -E 's/:.*##- /\t/' | expand -t 14

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python $(SETUP)
	@echo "Installing spatialgrad with what the demo needs into $(VENV) ..."
	@$(PIP) -e ".[train]"
	@touch $@

$(VENV)/.test: $(VENV)/bin/python $(SETUP)
	@echo "Installing spatialgrad with what the tests need into $(VENV) ..."
	@$(PIP) -e ".[all,dev]"
	@touch $@ $(VENV)/.demo

$(VENV)/.test-slow: $(VENV)/.test
	@echo "Installing the frameworks that spatialgrad is tested with into $(VENV) ..."
	@$(PIP) -e ".[all,dev,clients]"
	@$(PIP) --no-deps fastai mmengine ultralytics
	@touch $@

demo: $(VENV)/.demo ## Train with and without scaling on the shipped images (under 3 minutes).
	$(VENV)/bin/spatialgrad demo

test: lint ## Style, types and the tests for a change to the code (8 minutes on 2 cores).
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.test-slow browser ## The rest: frameworks, Ray, browser, documentation, kills, long trainings, equal bits.
	$(PYTEST) -m slow $(PYTEST_ARGS)
	$(MAKE) bits

docs: $(VENV)/.test ## Build the documentation into site/.
	$(VENV)/bin/python -m sphinx -qW --keep-going docs site

results: $(VENV)/.test ## Tables and pictures of README and docs, from the archived runs in results/.
	$(VENV)/bin/python docs/results.py

benchmark: $(VENV)/.test ## Every benchmark, one after the other.
	@set -e; for script in benchmarks/bench_*.py; do echo "== $$script"; $(VENV)/bin/python $$script; done

clean: ## Remove the environment and everything built.
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

lint: $(VENV)/.test ##- ruff and mypy.
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bits: $(VENV)/.test ##- The tests of equal bits again, with the instructions that other processors have.
	ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -m "bits and not slow" tests $(PYTEST_ARGS)
	ATEN_CPU_CAPABILITY=default $(PYTEST) -m "bits and not slow" tests $(PYTEST_ARGS)

$(VENV)-oldest/.test: pyproject.toml
	$(PYTHON) -m venv $(VENV)-oldest
	@echo "Installing the oldest supported torch, numpy and numba into $(VENV)-oldest ..."
	@$(VENV)-oldest/bin/python -m pip --disable-pip-version-check install -q -e . $(OLDEST) $(CORE_TOOLS)
	@touch $@

oldest: $(VENV)-oldest/.test ##- Test the core with the oldest supported torch, in an environment of its own.
	$(VENV)-oldest/bin/python -m pytest $(WORKERS) $(CORE_TESTS) $(PYTEST_ARGS)

newest: ##- Test the core with the newest torch, in an environment of its own.
	$(PYTHON) -m venv $(VENV)-newest
	@echo "Installing the newest torch, numpy and numba into $(VENV)-newest ..."
	@$(VENV)-newest/bin/python -m pip --disable-pip-version-check install -q --upgrade -e . torch numpy numba $(CORE_TOOLS)
	$(VENV)-newest/bin/python -m pytest $(WORKERS) $(CORE_TESTS) $(PYTEST_ARGS)

mutants: $(VENV)/.test ##- Put 50 bugs into a copy, one at a time: do the tests notice? (Half an hour; not part of CI.)
	$(VENV)/bin/python benchmarks/mutants.py $(WORDS)

# Chromium, in which the report's pages are tested, where it is missing and can be installed.
browser:
	@command -v chromium chromium-browser google-chrome > /dev/null \
	|| { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && echo "Installing Chromium ..." \
	&& { apt-get install -y -qq --no-install-recommends chromium || { apt-get update -qq \
	&& apt-get install -y -qq --no-install-recommends chromium; }; } > /dev/null; } \
	|| echo "There is no Chromium: tests of the report's pages will skip. On Debian: apt-get install chromium"
