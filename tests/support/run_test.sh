#!/bin/sh
# Runs a test program. Where the dynamic loader could not start it (exit code 127: mapping its libraries failed for want
# of memory in that moment), no test has run yet: it says so and tries once more after a pause.
#
# usage: run_test.sh PROGRAM [arguments …]

# Two tests run at once, each with threads for all cores. Threads that spin while they wait take the cores from the other
# test: that made some ten times slower.
: "${OMP_WAIT_POLICY=passive}"
export OMP_WAIT_POLICY
"$@"
code=$?
[ "$code" -eq 127 ] || exit "$code"
echo "run_test.sh: $1 was not loaded; trying once more" >&2
sleep 5
exec "$@"
