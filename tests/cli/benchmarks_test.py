"""The comparisons of benchmarks/ run at tiny sizes: each prints a row of numbers of every program."""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LLAMA = """num_layers: 1
hidden_size: 32
ffn_hidden_size: 64
num_attention_heads: 2
vocab_size: 64
max_position_embeddings: 32
position_embedding_type: rope
normalization: RMSNorm
swiglu: true
add_bias_linear: false
untie_embeddings_and_output_weights: true
attention_dropout: 0
hidden_dropout: 0
"""


ROUND = ("--rounds", "1", "--steps", "3")


def measured(script, program, *words):
    """What the script prints, as a program."""
    command = [sys.executable, BENCHMARKS / script, "--program", program.path, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def measured_here(monkeypatch):
    """The same within this process, its peers too: each start of Python imports torch and what stands on it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import rounds

    def main_of(script, *words):
        with monkeypatch.context() as changed, contextlib.redirect_stdout(io.StringIO()) as printed:
            changed.setattr(sys, "argv", list(map(str, (script, *words))))
            runpy.run_path(str(script), run_name="__main__")
        return printed.getvalue()

    run = rounds.run
    def run_here(words, *more, **named):
        return (main_of(*words[1:]), 1) if words[0] == sys.executable else run(words, *more, **named)

    monkeypatch.setattr(rounds, "run", run_here)
    return lambda script, program, *words: main_of(BENCHMARKS / script, "--program", program.path, *words)


def test_encoders_beside_transformers(measured_here, program):
    pytest.importorskip("transformers")
    words = ("--tiny", "--peers", "eager", "--dtypes", "fp32", "--batch", 2, "--sequence", 16, "--decoder_sequence", 8)
    said = measured_here("encoders.py", program, *ROUND, *words)
    for model in ("bert_base", "t5_base"):
        row = next(line for line in said.splitlines() if line.startswith(f"| {model} "))
        ours, theirs, ratio = (float(number) for number in re.findall(r"\| (\d+\.\d+) \(", row))
        assert ours > 0 and theirs > 0 and ratio > 0, row


def test_pictures_beside_diffusers(measured_here, program):
    pytest.importorskip("diffusers")
    words = ("--tiny", "--peers", "eager", "--dtypes", "fp32", "--batch", 2, "--image_size", 64, "--text_length", 8)
    row = next(line for line in measured_here("flux.py", program, *ROUND, *words).splitlines() if line.startswith("| fp32 "))
    assert all(float(number) > 0 for number in re.findall(r"\| (\d+\.\d+) \(", row)), row


def test_ten_photographs_are_learnt_and_drawn(measured_here, program, tmp_path):
    pytest.importorskip("diffusers")
    image = pytest.importorskip("PIL.Image")
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    for number, name in enumerate(("Aqua", "Dune")):
        image.linear_gradient("L").convert("RGB").rotate(90 * number).save(photographs / f"{name}.jpg")
    said = measured_here("flux_photographs.py", program, "--tiny", "--folder", tmp_path / "work", "--photographs", photographs)
    assert re.search(r"^\| Dune \| \d+\.\d dB \|", said, re.MULTILINE), said
    assert image.open(tmp_path / "work" / "photographs.png").size == (2 * 36, 2 * 36)


def test_adapters_beside_peft(program, tmp_path):
    pytest.importorskip("peft")
    config = tmp_path / "tiny.yaml"
    config.write_text(LLAMA)
    said = measured("adapters.py", program, *ROUND, "--config", config, "--peers", "peft", "--batch", 2, "--sequence", 16, "--fp32")
    for name in ("megalith", "peft", "megalith, full"):
        row = next(line for line in said.splitlines() if line.startswith(f"| {name} "))
        assert all(int(rate) > 0 for rate in re.findall(r"\| +(\d+) ", row)), row
    assert re.search(r"as they come: \d+\.\d\d \(", said)


def test_generation_beside_transformers(measured_here, program, tmp_path):
    pytest.importorskip("transformers")
    config = tmp_path / "tiny.yaml"
    config.write_text(LLAMA)
    words = ("--config", config, "--batches", 2, "--prompt", 4, "--tokens", 4, "--fp32")
    row = next(line for line in measured_here("generation.py", program, *ROUND[:2], *words).splitlines() if line.startswith("| 2 |"))
    assert all(float(number) > 0 for number in re.findall(r"\| (\d+\.\d+) \(", row)), row


def test_finetuning_beside_trl(measured_here, program, tmp_path):
    pytest.importorskip("trl")
    config = tmp_path / "tiny.yaml"
    config.write_text(LLAMA)
    said = measured_here("finetuning.py", program, *ROUND, "--config", config, "--sequence", 32, "--fp32", "--methods", "lora", "dpo")
    for method in ("lora", "dpo"):
        row = next(line for line in said.splitlines() if line.startswith(f"| {method} |"))
        assert all(float(number) > 0 for number in re.findall(r"\| (\d+) \(", row)), row
