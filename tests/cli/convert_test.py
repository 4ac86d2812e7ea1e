"""`megalith convert`: what goes through it comes back bit for bit, and a run goes on from what it wrote."""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from program import read_metrics

STEPS = 6
MODEL = (
    *("--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4, "--ffn_hidden_size", 48, "--vocab_size", 131),
    *("--group_query_attention", "--num_query_groups", 2, "--max_position_embeddings", 32, "--swiglu"),
    *("--normalization", "RMSNorm", "--position_embedding_type", "rope", "--disable_bias_linear"),
)
RUN = ("--mock_data", "--seq_length", 16, "--micro_batch_size", 2, "--lr", 1e-2, "--eval_iters", 0, "--device", "cpu")


def train(program, folder, *more, **options):
    return program.run("train", *MODEL, *RUN, "--metrics_file", folder / "metrics.jsonl", *more, **options)


@pytest.fixture(scope="module", params=["tied", "untied"])
def trained(request, program, tmp_path_factory):
    """A checkpoint of a bf16 run after STEPS steps, and the Hugging Face folder that the run itself exported."""
    folder = tmp_path_factory.mktemp(request.param)
    tying = ("--untie_embeddings_and_output_weights",) if request.param == "untied" else ()
    train(program, folder, *tying, "--bf16", "--train_iters", STEPS, "--save", folder / "run", "--save_hf", folder / "hf")
    return folder, tying


def agreement(output):
    return float(output.split("agree to ")[1].split()[0])


def tensors(folder):
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found[file.name] = file.read_bytes()
    assert found
    return found


def test_a_checkpoint_becomes_the_folder_that_the_run_exported(trained, program, tmp_path):
    folder, _ = trained
    _, output, _ = program.run("convert", "--load", folder / "run", "--save_hf", tmp_path / "hf", "--check")
    assert 0 < agreement(output) < 0.05  # bf16 against the masters
    assert tensors(tmp_path / "hf") == tensors(folder / "hf")
    assert json.loads((tmp_path / "hf/config.json").read_text()) == json.loads((folder / "hf/config.json").read_text())


def test_an_end_of_text_that_cannot_occur_is_noted_and_left_out(trained, program, tmp_path):
    """As in GPT-2's files beside another vocabulary; transformers loads them."""
    shutil.copytree(trained[0] / "hf", tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs/config.json").read_text())
    (tmp_path / "theirs/config.json").write_text(json.dumps({**config, "eos_token_id": [7, 50256]}))
    note = "eos_token_id 50256 is not below vocab_size 131: it cannot occur, and ends no text"
    words = ("--prompt_ids", "1,2", "--print_ids", "--max_new_tokens", 4, "--device", "cpu")
    _, output, errors = program.run("generate", "--load_hf", tmp_path / "theirs", *words)
    assert note in errors
    assert len(output.split()) == 4 or output.split()[-1] == "7", output
    _, _, errors = program.run("convert", "--load_hf", tmp_path / "theirs", "--save_hf", tmp_path / "ours")
    assert note in errors
    assert json.loads((tmp_path / "ours/config.json").read_text())["eos_token_id"] == 7


def test_fp32_takes_the_master_weights(trained, program, tmp_path):
    folder, _ = trained
    _, output, _ = program.run(
        "convert", "--load", folder / "run", "--save_hf", tmp_path / "hf", "--dtype", "fp32", "--check"
    )
    assert agreement(output) == 0
    wide = load_file(tmp_path / "hf/model.safetensors")
    [checkpoint] = sorted((folder / "run").glob("iter_*"))
    masters = load_file(checkpoint / "master.safetensors")
    assert wide.keys() == masters.keys()
    assert all(np.array_equal(wide[name], masters[name]) for name in wide)


def test_there_and_back_is_the_same(trained, program, tmp_path):
    folder, _ = trained
    program.run("convert", "--load_hf", folder / "hf", "--save", tmp_path / "native", "--check")
    program.run("convert", "--load", tmp_path / "native", "--save_hf", tmp_path / "hf", "--check")
    assert tensors(tmp_path / "hf") == tensors(folder / "hf")


def test_a_narrower_dtype_is_measured_and_no_failure(trained, program, tmp_path):
    folder, _ = trained
    program.run("convert", "--load", folder / "run", "--save_hf", tmp_path / "wide", "--dtype", "fp32")
    _, output, _ = program.run(
        "convert", "--load_hf", tmp_path / "wide", "--save_hf", tmp_path / "narrow", "--dtype", "bf16", "--check"
    )
    assert 0 < agreement(output) < 0.05


def test_a_run_goes_on_from_a_rewritten_checkpoint(trained, program, tmp_path):
    folder, tying = trained
    program.run("convert", "--load", folder / "run", "--save", tmp_path / "copy", "--check")
    for source, name in ((folder / "run", "original"), (tmp_path / "copy", "rewritten")):
        (tmp_path / name).mkdir()
        train(program, tmp_path / name, *tying, "--bf16", "--train_iters", STEPS + 3, "--load", source)
    values = [[(line["lm_loss"], line["grad_norm"]) for line in read_metrics(tmp_path / name / "metrics.jsonl")]
              for name in ("original", "rewritten")]
    assert len(values[0]) == 3
    assert values[0] == values[1]


def test_the_check_notices_a_changed_weight(trained, program, tmp_path):
    """The figure follows the weights: two folders that differ in one of them do not agree."""
    folder, _ = trained
    program.run("convert", "--load_hf", folder / "hf", "--save_hf", tmp_path / "fp16", "--dtype", "fp32")
    weights = load_file(tmp_path / "fp16/model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] + np.float32(1e-3)  # below fp16's and bf16's precision at 1
    save_file(weights, tmp_path / "fp16/model.safetensors", {"format": "pt"})
    _, output, _ = program.run(
        "convert", "--load_hf", tmp_path / "fp16", "--save_hf", tmp_path / "rounded", "--dtype", "bf16", "--check"
    )
    assert agreement(output) > 1e-4


WRONG = {
    "nothing to read": (("--save", "x"), "nothing to read is given"),
    "both to read": (("--load", "a", "--load_hf", "b", "--save", "x"), "load and load_hf are both given"),
    "nowhere to write": (("--load", "a"), "nowhere to write is given"),
    "no checkpoint": (("--load", "absent", "--save", "x"), "absent holds no checkpoint"),
    "no folder": (("--load_hf", "absent", "--save", "x"), "absent"),
    "dtype unknown": (("--load", "a", "--save_hf", "x", "--dtype", "int3"), "dtype is 'int3'"),
    "dtype of a checkpoint": (("--load", "a", "--save", "x", "--dtype", "bf16"), "a checkpoint keeps the dtypes"),
    "step of a folder": (("--load_hf", "a", "--save", "x", "--ckpt_step", 3), "load_hf has no iterations"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name, program, tmp_path):
    words, message = WRONG[name]
    _, _, errors = program.run("convert", *words, expected=2, cwd=tmp_path)
    assert message in errors
    assert os.listdir(tmp_path) == []


def test_a_folder_with_a_missing_tensor_is_refused_and_nothing_written(trained, program, tmp_path):
    folder, _ = trained
    program.run("convert", "--load_hf", folder / "hf", "--save_hf", tmp_path / "hf", "--dtype", "fp32")
    weights = load_file(tmp_path / "hf/model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "hf/model.safetensors", {"format": "pt"})
    _, _, errors = program.run("convert", "--load_hf", tmp_path / "hf", "--save", tmp_path / "native", expected=2)
    assert "1 missing: model.layers.1.mlp.up_proj.weight" in errors
    assert not (tmp_path / "native").exists()
