"""Memory and speed of `megalith convert` on another trainer's checkpoint, beside dd.

Makes a Llama of --layers layers with both moments in fp32, as torch.distributed.checkpoint writes it (no tensor of it is
aligned in its file), converts it to a checkpoint of ours with files that are not in the page cache, and prints:

  peak        VmHWM of the conversion, and of one of a tiny model: what the program itself takes
  allowed     the tiny model's, the largest tensor and 200 MB
  rate        bytes of the folder a second, and dd's, which copies the folder's largest file with conv=fsync

usage: foreign.py --program build/megalith --folder SCRATCH [--layers 12] [--rounds 3]
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed.checkpoint as dcp

HIDDEN, FFN, HEADS, VOCABULARY = 768, 2048, 12, 32000
MB = 1e6


def shapes(layers, hidden, ffn, vocabulary):
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(layers):
        name = f"model.layers.{layer}."
        for projection in "qkvo":
            yield f"{name}self_attn.{projection}_proj.weight", (hidden, hidden)
        yield f"{name}mlp.gate_proj.weight", (ffn, hidden)
        yield f"{name}mlp.up_proj.weight", (ffn, hidden)
        yield f"{name}mlp.down_proj.weight", (hidden, ffn)
        yield f"{name}input_layernorm.weight", (hidden,)
        yield f"{name}post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def make(folder, layers, hidden, ffn, heads, vocabulary):
    state = {}
    for name, shape in shapes(layers, hidden, ffn, vocabulary):
        state[name] = torch.randn(shape) * 0.02
        for moment in ("exp_avg", "exp_avg_sq"):
            state[f"optimizer.state.{name}.{moment}"] = torch.rand(shape) * 1e-3
    state["train_state"] = {"step": torch.tensor(3)}
    dcp.save(state, checkpoint_id=folder / "step-3")
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, intermediate_size=ffn, vocab_size=vocabulary,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=2048,
        rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False, torch_dtype="float32",
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return 4 * vocabulary * hidden


def forget(folder):
    """Its files leave the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(words):
    """Seconds of a command, and its VmHWM in bytes: a child's ru_maxrss begins with its parent's."""
    began, peak = time.monotonic(), 0
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=errors)
        status = pathlib.Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            found = re.search(r"VmHWM:\s*(\d+)", status.read_text())
            peak = max(peak, int(found[1]) * 1024 if found else 0)
            time.sleep(0.005)
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{words[0]} failed: {errors.read().decode()[-2000:]}")
    return time.monotonic() - began, peak


def convert(program, folder, out):
    shutil.rmtree(out, ignore_errors=True)
    forget(folder)
    words = ("convert", "--load", folder, "--hf_config", folder, "--global_batch_size", 4, "--save", out)
    result = timed([program, *words])
    shutil.rmtree(out)
    return result


def copy(file, out):
    forget(file.parent)
    seconds, _ = timed(["dd", f"if={file}", f"of={out}", "bs=4M", "conv=fsync"])
    out.unlink()
    return file.stat().st_size / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tiny, large = (arguments.folder / name for name in ("tiny", "large"))
    try:
        make(tiny, 1, 64, 128, 4, 256)
        largest = make(large, arguments.layers, HIDDEN, FFN, HEADS, VOCABULARY)
        num_bytes = sum(path.stat().st_size for path in large.rglob("*") if path.is_file())
        file = max((path for path in large.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        own = convert(arguments.program, tiny, arguments.folder / "out")[1]
        runs, copies = [], []
        for _ in range(arguments.rounds):
            copies.append(copy(file, arguments.folder / "copy"))
            runs.append(convert(arguments.program, large, arguments.folder / "out"))
        peak, allowed = max(run[1] for run in runs), own + largest + 200 * MB
        rate, of_dd = num_bytes / statistics.median(run[0] for run in runs), statistics.median(copies)
        print(f"folder {num_bytes / MB:.0f} MB, largest tensor {largest / MB:.0f} MB")
        print(f"peak {peak / MB:.0f} MB, allowed {allowed / MB:.0f} MB; the program by itself {own / MB:.0f} MB")
        print(f"rate {rate / MB:.0f} MB/s, dd {of_dd / MB:.0f} MB/s: {rate / of_dd:.0%}")
    finally:
        for folder in (tiny, large, arguments.folder / "out"):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
