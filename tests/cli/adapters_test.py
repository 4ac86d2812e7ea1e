"""Low-rank adapters by the program: a frozen model, small checkpoints, resuming to the bit, every layout."""

import json
import re
import shutil

import pytest
from program import read_metrics
from run_files import TINY

TARGETS = ("--lora.target_modules", "q_proj,v_proj,down_proj")
ADAPTERS = ("--lora.enabled", "true", "--lora.dim", 4, "--lora.alpha", 8, "--lora.dropout", 0.1, *TARGETS)
SHAPE = ("--num_layers", 2, "--train_iters", 8, "--lr", 5e-3, "--lr_decay_style", "constant", "--weight_decay", 0.1)


@pytest.fixture(scope="module")
def base(program, tmp_path_factory):
    """A model of a few steps, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("base") / "hf"
    program.run("train", *TINY, "--num_layers", 2, "--train_iters", 3, "--lr", 1e-2, "--save_hf", folder)
    return folder


def train(program, base, place, *more):
    words = ("--mock_data", "--seq_length", 16, "--eval_iters", 1, "--eval_interval", 4, "--device", "cpu", "--num_threads", 1)
    files = ("--metrics_file", place / "metrics.jsonl", "--save", place / "saved", "--load", place / "saved")
    files += ("--save_adapter", place / "adapter")
    return program.run("train", "--load_hf", base, *words, *SHAPE[2:], *ADAPTERS, *files, *more)


@pytest.fixture(scope="module")
def straight(program, base, tmp_path_factory):
    place = tmp_path_factory.mktemp("straight")
    before = {file.name: file.read_bytes() for file in base.iterdir()}
    _, _, errors = train(program, base, place)
    assert {file.name: file.read_bytes() for file in base.iterdir()} == before
    return place, errors


def losses(place):
    return {line["iteration"]: (line["lm_loss"], line["grad_norm"]) for line in read_metrics(place / "metrics.jsonl")}


def test_the_report_says_what_is_trained(straight):
    # 2 layers of 2 heads: q 16 x 16, v 16 x 16, down 16 x 32, each with A (4, in) and B (out, 4).
    count = 2 * (4 * (16 + 16) + 4 * (16 + 16) + 4 * (32 + 16))
    text = re.sub(r"\s+", " ", straight[1])
    assert f"adapters beside them have {count}, the only ones that are trained" in text, straight[1]


def test_a_checkpoint_holds_adapters_only(straight):
    (file,) = (straight[0] / "saved").glob("iter_*/model.safetensors")
    names = set(re.findall(rb'"(model\.[a-zA-Z0-9_.]+)":', file.read_bytes()))
    assert len(names) == 2 * 3 * 2 and all(b".lora_" in name for name in names), names


def test_stopped_and_resumed_it_has_the_same_bits(program, base, straight, tmp_path):
    # The model is read again at the second start: a frozen weight that had decayed before would show.
    train(program, base, tmp_path, "--exit_interval", 3)
    train(program, base, tmp_path)
    assert losses(tmp_path) == losses(straight[0])


def test_used_from_a_checkpoint_or_from_a_folder_they_are_the_same(program, base, straight):
    place = straight[0]

    def loss(*words):
        line = ("evaluate", "--load_hf", base, *words, "--mock_data", "--seq_length", 16, "--eval_iters", 2, "--device", "cpu")
        return json.loads(program.run(*line, "--num_threads", 1)[1])["loss"]

    # The form of the adapters is taken from where they are, or said again.
    trained = loss("--load", place / "saved")
    assert loss("--load", place / "saved", *ADAPTERS) == loss("--adapter", place / "adapter") == trained
    assert abs(loss() - trained) > 1e-3
    errors = program.run("evaluate", "--load_hf", base, *ADAPTERS, "--mock_data", "--device", "cpu", expected=2)[2]
    assert "--adapter" in errors and "--load" in errors


def test_adapters_of_another_base_are_refused(program, base, straight, tmp_path):
    other = tmp_path / "other"
    program.run("train", *TINY, "--num_layers", 2, "--train_iters", 4, "--lr", 1e-2, "--save_hf", other)
    place, words = straight[0], ("--mock_data", "--seq_length", 16, "--eval_iters", 1, "--device", "cpu")
    for used in (("--adapter", place / "adapter"), ("--load", place / "saved")):
        for command in ("evaluate", "train"):
            errors = program.run(command, "--load_hf", other, *used, *words, expected=2)[2]
            assert "trained beside another model" in errors, (command, used, errors)
    errors = program.run(
        "convert", "--load_hf", other, "--merge_adapter", place / "adapter", "--save_hf", tmp_path / "out", expected=2
    )[2]
    assert "trained beside another model" in errors and not (tmp_path / "out").exists()
    # The same weights in other files are the same base; without a checksum, as PEFT writes them, shapes decide.
    program.run("convert", "--load_hf", base, "--save", tmp_path / "native")
    program.run("convert", "--load", tmp_path / "native", "--save_hf", tmp_path / "again")
    program.run("evaluate", "--load_hf", tmp_path / "again", "--adapter", place / "adapter", *words)
    plain = tmp_path / "plain"
    shutil.copytree(place / "adapter", plain)
    (plain / "adapter_base.json").unlink()
    program.run("evaluate", "--load_hf", other, "--adapter", plain, *words)
    (plain / "adapter_base.json").write_text('{"base_checksum": "12"}')
    assert "is no checksum" in program.run("evaluate", "--load_hf", base, "--adapter", plain, *words, expected=2)[2]


def test_merged_they_give_what_they_gave_beside_the_model(program, base, straight, tmp_path):
    adapter = straight[0] / "adapter"
    merged = tmp_path / "merged"
    output = program.run("convert", "--load_hf", base, "--merge_adapter", adapter, "--save_hf", merged, "--check")[1]
    assert "6 matrices with the adapters taken out again" in output and "beside the model" in output

    def loss(*words):
        line = ("evaluate", *words, "--mock_data", "--seq_length", 16, "--eval_iters", 2, "--device", "cpu", "--fp32")
        return json.loads(program.run(*line)[1])["loss"]

    # The folder has the dtype of its base, so what was merged is rounded once.
    assert loss("--load_hf", merged) == pytest.approx(loss("--load_hf", base, "--adapter", adapter), abs=2e-3)
    several = tmp_path / "several"
    for name in ("first", "second"):
        shutil.copytree(adapter, several / name)
    for line, message in (
        (("--load_hf", base, "--merge_adapter", several, "--save_hf", tmp_path / "out"), "adapters first, second"),
        (("--load_hf", base, "--merge_adapter", adapter, "--save", tmp_path / "out"), "merge_adapter makes"),
    ):
        assert message in program.run("convert", *line, expected=2)[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lora.target_modules", "q_projj"), "no linear layer of the model is 'q_projj'"),
        (("--lora.target_modules", "(q_proj"), "is no regular expression"),
        (("--lora.dim", 99), "lora.dim is 99"),
        (("--lora.lora_A_init_method", "zero"), "both zero"),
        (("--save_hf", "out"), "save_hf writes a whole model"),
    ],
)
def test_what_cannot_be_is_refused(program, base, tmp_path, words, message):
    line = ("train", "--load_hf", base, "--mock_data", "--seq_length", 16, "--device", "cpu", *ADAPTERS, *words)
    _, _, errors = program.run(*line, expected=2, cwd=tmp_path)
    assert message in errors


def test_doctor_compares_their_layouts(program):
    line = ("doctor", "--parallel", *TINY[:-5], *ADAPTERS, "--tensor_model_parallel_size", 2, "--sequence_parallel")
    _, output, errors = program.run(*line, "--dry_run_world_size", 4)
    assert "agree with one rank" in output, output + errors
