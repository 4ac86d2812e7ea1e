#!/usr/bin/env python3
"""Questions with answers as JSON lines: {"prompt": "Q: …\\nA:", "completion": " …"}, of the Python package chatterbot-corpus.

The package (BSD licence) holds YAML files of short English conversations: what is asked, then what may be answered. The
first question and answer of each are taken, each question once. Every tenth goes to valid.jsonl, the others to
train.jsonl.

usage: make_chats.py OUTPUT_FOLDER [FOLDER_WITH_YAML_FILES]
"""

import importlib.util
import json
import sys
from pathlib import Path

LONGEST = 250  # bytes of a question with its answer, so that one fits a sequence of the example


def package_folder():
    found = importlib.util.find_spec("chatterbot_corpus")
    if found is None:
        sys.exit("error: the Python package chatterbot-corpus is missing\n  pip install chatterbot-corpus")
    return Path(found.submodule_search_locations[0]) / "data" / "english"


def rows_of(folder):
    try:
        import yaml
    except ImportError:
        sys.exit("error: the Python package PyYAML is missing\n  pip install PyYAML")
    asked = set()
    for path in sorted(folder.glob("*.yml")):
        for conversation in yaml.safe_load(path.read_text(encoding="utf-8")).get("conversations", []):
            words = [" ".join(str(words).split()) for words in conversation[:2]]
            if len(words) < 2 or not all(words) or words[0].lower() in asked:
                continue
            row = {"prompt": f"Q: {words[0]}\nA:", "completion": f" {words[1]}"}
            if len((row["prompt"] + row["completion"]).encode()) > LONGEST:
                continue
            asked.add(words[0].lower())
            yield row


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.strip().splitlines()[-1])
    output = Path(sys.argv[1])
    source = Path(sys.argv[2]) if len(sys.argv) == 3 else package_folder()
    rows = list(rows_of(source))
    if len(rows) < 10:
        sys.exit(f"error: {source} has {len(rows)} questions with answers, and at least 10 are needed\n  name a folder of YAML files")
    output.mkdir(parents=True, exist_ok=True)
    # Neighbours are about one thing: a tenth of every part is held out.
    for name, chosen in (
        ("valid", [row for i, row in enumerate(rows) if i % 10 == 9]),
        ("train", [row for i, row in enumerate(rows) if i % 10 != 9]),
    ):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
        (output / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        print(f"  {len(chosen)} rows in {output / name}.jsonl")


if __name__ == "__main__":
    main()
