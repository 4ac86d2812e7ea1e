#!/bin/sh
# The first hour on a machine with a GPU: without a stage all of them, in order of worth, within 60 minutes; then a table
# beside predictions and peers, and one archive to send. Needs no decision of a person.
#
# usage: first_hour.sh [STAGE] [--out FOLDER] [--budget_s N] …   1 right, 2 ceilings, 3 bf16, 4 fp8, 5 peers, 6 the rest
#
# Runs what is beside it: a bundle for GPUs, a bundle's archive, which it unpacks, or the sources, which it builds
# (make gpu-build) if there is no build and none is named (--build, --program). PYTHON (python3) runs it and has torch.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bundle=$here/megalith-gpu-bundle
if [ ! -d "$here/first_hour" ] && [ -f "$bundle.tar.gz" ]; then
  tar -C "$here" -xzf "$bundle.tar.gz"
  exec "$bundle/first_hour.sh" "$@"
fi
case " $* " in
  *" --build"* | *" --program"* | *" -h "* | *" --help "*) ;;
  *)
    root=$here/../..
    [ -e "$here/run" ] || [ -e "$root/build-cuda/megalith" ] || make -C "$root" gpu-build >&2
    ;;
esac
exec "${PYTHON:-python3}" "$here/first_hour/main.py" "$@"
