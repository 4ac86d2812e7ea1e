#!/bin/sh
# Fine-tunes the demo's model, which has read nothing but the King James Bible, on questions with answers, and shows the
# loss on answers that it has never seen, before and after. docs/finetune_example.md tells the story.
#
# usage: run.sh [PROGRAM] [MODEL] [FOLDER] [options of megalith train, such as --train_iters 50 or --lora.enabled true]
#   MODEL   a checkpoint of the demo, or a Hugging Face folder with its architecture
#   CHATS   in the environment: a folder of YAML files instead of the package chatterbot-corpus
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
program=${1:-$root/build/megalith}
model=${2:-$root/build/demo/checkpoint}
folder=${3:-$root/build/finetune}
[ $# -gt 2 ] && shift 3 || shift $#
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

precision=--bf16
grep -qwE 'amx_bf16|avx512_bf16|bf16' /proc/cpuinfo || precision=--bf16=false
shapes="--tokenizer_type ByteTokenizer --seq_length 256 --enable_packed_sequences --data_cache_path $folder/cache $precision"

step() { printf '\n== %s\n' "$1"; }

step "1/5  The rows: questions with answers; every tenth is held out"
"${PYTHON:-python3}" "$here/make_chats.py" "$folder" ${CHATS:+"$CHATS"}

step "2/5  The model as a Hugging Face folder (megalith convert)"
if [ -f "$model/config.json" ]; then
  base=$model
else
  base=$folder/base
  rm -rf "$base"
  "$program" convert --load "$model" --save_hf "$base"
fi

# $1: a file for the result; the rest: where the weights are
held_out_loss() {
  result=$1
  shift
  "$program" evaluate $shapes --sft_data_path "$folder/train.jsonl" --sft_valid_data_path "$folder/valid.jsonl" \
    --eval_split valid --micro_batch_size 8 --eval_iters 3 --quiet "$@" >"$result"
  cat "$result"
}

answer() {
  "$program" generate --tokenizer_type ByteTokenizer $precision --prompt "Q: what is your favorite food?
A:" --max_new_tokens 80 --temperature 0 --quiet "$@"
}

step "3/5  Before: loss on the held-out answers, and an answer"
held_out_loss "$folder/before.json" --load_hf "$base"
answer --load_hf "$base"

step "4/5  Training (megalith train)"
rm -rf "$folder/checkpoint" "$folder/metrics.jsonl"
"$program" train --load_hf "$base" $shapes --sft_data_path "$folder/train.jsonl" \
  --sft_valid_data_path "$folder/valid.jsonl" --micro_batch_size 8 --global_batch_size 8 --train_iters 120 \
  --lr 1e-3 --min_lr 1e-4 --lr_decay_style cosine --lr_warmup_iters 10 --weight_decay 0.01 --adam_beta2 0.95 \
  --eval_interval 50 --eval_iters 3 --log_interval 20 --save "$folder/checkpoint" \
  --metrics_file "$folder/metrics.jsonl" "$@"

# A checkpoint of adapters stands beside its base.
trained="--load $folder/checkpoint"
case " $* " in *" --lora.enabled "*) trained="--load_hf $base $trained" ;; esac
before=
for word in "$@"; do
  case "$before $word" in --lora.*\ * | *\ --lora.*) trained="$trained $word" ;; esac
  before=$word
done

step "5/5  After"
held_out_loss "$folder/after.json" $trained
answer $trained
