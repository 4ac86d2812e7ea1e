# The front door. `make` alone lists what it can do; every target first does what it needs.
#
#   BUILD        build folder                              (build)
#   VENV         virtual environment for torch             (.venv)
#   TORCH_DIR    folder of a LibTorch or an installed torch to build against, instead of downloading one
#   TORCH_VERSION  version of torch to install             (2.13.0)
#   CMAKE_ARGS   options of the build, such as -DMEGALITH_SANITIZE=address; see docs/build.md
#   JOBS         parallel compilations                     (one a processor)
#   LABEL        tests to run: unit, parallel, cli, oracle, pretend, gpu (all)
#   TEST_JOBS    tests at once; those that measure time run alone (2)
#   GPU_BUILD, GPU_VENV, GPU_TORCH_VERSION  of the gpu- targets (build-cuda, .venv-cuda, 2.11.0)
#   MINUTES      how long `make proof` attacks            (30)
#   FUZZ_RUNS    of each reader in `make proof`, in whatever time they take (a share of MINUTES)
#   PREFIX       folder that `make install` copies to       (/usr/local)
#   BUNDLE_TORCH copy: `make bundle` packs LibTorch; none: for machines that have it (copy)
#   VERBOSE=1    show the output of every command

BUILD ?= build
VENV ?= .venv
TOOLS_VENV ?= .venv-tools
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_ARGS ?=
LABEL ?=
TEST_JOBS ?= 2
MINUTES ?= 30
PREFIX ?= /usr/local
BUNDLE_TORCH ?= copy
GPU_BUILD ?= build-cuda
GPU_VENV ?= .venv-cuda
GPU_TORCH_VERSION ?= 2.11.0
LOGS := $(BUILD)/logs
export TORCH_DIR TORCH_VERSION VERBOSE

.DEFAULT_GOAL := help
.PHONY: help setup build all demo test proof bench format clean packages torch arrow configure tools install bundle \
  wheel gpu-torch gpu-build gpu-hip gpu-bundle gpu-check

help:
	@echo "make setup    install what is missing: packages, and torch in $(VENV)"
	@echo "make build    build the program: $(BUILD)/megalith"
	@echo "make demo     train a small Llama on a real text on this machine (minutes), and let it write;"
	@echo "              with EXPERIMENT=demo_bert, demo_t5 or demo_ict a model that compares texts, fills gaps or finds texts"
	@echo "make test     build everything and run every test"
	@echo "make proof    attack it for MINUTES=30: random layouts, kills, faults, damaged files, a long run"
	@echo "make bench    training speed on this machine, beside PyTorch's"
	@echo "make install  copy the program, presets and pages to PREFIX ($(PREFIX))"
	@echo "make bundle   pack them with LibTorch for machines that have nothing"
	@echo "make wheel    pack them for pip install"
	@echo "make gpu-bundle  build for NVIDIA GPUs on a machine without one, and pack it (installs 4.6 GB)"
	@echo "make gpu-check   the same, and compile the kernels for AMD"
	@echo "make format   bring the sources into their form (clang-format)"
	@echo "make clean    remove $(BUILD)/ (the virtual environments stay)"
	@echo
	@echo "Settings, such as TORCH_DIR=… or CMAKE_ARGS=…, are at the top of the Makefile and in docs/build.md."

setup: packages torch arrow

packages:
	@scripts/install_packages.sh required $(LOGS)/packages.log

torch: packages
	@scripts/setup_torch.sh $(VENV) $(BUILD)/torch.env $(LOGS)/torch.log

arrow: torch
	@scripts/setup_arrow.sh $(VENV) $(BUILD)/torch.env $(LOGS)/arrow.log

configure: torch arrow
	@scripts/configure.sh $(BUILD) $(VENV) $(LOGS)/configure.log $(CMAKE_ARGS)

build: configure
	@scripts/quietly.sh "build: $(BUILD)/megalith (log: $(LOGS)/build.log)" $(LOGS)/build.log \
	  ninja -C $(BUILD) -j $(JOBS) megalith

all: configure
	@scripts/quietly.sh "build: the program and all tests (log: $(LOGS)/build.log)" $(LOGS)/build.log \
	  ninja -C $(BUILD) -j $(JOBS)

tools: torch
	@scripts/setup_tools.sh $(TOOLS_VENV) $(BUILD)/torch.env tests/oracle/requirements.txt $(LOGS)/tools.log

demo: build
	@scripts/install_packages.sh demo $(LOGS)/packages.log
	@examples/demo/run.sh $(BUILD)/megalith $(BUILD)/demo

# The log of every test is in $(BUILD)/Testing/Temporary/LastTest.log.
test: all tools
	@scripts/install_packages.sh test $(LOGS)/packages.log
	@echo "test: $(if $(LABEL),those with label $(LABEL),all)"
	@cd $(BUILD) && MEGALITH_TOOLS_PYTHON=$(abspath $(TOOLS_VENV))/bin/python3 \
	  ctest --output-on-failure -j $(TEST_JOBS) $(if $(LABEL),-L $(LABEL))

proof: all tools
	@$(TOOLS_VENV)/bin/python3 tests/proof/proof.py --minutes $(MINUTES) --build $(abspath $(BUILD)) \
	  $(if $(FUZZ_RUNS),--fuzz_runs $(FUZZ_RUNS))

bench: build tools
	@$(TOOLS_VENV)/bin/python3 benchmarks/training.py --program $(BUILD)/megalith

install: build
	@scripts/install.sh $(BUILD) . $(VENV) $(PREFIX) link
	@echo "installed: $(PREFIX)/bin/megalith"

bundle: build
	@scripts/bundle.sh $(BUILD) . $(VENV) $(BUNDLE_TORCH)

wheel: build tools
	@scripts/wheel.sh $(BUILD) . $(VENV) $(TOOLS_VENV)/bin/python3

# The GPU build on a machine without a GPU, from another torch in a virtual environment of its own. TORCH_DIR and
# TORCH_VERSION do not steer it.
gpu-torch: packages
	@scripts/gpu/setup_cuda.sh $(GPU_VENV) $(GPU_TORCH_VERSION) $(GPU_BUILD)/cuda.env $(GPU_BUILD)/logs/setup_cuda.log

gpu-build: gpu-torch
	@scripts/gpu/build.sh $(GPU_BUILD) $(GPU_VENV) $(JOBS) $(CMAKE_ARGS)
	@scripts/gpu/check_build.sh $(GPU_BUILD) .

gpu-hip:
	@scripts/install_packages.sh gpu $(GPU_BUILD)/logs/packages.log
	@scripts/gpu/hip_kernels.sh . $(GPU_BUILD)/hip

gpu-bundle: gpu-build
	@scripts/gpu/bundle.sh $(GPU_BUILD) . $(GPU_VENV)
	@scripts/gpu/check_bundle.sh $(GPU_BUILD)/megalith-gpu-bundle.tar.gz $(GPU_VENV)

gpu-check: gpu-hip gpu-bundle

format:
	@command -v clang-format >/dev/null || { echo "error: clang-format is missing: apt-get install clang-format" >&2; exit 1; }
	@find src tests cmake benchmarks \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print0 | xargs -0 clang-format -i

clean:
	rm -rf $(BUILD)
