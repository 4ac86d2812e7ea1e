#!/bin/sh
# Starts a program that was built for GPUs, and trains two steps with it on the CPU.
#
# usage: try_program.sh PROGRAM SOURCE     SOURCE is a folder with configs/
set -eu
program=$1
source=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() {
  tail -n 30 "$log" >&2
  echo "error: $1" >&2
  exit 1
}

"$program" --version >"$log" 2>&1 || fail "$program does not start"
version=$(cat "$log")
"$program" train --config "$source/configs/models/demo.yaml" --device cpu --vocab_size 257 --mock_data \
  --seq_length 32 --micro_batch_size 1 --global_batch_size 2 --train_iters 2 --eval_iters 0 --log_format megatron >"$log" 2>&1 ||
  fail "$program does not train"
grep -qE 'iteration +2/ +2 .*lm loss: [0-9]' "$log" || fail "$program said nothing of its second step"
echo "program: $version starts and trains two steps on the CPU: $program"
