#!/bin/sh
# Makes the virtual environment of the checks in tests/oracle: their packages, beside the torch that is there already.
#
# usage: setup_tools.sh TOOLS_VENV TORCH_ENV REQUIREMENTS LOG
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
torch_env=$2
requirements=$3
# Packages that are installed without what they depend on.
no_deps=$(dirname "$requirements")/no_deps
log=$4
. "$torch_env"
stamp=$venv/installed.txt
state=$(cat "$torch_env" "$requirements" "$no_deps"/*.txt)
if [ -x "$venv/bin/python3" ] && [ "$state" = "$(cat "$stamp" 2>/dev/null)" ]; then exit 0; fi

rm -rf "$venv"
PYTHON=${TORCH_PYTHON:-python3} "$here/make_venv.sh" "$venv" "$log"
python=$venv/bin/python3
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
echo "checks: installing transformers, safetensors, numpy and pytest into $venv (about 50 MB; log: $log)"
# A line in a .pth file puts the other installation's packages behind this one's own, so torch is not installed twice.
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
if [ -z "$version" ] || ! "$python" -m pip install --progress-bar off -r "$requirements" "torch==$version" >>"$log" 2>&1; then
  tail -n 15 "$log" >&2
  echo "error: pip could not install what tests/oracle needs (log: $log)" >&2
  echo "  'make test LABEL=unit' runs the tests that do not need it" >&2
  exit 1
fi
# Not there for every Python and processor; the tests that ask them are skipped then.
for list in "$no_deps"/*.txt; do
  if ! "$python" -m pip install --progress-bar off --only-binary :all: --no-deps -r "$list" >>"$log" 2>&1; then
    echo "checks: $(basename "$list" .txt) is not available here, so nothing is compared with it (log: $log)"
  fi
done
printf '%s\n' "$state" >"$stamp"
