#!/bin/sh
# Copies what a user needs into a folder: the program, its configurations, examples and pages, completions of shells.
#
#   PREFIX/bin/megalith
#   PREFIX/lib/megalith          LibTorch's libraries: TORCH says how they come here
#   PREFIX/share/megalith        configs/, examples/, LICENSE
#   PREFIX/share/doc/megalith
#
# usage: install.sh BUILD SOURCE VENV PREFIX TORCH
#   TORCH  link   lib/megalith is a link to the folder of the torch that the program was built with
#          copy   the libraries that the program loads are copied
#          none   nothing is there; whoever starts the program says where torch is
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
source=$(cd "$2" && pwd)
venv=$3
torch=$5
mkdir -p "$4" || exit 1
prefix=$(cd "$4" && pwd)
log=$build/logs/install.log
mkdir -p "$build/logs"

fail() {
  [ -s "$log" ] && tail -n 15 "$log" >&2
  echo "error: $1" >&2
  exit 1
}

cmake=$("$here/find_cmake.sh" "$venv" "$log")
"$cmake" --install "$build" --component program --strip --prefix "$prefix" >"$log" 2>&1 ||
  fail "the program of $build could not be copied to $prefix (log: $log)"

share=$prefix/share/megalith
doc=$prefix/share/doc/megalith
rm -rf "$share/configs" "$share/examples" "$doc"
mkdir -p "$share" "$doc"
cp -R "$source/configs" "$source/examples" "$source/LICENSE" "$share/"
cp -R "$source/README.md" "$source/docs" "$doc/"

. "$build/torch.env"
libraries=$prefix/lib/megalith
# Only what an earlier installation put there is removed.
if [ -L "$libraries" ]; then rm "$libraries"; fi
rm -rf "$libraries"
case $torch in
  link)
    mkdir -p "$prefix/lib"
    ln -s "$TORCH_DIR/lib" "$libraries"
    ;;
  copy)
    mkdir -p "$libraries"
    # What the program loads, and what those load.
    LD_LIBRARY_PATH=$TORCH_DIR/lib ldd "$prefix/bin/megalith" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' |
      while read -r library; do
        case $(realpath "$library") in
          "$(realpath "$TORCH_DIR")"/*) cp -L "$library" "$libraries/" ;;
        esac
      done
    [ -e "$libraries/libtorch_cpu.so" ] || fail "no library of torch was found in $TORCH_DIR/lib"
    ;;
  none) ;;
  *) fail "TORCH is '$torch', and not link, copy or none" ;;
esac
