#!/bin/sh
# The first hour on a machine with a GPU: one stage a call, each within its own budget, repeatable, with a table last.
#
# usage: first_hour.sh STAGE [--out FOLDER] [--budget_s N] …     1 right, 2 ceilings, 3 bf16, 4 fp8, 5 peers, 6 the rest
#
# Lies in a bundle for GPUs, or in the sources beside a GPU build (--build). PYTHON (python3) runs it and has torch.
here=$(cd "$(dirname "$0")" && pwd)
exec "${PYTHON:-python3}" "$here/first_hour/main.py" "$@"
