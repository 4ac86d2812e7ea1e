#!/bin/sh
# Installs the packages of packages.txt that are missing. Says what it does; does nothing when all are there.
#
# usage: install_packages.sh required|demo|test|gpu LOG
#   required  takes the optional ones along
#   test      goes on without those that cannot be had
set -eu
kind=$1
log=$2
list=$(dirname "$0")/packages.txt

names() { awk -v kind="$1" '$1 == kind { print $2 }' "$list"; }
is_installed() { dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^ii'; }
missing() { for name in $(names "$1"); do is_installed "$name" || printf '%s ' "$name"; done; }

if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-query >/dev/null 2>&1; then
  echo "no apt-get here: these Debian packages, or what corresponds to them, must be installed:" $(names "$kind")
  exit 0
fi

needed=
wanted=
case $kind in
  required) needed=$(missing required) wanted=$(missing optional) ;;
  test) wanted=$(missing test) ;;
  *) needed=$(missing "$kind") ;;
esac
[ -z "$needed$wanted" ] && exit 0

if [ "$(id -u)" = 0 ]; then
  as_root="env DEBIAN_FRONTEND=noninteractive"
elif command -v sudo >/dev/null 2>&1; then
  as_root="sudo env DEBIAN_FRONTEND=noninteractive"
elif [ -z "$needed" ]; then
  exit 0  # a slower build, or a test that is skipped, is no reason to ask for another user
else
  echo "error: packages are missing, and installing them takes root or sudo" >&2
  echo "  run as root: apt-get install $needed$wanted" >&2
  exit 1
fi

mkdir -p "$(dirname "$log")"
: >"$log"
fail() {
  tail -n 30 "$log" >&2
  echo "error: $1; the whole log is $log" >&2
  exit 1
}

# A package is known, with a candidate, only after the lists were fetched.
is_available() { apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'; }
is_known=1
for name in $needed $wanted; do is_available "$name" || is_known=; done
if [ -z "$is_known" ]; then
  echo "packages: apt-get update"
  $as_root apt-get update >>"$log" 2>&1 || echo "packages: apt-get update failed, going on with the lists that are there"
fi
chosen=$needed
for name in $wanted; do
  if is_available "$name"; then chosen="$chosen$name "; else echo "packages: $name is not available here, going on without it"; fi
done
[ -z "$chosen" ] && exit 0

echo "packages: installing $chosen(log: $log)"
if ! $as_root apt-get install -y --no-install-recommends $chosen >>"$log" 2>&1; then
  # Lists that are out of date name files that are gone.
  $as_root apt-get update >>"$log" 2>&1 || true
  if ! $as_root apt-get install -y --no-install-recommends $chosen >>"$log" 2>&1; then
    [ -n "$needed" ] && fail "apt-get install failed"
    echo "packages: apt-get could not install $chosen(log: $log), going on without"
  fi
fi
