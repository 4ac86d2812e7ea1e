#!/bin/sh
# The demo: trains a small model on the King James Bible on this machine, shows how the loss falls, and lets it write,
# or fill gaps, or compare. `make demo` builds the program first and then calls this.
#
# usage: [EXPERIMENT=demo_mixtral] run.sh [PROGRAM] [FOLDER] [options of megalith train, such as --train_iters 100]
#   EXPERIMENT  of configs/experiments: demo (a Llama), demo_mixtral and demo_deepseek (mixtures of experts), whose
#               tokens are bytes; demo_bert, demo_t5 and demo_ict (a retriever), whose tokens are pieces of words
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

experiment=${EXPERIMENT:-demo}
# What it reads: documents, or their sentences with a vocabulary that is made of the text.
vocabulary=$folder/vocab.txt
case $experiment in
  demo_bert) model=BERT unit=sentence tokens="a token is a piece of a word" ;;
  demo_t5) model=T5 unit=sentence tokens="a token is a piece of a word" ;;
  demo_ict) model=retriever unit=sentence tokens="a token is a piece of a word" ;;
  *) model=decoder unit=document tokens="a token is a byte" ;;
esac

# In bfloat16 where the processor computes in it, in fp32 elsewhere.
precision=--bf16
grep -qwE 'amx_bf16|avx512_bf16|bf16' /proc/cpuinfo || precision=--bf16=false

step() { printf '\n== %s\n' "$1"; }

step "1/5  The text: the King James Bible, a chapter a document; every twentieth chapter is held out"
"$here/make_text.sh" "$folder/text"
wc -l -c "$folder/text/train.jsonl" "$folder/text/valid.jsonl" | awk '{ printf "  %6d chapters %8d bytes  %s\n", $1, $2, $3 }' | head -n 2

step "2/5  Text into tokens (megalith prepare): $tokens"
[ $unit = document ] || "$here/make_vocabulary.sh" "$folder/text/train.jsonl" "$vocabulary"

# Calls the program with the tokenizer of the experiment.
with_tokenizer() {
  case $model in
    BERT | retriever) "$program" "$@" --tokenizer_type BertWordPieceLowerCase --vocab_file "$vocabulary" ;;
    T5) "$program" "$@" --tokenizer_type BertWordPieceLowerCase --vocab_file "$vocabulary" --vocab_extra_ids 60 ;;
    *) "$program" "$@" --tokenizer_type ByteTokenizer ;;
  esac
}
for split in train valid; do
  set_of_split=$folder/data/$split
  if [ $unit = sentence ]; then
    with_tokenizer prepare --input "$folder/text/$split.jsonl" --output_prefix "$set_of_split" --split_sentences --overwrite
  else
    with_tokenizer prepare --input "$folder/text/$split.jsonl" --output_prefix "$set_of_split" --append_eod --overwrite
  fi
done

# What a decoder starts from that answers an encoder: [BOS], the first id after the vocabulary.
start=
[ $model != T5 ] || start="--bos_token_id $(grep -c '' "$vocabulary")"
train() {
  with_tokenizer train --config "$root/configs/experiments/$experiment.yaml" $precision $start \
    --train_data_path "$folder/data/train_text_$unit" --valid_data_path "$folder/data/valid_text_$unit" "$@"
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
most=$(awk '$1 == "train_iters:" { print $2 }' "$root/configs/experiments/$experiment.yaml")
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

evaluate() {
  with_tokenizer evaluate --load "$folder/checkpoint" --eval_split valid --eval_iters 20 $precision \
    --valid_data_path "$folder/data/valid_text_$unit" --micro_batch_size 16 "$@"
}
case $model in
  BERT)
    step "4/5  Hidden words, and the order of passages, in chapters that it has never seen (megalith evaluate)"
    evaluate --seq_length 128
    step "5/5  It compares (megalith embed): the verses of these chapters that are most like two others"
    # A verse a line, without the titles of the chapters.
    sed -e 's/^{"text": "//' -e 's/"}$//' "$folder/text/valid.jsonl" | awk '
      { count = split($0, lines, /\\n/); for (i = 3; i <= count; ++i) if (lines[i] != "") print lines[i] }' >"$folder/verses.txt"
    "$program" embed --load "$folder/checkpoint" $precision --input "$folder/verses.txt" --top_k 3 \
      --query "And the king sent messengers to the city." "I will sing praises unto the LORD."
    more="more of them from it  $program embed --load $folder/checkpoint --input $folder/verses.txt --query 'The sea was calm.'"
    ;;
  T5)
    step "4/5  Loss of hidden spans in chapters that it has never seen (megalith evaluate)"
    evaluate --seq_length 128 --decoder_seq_length 64
    step "5/5  It fills gaps (megalith generate): what stands for <extra_id_0> and <extra_id_1>"
    with_tokenizer generate --load "$folder/checkpoint" $precision $start --max_new_tokens 12 --temperature 0 \
      --prompt "And the LORD <extra_id_0> unto Moses, saying, Speak unto the children of <extra_id_1>, and say unto them"
    more="more gaps to fill     $program generate --load $folder/checkpoint $start --prompt 'And it came to <extra_id_0> in those days'"
    ;;
  retriever)
    step "4/5  Which of 32 passages a sentence is from, in chapters that it has never seen (megalith evaluate)"
    evaluate --seq_length 128 --micro_batch_size 32 --retriever_report_topk_accuracies 1,5
    step "5/5  It finds (megalith embed): the passages of these chapters that are nearest to two sentences"
    "$program" embed --load "$folder/checkpoint" $precision --blocks --data_path "$folder/data/valid_text_$unit" \
      --seq_length 128 --embedding_path "$folder/blocks.npy" --block_data_path "$folder/blocks.jsonl" --top_k 3 \
      --query "And the king sent messengers to the city." "I will sing praises unto the LORD."
    more="more of them from it  $program embed --load $folder/checkpoint --blocks --data_path $folder/data/valid_text_$unit --seq_length 128 --query 'The sea was calm.'"
    ;;
  *)
    step "4/5  Loss on chapters that it has never seen (megalith evaluate): before, every byte is as likely, ln 257 = 5.55"
    evaluate --seq_length 256
    step "5/5  It writes (megalith generate): a new chapter"
    with_tokenizer generate --load "$folder/checkpoint" $precision \
      --prompt "In the beginning" --max_new_tokens 400 --temperature 0.8 --top_k 40
    more="more text from it     $program generate --load $folder/checkpoint --tokenizer_type ByteTokenizer --prompt \"And it came to pass\""
    ;;
esac

step "What is there now"
cat <<END
  page of the run       $folder/run.html
  picture of the loss   $folder/loss.svg
  numbers of each step  $folder/metrics.jsonl
  checkpoint            $folder/checkpoint
  $more
END
