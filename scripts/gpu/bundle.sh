#!/bin/sh
# Packs a GPU build for machines that have only its torch: the program and the test programs to which a GPU can matter,
# stripped and without the paths of this machine, the configurations and examples, and a launcher that finds torch.
#
# usage: bundle.sh BUILD SOURCE VENV
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
source=$2
venv=$3
name=megalith-gpu-bundle
stage=$build/$name
archive=$build/$name.tar.gz
log=$build/logs/bundle.log
. "$build/cuda.env"

rm -rf "$stage" "$archive"
mkdir -p "$stage/tests/tokenizer"
cmake=$("$here/../find_cmake.sh" "$venv" "$log")
for component in program tests; do
  if ! "$cmake" --install "$build" --component "$component" --strip --prefix "$stage" >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "error: the programs of $build could not be copied (log: $log)" >&2
    exit 1
  fi
done
cp -R "$source/configs" "$source/examples" "$stage/"
cp -R "$source/tests/tokenizer/data" "$stage/tests/tokenizer/"
cp "$source/LICENSE" "$here/../bundle/run" "$here/../bundle/megalith" "$here/first_hour.sh" "$stage/"
mkdir -p "$stage/first_hour" "$stage/benchmarks/results"
cp "$here"/first_hour/*.py "$stage/first_hour/"
cp "$source/benchmarks/results/gpu.md" "$stage/benchmarks/results/"
echo "$CUDA_TORCH_VERSION" >"$stage/torch_version"
echo cuda >"$stage/torch_flavour"
# Owners of this machine mean nothing on another.
tar -C "$build" --owner=0 --group=0 --sort=name -cf - "$name" | gzip -9 >"$archive"
rm -rf "$stage"
echo "bundle: $archive"
