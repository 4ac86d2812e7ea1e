#!/bin/sh
# Looks into a GPU build, on a machine without a GPU: are the kernels and NCCL in it, and does the program work on the
# CPU with this torch?
#
# usage: check_build.sh BUILD SOURCE
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1
source=$2
program=$build/megalith

fail() {
  echo "error: $1" >&2
  exit 1
}

section=$(readelf -SW "$program" | grep -c ' \.nv_fatbin ') || true
[ "$section" -gt 0 ] || fail "$program has no section .nv_fatbin: no GPU kernels in it"
symbols=$(nm -C --defined-only "$program")
count=0
for kernel in "$source"/src/ops/*/gpu.cu; do
  object=$build/src/CMakeFiles/megalith_ops_gpu.dir/ops/$(basename "$(dirname "$kernel")")/gpu.cu.o
  [ -e "$object" ] || fail "$kernel was not compiled: there is no $object"
  launchers=$(nm -C --defined-only --extern-only "$object" | sed -n 's/^[0-9a-f]* T \(megalith::.*\)/\1/p')
  [ -n "$launchers" ] || fail "$object defines no function"
  echo "$launchers" | while read -r launcher; do
    # A t when nothing outside the program may call it.
    echo "$symbols" | grep -qF -e " T $launcher" -e " t $launcher" || fail "$program lacks $launcher of $kernel"
  done
  count=$((count + $(echo "$launchers" | wc -l)))
done
echo "kernels: $count launchers of src/ops/*/gpu.cu are in $program, with their device code"

if [ -e "$build/cuda.env" ]; then
  . "$build/cuda.env"
  python3 "$here/registers.py" check "$CUDACXX" "$source"
else
  echo "registers: not looked at: $build/cuda.env, which names nvcc, is not there"
fi

# Undefined here, because torch's library defines them.
nm -DC --undefined-only "$program" | grep -q ' c10d::ProcessGroupNCCL::ProcessGroupNCCL(' ||
  fail "$program makes no ProcessGroupNCCL: it was built without NCCL (the table of $build/logs/configure.log says why)"
for library in libtorch_cuda libc10_cuda; do
  readelf -dW "$program" | grep -q "NEEDED.*\[$library\.so\]" || fail "$program is not linked to $library.so"
done
echo "NCCL: $program makes c10d's ProcessGroupNCCL, and is linked to libtorch_cuda"

# blas.cc looks its functions up by name in what torch has loaded.
grep -aq cublasLtMatmulAlgoGetHeuristic "$program" || fail "$program does not call cublasLt: its headers were not found"
if [ -e "$build/cuda.env" ]; then
  wheels=$(dirname "$CUDA_TORCH")/nvidia
  offered=$(nm -D --defined-only "$wheels"/cu*/lib/libcublasLt.so.*)
  for function in $(grep -ao -E 'cublasLt[A-Z][A-Za-z]+' "$program" | sort -u); do
    echo "$offered" | grep -q " [TW] $function\(@.*\)\?$" || fail "torch's libraries have no $function, which $program looks up"
  done
  echo "products: torch's libraries have the functions of cublasLt that $program looks up"
fi

"$here/try_program.sh" "$program" "$source"
jobs=$(nproc 2>/dev/null || echo 1)
echo "tests: core, config, device, hub, metrics, nn, ops, optim and tokenizer on the CPU with this torch"
"$here/../quietly.sh" "  ctest (log: $build/logs/tests.log)" "$build/logs/tests.log" \
  ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$jobs" \
  -R '^unit\.(core|config|device|hub|metrics|nn|ops|optim|tokenizer)\.' -E '^unit\.ops\.(default|avx2)\.'
