#!/bin/sh
# Copies what a user needs into a folder: the program, its configurations, examples and pages, completions of shells.
#
#   PREFIX/bin/megalith
#   PREFIX/lib/megalith          libmegalith_arrow.so, which reads Parquet, Arrow and CSV files, where it was built
#   PREFIX/lib/megalith/torch    LibTorch's libraries, and Arrow's in arrow: TORCH says how they come here
#   PREFIX/share/megalith        configs/, examples/, LICENSE
#   PREFIX/share/doc/megalith
#
# usage: install.sh BUILD SOURCE VENV PREFIX TORCH
#   TORCH  link   links to the folders of torch and pyarrow that the program was built with
#          copy   the libraries that are loaded are copied
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
# Only what an earlier installation put there is removed: links are, and not what they lead to.
rm -rf "$libraries"
mkdir -p "$libraries"
plugin=$libraries/libmegalith_arrow.so
arrow=
if [ -e "$build/libmegalith_arrow.so" ]; then
  arrow=$(dirname "$(ldd "$build/libmegalith_arrow.so" | sed -n 's/.*libarrow[^ ]* => \(\/[^ ]*\) .*/\1/p')")
  "$cmake" --install "$build" --component arrow --strip --prefix "$prefix" >"$log" 2>&1 ||
    fail "libmegalith_arrow.so of $build could not be copied to $prefix (log: $log)"
fi

# copy_libraries PROGRAM FROM TO: those in FROM that the program loads, and those that they load
copy_libraries() {
  mkdir -p "$3"
  LD_LIBRARY_PATH=$2 ldd "$1" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | while read -r library; do
    case $(realpath "$library") in
      "$(realpath "$2")"/*) cp -L "$library" "$3/" ;;
    esac
  done
}

case $torch in
  link)
    ln -s "$TORCH_DIR/lib" "$libraries/torch"
    if [ -n "$arrow" ]; then ln -s "$arrow" "$libraries/arrow"; fi
    ;;
  copy)
    copy_libraries "$prefix/bin/megalith" "$TORCH_DIR/lib" "$libraries/torch"
    [ -e "$libraries/torch/libtorch_cpu.so" ] || fail "no library of torch was found in $TORCH_DIR/lib"
    if [ -n "$arrow" ]; then copy_libraries "$plugin" "$arrow" "$libraries/arrow"; fi
    ;;
  none) ;;
  *) fail "TORCH is '$torch', and not link, copy or none" ;;
esac
