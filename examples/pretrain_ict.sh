#!/usr/bin/env bash
# Trains a retriever of 217M parameters (ICT) from a BERT, as Stanford's Megatron-LM does.
# docs/scripts.md lists the variables; DRY_RUN=1 in front shows what would run, TINY=1 trains a toy of it.
#
#   PRETRAINED_BERT_PATH=bert TEXT_DATA_PATH=my_text_sentence TITLE_DATA_PATH=my_title bash examples/pretrain_ict.sh
set -euo pipefail
set -a

# ---- your settings: lines such as TEXT_DATA_PATH=my_text_sentence, or export NCCL_IB_HCA=rdma0,rdma1 ----
TRAIN_LOG="${TRAIN_LOG:-}"
# ---- end of your settings ----

set +a
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=${here%/examples*}
program=${MEGALITH:-${tree%/scripts/pytorch-train}/build/megalith}
# A script that Slurm has copied is not in the tree; then the tree is the current folder, or the program is installed.
[ -n "${MEGALITH:-}" ] || [ -x "$program" ] || program=$(command -v build/megalith megalith | head -n 1 || true)
exec "${program:-megalith}" launch pretrain_ict "$@"
