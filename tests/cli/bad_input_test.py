"""Wrong configuration, data and checkpoints: each is refused with exit code 2 and a message that names what is wrong."""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import hf_models
import indexed_data
import numpy as np
import pytest
import torch
from refusals import refused
from rows import read_rows

# A model that could be trained; what is added to it is wrong.
SHAPE = (
    *("--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4, "--vocab_size", 131),
    *("--max_position_embeddings", 64, "--swiglu", "--normalization", "RMSNorm", "--position_embedding_type", "rope"),
    *("--disable_bias_linear", "--device", "cpu"),
)
MODEL = (*SHAPE, "--seq_length", 32)
MOCK = (*MODEL, "--mock_data")
T5 = (*MOCK, "--model_type", "t5", "--position_embedding_type", "relative")
PP2 = ("--dry_run", "--dry_run_world_size", 2, "--pipeline_model_parallel_size", 2)
TP2 = ("--dry_run", "--dry_run_world_size", 2, "--tensor_model_parallel_size", 2)

NAMES = {"SHAPE": SHAPE, "MODEL": MODEL, "MOCK": MOCK, "T5": T5, "PP2": PP2, "TP2": TP2}
OPTIONS = read_rows(Path(__file__).with_name("refused_options.txt"), 3, splits=(1,), names=NAMES)


@pytest.mark.parametrize("what, words, parts", OPTIONS, ids=[row[0] for row in OPTIONS])
def test_wrong_options_are_refused(what, words, parts, program, tmp_path):
    refused(program, words, parts.split(" ; "), tmp_path)
    assert not list(tmp_path.iterdir()), "something was written"


def test_all_that_is_wrong_is_told_at_once(program, tmp_path):
    errors = refused(
        *(program, ("train", *MOCK, "--seq_length", 65, "--micro_batch_size", 4, "--global_batch_size", 6, "--min_lr", 1)),
        *(["seq_length 65", "global_batch_size 6", "min_lr"], tmp_path),
    )
    assert errors.count("error: ") >= 3


FILES = [
    ("unknown key", "num_layers: 2\nmicro_batchsize: 4\n", [":2", "micro_batchsize", "micro_batch_size"]),
    ("not YAML", "num_layers: [2\nhidden_size: }\n", ["not valid YAML"]),
    ("a list", "- num_layers\n- 2\n", ["map"]),
    ("a map for a value", "num_layers:\n  deep: 2\n", ["num_layers"]),
    ("extends what is not there", "extends: base.yaml\nnum_layers: 2\n", [":1", "base.yaml"]),
    ("extends itself", "extends: [wrong.yaml]\nnum_layers: 2\n", ["wrong.yaml"]),
    ("unset variable", "num_layers: ${MEGALITH_TEST_UNSET}\n", ["MEGALITH_TEST_UNSET"]),
    ("not a number", "num_layers: 2\nhidden_size: wide\n", [":2", "hidden_size", "wide"]),
]


def test_memory_that_cannot_be_had_is_told_without_a_stack(program, tmp_path):
    # An embedding of 8.2 GB in an address space of 8 GB: refused by the allocator, or before it where the machine has less.
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (8 * 10**9, 8 * 10**9))
    words = ("train", *MOCK, "--hidden_size", 1024, "--vocab_size", 2_000_000, "--train_iters", 1)
    code, _, errors = program.run(*words, expected=None, timeout=120, cwd=tmp_path, preexec_fn=limit)
    assert code in (1, 2) and "error: " in errors and "frame #" not in errors, errors


@pytest.mark.parametrize("what, text, parts", FILES, ids=[what for what, _, _ in FILES])
def test_wrong_configuration_files_are_refused(what, text, parts, program, tmp_path):
    (tmp_path / "wrong.yaml").write_text(text)
    refused(program, ("train", "--config", "wrong.yaml", "--mock_data"), ["wrong.yaml", *parts], tmp_path)


def cut(path, num_bytes):
    path.write_bytes(path.read_bytes()[:-num_bytes])


def overwrite(path, offset, raw):
    content = bytearray(path.read_bytes())
    content[offset : offset + len(raw)] = raw
    path.write_bytes(content)


def become_pipe(path):
    """Whoever opens it waits for a writer, who never comes."""
    path.unlink()
    os.mkfifo(path)


def wrong_length(prefix):
    overwrite(prefix.with_suffix(".idx"), 34, np.int32(-5).tobytes())


def huge_count(prefix):
    overwrite(prefix.with_suffix(".idx"), 18, np.uint64(2**62).tobytes())


def foreign_ids(prefix):
    indexed_data.write(prefix, [np.array([1, 2, 3, 4000] * 30)])


DATA = [
    (".bin is cut", lambda prefix: cut(prefix.with_suffix(".bin"), 10), ["data.bin", "10 bytes shorter"]),
    (".idx is cut", lambda prefix: cut(prefix.with_suffix(".idx"), 9), ["data.idx"]),
    (".idx is something else", lambda prefix: prefix.with_suffix(".idx").write_bytes(b"x" * 100), ["data.idx", "MMIDIDX"]),
    (".idx is empty", lambda prefix: prefix.with_suffix(".idx").write_bytes(b""), ["data.idx"]),
    (".bin is missing", lambda prefix: prefix.with_suffix(".bin").unlink(), ["data.bin"]),
    (".bin is a pipe", lambda prefix: become_pipe(prefix.with_suffix(".bin")), ["data.bin", "pipe"]),
    (".idx is a pipe", lambda prefix: become_pipe(prefix.with_suffix(".idx")), ["data.idx", "pipe"]),
    ("unknown token type", lambda prefix: overwrite(prefix.with_suffix(".idx"), 17, b"\x2a"), ["data.idx", "42"]),
    ("newer version", lambda prefix: overwrite(prefix.with_suffix(".idx"), 9, b"\x07"), ["data.idx", "version 7"]),
    ("negative length", wrong_length, ["data.idx", "-5"]),
    ("impossible count", huge_count, ["data.idx"]),
    ("ids beyond the vocabulary", foreign_ids, ["4000", "131"]),
]


@pytest.mark.parametrize("what, spoil, parts", DATA, ids=[what for what, _, _ in DATA])
def test_wrong_data_is_refused(what, spoil, parts, program, tmp_path):
    prefix = tmp_path / "data"
    indexed_data.write(prefix, indexed_data.random_documents(20, 131, seed=1))
    spoil(prefix)
    refused(program, ("train", *MODEL, "--data_path", prefix, "--split", "100,0,0", "--train_iters", 3), parts, tmp_path)


def test_empty_split_is_refused_at_once(program, tmp_path):
    # 20 documents at 999 to 1: the validation split gets none of them.
    indexed_data.write(tmp_path / "data", indexed_data.random_documents(20, 131, seed=1))
    words = ("train", *MODEL, "--data_path", "data", "--split", "999,1,0", "--train_iters", 3)
    refused(program, words, ["valid", "empty"], tmp_path)


def drop(key):
    return lambda weights: weights.pop(key)


def reshape(key):
    def change(weights):
        weights[key] = weights[key][:, :-1]

    return change


def keep_config(**values):
    return lambda config: config.update(values)


def without(key):
    return lambda config: config.pop(key)


KEY = "model.layers.1.self_attn.k_proj.weight"
HF_FOLDERS = [
    ("missing tensor", None, drop(KEY), [KEY]),
    ("unexpected tensor", None, lambda weights: weights.update({"model.layers.9.odd": torch.ones(2)}), ["model.layers.9.odd"]),
    ("wrong shape", None, reshape(KEY), [KEY, "63"]),
    ("other architecture", keep_config(model_type="rwkv", architectures=["RwkvForCausalLM"]), None, ["config.json", "rwkv"]),
    ("other rope scaling", keep_config(rope_scaling={"rope_type": "yarn", "factor": 4.0}), None, ["config.json", "yarn"]),
    ("other activation", keep_config(hidden_act="gelu"), None, ["config.json", "hidden_act", "gelu"]),
    ("missing size", without("hidden_size"), None, ["config.json", "hidden_size"]),
    ("size that is a word", keep_config(hidden_size="wide"), None, ["config.json", "hidden_size"]),
    ("size near 2^63", keep_config(hidden_size=2**63 - 1), None, ["config.json", "hidden_size is 9223372036854775807", "1048576"]),
    ("size beyond 2^63", keep_config(vocab_size=2**64 - 1), None, ["config.json", "vocab_size", "18446744073709551615"]),
    ("as many layers", keep_config(num_hidden_layers=2**31), None, ["config.json", "num_hidden_layers is 2147483648", "4096"]),
    ("sizes that do not divide", keep_config(num_key_value_heads=3), None, ["3"]),
]


@pytest.mark.parametrize("what, config, weights, parts", HF_FOLDERS, ids=[row[0] for row in HF_FOLDERS])
def test_wrong_hugging_face_folders_are_refused(what, config, weights, parts, program, models, tmp_path):
    hf_models.changed_copy(models["llama"].folder, tmp_path / "model", config, weights)
    refused(program, ("evaluate", "--load_hf", "model", "--mock_data", "--seq_length", 16), parts, tmp_path)


HF_FILES = [
    ("config.json is cut", lambda folder: cut(folder / "config.json", 40), ["config.json", "JSON"]),
    ("config.json is missing", lambda folder: (folder / "config.json").unlink(), ["config.json"]),
    ("weights are cut", lambda folder: cut(folder / "model.safetensors", 100), ["model.safetensors"]),
    ("weights are missing", lambda folder: (folder / "model.safetensors").unlink(), ["safetensors"]),
    ("config.json is a pipe", lambda folder: become_pipe(folder / "config.json"), ["config.json", "pipe"]),
    ("weights are a pipe", lambda folder: become_pipe(folder / "model.safetensors"), ["model.safetensors", "pipe"]),
    ("header is not JSON", lambda folder: overwrite(folder / "model.safetensors", 9, b"}}}}"), ["model.safetensors"]),
    ("header is endless", lambda folder: overwrite(folder / "model.safetensors", 0, b"\xff" * 7), ["model.safetensors", "header"]),
]


@pytest.mark.parametrize("what, spoil, parts", HF_FILES, ids=[row[0] for row in HF_FILES])
def test_spoilt_hugging_face_files_are_refused(what, spoil, parts, program, models, tmp_path):
    spoil(hf_models.changed_copy(models["llama"].folder, tmp_path / "model"))
    refused(program, ("evaluate", "--load_hf", "model", "--mock_data", "--seq_length", 16), parts, tmp_path)


PROMPTS = [
    ("id beyond the vocabulary", ("--prompt_ids", "1,131"), ["131"]),
    ("negative id", ("--prompt_ids", "1,-4"), ["-4"]),
    ("too many tokens", ("--prompt_ids", "1,2,3", "--max_new_tokens", 126), ["max_position_embeddings 128", "125"]),
    ("no prompt at all", (), ["prompt"]),
    ("text without a tokenizer", ("--prompt", "hello"), ["tokenizer"]),
]


@pytest.mark.parametrize("what, words, parts", PROMPTS, ids=[row[0] for row in PROMPTS])
def test_wrong_prompts_are_refused(what, words, parts, program, models, tmp_path):
    refused(program, ("generate", "--load_hf", models["llama"].folder, "--print_ids", *words), parts, tmp_path)


@pytest.fixture(scope="module")
def checkpoint(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    program.run("train", *MOCK, "--train_iters", 2, "--eval_iters", 0, "--save", folder / "checkpoint", "--save_interval", 1)
    return folder / "checkpoint"


def copies(checkpoint, target):
    shutil.copytree(checkpoint, target)
    return sorted(path for path in target.iterdir() if path.is_dir())


def resume(*more):
    return ("train", *MOCK, "--train_iters", 3, "--eval_iters", 0, "--load", "checkpoint", *more)


def biggest_file(folder):
    return max(folder.rglob("*.safetensors"), key=lambda path: path.stat().st_size)


def test_damaged_checkpoints_are_refused_when_none_is_intact(checkpoint, program, tmp_path):
    for folder in copies(checkpoint, tmp_path / "checkpoint"):
        file = biggest_file(folder)
        overwrite(file, file.stat().st_size - 8, b"\x55\xaa\x55\xaa")
    refused(program, resume(), ["no intact checkpoint"], tmp_path)


@pytest.mark.parametrize("pattern", ["checkpoint.json", "*model*.safetensors", "*exp_avg*.safetensors"])
def test_checkpoints_with_a_pipe_for_a_file_are_passed_over_or_refused(pattern, checkpoint, program, tmp_path):
    *older, newest = copies(checkpoint, tmp_path / "checkpoint")
    become_pipe(next(newest.rglob(pattern)))
    _, output, errors = program.run("inspect", "checkpoint", newest, expected=1, timeout=60, cwd=tmp_path)
    assert "pipe" in output + errors
    _, output, errors = program.run(*resume(), cwd=tmp_path, timeout=60)
    assert newest.name in errors + output
    for folder in older:
        become_pipe(next(folder.rglob(pattern)))
    refused(program, resume(), ["pipe"], tmp_path)


def test_configuration_may_come_through_a_pipe(program, tmp_path):
    (tmp_path / "run.yaml").write_text("num_layers: 2\nhidden_size: 0\n")
    script = f"{program.path} train --config <(cat run.yaml) --mock_data --dry_run"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "hidden_size is 0" in done.stderr, done.stderr


def test_damaged_newest_checkpoint_is_passed_over_aloud(checkpoint, program, tmp_path):
    newest = copies(checkpoint, tmp_path / "checkpoint")[-1]
    cut(biggest_file(newest), 4)
    _, output, errors = program.run(*resume(), cwd=tmp_path)
    assert newest.name in errors + output


def test_checkpoint_of_a_missing_iteration_is_refused(checkpoint, program, tmp_path):
    copies(checkpoint, tmp_path / "checkpoint")
    refused(program, resume("--ckpt_step", 7), ["7", "ckpt_step"], tmp_path)


def test_checkpoint_of_another_architecture_is_refused(checkpoint, program, tmp_path):
    copies(checkpoint, tmp_path / "checkpoint")
    refused(program, resume("--hidden_size", 32), ["hidden_size"], tmp_path)


def test_broken_json_lines_are_refused_when_nothing_is_left(program, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": \n{"other": "x"}\n' + json.dumps({"text": 5}) + "\n")
    refused(program, ("prepare", "--input", "texts.jsonl", "--output_prefix", "out"), ["texts.jsonl"], tmp_path)
    assert not list(Path(tmp_path).glob("out*"))
