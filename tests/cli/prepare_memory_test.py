"""What long lines and large indices take: peaks of processes over those that do the same with a little."""

import json
import os
import struct

import pytest

LINE = 24 << 20  # bytes: far above what a process takes by chance, below what two lines are held apart for
WORDS = "The quick brown fox jumps over 13 lazy dogs. Größe, 漢字! "


def peak(program, *words):
    """The largest resident memory of one process, in bytes."""
    process = program.start(*words)
    output, errors = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, output + errors
    return usage.ru_maxrss * 1024


def tokenizer(folder, normalizer=None):
    """A tokenizer.json of bytes with GPT-2's pattern: as many tokens as bytes, the most there can be."""
    alphabet = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelt = {byte: chr(byte) for byte in alphabet}
    spelt |= {byte: chr(256 + i) for i, byte in enumerate(byte for byte in range(256) if byte not in spelt)}
    model = {"type": "BPE", "vocab": {spelt[byte]: byte for byte in range(256)}, "merges": []}
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(
        json.dumps({"added_tokens": [], "normalizer": normalizer, "pre_tokenizer": step, "model": model, "decoder": step})
    )
    return ("--tokenizer_model", folder)


CASES = {
    "bytes": (WORDS, ("--tokenizer_type", "ByteTokenizer")),
    "escapes": (WORDS + '\n\t"', ("--tokenizer_type", "ByteTokenizer")),
    "sentences": (WORDS, ("--tokenizer_type", "ByteTokenizer", "--split_sentences")),
    "numbers": ("17 ", ("--tokenizer_type", "NullTokenizer", "--vocab_size", 70_000)),
    "bpe": (WORDS + "\n", tokenizer),
    "nfc": (WORDS, lambda folder: tokenizer(folder, {"type": "NFC"})),
}


@pytest.mark.parametrize("case", CASES)
def test_a_long_line_takes_at_most_three_times_its_length(program, tmp_path, case):
    unit, words = CASES[case]
    words = words if isinstance(words, tuple) else words(tmp_path / "tokenizer")
    peaks = []
    for length in (100, LINE):
        file = tmp_path / f"{length}.jsonl"
        line = json.dumps(unit, ensure_ascii=False)[1:-1].encode()
        with open(file, "wb") as out:  # in small parts: what this process holds would count for the program's
            out.write(b'{"text": "')
            for _ in range(length // (1000 * len(line))):
                out.write(1000 * line)
            out.write(line + b'"}\n')
        peaks.append(peak(program, "prepare", "--input", file, "--output_prefix", tmp_path / str(length), "--workers", 2, *words))
    # 6 MiB: blocks of input, tables of threads, runs of tokens.
    assert peaks[1] - peaks[0] < 3 * LINE + (6 << 20)


def test_an_index_takes_little_more_than_the_order_of_its_samples(program, tmp_path):
    samples = 12 << 20
    peaks = []
    for count in (100, samples + 1):  # tokens of one document
        prefix = tmp_path / str(count)
        header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 1, 1, 2)
        prefix.with_suffix(".idx").write_bytes(header + struct.pack("<iqqq", count, 0, 0, 1))
        with open(prefix.with_suffix(".bin"), "wb") as file:
            file.truncate(count)
        words = ("inspect", "data", "--data_path", prefix, "--split", "1,0,0", "--print_samples", "train", "--num_samples", 1)
        peaks.append(peak(program, *words, "--seq_length", 1, "--vocab_size", 257))
    # The order of samples is 4 bytes each; where they begin, 8 bytes, goes straight to the file.
    assert peaks[1] - peaks[0] < 5 * samples
