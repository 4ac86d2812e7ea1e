#!/bin/sh
# Runs files of Python tests with the interpreter that has what they need: MEGALITH_TOOLS_PYTHON, or that of
# .venv-tools. Where there is none (before `make test`) the test is skipped, with exit code 77.
#
# usage: MEGALITH_PROGRAM=… run_pytest.sh FILE… [options of pytest]
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${MEGALITH_TOOLS_PYTHON:-$root/.venv-tools/bin/python3}
# Found, not imported: that takes four seconds, and most files need neither.
find='import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, ("pytest", "torch", "transformers"))))'
if ! "$python" -c "$find" 2>/dev/null; then
  if [ -n "${MEGALITH_TOOLS_PYTHON:-}" ]; then
    "$python" -c 'import pytest, torch, transformers'
    exit 1
  fi
  echo "skipped: $python has no pytest, torch and transformers; 'make test' installs them"
  exit 77
fi
# See run_test.sh.
: "${OMP_WAIT_POLICY=passive}"
export OMP_WAIT_POLICY
export PYTHONDONTWRITEBYTECODE=1 TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$python" -m pytest -q "$@"
