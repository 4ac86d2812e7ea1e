#!/bin/sh
# Writes a vocabulary of word pieces for a text in JSON lines ({"text": "…"}): BERT's special tokens, the signs of the
# text, each letter as a word and as a piece (##a) within one, and the words that occur most. Other words are spelled.
#
# usage: make_vocabulary.sh TEXT.jsonl VOCABULARY.txt [WORDS]
set -eu
text=$1
vocabulary=$2
words=${3:-4000}
export LC_ALL=C
plain=$vocabulary.plain
# What stands between the quotes, in lower case, a line for a text; the names of JSON's escapes are blanks.
sed -e 's/^{"text": "//' -e 's/"}$//' -e 's/\\[nrt]/ /g' -e 's/\\"/"/g' "$text" | tr 'A-Z' 'a-z' >"$plain"
{
  printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]'
  tr -d 'a-z \n' <"$plain" | fold -w 1 | sort -u
  for letter in a b c d e f g h i j k l m n o p q r s t u v w x y z; do printf '%s\n##%s\n' "$letter" "$letter"; done
  tr -cs 'a-z' '\n' <"$plain" | awk 'length > 1' | sort | uniq -c | sort -k1,1nr -k2 | awk -v most="$words" '
    NR <= most { print $2 }'
} >"$vocabulary"
rm "$plain"
