#!/usr/bin/env bash
# Trains Megatron's GPT of 345M parameters on one device, as Stanford's Megatron-LM does.
# docs/scripts.md lists the variables; DRY_RUN=1 in front shows what would run, TINY=1 trains a toy of it.
#
#   DATA_PATH=my_text_document VOCAB_FILE=gpt2-vocab.json MERGE_FILE=gpt2-merges.txt bash examples/pretrain_gpt.sh
set -euo pipefail
set -a

# ---- your settings: lines such as DATA_PATH=my_text_document, or export NCCL_IB_HCA=rdma0,rdma1 ----
TRAIN_LOG="${TRAIN_LOG:-}"
# ---- end of your settings ----

set +a
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=${here%/examples*}
program=${MEGALITH:-${tree%/scripts/pytorch-train}/build/megalith}
# A script that Slurm has copied is not in the tree; then the tree is the current folder, or the program is installed.
[ -n "${MEGALITH:-}" ] || [ -x "$program" ] || program=$(command -v build/megalith megalith | head -n 1 || true)
exec "${program:-megalith}" launch pretrain_gpt "$@"
