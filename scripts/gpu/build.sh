#!/bin/sh
# Compiles and links the program and all test programs against the CUDA build of torch, with the GPU kernels and NCCL.
# Needs no GPU.
#
# usage: build.sh BUILD VENV JOBS [cmake options …]     after setup_cuda.sh has written BUILD/cuda.env
set -eu
scripts=$(cd "$(dirname "$0")/.." && pwd)
build=$1
venv=$2
jobs=$3
shift 3
. "$build/cuda.env"
export CUDACXX
export TORCH_DIR= TORCH_VERSION="$CUDA_TORCH_VERSION"
"$scripts/setup_torch.sh" "$venv" "$build/torch.env" "$build/logs/torch.log"
"$scripts/configure.sh" "$build" "$venv" "$build/logs/configure.log" -DMEGALITH_CUDA=ON -DMEGALITH_TESTS=ON "$@"
# What a change of the CMake files adds or removes is known only after they were read again.
if ! ninja -C "$build" build.ninja >"$build/logs/reconfigure.log" 2>&1; then
  tail -n 30 "$build/logs/reconfigure.log" >&2
  echo "error: CMake failed in $build (log: $build/logs/reconfigure.log)" >&2
  exit 1
fi
# The fuzzer has no part that a GPU or another torch would change.
tests=$(ninja -C "$build" -t targets all | sed -n 's|^\(bin/test_[a-z_]*\): .*|\1|p' | sort -u)
if [ -z "$tests" ]; then
  echo "error: $build/build.ninja names no test program bin/test_…" >&2
  exit 1
fi
"$scripts/quietly.sh" "build: $build/megalith and $(echo "$tests" | wc -l) test programs (log: $build/logs/build.log)" \
  "$build/logs/build.log" ninja -C "$build" -j "$jobs" megalith $tests
