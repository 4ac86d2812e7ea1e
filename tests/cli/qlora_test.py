"""Adapters beside a model in four bits, by the program: what is held and saved, resuming to the bit, what is refused."""

import json
import re

import pytest
from program import read_metrics
from run_files import TINY

QLORA = ("--lora.enabled", "true", "--lora.dim", 4, "--lora.target_modules", "all-linear", "--lora.quantization", "nf4")
WIDE = ("--hidden_size", 128, "--ffn_hidden_size", 256)


@pytest.fixture(scope="module")
def base(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "hf"
    program.run("train", *TINY, *WIDE, "--num_layers", 2, "--train_iters", 2, "--lr", 1e-2, "--save_hf", folder)
    return folder


def train(program, base, place, *more, **expected):
    words = ("--mock_data", "--seq_length", 16, "--eval_iters", 0, "--device", "cpu", "--num_threads", 1, "--train_iters", 6)
    files = ("--metrics_file", place / "metrics.jsonl", "--save", place / "saved", "--load", place / "saved")
    shape = ("--lr", 5e-3, "--lr_decay_style", "constant", "--micro_batch_size", 2, "--global_batch_size", 4)
    return program.run("train", "--load_hf", base, *words, *shape, *QLORA, *files, *more, **expected)


@pytest.fixture(scope="module")
def straight(program, base, tmp_path_factory):
    place = tmp_path_factory.mktemp("straight")
    train(program, base, place, "--save_adapter", place / "adapter")
    return place


def losses(place):
    return {line["iteration"]: (line["lm_loss"], line["grad_norm"]) for line in read_metrics(place / "metrics.jsonl")}


def test_stopped_and_resumed_it_has_the_same_bits(program, base, straight, tmp_path):
    train(program, base, tmp_path, "--exit_interval", 2)
    train(program, base, tmp_path)
    assert losses(tmp_path) == losses(straight)
    assert all(norm > 0 for _, norm in losses(straight).values())


def test_recomputation_changes_no_bit(program, base, straight, tmp_path):
    full = ("--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", 1)
    train(program, base, tmp_path, *full)
    assert losses(tmp_path) == losses(straight)


def test_checkpoints_hold_adapters_only(straight):
    (file, *_) = sorted((straight / "saved").glob("iter_*/model.safetensors"))
    names = set(re.findall(rb'"(model\.[a-zA-Z0-9_.]+)":', file.read_bytes()))
    assert names and all(b".lora_" in name for name in names), names


def test_adapters_serve_beside_four_bits_and_beside_the_model(program, base, straight, tmp_path):
    def loss(*words):
        line = ("evaluate", "--load_hf", base, *words, "--mock_data", "--seq_length", 16, "--eval_iters", 2, "--device", "cpu")
        return json.loads(program.run(*line, "--num_threads", 1)[1])["loss"]

    # A checkpoint says that its model is in four bits, a folder of adapters does not.
    packed = loss("--load", straight / "saved")
    assert loss("--adapter", straight / "adapter", "--lora.quantization", "nf4") == packed
    whole = loss("--adapter", straight / "adapter")
    assert whole != packed
    # Merging takes the model as its files have it.
    program.run("convert", "--load_hf", base, "--merge_adapter", straight / "adapter", "--save_hf", tmp_path / "merged")
    merged = json.loads(
        program.run(
            *("evaluate", "--load_hf", tmp_path / "merged", "--mock_data", "--seq_length", 16, "--eval_iters", 2),
            *("--device", "cpu", "--num_threads", 1),
        )[1]
    )["loss"]
    assert merged == pytest.approx(whole, abs=1e-4)


def parameter_bytes(program, *words):
    line = ("train", *TINY, "--hidden_size", 1024, "--ffn_hidden_size", 2048, "--bf16", "--dry_run", "--device", "cpu", *words)
    output = "".join(program.run(*line)[1:])
    number, unit = re.search(r"^\s+parameters\s+([\d.]+) (\w+)$", output, re.MULTILINE).groups()
    return float(number) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]


def test_the_memory_that_is_told_counts_four_bits(program):
    whole = parameter_bytes(program, *QLORA[:-2])
    packed = parameter_bytes(program, *QLORA)
    # Sixteen bits an element become 4.13; embedding, head and adapters stay.
    assert 0.2 < packed / whole < 0.5, (packed, whole)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--fp8_format", "hybrid"), ["lora.quantization is nf4", "fp8_format hybrid"]),
        (("--lora.enabled", "false"), ["lora.quantization is nf4", "lora.enabled is false"]),
        (("--lora.quantization", "int8"), ["lora.quantization", "none", "nf4"]),
    ],
)
def test_what_does_not_go_together_is_refused(words, parts, program, base, tmp_path):
    _, _, errors = train(program, base, tmp_path, *words, expected=2)
    for part in parts:
        assert part in errors, errors


def test_a_rank_that_would_begin_within_a_block_is_refused(program):
    words = ("--tensor_model_parallel_size", 4, "--num_attention_heads", 4, "--dry_run", "--dry_run_world_size", 4, "--device", "cpu")
    _, _, errors = program.run("train", *TINY, *WIDE, *QLORA, *words, expected=2)
    assert "o_proj" in errors and "4 parts of its 128 columns" in errors and "tensor_model_parallel_size" in errors, errors
