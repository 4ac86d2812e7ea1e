#!/bin/sh
# Sees that Arrow's C++ library, which reads Parquet and CSV files, is there: in the pyarrow beside torch, or in one that
# pip puts into the virtual environment. Without it the build goes on, and those files are refused.
#
# usage: setup_arrow.sh VENV TORCH_ENV LOG
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
log=$3
. "$2"
has_arrow() {
  [ -n "$1" ] && [ -x "$1" ] && "$1" -c 'import importlib.util as u, os, sys
s = u.find_spec("pyarrow")
sys.exit(not (s and os.path.exists(os.path.join(os.path.dirname(s.origin), "include/parquet/arrow/reader.h"))))' 2>/dev/null
}
for python in "$TORCH_PYTHON" "$venv/bin/python3"; do
  if has_arrow "$python"; then exit 0; fi
done
# Asked for once: where it cannot be had, every build would wait for it.
stamp=$venv/no_pyarrow
if [ -e "$stamp" ]; then exit 0; fi
"$here/make_venv.sh" "$venv" "$log"
echo "arrow: installing pyarrow into $venv (about 45 MB; log: $log)"
install() { "$venv/bin/python3" -m pip install --progress-bar off --only-binary :all: "$@" >>"$log" 2>&1; }
if "$here/hashes_hold.sh" "$venv/bin/python3" arrow; then
  install --require-hashes --no-deps -r "$here/locked/arrow.txt" && exit 0
else
  install "pyarrow>=15" && exit 0
fi
echo "arrow: pyarrow is not available here, so Parquet, Arrow and CSV files are not read (log: $log)"
touch "$stamp"
