#!/bin/sh
# Makes the virtual environment of the checks in tests/oracle: their packages, beside the torch that is there already.
#
# usage: setup_tools.sh TOOLS_VENV TORCH_ENV REQUIREMENTS LOG
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
torch_env=$2
requirements=$3
# Packages that are installed without what they depend on, and the same lists with hashes.
no_deps=$(dirname "$requirements")/no_deps
locked=$(dirname "$requirements")/locked
log=$4
. "$torch_env"
stamp=$venv/installed.txt
state=$(cat "$torch_env" "$requirements" "$no_deps"/*.txt)
# Sets has_hashes, and adds the hashes to the state where they count.
ask_for_hashes() {
  has_hashes=
  "$here/hashes_hold.sh" "$venv/bin/python3" checks || return 0
  has_hashes=1
  state=$(echo "$state"; cat "$locked"/*.txt)
}
if [ -x "$venv/bin/python3" ]; then
  of_lists=$state
  ask_for_hashes 2>/dev/null
  if [ "$state" = "$(cat "$stamp" 2>/dev/null)" ]; then exit 0; fi
  state=$of_lists
fi

rm -rf "$venv"
PYTHON=${TORCH_PYTHON:-python3} "$here/make_venv.sh" "$venv" "$log"
python=$venv/bin/python3
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
echo "checks: installing transformers, safetensors, numpy and pytest into $venv (about 50 MB; log: $log)"
# A line in a .pth file puts the other installation's packages after this one's own, so torch is not installed twice.
if [ -n "$TORCH_SITE" ]; then
  echo "$TORCH_SITE" >"$site/torch_of_the_build.pth"
fi
if ! "$python" -c 'import torch' >>"$log" 2>&1; then
  rm -f "$site/torch_of_the_build.pth"
  echo "checks: TORCH_DIR has no torch for Python; installing one beside it (a large download: 0.2 to 5 GB)"
  "$python" -m pip install --progress-bar off "torch==$TORCH_VERSION+cpu" >>"$log" 2>&1 ||
    "$python" -m pip install --progress-bar off "torch==$TORCH_VERSION" >>"$log" 2>&1 || true
fi
# torch is named again, so that no other version can be chosen.
version=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>>"$log" || true)
install() { "$python" -m pip install --progress-bar off "$@" >>"$log" 2>&1; }
ask_for_hashes
install_checks() {
  if [ -n "$has_hashes" ]; then
    install --require-hashes --no-deps --only-binary :all: -r "$locked/requirements.txt"
  else
    install -r "$requirements" "torch==$version"
  fi
}
if [ -z "$version" ] || ! install_checks; then
  tail -n 15 "$log" >&2
  echo "error: pip could not install what tests/oracle needs (log: $log)" >&2
  echo "  'make test LABEL=unit' runs the tests that do not need it" >&2
  exit 1
fi
# Not there for every Python and processor; the tests that ask them are skipped then.
for list in "$no_deps"/*.txt; do
  if [ -n "$has_hashes" ]; then set -- --require-hashes -r "$locked/$(basename "$list")"; else set -- -r "$list"; fi
  if ! install --only-binary :all: --no-deps "$@"; then
    echo "checks: $(basename "$list" .txt) is not available here, so nothing is compared with it (log: $log)"
  fi
done
printf '%s\n' "$state" >"$stamp"
