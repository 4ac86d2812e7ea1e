#!/bin/sh
# Runs a command with its output in a log; shows the log's end when the command fails, and passes its exit code on.
# On a terminal, and with VERBOSE set, the output is shown as it comes.
#
# usage: quietly.sh "what is being done" LOG command …
set -u
what=$1
log=$2
shift 2
mkdir -p "$(dirname "$log")"
start=$(date +%s)
echo "$what"
if [ -n "${VERBOSE:-}" ] || [ -t 1 ]; then
  "$@"
  code=$?
else
  "$@" >"$log" 2>&1
  code=$?
  [ $code -ne 0 ] && tail -n "${LOG_LINES:-60}" "$log" >&2 && echo "(the whole log: $log)" >&2
fi
seconds=$(($(date +%s) - start))
if [ $code -ne 0 ]; then
  echo "error: failed after $seconds s with exit code $code: $what" >&2
elif [ $seconds -ge 2 ]; then
  echo "  done in $seconds s"
fi
exit $code
