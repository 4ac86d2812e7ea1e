#!/bin/sh
# Unpacks a bundle into an empty folder and uses it there with the torch of a virtual environment: its size, the
# libraries that its programs need, the program on the CPU, the test programs.
#
# usage: check_bundle.sh ARCHIVE VENV
set -eu
here=$(cd "$(dirname "$0")" && pwd)
archive=$1
most_bytes=50000000  # of the bundle and the scripts that use it, which travel together
python=$(cd "$2" && pwd)/bin/python3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "error: $1" >&2
  exit 1
}

bytes=$(wc -c <"$archive")
both=$((bytes + $(tar -C "$here" -cf - . | wc -c)))
[ "$both" -le "$most_bytes" ] || fail "$archive and $here have $both bytes, more than $most_bytes"
tar -C "$folder" -xzf "$archive"
root=$folder/$(ls "$folder")
site=$("$python" -c 'import importlib.util as u, os; print(os.path.dirname(u.find_spec("torch").origin))')
site=$(dirname "$(realpath "$site")")

# An empty environment: nothing of the shell that builds may help.
run() { (cd "$folder" && env -i PATH=/usr/bin:/bin HOME="$folder" PYTHON="$python" OMP_WAIT_POLICY=passive "$@"); }

# What every Linux has; all else must come with torch.
system='^(linux-vdso|ld-linux[a-z0-9_-]*|libc|libm|libdl|libpthread|librt|libutil|libgcc_s|libstdc\+\+)\.so'
count=0
for path in "$root"/bin/*; do
  program=$(basename "$path")
  # Folders beside the program ($ORIGIN) mean the same everywhere.
  if readelf -dW "$path" | grep -E '\((RPATH|RUNPATH)\)' | sed 's/\$ORIGIN[^]:]*:\{0,1\}//g' | grep '\[[^]]'; then
    fail "$program names folders of the machine that it was built on"
  fi
  run RUN_UNDER=ldd "$root/run" "$program" >"$folder/libraries" 2>&1 ||
    fail "$program is not loaded: $(cat "$folder/libraries")"
  # Test programs of the lowest layers know of no tensors.
  if [ "$program" = megalith ] || grep -q libtorch_cpu.so "$folder/libraries"; then
    grep -q libtorch_cuda.so "$folder/libraries" || fail "$program does not load libtorch_cuda.so"
  fi
  while read -r library arrow file _; do
    if [ "$arrow" = "=>" ]; then
      case $(realpath -m "$file") in
        "$site/torch/lib/"* | "$site/nvidia/"* | "$site/torch.libs/"*) continue ;;
      esac
      [ "$file" != not ] || fail "$program needs $library, which is not found"
    fi
    basename "$library" | grep -qE "$system" ||
      fail "$program needs a library that neither torch nor every Linux has: $library ($file)"
  done <"$folder/libraries"
  count=$((count + 1))
done
echo "bundle: $count programs need nothing but torch's packages and the system's C and C++ libraries"

run "$here/try_program.sh" "$root/megalith" "$root"
# Without a GPU stage 1 cannot pass; that its commands start shows in the row of the version.
"$root/first_hour.sh" --help >/dev/null || fail "first_hour.sh does not start"
run "$root/first_hour.sh" 1 --out "$folder/first_hour" --budget_s 20 >"$folder/log" 2>&1 || true
grep -q '^  version  *pass' "$folder/log" || fail "first_hour.sh does not start the program: $(tail -n 5 "$folder/log")"
listed=0
for path in "$root"/bin/test_*; do
  program=$(basename "$path")
  tests=$(run "$root/run" "$program" --gtest_list_tests | grep -c '^  ') || fail "$program lists no tests"
  listed=$((listed + tests))
done
# This one reads files that lie beside the launcher.
if ! run "$root/run" test_tokenizer --gtest_brief=1 >"$folder/log" 2>&1; then
  tail -n 30 "$folder/log" >&2
  fail "test_tokenizer fails in the bundle"
fi
echo "bundle: $listed tests are listed, and test_tokenizer passes"
echo "bundle: $archive, $(((bytes + 500000) / 1000000)) MB"
