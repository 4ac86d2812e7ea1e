#!/bin/sh
# Finds LibTorch, or installs it, and writes where it is to a file of shell variables (TORCH_DIR, TORCH_VERSION,
# TORCH_PYTHON, TORCH_SITE). In this order:
#   1. the folder in TORCH_DIR
#   2. the torch in the virtual environment
#   3. the torch that python3 has (a CUDA or ROCm image)
#   4. pip install torch into the virtual environment
# TORCH_VERSION asks for one version exactly; without it, 2 and 3 take any that Megalith works with.
#
# usage: setup_torch.sh VENV OUTPUT LOG
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
output=$2
log=$3
wanted=${TORCH_VERSION:-}
default_version=2.13.0
oldest=2.11

fail() {
  echo "error: $1" >&2
  [ -n "${2:-}" ] && echo "  $2" >&2
  exit 1
}

# at_least VERSION OLDEST
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# Sets version, folder and site from what an interpreter has; fails when it has no torch.
ask() {
  found=$("$1" "$here/locate_torch.py" 2>/dev/null) && [ -n "$found" ] || return 1
  version=$(printf '%s' "$found" | cut -f 1)
  folder=$(printf '%s' "$found" | cut -f 2)
  site=$(printf '%s' "$found" | cut -f 3)
}

# The version asked for, or any that is new enough.
suits() {
  if [ -n "$wanted" ]; then [ "$version" = "${wanted%%+*}" ]; else at_least "$version" "$oldest"; fi
}

# Writes the result; the file keeps its time when nothing has changed, so that nothing is configured anew.
report() {
  mkdir -p "$(dirname "$output")"
  printf "TORCH_DIR='%s'\nTORCH_VERSION='%s'\nTORCH_PYTHON='%s'\nTORCH_SITE='%s'\n" \
    "$folder" "$version" "$1" "$site" >"$output.new"
  if cmp -s "$output.new" "$output"; then
    rm "$output.new"
  else
    mv "$output.new" "$output"
    echo "torch: $version in $folder"
  fi
  exit 0
}

if [ -n "${TORCH_DIR:-}" ]; then
  found=$(python3 "$here/locate_torch.py" "$TORCH_DIR")
  [ -n "$found" ] || fail "TORCH_DIR is $TORCH_DIR, which holds no LibTorch" "name the folder that has include/ and lib/"
  version=$(printf '%s' "$found" | cut -f 1)
  folder=$(printf '%s' "$found" | cut -f 2)
  site=
  at_least "$version" "$oldest" || fail "TORCH_DIR holds torch $version, and Megalith needs $oldest or newer"
  # In a Python installation the folder is in site-packages, where its interpreter finds it.
  if [ -e "$folder/__init__.py" ]; then site=$(dirname "$folder"); fi
  report ""
fi

python=$venv/bin/python3
if [ -x "$python" ] && ask "$python" && suits; then report "$python"; fi
if ask python3; then
  if suits; then report "$(command -v python3)"; fi
  echo "torch: python3 has $version, which is not ${wanted:-$oldest or newer}; using $venv instead"
fi

wanted=${wanted:-$default_version}
"$here/make_venv.sh" "$venv" "$log"
echo "torch: installing $wanted into $venv with pip (log: $log)"
echo "  a large download: about 0.2 GB for a CPU-only build, 3 to 5 GB for one with CUDA."
echo "  pip's own settings decide where it comes from (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, pip.conf); see docs/build.md"

pip_install() {
  if [ -t 1 ]; then
    "$python" -m pip install "$@"
  else
    "$python" -m pip install --progress-bar off "$@" >>"$log" 2>&1
  fi
}

# One version is held to its hashes.
is_done=
if [ "$wanted" = "$default_version" ] && "$here/hashes_hold.sh" "$python" torch; then
  if ! pip_install --require-hashes --no-deps --only-binary :all: -r "$here/locked/torch.txt"; then
    [ -e "$log" ] && tail -n 15 "$log" >&2
    fail "pip could not install torch $wanted with the hashes of scripts/locked/torch.txt (log: $log)" \
      "PACKAGE_HASHES=never installs whatever the index has; see docs/build.md"
  fi
  is_done=1
fi
# Without a GPU the smaller build is preferred, where an index has it under its own version (2.13.0+cpu).
if [ -z "$is_done" ] && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/kfd ]; then
  case $wanted in
    *+*) ;;
    *) if "$python" -m pip install --progress-bar off "torch==$wanted+cpu" >>"$log" 2>&1; then is_done=1; fi ;;
  esac
fi
if [ -z "$is_done" ] && ! pip_install "torch==$wanted"; then
  [ -e "$log" ] && tail -n 15 "$log" >&2
  fail "pip could not install torch $wanted (log: $log)" \
    "check the network and pip's index settings, or point TORCH_DIR or python3 to a torch that is there"
fi
ask "$python" || fail "torch was installed, but $python does not find it" "remove $venv and try again"
report "$python"
