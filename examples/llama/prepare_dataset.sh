#!/bin/bash
# Fetches a data set from the Hugging Face hub and turns it into the token files that training reads.
#
#   DATASET=wiki TOKENIZER_MODEL=path/to/tokenizer bash examples/llama/prepare_dataset.sh [--overwrite]
#
# Outputs that are there already are kept, unless --overwrite says to make them anew. The last line is the DATA_PATH to
# use. A run that was stopped goes on where it was: fetched files stay, and `megalith prepare` takes up its unfinished
# outputs.
#
#   DATASET          wiki (English Wikipedia), fineweb (the sample of 10 billion tokens) or bookcorpus
#   TOKENIZER_MODEL  folder or file of the tokenizer; TOKENIZER_TYPE if it is no HuggingFaceTokenizer
#   DATA_DIR         where everything goes (data): parquet/DATASET/ and DATASET_text_document.{bin,idx},
#                    the same files as DATASET_text_sentence too, which is what guides call bookcorpus
#   PARQUET_FILES    Parquet files that are here already, instead of fetching
#   APPEND_EOD=1     end each document with the end-of-document token
#   WORKERS          threads that tokenise (all processors)
#   DRY_RUN=1        print what would be fetched, run and made, and do nothing; true and json mean the same
#   MEGALITH         the program (build/megalith)
#   PYTHON           an interpreter, for the list of files (python3)
#   HF_ENDPOINT, HF_TOKEN  another hub, and the token for what needs one
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

fail() {
  echo "error: $1" >&2
  [ $# -lt 2 ] || echo "  $2" >&2
  exit 2
}

case ${DATASET:-} in
  wiki) name=wikimedia/wikipedia config=20231101.en ;;
  fineweb) name=HuggingFaceFW/fineweb config=sample-10BT ;;
  bookcorpus) name=bookcorpus/bookcorpus config=plain_text ;;
  *) fail "DATASET is '${DATASET:-}'" "set DATASET=wiki, DATASET=fineweb or DATASET=bookcorpus" ;;
esac
[ -n "${TOKENIZER_MODEL:-}" ] || fail "TOKENIZER_MODEL is not set" "name a tokenizer's folder or file: TOKENIZER_MODEL=…"
overwrites=0
for word in "$@"; do
  [ "$word" = --overwrite ] || fail "'$word' is not known" "the only word is --overwrite; variables stand before the script"
  overwrites=1
done
data_dir=${DATA_DIR:-data}
prefix=$data_dir/$DATASET
output=${prefix}_text_document
program=${MEGALITH:-$root/build/megalith}
python=${PYTHON:-python3}
endpoint=${HF_ENDPOINT:-https://huggingface.co}
list_url=$endpoint/api/datasets/$name/parquet/$config/train
folder=$data_dir/parquet/$DATASET

command=("$program" prepare --output_prefix "$prefix" --json_keys text
  --tokenizer_type "${TOKENIZER_TYPE:-HuggingFaceTokenizer}" --tokenizer_model "$TOKENIZER_MODEL")
[ "${APPEND_EOD:-0}" = 1 ] && command+=(--append_eod)
[ -n "${WORKERS:-}" ] && command+=(--workers "$WORKERS")
[ "$overwrites" = 1 ] && command+=(--overwrite)

says_outputs() {
  echo "$1 $output.{bin,idx}, and the same files as ${prefix}_text_sentence.{bin,idx}"
}

case ${DRY_RUN:-0} in 0 | false) is_dry=0 ;; *) is_dry=1 ;; esac
if [ "$is_dry" = 1 ]; then
  if [ -n "${PARQUET_FILES:-}" ]; then
    read -r -a files <<<"$PARQUET_FILES"
    printf 'would read %s\n' "${files[@]}"
  else
    echo "would fetch the list of files $list_url"
    echo "would fetch each of them into $folder/"
  fi
  echo "would run ${command[*]} --input ${PARQUET_FILES:-$folder/*.parquet}"
  says_outputs "would make"
  echo "DATA_PATH=$output"
  exit 0
fi

[ -x "$program" ] || fail "$program is missing" "'make build' makes it; MEGALITH names another"
[ ! -e "$output.idx" ] || [ "$overwrites" = 1 ] ||
  fail "$output.idx is there already" "train with DATA_PATH=$output, or make it anew with --overwrite"

# The token goes through a pipe, so that it is in no list of processes.
fetch() {
  { [ -z "${HF_TOKEN:-}" ] || printf 'header = "Authorization: Bearer %s"\n' "$HF_TOKEN"; } |
    curl --config - --fail --silent --show-error --location --retry 5 "$@"
}

if [ -n "${PARQUET_FILES:-}" ]; then
  read -r -a files <<<"$PARQUET_FILES"
else
  mkdir -p "$folder"
  list=$(fetch "$list_url") || fail "$list_url cannot be fetched" \
    "off line? Put its Parquet files anywhere and name them: PARQUET_FILES='a.parquet b.parquet'"
  mapfile -t urls < <("$python" -c 'import json, sys; print("\n".join(json.load(sys.stdin)))' <<<"$list")
  files=()
  for i in "${!urls[@]}"; do
    file=$folder/$(printf '%05d' "$i").parquet
    if [ ! -e "$file" ]; then
      echo "fetching file $((i + 1)) of ${#urls[@]}: ${urls[$i]}" >&2
      fetch --continue-at - --output "$file.part" "${urls[$i]}" || fail "${urls[$i]} cannot be fetched" "run this again"
      mv "$file.part" "$file"
    fi
    files+=("$file")
  done
fi
"${command[@]}" --input "${files[@]}"
for end in bin idx; do
  ln -f "$output.$end" "${prefix}_text_sentence.$end" 2>/dev/null ||
    ln -sf "${DATASET}_text_document.$end" "${prefix}_text_sentence.$end"
done
says_outputs "made"
echo "DATA_PATH=$output"
