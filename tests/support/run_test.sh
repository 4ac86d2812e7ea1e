#!/bin/sh
# Runs a test program. Where the dynamic loader could not start it (exit code 127: mapping its libraries failed for want
# of memory in that moment), no test has run yet: it says so and tries once more after a pause.
#
# usage: run_test.sh PROGRAM [arguments …]
"$@"
code=$?
[ "$code" -eq 127 ] || exit "$code"
echo "run_test.sh: $1 was not loaded; trying once more" >&2
sleep 5
exec "$@"
