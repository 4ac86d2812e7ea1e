#!/bin/sh
# Writes the lists of exact versions and hashes that the build's scripts give to pip: scripts/locked/ and
# tests/oracle/locked/. Run it when a version in a script or in tests/oracle changes, and read what it changes before it
# is committed. Asks PyPI, through uv, for the files of the newest versions that suit Python 3.11 and newer.
#
# usage: lock_packages.sh [UV]     'pip install uv' brings uv
set -eu
here=$(cd "$(dirname "$0")" && pwd)
uv=${1:-uv}
oracle=$here/../tests/oracle
torch=$(sed -n 's/^default_version=//p' "$here/setup_torch.sh")
cuda_torch=$(sed -n 's/^GPU_TORCH_VERSION ?= //p' "$here/../Makefile")

# lock OUTPUT [uv's words …] with requirements on standard input
lock() {
  output=$1
  shift
  { cat; echo; } | "$uv" pip compile - "$@" --quiet --universal --generate-hashes --no-annotate --no-header --upgrade \
    --python-version 3.11 --default-index https://pypi.org/simple --no-config >"$output.new"
  { echo "# Made by scripts/lock_packages.sh."; cat "$output.new"; } >"$output"
  rm "$output.new"
}

echo "torch==$torch" | lock "$here/locked/torch.txt"
# nvcc comes from the toolkit of torch's CUDA.
printf 'torch==%s\ncuda-toolkit[nvcc,crt,cccl]\nnvidia-nvvm==13.0.*\nnvidia-cuda-runtime==13.0.*\n' "$cuda_torch" |
  lock "$here/locked/torch_cuda.txt"
echo "pyarrow>=15" | lock "$here/locked/arrow.txt"
echo "cmake>=3.24,<4" | lock "$here/locked/cmake.txt"
lock "$oracle/locked/requirements.txt" --no-emit-package torch <"$oracle/requirements.txt"
for list in "$oracle"/no_deps/*.txt; do
  lock "$oracle/locked/$(basename "$list")" --no-deps <"$list"
done
