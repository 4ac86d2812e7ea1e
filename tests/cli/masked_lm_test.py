"""Masked-LM training of a small encoder on plain token files: it learns, is evaluated, and goes on to the same bits."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from program import read_metrics

ROOT = Path(__file__).resolve().parents[2]
ITERATIONS = 240
MASK = 257  # the byte tokenizer has 256 bytes and an end of document

# Dropout, so that a lost generator would be seen; a global batch of two microbatches.
ENCODER = (
    *("--task", "masked_lm", "--is_causal", "false", "--mask_token_id", MASK, "--vocab_size", 258),
    *("--eos_token_ids", 256, "--num_layers", 2, "--hidden_size", 96, "--num_attention_heads", 4),
    *("--max_position_embeddings", 64, "--seq_length", 64, "--position_embedding_type", "rope", "--device", "cpu"),
    *("--hidden_dropout", 0.02, "--attention_dropout", 0.02),
)
TRAINING = (
    *("--micro_batch_size", 8, "--global_batch_size", 16, "--lr", 3e-3, "--lr_warmup_iters", 10),
    *("--train_iters", ITERATIONS, "--eval_interval", ITERATIONS, "--eval_iters", 4),
)


@pytest.fixture(scope="module")
def text(program, tmp_path_factory):
    """A text that stays as it is, as bytes: the licence."""
    folder = tmp_path_factory.mktemp("text")
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    paragraphs = [" ".join(part.split()) for part in licence.split("\n\n") if len(part) > 100]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": part}) + "\n" for part in paragraphs))
    program.run(
        *("prepare", "--input", folder / "text.jsonl", "--output_prefix", folder / "text"),
        *("--tokenizer_type", "ByteTokenizer", "--append_eod"),
    )
    return folder / "text_text_document"


def train(program, text, folder, *more, **options):
    return program.run(
        *("train", *ENCODER, *TRAINING, "--data_path", text, "--split", "90,10,0", "--data_cache_path", folder / "cache"),
        *("--save", folder / "checkpoint", "--load", folder / "checkpoint", "--metrics_file", folder / "metrics.jsonl"),
        *more,
        **options,
    )


def numbers(folder):
    lines = read_metrics(folder / "metrics.jsonl")
    return {line["iteration"]: (line["lm_loss"], line["grad_norm"]) for line in lines if "grad_norm" in line}


@pytest.fixture(scope="module")
def straight(program, text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    _, output, _ = train(program, text, folder)
    return folder, output


def test_the_loss_of_masked_tokens_falls(straight, program, text):
    folder, output = straight
    losses = [loss for _, (loss, _) in sorted(numbers(folder).items())]
    assert len(losses) == ITERATIONS
    # At first every byte is as likely as the others.
    assert abs(losses[0] - math.log(258)) < 0.3, losses[0]
    # Better than any guess from the frequencies of bytes: 2.97 where those give 3.13. Its neighbours are of use.
    counts = Counter()
    for line in (text.parent / "text.jsonl").read_text(encoding="utf-8").splitlines():
        counts.update(json.loads(line)["text"].encode())
    total = sum(counts.values())
    of_frequencies = -sum(count / total * math.log(count / total) for count in counts.values())
    assert sum(losses[-10:]) / 10 < of_frequencies - 0.05, (losses[-10:], of_frequencies)
    assert "validation loss" in output
    _, printed, _ = program.run(
        *("evaluate", *ENCODER, "--load", folder / "checkpoint", "--data_path", text, "--split", "90,10,0"),
        *("--data_cache_path", folder / "cache", "--eval_split", "valid", "--eval_iters", 8, "--micro_batch_size", 8),
    )
    result = json.loads(printed)
    # About 15 % of the tokens are predicted.
    assert 0.1 * 64 * 64 < result["tokens"] < 0.2 * 64 * 64, result
    assert result["loss"] < 3.5, result


def test_a_resumed_run_equals_one_in_one_go(straight, program, text, tmp_path):
    train(program, text, tmp_path, "--exit_interval", 50)
    assert max(numbers(tmp_path)) == 50
    train(program, text, tmp_path, "--exit_interval", 60)
    expected = numbers(straight[0])
    assert numbers(tmp_path) == {iteration: expected[iteration] for iteration in range(1, 61)}


WRONG = [
    ("a causal encoder", ("--is_causal", "true"), ["masked_lm", "is_causal"]),
    ("a causal task", ("--task", "causal_lm"), ["causal_lm", "is_causal"]),
    ("a mask beyond the vocabulary", ("--mask_token_id", 258), ["mask_token_id is 258", "vocab_size is 258"]),
    ("a masked end of documents", ("--eod_mask_loss",), ["eod_mask_loss", "masked_lm"]),
    ("no text to write", ("--sample_interval", 5, "--sample_prompt_ids", "1,2"), ["sample_interval", "writes no text"]),
    ("nothing to mask", ("--mask_prob", 0), ["mask_prob"]),
    ("modules that see ahead", ("--mtp_num_layers", 1), ["mtp_num_layers", "is_causal"]),
]


@pytest.mark.parametrize("what, words, parts", WRONG, ids=[row[0] for row in WRONG])
def test_what_cannot_work_is_refused(what, words, parts, program, text, tmp_path):
    _, _, errors = train(program, text, tmp_path, *words, expected=2)
    for part in parts:
        assert part in errors, errors


def test_an_encoder_writes_no_text_and_has_no_hugging_face_class(straight, program, tmp_path):
    folder, _ = straight
    _, _, errors = program.run(
        *("generate", "--load", folder / "checkpoint", "--prompt_ids", "1,2,3", "--print_ids", "--device", "cpu"),
        expected=2,
    )
    assert "is_causal false" in errors
    words = ("--mock_data", "--save_hf", tmp_path / "hf", "--swiglu", "--normalization", "RMSNorm", "--disable_bias_linear")
    _, _, errors = program.run("train", *ENCODER, "--train_iters", 1, *words, expected=2)
    assert "no Hugging Face class has this architecture" in errors
