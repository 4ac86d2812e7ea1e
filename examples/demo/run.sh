#!/bin/sh
# The demo: trains a small Llama on the King James Bible on this machine, shows how the loss falls, and lets it write.
# `make demo` builds the program first and then calls this.
#
# usage: [EXPERIMENT=demo_mixtral] run.sh [PROGRAM] [FOLDER] [options of megalith train, such as --train_iters 100]
#   EXPERIMENT  of configs/experiments: demo (a Llama), demo_mixtral and demo_deepseek (mixtures of experts)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
program=${1:-$root/build/megalith}
folder=${2:-$root/build/demo}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] && shift
program=$(cd "$(dirname "$program")" && pwd)/$(basename "$program")
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

# In bfloat16 where the processor computes in it, in fp32 elsewhere.
precision=--bf16
grep -qwE 'amx_bf16|avx512_bf16|bf16' /proc/cpuinfo || precision=--bf16=false

step() { printf '\n== %s\n' "$1"; }

step "1/5  The text: the King James Bible, a chapter a document; every twentieth chapter is held out"
"$here/make_text.sh" "$folder/text"
wc -l -c "$folder/text/train.jsonl" "$folder/text/valid.jsonl" | awk '{ printf "  %6d chapters %8d bytes  %s\n", $1, $2, $3 }' | head -n 2

step "2/5  Text into tokens (megalith prepare): a token is a byte"
for split in train valid; do
  "$program" prepare --input "$folder/text/$split.jsonl" --output_prefix "$folder/data/$split" \
    --tokenizer_type ByteTokenizer --append_eod --overwrite
done

train() {
  "$program" train --config "$root/configs/experiments/${EXPERIMENT:-demo}.yaml" $precision \
    --tokenizer_type ByteTokenizer --train_data_path "$folder/data/train_text_document" \
    --valid_data_path "$folder/data/valid_text_document" "$@"
}

# As many steps as this processor makes in four and a half minutes, which leaves time for the evaluations, but no more
# than the experiment has: some steps are made and thrown away to learn how long one takes. The learning rate falls over
# the steps that there are, so a short run is a whole one.
fitting_steps() {
  trial=$folder/trial.jsonl
  rm -f "$trial"
  train "$@" --train_iters 4 --lr_warmup_iters 0 --eval_iters 0 --quiet --metrics_file "$trial" >&2
  awk -F'"elapsed_ms":' '
    NR > 1 { split($2, value, /[,}]/); if (least == 0 || value[1] < least) least = value[1] }
    END { steps = int(270000 / (least > 0 ? least : 1)); print steps < 60 ? 60 : steps }' "$trial"
  rm -f "$trial"
}
own_steps=yes
for word in "$@"; do
  case $word in --train_iters* | --train-iters* | --train_samples* | --train-samples*) own_steps=no ;; esac
done
most=$(awk '$1 == "train_iters:" { print $2 }' "$root/configs/experiments/${EXPERIMENT:-demo}.yaml")
if [ "$own_steps" = yes ]; then
  steps=$(fitting_steps "$@")
  [ "$steps" -lt "$most" ] || steps=$most
  set -- --train_iters "$steps" "$@"
fi

# A demo starts from the beginning; a run of yours goes on where it was with --load.
rm -rf "$folder/checkpoint" "$folder/metrics.jsonl" "$folder/loss.svg" "$folder/run.html"
step "3/5  Training (megalith train), at most five minutes. It can be stopped with Ctrl-C"
train --save "$folder/checkpoint" --metrics_file "$folder/metrics.jsonl" --loss_plot_file "$folder/loss.svg" \
  --page_file "$folder/run.html" "$@"

step "4/5  Loss on chapters that it has never seen (megalith evaluate): before, every byte is as likely, ln 257 = 5.55"
"$program" evaluate --load "$folder/checkpoint" --tokenizer_type ByteTokenizer --eval_split valid --eval_iters 20 \
  --valid_data_path "$folder/data/valid_text_document" --seq_length 256 --micro_batch_size 16 $precision

step "5/5  It writes (megalith generate): a new chapter"
"$program" generate --load "$folder/checkpoint" --tokenizer_type ByteTokenizer $precision \
  --prompt "In the beginning" --max_new_tokens 400 --temperature 0.8 --top_k 40

step "What is there now"
cat <<END
  page of the run       $folder/run.html
  picture of the loss   $folder/loss.svg
  numbers of each step  $folder/metrics.jsonl
  checkpoint            $folder/checkpoint
  more text from it     $program generate --load $folder/checkpoint --tokenizer_type ByteTokenizer --prompt "And it came to pass"
END
