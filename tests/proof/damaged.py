"""Damaged files of every kind that the program reads: it refuses them with a message, or uses what it can.

A kind has a good set of files and a command. One file is damaged (bits, cuts, doubled and lost pieces, zeros, other
numbers in texts), then the command runs with bounded memory and time. A run must end with 0, or with 1 or 2 and a
message; what has a checksum must be refused, or come out with the right bytes. fuzz_readers does the same to single
readers under sanitizers, thousands of times faster; here whole commands are tried, from open to exit code.
"""

import hashlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import chats  # noqa: E402
import indexed_data  # noqa: E402

TIMEOUT_S = 120
MOST_BYTES = 6 << 30  # of address space: a file of some kilobytes asks for no more
NUMBERS = (b"-1", b"0", b"1e308", b"9223372036854775807", b"18446744073709551616", b"2147483648", b"null", b'"x"', b"0.5", b"[]")
MODEL = (
    *("--num_layers", 2, "--hidden_size", 16, "--num_attention_heads", 2, "--ffn_hidden_size", 32, "--vocab_size", 300),
    *("--normalization", "RMSNorm", "--position_embedding_type", "rope", "--disable_bias_linear", "--swiglu", "--fp32"),
    *("--untie_embeddings_and_output_weights", "--seq_length", 8, "--max_position_embeddings", 8, "--device", "cpu"),
    *("--num_threads", 1, "--global_batch_size", 1, "--micro_batch_size", 1, "--eval_iters", 0, "--train_iters", 2),
)


def flip(data, rng):
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def cut(data, rng):
    return data[: rng.randrange(len(data))]


def lose(data, rng):
    begin = rng.randrange(len(data))
    return data[:begin] + data[begin + rng.randrange(1, 64) :]


def double(data, rng):
    begin = rng.randrange(len(data))
    end = begin + rng.randrange(1, 64)
    return data[:end] + data[begin:]


def zero(data, rng):
    begin, count = rng.randrange(len(data)), rng.randrange(1, 64)
    return data[:begin] + bytes(min(count, len(data) - begin)) + data[begin + count :]


def noise(data, rng):
    begin, count = rng.randrange(len(data)), rng.randrange(1, 16)
    return data[:begin] + rng.randbytes(count) + data[begin + count :]


def number(data, rng):
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data[:20000]))
    if not found:
        return flip(data, rng)
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(NUMBERS) + data[one.end() :]


def longer(data, rng):
    return data + rng.randbytes(rng.randrange(1, 200))


DAMAGES = (flip, cut, lose, double, zero, noise, number, longer)


class Kind:
    """files: those that are damaged, below `source`. words(copy, out): the command. result(out): with checksums, what
    a run that takes the files must write; None otherwise."""

    def __init__(self, name, source, files, words, result=None):
        self.name, self.source, self.files, self.words, self.result = name, source, files, words, result


def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(folder).glob("*.safetensors"))}


class Damaged:
    def __init__(self, program, root, folder, seed):
        self.program, self.root, self.folder, self.rng = Path(program), root, folder, random.Random(seed)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.kinds = self.make_kinds()

    def run(self, words):
        """(exit code or None, what was said)."""

        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [str(self.program), *map(str, words)]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, timeout=TIMEOUT_S, preexec_fn=limit, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            return None, f"no end within {TIMEOUT_S} s"
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace")

    def setup(self, *words):
        code, said = self.run(words)
        assert code == 0, f"{words}\n{said}"

    def make_kinds(self):
        place = self.folder / "good"
        run, model, adapter = place / "run", place / "model", place / "adapter"
        self.setup("train", *MODEL, "--mock_data", "--save", run, "--save_hf", model)
        lora = ("--lora.enabled", "true", "--lora.dim", 2, "--lora.target_modules", "q_proj,down_proj")
        self.setup("train", "--load_hf", model, "--mock_data", *MODEL[-18:], *lora, "--save_adapter", adapter)
        [saved] = [path for path in run.iterdir() if path.name.startswith("iter_")]
        states = [str(path.relative_to(run)) for path in sorted(saved.iterdir()) if path.suffix in (".json", ".safetensors")]
        tokens = place / "tokens"
        tokens.mkdir()
        indexed_data.write(tokens / "data", indexed_data.random_documents(num_documents=20, vocab_size=300, seed=3))
        chat = chats.model_with(place / "chat", "chatml")
        rows = [{"messages": chats.conversation(self.rng, calls=False)} for _ in range(20)]
        (chat / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = place / "recipe"
        recipe.mkdir()
        shutil.copy(self.root / "configs" / "models" / "llama3.1_8B.yaml", recipe / "recipe.yaml")
        kinds = [
            Kind(
                *("a checkpoint", run, states),
                lambda copy, out: ("convert", "--load", copy, "--save_hf", out / "hf"),
                lambda out: digest(out / "hf"),
            ),
            Kind(
                *("weights and config.json", model, [path.name for path in model.iterdir() if path.suffix in (".json", ".safetensors")]),
                lambda copy, out: ("convert", "--load_hf", copy, "--save", out / "saved"),
            ),
            Kind(
                *("adapters", adapter, [path.name for path in adapter.iterdir() if path.is_file()]),
                lambda copy, out: ("convert", "--load_hf", model, "--merge_adapter", copy, "--save_hf", out / "hf"),
            ),
            Kind("tokens (.bin, .idx)", tokens, ["data.bin", "data.idx"], lambda copy, _: ("inspect", "data", copy / "data")),
            Kind(
                *("a tokenizer", chat, ["tokenizer.json", "tokenizer_config.json"]),
                lambda copy, _: ("inspect", "tokenizer", "--tokenizer_model", copy, "--encode_file", copy / "rows.jsonl"),
            ),
            Kind(
                *("conversations", chat, ["rows.jsonl"]),
                lambda copy, _: ("inspect", "sft", "--load_hf", copy, "--sft_data_path", copy / "rows.jsonl"),
            ),
            Kind("YAML", recipe, ["recipe.yaml"], lambda copy, _: ("inspect", "config", "--config", copy / "recipe.yaml")),
        ]
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            return kinds
        table = place / "table"
        table.mkdir()
        texts = pyarrow.table({"text": [chats.content(self.rng) for _ in range(200)]})
        pyarrow.parquet.write_table(texts, table / "texts.parquet")
        words = ("--tokenizer_type", "ByteTokenizer", "--workers", 1)
        kinds.append(
            Kind("Parquet", table, ["texts.parquet"], lambda copy, out: ("prepare", "--input", copy / "texts.parquet", "--output_prefix", out / "data", *words))
        )
        return kinds

    def fresh(self, kind):
        copy, out = self.folder / "copy", self.folder / "out"
        for path in (copy, out):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(kind.source, copy)
        out.mkdir()
        return copy, out

    def good(self, kind):
        """What the command writes from good files."""
        copy, out = self.fresh(kind)
        code, said = self.run(kind.words(copy, out))
        assert code == 0, f"{kind.name}: {said}"
        return kind.result(out) if kind.result else None

    def try_one(self, kind, expected):
        """("used" | "refused", "") or ("failed", what was said)."""
        copy, out = self.fresh(kind)
        path = copy / self.rng.choice(kind.files)
        data = path.read_bytes()
        ways = [self.rng.choice(DAMAGES) for _ in range(self.rng.choice((1, 1, 1, 2, 4)))]
        for way in ways:
            data = way(data, self.rng) if data else data
        path.write_bytes(data)
        words = kind.words(copy, out)
        code, said = self.run(words)
        what = f"{kind.name}: {path.name} by {', '.join(way.__name__ for way in ways)}: exit code {code}\n{said[-1500:]}"
        if code == 0:
            if expected is not None and kind.result(out) != expected:
                return "failed", f"taken, with other results: {what}"
            return "used", ""
        wrong = code not in (1, 2) or "error: " not in said or re.search(r"internal error|terminate called|std::|nlohmann", said)
        return ("failed", what) if wrong else ("refused", "")


def prove(program, root, seconds, seed, folder, say, most=None):
    damaged = Damaged(program, root, folder, seed)
    result = {"files": 0, "used": 0, "refused": 0, "kinds": len(damaged.kinds), "failures": []}
    expected = {kind.name: damaged.good(kind) for kind in damaged.kinds}
    end = time.monotonic() + seconds
    kept = folder.parent / "damaged_kept"
    while time.monotonic() < end and (most is None or result["files"] < most):
        for kind in damaged.kinds:
            outcome, said = damaged.try_one(kind, expected[kind.name])
            result["files"] += 1
            if outcome != "failed":
                result[outcome] += 1
                continue
            number_of_it = len(result["failures"])
            shutil.copytree(damaged.folder / "copy", kept / str(number_of_it), dirs_exist_ok=True)
            words = kind.words(kept / str(number_of_it), folder / "out")
            result["failures"].append({"command": " ".join(map(str, (damaged.program, *words))), "said": said})
            say(f"FAILED {said}")
    say(f"damaged: {result['files']} files, {result['used']} used, {result['refused']} refused, {len(result['failures'])} failed")
    shutil.rmtree(folder, ignore_errors=True)
    return result
