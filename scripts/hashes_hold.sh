#!/bin/sh
# Whether what pip brings can be held to the hashes of the lists in scripts/locked/ and tests/oracle/locked/: the lists are
# PyPI's files for Python 3.11 and newer. Where pip's settings name another place, its files may be builds of its own (for
# ROCm, for one CUDA, a mirror that builds anew), so hashes are not asked for, and a line says so.
# PACKAGE_HASHES=always asks for them wherever the files come from, PACKAGE_HASHES=never nowhere.
#
# usage: hashes_hold.sh PYTHON WHAT        "torch"
set -eu
python=$1
what=$2

never() {
  echo "$what: $1, so pip checks no hashes (docs/build.md)" >&2
  exit 1
}

case ${PACKAGE_HASHES:-} in
  always) exit 0 ;;
  never) never "PACKAGE_HASHES is never" ;;
esac
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || never "its Python is older than 3.11"
if "$python" -m pip config list 2>/dev/null | grep -qE '(index-url|find-links|no-index)='; then
  never "pip's settings name another place than PyPI"
fi
