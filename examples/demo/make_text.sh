#!/bin/sh
# Writes the King James Bible (Debian package bible-kjv) as JSON lines, one chapter a document: {"text": "Genesis 1\n\n…"}.
# Every twentieth chapter is held out: it goes to valid.jsonl, the others to train.jsonl.
#
# usage: make_text.sh FOLDER
set -eu
folder=$1
if ! command -v bible >/dev/null 2>&1; then
  echo "error: the program 'bible' is missing" >&2
  echo "  apt-get install bible-kjv ('make demo' does)" >&2
  exit 1
fi
mkdir -p "$folder"
# `bible` prints "Genesis 1", an empty line, the verses, an empty line, and so on; -l0 keeps a verse on one line.
bible -l0 Gen1:1-Rev22:21 </dev/null | awk -v folder="$folder" '
  function escaped(text) { gsub(/\\/, "\\\\", text); gsub(/"/, "\\\"", text); return text }
  function finish() {
    if (text == "") return
    file = folder (++chapters % 20 == 0 ? "/valid.jsonl" : "/train.jsonl")
    printf "{\"text\": \"%s\\n\\n%s\"}\n", title, text > file
    text = ""
  }
  BEGIN { expects_title = 1 }
  /^ *$/ { if (text != "") expects_title = 1; next }
  expects_title { finish(); title = escaped($0); expects_title = 0; next }
  { sub(/^ *[0-9]+ */, ""); text = text escaped($0) "\\n"; ++verses }
  END {
    finish()
    # The whole of it, or something is wrong with the program that prints it.
    if (chapters != 1189 || verses != 31102) {
      printf "error: found %d chapters and %d verses, expected 1189 and 31102\n", chapters, verses > "/dev/stderr"
      exit 1
    }
  }'
