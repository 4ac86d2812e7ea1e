"""Eight-bit training loses little beside bf16: benchmarks/fp8_parity.py, shortened."""

import argparse
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import fp8_parity  # noqa: E402

# Forty steps of a small model on text of a simple rule, which it learns: the loss falls to less than half. A run of eight
# bits rounds every operand to 2^-4 (E4M3) or 2^-3 (E5M2) of itself, in all directions alike, so its sums are some 2^-4 over
# the square root of their lengths off: 1 % with 64 terms. 5 % is five times that; a recipe whose gradients are lost or
# whose scales are wrong by a power of two that saturates learns nothing or diverges, 100 % off.
STEPS, BOUND = 40, 0.05


def test_each_recipe_ends_near_bf16(program, tmp_path):
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "abcdefgh" * (5 + n % 7)}) + "\n" for n in range(200)), encoding="utf-8")
    small = ("--num_layers", 2, "--hidden_size", 64, "--ffn_hidden_size", 128, "--num_attention_heads", 2)
    arguments = argparse.Namespace(
        program=program.path, text=text, steps=STEPS, lr=2e-3, threads=1, more=(*small, "--num_query_groups", 1, "--seq_length", 32)
    )
    rows = fp8_parity.compare(arguments, tmp_path)
    assert [row[0] for row in rows] == ["bf16", "fp32", "hybrid, tensorwise", "hybrid, delayed", "hybrid, blockwise"]
    assert rows[0][3] < 0.5 * 5.55  # of the first step: ln 257
    for what, _, of_whole, end, of_end in rows[1:]:
        assert of_whole == pytest.approx(1, abs=BOUND), what
        assert of_end == pytest.approx(1, abs=BOUND), what
        assert end != rows[0][3], what  # eight bits are felt, and so are sixteen
