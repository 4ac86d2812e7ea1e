#!/usr/bin/env bash
# Runs a benchmark of AMD's PyTorch training image by its flags, and writes perf_MODEL.csv.
# docs/benchmark_scripts.md describes it; DRY_RUN=1 in front shows what would run, TINY=1 trains a toy of it.
#
#   ./pytorch_benchmark_report.sh -t pretrain -p BF16 -m Llama-3.1-70B -s 8192
#   bash scripts/pytorch-train/pytorch_benchmark_report.sh --model_repo pyt_train_llama-3.1-8b
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
exec "${program:-megalith}" launch benchmark "$@"
