"""Encoding speed on one thread: Megalith beside Hugging Face's tokenizers, for Llama 3's vocabulary on English text.

The two take turns, several rounds, on the same documents, so that what else the machine does falls on both. The vocabulary is the
tokenizer.model of the package llama-models, for the library written as tokenizer.json with its merges. Ids are compared first. The
text is the King James Bible where the Debian package bible-kjv is installed, and one made of English words; times are only
of encoding, without reading files or writing ids; the library's fastest call, encode_batch_fast, is used.

usage: tokenizer.py --program build/megalith [--rounds 7] [--output FILE.md]
"""

import argparse
import base64
import importlib.util
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = (
    "the of and to in is that it was for on are with as his they be at one have this from or had by not but some what there we can "
    "out other were all your when up use word how said an each she which do their time if will way about many then them would write "
    "like so these her long make thing see him two has look more day could go come did my sound no most number who over know water "
    "than call first people may down side been now find any new work part take get place made live where after back little only "
    "round man year came show every good me give our under name very through just form much great think say help low line before "
    "turn cause same mean differ move right boy old too does tell sentence set three want air well also play small end put home read "
    "hand port large spell add even land here must big high such follow act why ask men change went light kind off need house picture "
    "try us again animal point mother world near build self earth father head stand own page should country found answer school grow "
    "study still learn plant cover food sun four thought let keep eye never last door between city tree cross since hard start might "
    "government international development understanding nevertheless responsibility characteristics approximately communication"
).split()


def llama3():
    """(tokenizer.model, the same as a tokenizers.Tokenizer)."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    spec = importlib.util.find_spec("llama_models")
    if spec is None:
        sys.exit("the package llama-models is missing: pip install --no-deps -r tests/oracle/no_deps/tokenizers.txt")
    model = Path(spec.submodule_search_locations[0]) / "llama3" / "tokenizer.model"
    ranks = {}
    for line in model.read_text().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = dict(zip(printable, map(chr, printable)))
    symbols.update((byte, chr(256 + i)) for i, byte in enumerate(byte for byte in range(256) if byte not in symbols))
    spelled = {token: "".join(symbols[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in ranks.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted((rank, ranks[left], ranks[right], spelled[left], spelled[right]) for left, right in cuts)
    merges.sort(key=lambda merge: merge[0])
    vocab = {spelled[token]: rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab, [merge[3:] for merge in merges], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return model, tokenizer


def bible():
    program = shutil.which("bible")
    if program is None:
        return None
    text = subprocess.run([program, "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    lines = text.splitlines()
    return ["\n".join(lines[i : i + 25]) for i in range(0, len(lines), 25)]


def made_up(num_bytes=4_000_000):
    chance = random.Random(1)
    documents, size = [], 0
    while size < num_bytes:
        sentences = []
        for _ in range(chance.randrange(5, 40)):
            words = [WORDS[min(int(chance.expovariate(1 / 60)), len(WORDS) - 1)] for _ in range(chance.randrange(4, 25))]
            if chance.random() < 0.2:
                words.insert(chance.randrange(len(words)), str(chance.randrange(3000)))
            sentences.append(" ".join(words).capitalize() + chance.choice([".", ".", ".", "?", "!", ", however.", ' ("so").']))
        documents.append("\n\n".join([" ".join(sentences[:7]), " ".join(sentences[7:])]))
        size += len(documents[-1])
    return documents


def measure(program, model, tokenizer, documents, rounds):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "documents.jsonl"
        file.write_text("".join(json.dumps(document) + "\n" for document in documents))
        words = [program, "inspect", "tokenizer", "--tokenizer_type", "Llama3Tokenizer", "--tokenizer_model", model]
        words += ["--json_strings", "--encode_file", file]
        ours = [json.loads(line) for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()]
        theirs = [row.ids for row in tokenizer.encode_batch_fast(documents, add_special_tokens=False)]
        if ours != theirs:
            sys.exit("the ids differ")
        num_bytes = sum(len(document.encode()) for document in documents)
        speeds = {"megalith": [], "tokenizers": []}
        for _ in range(rounds):
            output = subprocess.run([*words, "--measure_rounds", "3"], capture_output=True, text=True, check=True).stdout
            report = json.loads(output)
            assert report["bytes"] == num_bytes and report["tokens"] == sum(map(len, theirs))
            speeds["megalith"].append(num_bytes / min(report["seconds"][1:]) / 1e6)
            seconds = []
            for _ in range(2):
                start = time.perf_counter()
                tokenizer.encode_batch_fast(documents, add_special_tokens=False)
                seconds.append(time.perf_counter() - start)
            speeds["tokenizers"].append(num_bytes / min(seconds) / 1e6)
        return num_bytes, speeds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=Path(__file__).resolve().parents[1] / "build/megalith")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", help="write the table to this file as well")
    arguments = parser.parse_args()
    import tokenizers

    model, tokenizer = llama3()
    lines = [f"tokenizers {tokenizers.__version__}, one thread, {platform.machine()}, {arguments.rounds} rounds in turn; MB/s, median (least to most)",
             "", "| text | MB | Megalith | tokenizers | ratio, median (least to most) |", "| --- | --- | --- | --- | --- |"]
    for name, documents in (("King James Bible", bible()), ("made-up English", made_up())):
        if documents is None:
            continue
        num_bytes, speeds = measure(arguments.program, model, tokenizer, documents, arguments.rounds)
        ratios = [ours / theirs for ours, theirs in zip(speeds["megalith"], speeds["tokenizers"])]

        def spread(values):
            return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"

        lines.append(f"| {name} | {num_bytes / 1e6:.1f} | {spread(speeds['megalith'])} | {spread(speeds['tokenizers'])} | {spread(ratios)} |")
    print("\n".join(lines))
    if arguments.output:
        Path(arguments.output).write_text("\n".join(lines) + "\n")


main()
