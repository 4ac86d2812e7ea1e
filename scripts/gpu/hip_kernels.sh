#!/bin/sh
# Compiles src/ops/*/gpu.cu with hipcc, each for every architecture, to object files: AMD's half of the one source for
# nvcc and hipcc. Nothing is linked, which would take a ROCm build of torch.
#
# usage: hip_kernels.sh SOURCE FOLDER      HIPCC names the compiler, HIP_ARCHITECTURES the processors (gfx90a gfx942 gfx950)
set -eu
source=$1
folder=$2
hipcc=${HIPCC:-hipcc}
# Where nvcc is installed too, hipcc would take that.
export HIP_PLATFORM=amd

if ! command -v "$hipcc" >/dev/null 2>&1; then
  echo "error: there is no $hipcc" >&2
  echo "  apt-get install hipcc, or name the one of a ROCm installation with HIPCC" >&2
  exit 1
fi
mkdir -p "$folder"
log=$folder/hipcc.log
: >"$log"

fail() {
  tail -n 40 "$log" >&2
  echo "error: $1 (log: $log)" >&2
  exit 1
}

# compile ARCHITECTURE FILE OBJECT [options …], as cmake/Gpu.cmake has it done
compile() {
  architecture=$1 file=$2 object=$3
  shift 3
  "$hipcc" --offload-arch="$architecture" -std=c++20 -O2 -DNDEBUG -fPIC -I "$source/src" "$@" -c "$file" -o "$object" \
    >>"$log" 2>&1
}
known() { compile "$1" "$folder/empty.cu" "$folder/empty.o"; }

printf '#include <hip/hip_runtime.h>\n__global__ void nothing() {}\n' >"$folder/empty.cu"
version=$("$hipcc" --version 2>/dev/null | sed -n 's/^HIP version: //p')
known gfx90a || fail "hipcc ${version:-} compiles nothing, not even an empty kernel for gfx90a"

architectures=
for wanted in ${HIP_ARCHITECTURES:-gfx90a gfx942 gfx950}; do
  if known "$wanted"; then
    architectures="$architectures $wanted"
  elif [ "$wanted" = gfx942 ] && known gfx940; then
    echo "hip: hipcc ${version:-} does not know $wanted; compiling for gfx940, the first of its family, instead"
    architectures="$architectures gfx940"
  else
    echo "hip: hipcc ${version:-} does not know $wanted; left out"
  fi
done
[ -n "$architectures" ] || fail "hipcc ${version:-} knows none of the architectures"

count=0
for kernel in "$source"/src/ops/*/gpu.cu; do
  for architecture in $architectures; do
    object=$folder/$(basename "$(dirname "$kernel")").$architecture.o
    rm -f "$object"
    compile "$architecture" "$kernel" "$object" -Wall -Wextra -Werror ||
      fail "hipcc does not compile $kernel for $architecture"
    grep -aq "amdgcn-amd-amdhsa--$architecture" "$object" || fail "$object holds no device code for $architecture"
    count=$((count + 1))
  done
done
echo "hip: $count objects of src/ops/*/gpu.cu for$architectures by hipcc ${version:-of unknown version}; nothing is linked"
