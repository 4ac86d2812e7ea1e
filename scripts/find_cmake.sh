#!/bin/sh
# Prints a CMake that is new enough: the system's, or one that pip puts into the virtual environment.
#
# usage: find_cmake.sh VENV LOG
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
log=$2
oldest=3.24

suits() {
  version=$("$1" --version 2>/dev/null | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')
  [ -n "$version" ] && [ "$(printf '%s\n%s\n' "$version" "$oldest" | sort -V | head -n 1)" = "$oldest" ]
}

for cmake in ${CMAKE:-} cmake "$venv/bin/cmake"; do
  if suits "$cmake"; then
    command -v "$cmake"
    exit 0
  fi
done
"$here/make_venv.sh" "$venv" "$log"
echo "cmake: the system's is older than $oldest; installing one into $venv (about 30 MB)" >&2
if "$here/hashes_hold.sh" "$venv/bin/python3" cmake; then
  set -- --require-hashes --no-deps --only-binary :all: -r "$here/locked/cmake.txt"
else
  set -- "cmake>=$oldest,<4"
fi
if ! "$venv/bin/python3" -m pip install --progress-bar off "$@" >>"$log" 2>&1; then
  tail -n 15 "$log" >&2
  echo "error: pip could not install cmake (log: $log)" >&2
  exit 1
fi
echo "$venv/bin/cmake"
