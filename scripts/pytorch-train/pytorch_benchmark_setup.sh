#!/usr/bin/env bash
# Fetches from the hub what the benchmarks of AMD's PyTorch training image need; HF_TOKEN opens gated repositories.
# docs/benchmark_scripts.md describes it; DRY_RUN=1 in front shows what would be fetched, from where and how large.
#
#   ./pytorch_benchmark_setup.sh
#   DRY_RUN=1 ./pytorch_benchmark_setup.sh -m Llama-3.1-8B
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
exec "${program:-megalith}" launch benchmark_setup "$@"
