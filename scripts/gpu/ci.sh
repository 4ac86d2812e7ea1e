#!/bin/bash
# The GPU build as a step of continuous integration: as much of it as the time, the disk and the network allow. Fails
# when something does not compile, link or pass its checks, and says what was left out in all other cases.
#
# usage: ci.sh SECONDS_GONE      MEGALITH_CI_GPU=0 leaves all of it out
set -euo pipefail
cd "$(dirname "$0")/../.."
gone_s=$1
SECONDS=$gone_s            # bash counts on from here
latest_start_s=$((45 * 60))  # of the build for NVIDIA; the kernels for AMD take a minute
end_s=$((70 * 60))           # of the 90 minutes that a run may take
needed_gb=25
build=${GPU_BUILD:-build-cuda}

say() { echo "gpu: $1"; }

# bounded WHAT command …: 0 when it is done, 1 when it failed, 2 when the time was over.
bounded() {
  local what=$1 left_s=$((end_s - SECONDS)) code=0
  shift
  [ "$left_s" -gt 30 ] && { timeout --kill-after=20 "$left_s" "$@" || code=$?; } || code=124
  case $code in
    0) return 0 ;;
    124 | 137)
      say "$what: not finished in the time left; nothing is known of it"
      return 2 ;;
    *) return 1 ;;
  esac
}

if [ "${MEGALITH_CI_GPU:-1}" = 0 ]; then
  say "left out: MEGALITH_CI_GPU is 0"
  exit 0
fi

# Packages and wheels that cannot be fetched say nothing of the code.
code=0
if bounded "hipcc" scripts/install_packages.sh gpu "$build/logs/packages.log" && command -v hipcc >/dev/null; then
  bounded "kernels for AMD" make gpu-hip || code=$?
  [ "$code" -ne 1 ] || exit 1
else
  say "kernels for AMD left out: hipcc could not be installed"
fi

if [ "$gone_s" -ge "$latest_start_s" ]; then
  say "build for NVIDIA left out: $((gone_s / 60)) minutes were gone, and it starts within $((latest_start_s / 60))"
  exit 0
fi
free_gb=$(($(df -Pk . | awk 'NR == 2 { print $4 }') / 1048576))
if [ "$free_gb" -lt "$needed_gb" ]; then
  say "build for NVIDIA left out: $free_gb GB of disk are free, and it wants $needed_gb"
  exit 0
fi
if ! bounded "torch for CUDA" make gpu-torch; then
  say "build for NVIDIA left out: its torch and nvcc could not be fetched"
  exit 0
fi
code=0
bounded "build for NVIDIA" make gpu-bundle || code=$?
[ "$code" -ne 1 ] || exit 1
if [ "$code" -eq 0 ]; then say "all of it was built and looked into"; fi
say "$((SECONDS / 60)) minutes in all"
