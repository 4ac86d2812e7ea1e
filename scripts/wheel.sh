#!/bin/sh
# Packs the program as a wheel: `pip install` puts megalith on the PATH, and torch beside it, whose libraries it loads.
#
# usage: wheel.sh BUILD SOURCE VENV PYTHON      PYTHON has the package `wheel`
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
source=$2
python=$4
. "$build/torch.env"
version=$("$build/megalith" --version | sed 's/^megalith \([^ ]*\).*/\1/')
torch=${TORCH_VERSION%%+*}
minor=$(echo "$torch" | cut -d . -f 2)
stage=$build/wheel
info=$stage/megalith-$version.dist-info
# libarrow.so.2600 is that of pyarrow 26.
arrow=$(ldd "$build/libmegalith_arrow.so" 2>/dev/null | sed -n 's/.*libarrow\.so\.\([0-9]*\)00 =>.*/==\1.*/p')
rm -rf "$stage"
"$here/install.sh" "$build" "$source" "$3" "$stage/megalith" none
mkdir -p "$info"
cp "$here/wheel/__init__.py" "$here/wheel/__main__.py" "$stage/megalith/"
cp "$source/LICENSE" "$info/"
cat >"$info/METADATA" <<END
Metadata-Version: 2.1
Name: megalith
Version: $version
Summary: Pre-trains and fine-tunes large models on CPUs and GPUs
License: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.10
Requires-Dist: torch>=$torch,<${torch%%.*}.$((minor + 1))
Provides-Extra: parquet
Requires-Dist: pyarrow$arrow; extra == "parquet"
Description-Content-Type: text/markdown

END
cat "$source/README.md" >>"$info/METADATA"
cat >"$info/WHEEL" <<END
Wheel-Version: 1.0
Generator: megalith
Root-Is-Purelib: false
Tag: py3-none-linux_$(uname -m)
END
printf '[console_scripts]\nmegalith = megalith.__main__:main\n' >"$info/entry_points.txt"
"$python" -m wheel pack "$stage" --dest-dir "$build" >"$build/logs/wheel.log" 2>&1 || {
  tail -n 15 "$build/logs/wheel.log" >&2
  echo "error: the wheel could not be packed (log: $build/logs/wheel.log)" >&2
  exit 1
}
rm -rf "$stage"
echo "wheel: $(ls "$build/megalith-$version"-*.whl)"
