"""The comparisons of benchmarks/ run at tiny sizes: each prints a row of numbers of every program."""

import os
import re
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


def measured(script, program, *words, steps=("--steps", "3")):
    command = [sys.executable, BENCHMARKS / script, "--program", program.path, "--rounds", "1", *steps, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_encoders_beside_transformers(program):
    pytest.importorskip("transformers")
    words = ("--tiny", "--peers", "eager", "--dtypes", "fp32", "--batch", 2, "--sequence", 16, "--decoder_sequence", 8)
    said = measured("encoders.py", program, *words)
    for model in ("bert_base", "t5_base"):
        row = next(line for line in said.splitlines() if line.startswith(f"| {model} "))
        ours, theirs, ratio = (float(number) for number in re.findall(r"\| (\d+\.\d+) \(", row))
        assert ours > 0 and theirs > 0 and ratio > 0, row


def test_pictures_beside_diffusers(program):
    pytest.importorskip("diffusers")
    words = ("--tiny", "--peers", "eager", "--dtypes", "fp32", "--batch", 2, "--image_size", 64, "--text_length", 8)
    row = next(line for line in measured("flux.py", program, *words).splitlines() if line.startswith("| fp32 "))
    assert all(float(number) > 0 for number in re.findall(r"\| (\d+\.\d+) \(", row)), row


def test_ten_photographs_are_learnt_and_drawn(program, tmp_path):
    pytest.importorskip("diffusers")
    image = pytest.importorskip("PIL.Image")
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    for number, name in enumerate(("Aqua", "Dune")):
        image.linear_gradient("L").convert("RGB").rotate(90 * number).save(photographs / f"{name}.jpg")
    words = [BENCHMARKS / "flux_photographs.py", "--program", program.path, "--tiny", "--folder", tmp_path / "work"]
    done = subprocess.run([sys.executable, *map(str, words), "--photographs", str(photographs)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^\| Dune \| \d+\.\d dB \|", done.stdout, re.MULTILINE), done.stdout
    assert image.open(tmp_path / "work" / "photographs.png").size == (2 * 36, 2 * 36)


def test_adapters_beside_peft(program, tmp_path):
    pytest.importorskip("peft")
    config = tmp_path / "tiny.yaml"
    config.write_text(LLAMA)
    said = measured("adapters.py", program, "--config", config, "--peers", "peft", "--batch", 2, "--sequence", 16, "--fp32")
    for name in ("megalith", "peft", "megalith, full"):
        row = next(line for line in said.splitlines() if line.startswith(f"| {name} "))
        assert all(int(rate) > 0 for rate in re.findall(r"\| +(\d+) ", row)), row
    assert re.search(r"as they come: \d+\.\d\d \(", said)


def test_generation_beside_transformers(program, tmp_path):
    pytest.importorskip("transformers")
    config = tmp_path / "tiny.yaml"
    config.write_text(LLAMA)
    words = ("--config", config, "--batches", 2, "--prompt", 4, "--tokens", 4, "--fp32")
    row = next(line for line in measured("generation.py", program, *words, steps=()).splitlines() if line.startswith("| 2 |"))
    assert all(float(number) > 0 for number in re.findall(r"\| (\d+\.\d+) \(", row)), row
