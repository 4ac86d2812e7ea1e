"""examples/finetune: rows of YAML files, and the way from a model to one that answers better; docs/finetune_example.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="PyYAML is missing")
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "finetune"
TINY = ("--num_layers", 1, "--hidden_size", 32, "--num_attention_heads", 2, "--num_query_groups", 2, "--ffn_hidden_size", 64)


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Files as the package chatterbot-corpus has them: two parts, a question that comes twice, one without an answer, a long one."""
    folder = tmp_path_factory.mktemp("chats")
    sums = [[f"what is {a} and {b}", str(a + b), "thank you"] for a in range(1, 6) for b in range(1, 6)]
    colours = [["What is blue?", "the sky\n  and the sea"], ["what is 1 and 1", "two"], ["nobody knows"], ["tell me all", "x" * 300]]
    for name, conversations in (("sums", sums), ("colours", colours)):
        (folder / f"{name}.yml").write_text(json.dumps({"categories": [name], "conversations": conversations}))
    return folder


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_first_questions_and_answers_each_once(chats, tmp_path):
    subprocess.run([sys.executable, FOLDER / "make_chats.py", tmp_path, chats], check=True, capture_output=True, timeout=60)
    train, valid = rows(tmp_path / "train.jsonl"), rows(tmp_path / "valid.jsonl")
    assert len(train) + len(valid) == 26 and len(valid) == 2
    assert train[0] == {"prompt": "Q: What is blue?\nA:", "completion": " the sky and the sea"}
    assert train[1] == {"prompt": "Q: what is 1 and 1\nA:", "completion": " two"}
    assert len({row["prompt"] for row in train + valid}) == 26


def test_too_few_rows_are_an_error(tmp_path):
    done = subprocess.run([sys.executable, FOLDER / "make_chats.py", tmp_path, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "0 questions with answers" in done.stderr


@pytest.mark.parametrize("adapters", (False, True), ids=("full", "lora"))
def test_the_held_out_loss_falls(adapters, program, chats, tmp_path):
    base = tmp_path / "base"
    words = ("--config", "demo", *TINY, "--vocab_size", 257, "--tokenizer_type", "ByteTokenizer", "--mock_data", "--seq_length", 32)
    program.run("train", *words, "--train_iters", 1, "--lr_warmup_iters", 0, "--eval_iters", 0, "--device", "cpu", "--save", base)
    lora = ("--lora.enabled", "true", "--lora.dim", 8, "--lora.target_modules", "all-linear") if adapters else ()
    options = ("--train_iters", 30, "--lr", 3e-2 if adapters else 1e-2, "--eval_iters", 1, "--device", "cpu", *lora)
    done = subprocess.run(
        ["sh", str(FOLDER / "run.sh"), str(program.path), str(base), str(tmp_path / "out"), *map(str, options)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "CHATS": str(chats)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    before, after = (json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("before", "after"))
    # Beside adapters the table and the head stay as they were drawn, so less can be learned.
    least = 0.3 if adapters else 1
    assert before["loss"] > 5 and after["loss"] < before["loss"] - least, (before, after)
    assert done.stdout.count("what is your favorite food?") == 2, "it answers before and after"
