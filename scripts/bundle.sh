#!/bin/sh
# Packs the program for other machines: megalith-VERSION-linux-ARCHITECTURE.tar.gz with the program, its configurations,
# examples and pages, and LibTorch's libraries, so that nothing else is needed; or, with TORCH=none, without them for a
# machine that has that version of torch.
#
# usage: bundle.sh BUILD SOURCE VENV [copy|none]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
source=$2
torch=${4:-copy}
. "$build/torch.env"
version=$("$build/megalith" --version | sed 's/^megalith \([^ ]*\).*/\1/')
name=megalith-$version-linux-$(uname -m)
if [ "$torch" = none ]; then name=$name-without-torch; fi
stage=$build/bundle/$name
archive=$build/$name.tar.gz
rm -rf "$stage" "$archive"
"$here/install.sh" "$build" "$source" "$3" "$stage" "$torch"
cp "$here/bundle/run" "$here/bundle/megalith" "$source/LICENSE" "$stage/"
# configs/ and examples/ are where a reader of the pages looks for them, too.
ln -s share/megalith/configs share/megalith/examples share/doc/megalith/docs "$stage/"
echo "${TORCH_VERSION%%+*}" >"$stage/torch_version"
echo cpu >"$stage/torch_flavour"
if [ -e "$TORCH_DIR/lib/libtorch_cuda.so" ]; then echo cuda >"$stage/torch_flavour"; fi
if [ -e "$TORCH_DIR/lib/libtorch_hip.so" ]; then echo hip >"$stage/torch_flavour"; fi
# Owners of this machine mean nothing on another.
tar -C "$build/bundle" --owner=0 --group=0 --sort=name -cf - "$name" | gzip "-${GZIP_LEVEL:-6}" >"$archive"
rm -rf "$build/bundle"
bytes=$(wc -c <"$archive")
echo "bundle: $archive, $(((bytes + 500000) / 1000000)) MB"
