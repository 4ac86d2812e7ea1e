"""How far the losses of eight-bit training are from those of bf16: one small model, the same samples, every recipe.

Trains configs/models/demo.yaml (11 million parameters) for each of bf16, fp32 and the FP8 recipes, one after another,
and compares the loss averaged over all steps and over the last tenth of them. fp32 is the yardstick: as far as that is
from bf16, two runs drift apart by rounding. The text is the demo's (examples/demo/make_text.sh), or one that is given.

usage: fp8_parity.py --program build/megalith [--text FILE] [--steps 500] [--lr 6e-4] [--threads 2] [--output FILE] [option of train…]
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = {
    "bf16": ("--bf16",),
    "fp32": (),
    **{f"hybrid, {recipe}": ("--bf16", "--fp8_format", "hybrid", "--fp8_recipe", recipe)
       for recipe in ("tensorwise", "delayed", "blockwise")},
}


def prepared_text(arguments, folder):
    """The prefix of the tokens: a token is a byte."""
    text = arguments.text
    if not text:
        run([ROOT / "examples/demo/make_text.sh", folder / "text"])
        text = folder / "text/train.jsonl"
    words = ("--input", text, "--output_prefix", folder / "tokens", "--tokenizer_type", "ByteTokenizer", "--append_eod")
    run([arguments.program, "prepare", *words, "--overwrite"])
    return next(folder.glob("tokens*.idx")).with_suffix("")


def run(words):
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, words))}\n{done.stdout}{done.stderr}")


def options(arguments, prefix):
    """A learning rate at which runs that differ by rounding stay together: at the demo's own, 2e-3 with a batch this small,
    the first steps overshoot, and fp32 and bf16 are 6 % apart there."""
    return (
        *("--config", ROOT / "configs/models/demo.yaml", "--data_path", prefix, "--split", "100,0,0", "--vocab_size", 257),
        *("--seq_length", 128, "--micro_batch_size", 4, "--global_batch_size", 4, "--train_iters", arguments.steps),
        *("--lr", arguments.lr, "--min_lr", arguments.lr / 10, "--lr_decay_style", "cosine"),
        *("--lr_warmup_iters", max(arguments.steps // 5, 1)),
        *("--weight_decay", 0.1, "--adam_beta2", 0.95, "--clip_grad", 1.0, "--eval_iters", 0, "--log_interval", 100),
        *("--device", "cpu", "--num_threads", arguments.threads, *arguments.more),
    )


def train(arguments, prefix, folder, *more):
    """The losses of a run, by step."""
    files = ("--data_cache_path", folder / "cache", "--metrics_file", folder / "metrics.jsonl")
    run([arguments.program, "train", *options(arguments, prefix), *files, *more])
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line["lm_loss"] for line in map(json.loads, lines) if "lm_loss" in line]


def mean(losses):
    return sum(losses) / len(losses)


def compare(arguments, folder):
    """Rows of (what, loss of all steps, that over bf16's, loss of the last tenth, that over bf16's)."""
    prefix = prepared_text(arguments, folder)
    rows = []
    for what, more in RUNS.items():
        own = folder / what
        own.mkdir()
        losses = train(arguments, prefix, own, *more)
        whole, end = mean(losses), mean(losses[-max(len(losses) // 10, 1) :])
        of_whole, of_end = (whole / rows[0][1], end / rows[0][3]) if rows else (1.0, 1.0)
        rows.append((what, whole, of_whole, end, of_end))
        print(f"{what:<20} {whole:.4f} {of_whole:.4f}   {end:.4f} {of_end:.4f}", flush=True)
    return rows


def table(rows):
    lines = ["| products | loss of all steps | over bf16 | of the last tenth | over bf16 |", "| --- | ---:| ---:| ---:| ---:|"]
    lines += [f"| {what} | {whole:.4f} | {of_whole:.4f} | {end:.4f} | {of_end:.4f} |"
              for what, whole, of_whole, end, of_end in rows]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(ROOT / "build/megalith"))
    parser.add_argument("--text")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", help="a file that receives the table")
    arguments, arguments.more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(arguments, Path(folder))
    if arguments.output:
        Path(arguments.output).write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
