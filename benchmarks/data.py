"""Speed and memory of data: building the sample index beside megatron-core, and `megalith prepare`.

Index: a synthetic corpus (documents of log-normal length; the .bin file is sparse, since no index reads tokens) and the
GPT data set over it. The programs run in turn, several rounds. megatron-core's time is that of opening the data and of its
GPTDataset, without Python's start and imports; Megalith's is that of a process less that of one over a hundred thousand tokens.
Both write their cache; Megalith also waits until it is on disk. Times are wall-clock and processor time (user and system,
of all threads, which says more where other programs run): medians, with the smallest and the largest. Memory is the peak of
the process; megatron-core's includes Python, numpy and torch, so what its process has before the data set is given too.

Prepare: JSON lines of English-like words with the byte tokenizer, which costs next to nothing: what reading, parsing,
writing and decompressing allow.

usage: data.py [--program build/megalith] [--tokens 100_000_000] [--rounds 3] [--text_mb 200] [--only index]
A billion tokens: data.py --tokens 1_000_000_000
"""

import argparse
import gzip
import json
import lzma
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SEQUENCE = 2048


def write_corpus(prefix, num_tokens):
    """Returns the number of documents."""
    rng = np.random.RandomState(0)
    lengths = np.minimum(rng.lognormal(5.6, 1.1, size=num_tokens // 400), 100_000).astype(np.int32) + 1
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths, dtype=np.int64), num_tokens)) + 1]
    offsets = np.zeros(len(lengths), dtype=np.int64)
    np.cumsum(lengths[:-1] * np.int64(2), out=offsets[1:])
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        for array in (lengths, offsets, np.arange(len(lengths) + 1, dtype=np.int64)):
            file.write(array.tobytes())
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(2 * int(lengths.sum(dtype=np.int64)))
    return len(lengths), int(lengths.sum(dtype=np.int64))


def run_megatron(prefix, cache, num_samples):
    """In a process of its own. Prints seconds, of the clock and of processors, and kilobytes at the peak and before."""
    import resource
    import warnings

    warnings.simplefilter("ignore")
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    class Tokenizer:
        eod = pad = 0
        unique_identifiers = {"class": "Tokenizer"}

    config = GPTDatasetConfig(
        random_seed=1234, sequence_length=SEQUENCE, blend=([prefix], None), split="1,0,0", path_to_cache=cache,
        tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
    )
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.monotonic()
    data = IndexedDataset(prefix)
    indices = np.arange(len(data.sequence_lengths), dtype=np.int32)
    dataset = GPTDataset(data, prefix, indices, num_samples, Split.train, config)
    seconds = time.monotonic() - start
    assert len(dataset) >= num_samples
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([seconds, processor_s(after) - processor_s(before), after.ru_maxrss, before.ru_maxrss]))


def processor_s(usage):
    return usage.ru_utime + usage.ru_stime


def spread(values):
    return f"{statistics.median(values):.2f} s ({min(values):.2f} … {max(values):.2f})"


def timed(command):
    """(seconds, processor seconds, peak kilobytes) of a process."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{command}\n{errors.decode()}")
    return time.monotonic() - start, processor_s(usage), usage.ru_maxrss


def same_arrays(a, b):
    for name in ("document_index", "sample_index", "shuffle_index"):
        x, y = (next(Path(folder).glob(f"*-{name}.npy")).read_bytes() for folder in (a, b))
        if x != y:
            raise SystemExit(f"{name} differs from megatron-core's")


def bench_index(program, folder, num_tokens, rounds):
    prefix = str(folder / "corpus")
    num_documents, num_tokens = write_corpus(prefix, num_tokens)
    tiny = str(folder / "tiny")
    write_corpus(tiny, 100_000)
    print(f"index: {num_tokens / 1e6:.0f} M tokens in {num_documents / 1e6:.2f} M documents, seq_length {SEQUENCE}")
    for epochs in (1, 3):
        num_samples = int((epochs - 0.5) * num_tokens) // SEQUENCE
        ours, theirs = [], []
        for round_ in range(rounds):
            caches = [str(folder / f"{who}{epochs}{round_}") for who in ("theirs", "ours")]
            done = subprocess.run(
                [sys.executable, __file__, "--megatron", prefix, caches[0], str(num_samples)], capture_output=True, text=True
            )
            if done.returncode != 0:
                raise SystemExit(done.stderr)
            theirs.append(json.loads(done.stdout.splitlines()[-1]))
            def command(data, samples, cache):
                return [
                    program, "inspect", "data", "--data_path", data, "--split", "1,0,0", "--seq_length", str(SEQUENCE),
                    "--print_samples", "train", "--num_samples", "1", "--total_samples", str(samples), "--data_cache_path", cache,
                ]  # fmt: skip

            built, start = timed(command(prefix, num_samples, caches[1])), timed(command(tiny, 10, f"{caches[1]}_tiny"))
            ours.append((built[0] - start[0], built[1] - start[1], built[2]))
            same_arrays(*caches)
            for cache in caches:
                shutil.rmtree(cache)
        before, their_peak, our_peak = (max(x) / 1024 for x in zip(*[(t[3], t[2], o[2]) for t, o in zip(theirs, ours)]))
        print(f"  {epochs} epoch(s), {num_samples} samples, {rounds} rounds:")
        for k, what in enumerate(("wall", "processors")):
            their_s, our_s = [run[k] for run in theirs], [run[k] for run in ours]
            print(
                f"    {what}: megatron-core {spread(their_s)}, Megalith {spread(our_s)}; "
                f"{statistics.median(their_s) / statistics.median(our_s):.2f} times as fast"
            )
        print(f"    memory: megatron-core {their_peak:.0f} MiB ({before:.0f} before), Megalith {our_peak:.0f} MiB")


def write_text(path, megabytes):
    rng = np.random.RandomState(1)
    words = ["".join(chr(97 + c) for c in rng.randint(0, 26, rng.randint(2, 11))) for _ in range(5000)]
    size = 0
    with open(path, "w", encoding="utf-8") as file:
        while size < megabytes * 1e6:
            text = " ".join(words[i] for i in rng.zipf(1.3, 4000).clip(max=5000) - 1)
            size += file.write(json.dumps({"text": text}) + "\n")


def bench_prepare(program, folder, megabytes, rounds):
    plain = folder / "text.jsonl"
    write_text(plain, megabytes)
    content = plain.read_bytes()
    inputs = {"plain": plain}
    for name, pack in {"gz": gzip.compress, "xz": lambda text: lzma.compress(text, preset=1)}.items():
        inputs[name] = folder / f"text.jsonl.{name}"
        inputs[name].write_bytes(pack(content))
    if shutil.which("zstd"):
        inputs["zst"] = folder / "text.jsonl.zst"
        subprocess.run(["zstd", "-q", str(plain), "-o", str(inputs["zst"])], check=True)
    print(f"prepare: {len(content) / 1e6:.0f} MB of JSON lines, byte tokenizer")
    runs = {(name, workers): [] for name in inputs for workers in (1, 2)}
    for _ in range(rounds):
        for (name, workers), found in runs.items():
            found.append(
                timed(
                    [program, "prepare", "--overwrite", "--input", str(inputs[name]), "--output_prefix", str(folder / "out")]
                    + ["--workers", str(workers), "--tokenizer_type", "ByteTokenizer"]
                )
            )
    for (name, workers), found in runs.items():
        rates = sorted(len(content) / 1e6 / run[0] for run in found)
        print(
            f"  {name}, {workers} worker(s): {statistics.median(rates):.0f} MB/s of text ({rates[0]:.0f} … {rates[-1]:.0f}), "
            f"{statistics.median(run[1] for run in found):.2f} processor seconds, {max(run[2] for run in found) / 1024:.0f} MiB"
        )


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "--megatron":
        return run_megatron(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build" / "megalith"))
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--text_mb", type=int, default=200)
    parser.add_argument("--only", choices=("index", "prepare"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only != "prepare":
            bench_index(arguments.program, Path(folder), arguments.tokens, arguments.rounds)
        if arguments.only != "index":
            bench_prepare(arguments.program, Path(folder), arguments.text_mb, arguments.rounds)


if __name__ == "__main__":
    main()
