#!/usr/bin/env bash
# Trains 32 layers of DeepSeek-V3 under Slurm, one task a machine.
# docs/scripts.md lists the variables; DRY_RUN=1 in front shows what would run, TINY=1 trains a toy of it.
#
#   sbatch examples/deepseek_v3/train_deepseek_v3_slurm.sh
#SBATCH --job-name=deepseek_v3
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
set -euo pipefail
set -a

# ---- your settings: lines such as MOCK_DATA=0, or export NCCL_IB_HCA=rdma0,rdma1 ----
SLURM="${SLURM:-1}" NNODES="${NNODES:-${SLURM_NNODES:-16}}"
MODEL_SIZE="${MODEL_SIZE:-671B}" NUM_LAYERS="${NUM_LAYERS:-32}" MOE_LAYER_FREQ="${MOE_LAYER_FREQ:-1}"
TP="${TP:-2}" PP="${PP:-16}" EP="${EP:-4}" MBS="${MBS:-1}" BS="${BS:-32}" AC="${AC:-full}"
TRAIN_LOG="${TRAIN_LOG:-}"
# ---- end of your settings ----

set +a
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=${here%/examples*}
program=${MEGALITH:-${tree%/scripts/pytorch-train}/build/megalith}
# A script that Slurm has copied is not in the tree; then the tree is the current folder, or the program is installed.
[ -n "${MEGALITH:-}" ] || [ -x "$program" ] || program=$(command -v build/megalith megalith | head -n 1 || true)
exec "${program:-megalith}" launch deepseek_v3 "$@"
