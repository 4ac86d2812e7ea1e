#!/bin/sh
# Runs CMake when the build folder is new or the settings differ from those it was configured with. (When CMake's own
# files change, ninja runs it again by itself.)
#
# usage: configure.sh BUILD VENV LOG [cmake options …]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1
venv=$2
log=$3
shift 3
. "$build/torch.env"
cmake=$("$here/find_cmake.sh" "$venv" "$log")
settings=$(printf '%s\n' "$cmake" "$TORCH_DIR" "$TORCH_VERSION" "${CC:-}" "${CXX:-}" "${CUDACXX:-}" "${HIPCXX:-}" \
  "${CFLAGS:-}" "${CXXFLAGS:-}" "${LDFLAGS:-}" "$@")
if [ -e "$build/build.ninja" ] && [ "$settings" = "$(cat "$build/settings.txt" 2>/dev/null)" ]; then
  exit 0
fi
rm -f "$build/settings.txt"
"$here/quietly.sh" "configure: $build" "$log" \
  "$cmake" --fresh -S "$here/.." -B "$build" -G Ninja "-DTORCH_DIR=$TORCH_DIR" "$@"
# The table of what was found is the point of it; on a terminal it has been shown already.
if [ ! -t 1 ] && [ -z "${VERBOSE:-}" ]; then sed -n '/^-- Megalith /,/^-- $/s/^-- /  /p' "$log"; fi
printf '%s\n' "$settings" >"$build/settings.txt"
