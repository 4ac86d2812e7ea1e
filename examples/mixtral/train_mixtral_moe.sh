#!/usr/bin/env bash
# Trains Mixtral by the variables of ROCm's Megatron-LM.
# docs/scripts.md lists the variables; DRY_RUN=1 in front shows what would run, TINY=1 trains a toy of it.
#
#   MODEL_SIZE=8x7B MBS=2 GBS=32 TP_SIZE=1 EP_SIZE=8 SEQLEN=4096 bash examples/mixtral/train_mixtral_moe.sh
set -euo pipefail
set -a

# ---- your settings: lines such as MOCK_DATA=0, or export NCCL_IB_HCA=rdma0,rdma1 ----
TRAIN_LOG="${TRAIN_LOG:-}"
# ---- end of your settings ----

set +a
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=${here%/examples*}
program=${MEGALITH:-${tree%/scripts/pytorch-train}/build/megalith}
# A script that Slurm has copied is not in the tree; then the tree is the current folder, or the program is installed.
[ -n "${MEGALITH:-}" ] || [ -x "$program" ] || program=$(command -v build/megalith megalith | head -n 1 || true)
exec "${program:-megalith}" launch mixtral "$@"
