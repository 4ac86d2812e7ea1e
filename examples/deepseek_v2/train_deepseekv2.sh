#!/usr/bin/env bash
# Trains DeepSeek-V2-Lite or V2 by the variables of ROCm's Megatron-LM.
# docs/scripts.md lists the variables; DRY_RUN=1 in front shows what would run, TINY=1 trains a toy of it.
#
#   PR=bf16 MBS=4 GBS=256 AC=none SEQ_LEN=4096 TRAIN_ITERS=50 bash examples/deepseek_v2/train_deepseekv2.sh
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
exec "${program:-megalith}" launch deepseek_v2 "$@"
