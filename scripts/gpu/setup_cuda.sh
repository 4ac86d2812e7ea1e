#!/bin/sh
# Makes a virtual environment with the CUDA build of torch, on a machine with or without a GPU, and finds an nvcc for
# it: the system's when its version is that of torch's CUDA, else one that pip puts beside torch. Writes a file of shell
# variables (CUDA_TORCH, CUDA_TORCH_VERSION, CUDACXX).
#
# usage: setup_cuda.sh VENV VERSION OUTPUT LOG
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
version=$2
output=$3
log=$4
python=$venv/bin/python3
locked=$here/../locked/torch_cuda.txt  # with the nvcc of its CUDA
needed_gb=12  # the packages take 4.6 GB, pip's copies of them nearly as much while it installs

fail() {
  [ -e "$log" ] && tail -n 15 "$log" >&2
  echo "error: $1" >&2
  echo "  $2" >&2
  exit 1
}

# "2.11.0 13.0 FOLDER" of the torch in the virtual environment; nothing when it has none. Imports nothing large.
installed() {
  [ -x "$python" ] && "$python" - 2>/dev/null <<'END'
import importlib.util, os, runpy
folder = os.path.dirname(importlib.util.find_spec("torch").origin)
told = runpy.run_path(os.path.join(folder, "version.py"))
print(told["__version__"].partition("+")[0], told["cuda"] or "none", os.path.realpath(folder))
END
}

pip_install() { "$python" -m pip install --progress-bar off --no-cache-dir "$@" >>"$log" 2>&1; }

# Sets found_version, cuda and folder; fails when the torch that is there is not the one wanted.
read_installed() {
  found=$(installed) || found=
  found_version=${found%% *}
  rest=${found#* }
  cuda=${rest%% *}
  folder=${rest#* }
  [ "$found_version" = "$version" ]
}

mkdir -p "$(dirname "$log")" "$(dirname "$output")"
if ! read_installed || [ "$cuda" = none ]; then
  "$here/../make_venv.sh" "$venv" "$log"
  free_gb=$(($(df -Pk "$venv" | awk 'NR == 2 { print $4 }') / 1048576))
  [ "$free_gb" -ge "$needed_gb" ] ||
    fail "the CUDA build of torch needs $needed_gb GB while it is installed, and $venv has $free_gb GB" "free some disk"
  echo "torch: installing the CUDA build of $version into $venv with pip: 2.5 GB to fetch, 4.6 GB on disk (log: $log)"
  if [ "torch==$version" = "$(sed -n 's/^\(torch==[0-9.]*\) .*/\1/p' "$locked")" ] &&
    "$here/../hashes_hold.sh" "$python" torch; then
    pip_install --require-hashes --no-deps --only-binary :all: -r "$locked" ||
      fail "pip could not install torch $version with the hashes of $locked (log: $log)" \
        "PACKAGE_HASHES=never installs whatever the index has; see docs/build.md"
  fi
  # ===: an index may have a CPU-only build as $version+cpu, which == would prefer.
  read_installed || pip_install "torch===$version" || pip_install "torch==$version" ||
    fail "pip could not install torch $version (log: $log)" "check the network and pip's index settings"
  read_installed || fail "torch was installed, but $python does not find it" "remove $venv and try again"
  [ "$cuda" != none ] || fail "pip's index has no CUDA build of torch $version, only one for processors" \
    "set PIP_INDEX_URL to an index with CUDA builds, as PyTorch's installation page names them"
fi

# cuda_of NVCC: its version, such as 13.0
cuda_of() { "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\),.*/\1/p'; }

nvcc=
wheels=$(dirname "$folder")/nvidia/cu${cuda%%.*}
for candidate in ${CUDACXX:-} "$wheels/bin/nvcc" nvcc /usr/local/cuda/bin/nvcc "/usr/local/cuda-$cuda/bin/nvcc"; do
  path=$(command -v "$candidate") || continue
  if [ "$(cuda_of "$path")" = "$cuda" ]; then
    nvcc=$path
    break
  fi
done
if [ -z "$nvcc" ]; then
  echo "nvcc: none of CUDA $cuda on this machine; installing one beside torch with pip (0.2 GB; log: $log)"
  toolkit=$("$python" -c 'import importlib.metadata as m; print(m.version("cuda-toolkit"))' 2>>"$log") ||
    fail "this torch came without the package cuda-toolkit, which tells what nvcc it needs" \
      "install the CUDA toolkit $cuda, or name an nvcc with CUDACXX"
  # nvvm is asked for by name: nvcc's own package takes any, and one that is newer than ptxas is not understood by it.
  pip_install "cuda-toolkit[nvcc,crt,cccl]==$toolkit" "nvidia-nvvm==$cuda.*" "nvidia-cuda-runtime==$cuda.*" ||
    fail "pip could not install nvcc $cuda (log: $log)" "install the CUDA toolkit $cuda, or name an nvcc with CUDACXX"
  # nvcc looks for its libraries in lib64.
  [ -e "$wheels/lib64" ] || ln -s lib "$wheels/lib64"
  nvcc=$wheels/bin/nvcc
  [ "$(cuda_of "$nvcc")" = "$cuda" ] || fail "pip's nvcc does not run, or is not of CUDA $cuda: $nvcc" "see $log"
fi

printf "CUDA_TORCH='%s'\nCUDA_TORCH_VERSION='%s'\nCUDACXX='%s'\n" "$folder" "$version" "$nvcc" >"$output.new"
if cmp -s "$output.new" "$output"; then
  rm "$output.new"
else
  mv "$output.new" "$output"
  echo "torch: $version for CUDA $cuda in $folder"
  echo "nvcc: $nvcc"
fi
