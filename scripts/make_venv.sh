#!/bin/sh
# Makes a Python virtual environment where there is none.
#
# usage: make_venv.sh VENV LOG
set -eu
venv=$1
log=$2
[ -x "$venv/bin/python3" ] && "$venv/bin/python3" -m pip --version >/dev/null 2>&1 && exit 0
mkdir -p "$(dirname "$log")"
rm -rf "$venv"
for python in ${PYTHON:-python3} /usr/bin/python3; do
  if "$python" -m venv "$venv" >>"$log" 2>&1; then
    exit 0
  fi
  rm -rf "$venv"
done
tail -n 15 "$log" >&2
echo "error: no virtual environment could be made in $venv (log: $log)" >&2
echo "  install python3-venv ('make setup' does), or name another interpreter with PYTHON" >&2
exit 1
