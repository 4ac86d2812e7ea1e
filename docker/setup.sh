#!/bin/bash
# The steps of docker/Dockerfile.rocm and docker/Dockerfile.cuda, run as root inside the image that is being built.
#
# usage: setup.sh packages|requirements
#        setup.sh build ROCm|CUDA
#   packages      the compiler and the libraries that Megalith is built with
#   requirements  the Python packages of the tools, and no torch
#   build         finds or installs torch, builds the program with kernels for GPUs, and gives the tree the names under
#                 which the pages, Primus, CVS and MAD know it
# TORCH_INDEX, TORCH_VERSION and JOBS are the Dockerfiles' arguments; an empty one counts as unset. Tests name another
# /etc/os-release with OS_RELEASE, and another /usr/local/bin with LINKS.
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
# Debian's Python refuses pip outside a virtual environment; this whole image is one.
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 DEBIAN_FRONTEND=noninteractive

fail() {
  echo "error: $1" >&2
  echo "  $2" >&2
  exit 2
}

# g++ 12 is the oldest that builds Megalith, and Ubuntu 22.04's g++ is 11.
install_packages() {
  local release compiler=g++
  release=$(sed -n 's/^VERSION_ID="\(.*\)"$/\1/p' "${OS_RELEASE:-/etc/os-release}")
  if [ "$release" = 22.04 ]; then compiler=g++-12; fi
  apt-get update
  apt-get install -y --no-install-recommends "$compiler" ca-certificates git iproute2 make python3-pip python3-venv
  "$tree/scripts/install_packages.sh" required /tmp/packages.log
  rm -rf /var/lib/apt/lists/*
}

# Prints what the torch that was found is built for, its version and its folder: "ROCm 2.11.0 /opt/…".
found_torch() {
  python3 - "$1" <<'END'
import runpy, sys

told = runpy.run_path(sys.argv[1] + "/version.py")
flavour = "ROCm" if told.get("hip") else "CUDA" if told.get("cuda") else "CPU"
print(flavour, told["__version__"], sys.argv[1])
END
}

# Whether the image's own torch is new enough. pip's index has no builds for ROCm, so this is asked before gigabytes come.
base_is_new_enough() {
  local version
  version=$(python3 "$tree/scripts/locate_torch.py" 2>/dev/null | cut -f 1)
  [ -n "$version" ] && [ "$(printf '%s\n2.11\n' "$version" | sort -V | head -n 1)" = 2.11 ]
}

link_names() {
  local folder
  folder=$(dirname "$tree")
  ln -sfn "$tree" "$folder/Primus"
  ln -sfn "$tree" "$folder/MAD"
  ln -sf "$tree/build/megalith" "${LINKS:-/usr/local/bin}/megalith"
}

build() {
  local wanted=$1 found switch
  case $wanted in
    ROCm) switch=MEGALITH_ROCM ;;
    CUDA) switch=MEGALITH_CUDA ;;
    *) fail "setup.sh build '$wanted'" "name ROCm or CUDA" ;;
  esac
  if command -v g++-12 >/dev/null; then export CC=gcc-12 CXX=g++-12 CUDAHOSTCXX=g++-12; fi
  if [ -n "${TORCH_INDEX:-}" ]; then export PIP_EXTRA_INDEX_URL=$TORCH_INDEX; fi
  if [ -z "${TORCH_VERSION:-}" ]; then unset TORCH_VERSION; fi
  if [ -z "${JOBS:-}" ]; then unset JOBS; fi
  cd "$tree"
  if [ "$wanted" = ROCm ] && [ -z "${TORCH_INDEX:-}" ] && ! base_is_new_enough; then
    fail "BASE has no torch of 2.11 or newer, and TORCH_INDEX does not say where pip finds one for ROCm" \
      "give --build-arg TORCH_INDEX=… and --build-arg TORCH_VERSION=…, or another BASE (docs/images.md)"
  fi
  make setup
  found=$(found_torch "$(sed -n "s/^TORCH_DIR='\(.*\)'$/\1/p" build/torch.env)")
  if [ "${found%% *}" != "$wanted" ]; then
    fail "this image is for $wanted, and the torch that was found is another build: $found" \
      "take a BASE that has torch 2.11 or newer for $wanted, or give TORCH_INDEX and TORCH_VERSION (docs/images.md)"
  fi
  # Kernels for GPUs are insisted on. The tests stay out, and warnings of compilers that we do not know are no errors.
  make build CMAKE_ARGS="-D$switch=ON -DMEGALITH_TESTS=OFF -DMEGALITH_WERROR=OFF"
  # It starts, and two steps on the processor say that its libraries fit.
  build/megalith train --config demo --num_layers 1 --vocab_size 257 --mock_data --seq_length 16 --train_iters 2 \
    --eval_iters 0 --device cpu
  link_names
}

case ${1:-} in
  packages) install_packages ;;
  requirements) python3 -m pip install -r "$tree/requirements.txt" ;;
  build) build "${2:-}" ;;
  *) fail "setup.sh '${1:-}'" "name a step: packages, requirements or build" ;;
esac
