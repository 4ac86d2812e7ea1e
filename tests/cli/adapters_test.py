"""Low-rank adapters by the program: a frozen model, small checkpoints, resuming to the bit, every layout."""

import json
import math
import re
import shutil

import pytest
from program import read_metrics
from run_files import TINY
from safetensors.torch import load_file, save_file

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
        (("--lora.init_lora_weights", "eva"), "lora.init_lora_weights is eva"),
        (("--lora.init_lora_weights", "pissa", "--lora.lora_A_init_method", "normal"), "both say how a matrix begins"),
        (("--lora.init_lora_weights", "pissa", "--lora.quantization", "nf4"), "weights in four bits are not decomposed"),
        (("--lora.rank_pattern", "q_proj"), "'q_proj' is not a name, '=' and a rank"),
        (("--lora.rank_pattern", "q_proj=99"), "lora.rank_pattern is 99"),
        (("--lora.alpha_pattern", "o_proj=3"), "no layer with an adapter has a name that ends with 'o_proj'"),
        (("--lora.modules_to_save", "embedding"), "no module of the model has a name that ends with 'embedding'"),
        (("--lora.modules_to_save", "down_proj"), "mlp.down_proj, which has an adapter"),
        (("--lora.modules_to_save", "k_proj"), "only a part of"),
    ],
)
def test_what_cannot_be_is_refused(program, base, tmp_path, words, message):
    line = ("train", "--load_hf", base, "--mock_data", "--seq_length", 16, "--device", "cpu", *ADAPTERS, *words)
    _, _, errors = program.run(*line, expected=2, cwd=tmp_path)
    assert message in errors


def spoiled(source, target, value, name=".lora_B."):
    """A copy in which element [1, 2], or [1], of one tensor is the value."""
    shutil.copytree(source, target)
    (file,) = target.glob("*.safetensors")
    tensors = load_file(file)
    key = next(key for key in sorted(tensors) if name in key)
    tensors[key][(1, 2)[: tensors[key].dim()]] = value
    save_file(tensors, file, metadata={"format": "pt"})
    return key.removeprefix("base_model.model.")


def test_weights_that_are_no_numbers_are_refused_by_name(program, base, straight, tmp_path):
    run = ("--mock_data", "--seq_length", 16, "--device", "cpu", "--eval_iters", 1)
    key = spoiled(straight[0] / "adapter", tmp_path / "nan", math.nan)
    merge = ("convert", "--load_hf", base, "--merge_adapter", tmp_path / "nan", "--save_hf", tmp_path / "out")
    for words in (("evaluate", "--load_hf", base, "--adapter", tmp_path / "nan", *run), (*merge, "--check")):
        errors = program.run(*words, expected=2)[2]
        assert f"{key} is nan at [1, 2], and 1 of the " in errors and "--allow_nonfinite_weights" in errors, errors
    assert not (tmp_path / "out").exists()
    # Taken as they are, they agree with nothing.
    _, output, errors = program.run(*merge, "--check", "--allow_nonfinite_weights", expected=1)
    assert "agree to inf" in output and "error:" in errors, (output, errors)

    key = spoiled(base, tmp_path / "inf", -math.inf, "up_proj")
    for words in (("evaluate",), ("train", "--train_iters", 1)):
        errors = program.run(*words, "--load_hf", tmp_path / "inf", *run, expected=2)[2]
        assert f"{key} is -inf at [1, 2]" in errors, errors
    words = ("convert", "--load_hf", tmp_path / "inf", "--save", tmp_path / "saved")
    assert f"{key} is -inf at [1, 2]" in program.run(*words, expected=2)[2] and not (tmp_path / "saved").exists()
    program.run(*words, "--allow_nonfinite_weights")
    going_on = ("train", *run, "--train_iters", 1, "--no_load_optim")
    for words in (("evaluate", *run), ("convert", "--save_hf", tmp_path / "again"), going_on):
        errors = program.run(*words, "--load", tmp_path / "saved", expected=2)[2]
        assert f"{key} is -inf at [1, 2]" in errors, errors
    _, output, _ = program.run("evaluate", "--load", tmp_path / "saved", *run, "--allow_nonfinite_weights")
    assert math.isnan(json.loads(output)["loss"] or math.nan)


@pytest.mark.parametrize(
    "change",
    [
        *({"init_lora_weights": how} for how in ("pissa", "pissa_niter_4", "olora", "loftq", "corda", "eva")),
        {"fan_in_fan_out": True},
        *({"task_type": task} for task in ("SEQ_CLS", "TOKEN_CLS", "FEATURE_EXTRACTION")),
        {"alora_invocation_tokens": [1, 2]},
        {"a_key_of_tomorrow": 3},
    ],
    ids=lambda change: "_".join(str(value) for value in change.values()),
)
def test_what_would_be_another_model_in_peft_is_refused(change, program, base, straight, tmp_path):
    shutil.copytree(straight[0] / "adapter", tmp_path / "theirs")
    file = tmp_path / "theirs" / "adapter_config.json"
    config = json.loads(file.read_text())
    words = ("convert", "--load_hf", base, "--merge_adapter", tmp_path / "theirs", "--save_hf", tmp_path / "out")
    file.write_text(json.dumps({**config, **change}))
    errors = program.run(*words, expected=2)[2]
    (key,) = change
    assert f"{key}: {json.dumps(change[key], separators=(',', ':'))}" in errors and not (tmp_path / "out").exists(), errors
    assert ("path_initial_model_for_weight_conversion" in errors) == (key == "init_lora_weights")


def test_what_asks_for_nothing_is_read(program, base, straight, tmp_path):
    shutil.copytree(straight[0] / "adapter", tmp_path / "theirs")
    file = tmp_path / "theirs" / "adapter_config.json"
    unused = {"init_lora_weights": "gaussian", "task_type": None, "a_key_of_tomorrow": None, "another": {}, "third": False}
    file.write_text(json.dumps({**json.loads(file.read_text()), **unused}))
    program.run("convert", "--load_hf", base, "--merge_adapter", tmp_path / "theirs", "--save_hf", tmp_path / "out")


def test_adapters_of_the_other_kind_of_model_are_told_as_such(program, base, straight, tmp_path):
    pictures, drawn = tmp_path / "pictures", tmp_path / "drawn"
    shape = (
        *("--model_type", "diffusion_model", "--num_joint_layers", 1, "--num_single_layers", 1, "--hidden_size", 64),
        *("--num_attention_heads", 4, "--axes_dim", "4,4,8", "--context_dim", 32, "--vec_in_dim", 16),
    )
    run = ("--mock_data", "--image_size", 64, "--text_length", 8, "--train_iters", 1, "--eval_iters", 0, "--device", "cpu")
    program.run("train", *shape, *run, "--save_hf", pictures)
    program.run("train", "--load_hf", pictures, *run, "--lora.enabled", "true", "--lora.dim", 4, "--save_adapter", drawn)
    text, out = straight[0] / "adapter", ("--save_hf", tmp_path / "out")
    for words, said in (
        (("train", "--load_hf", pictures, *run, "--adapter", text), "holds adapters of a language model"),
        (("convert", "--load_hf", pictures, "--merge_adapter", text, *out), "holds adapters of a language model"),
        (("generate", "--load_hf", base, "--adapter", drawn, "--prompt_ids", 1), "holds adapters of a model of pictures"),
        (("convert", "--load_hf", base, "--merge_adapter", drawn, *out), "holds adapters of a model of pictures"),
    ):
        errors = program.run(*words, expected=2)[2]
        assert said in errors and "missing" not in errors, errors
    # And what draws needs more than its transformer.
    words = ("generate", "--load_hf", pictures, "--prompt", "a cat", "--output", tmp_path / "cat.png", "--device", "cpu")
    errors = program.run(*words, expected=2)[2]
    assert "no encoders are named" in errors and "--encoders.path" in errors, errors


@pytest.fixture(scope="module")
def starts(program, base, tmp_path_factory):
    """PiSSA with ranks of their own, a whole module beside it, noise in the embeddings."""
    more = ("--lora.init_lora_weights", "pissa", "--lora.rank_pattern", "q_proj=2", "--lora.modules_to_save", "norm,o_proj")
    more += ("--neftune_noise_alpha", 5)
    place = tmp_path_factory.mktemp("starts")
    errors = train(program, base, place, *more)[2]
    return place, more, errors


def test_starts_and_saved_modules_resume_to_the_bit(program, base, starts, tmp_path):
    place, more, errors = starts
    # q 2 x (16 + 16), v 4 x (16 + 16), down 4 x (16 + 32); norms 16 each, o 16 x 16.
    adapters, saved = 2 * (64 + 128 + 192), 16 + 2 * (2 * 16 + 16 * 16)
    assert f"adapters beside them have {adapters}, trained with {saved} of the model's" in re.sub(r"\s+", " ", errors), errors
    train(program, base, tmp_path, *more, "--exit_interval", 3)
    train(program, base, tmp_path, *more)
    assert losses(tmp_path) == losses(place)
    (file,) = (place / "saved").glob("iter_*/model.safetensors")
    names = set(re.findall(rb'"(model\.[a-zA-Z0-9_.]+)":', file.read_bytes()))
    assert sum(b"_start." in name for name in names) == 2 * 3 * 2 and b"model.norm.weight" in names
    assert b"model.layers.0.mlp.up_proj.weight" not in names


def test_saved_from_a_start_they_are_plain_adapters_of_twice_the_rank(program, base, starts, tmp_path):
    place, _, _ = starts
    config = json.loads((place / "adapter" / "adapter_config.json").read_text())
    patterns = {f"model.layers.{layer}.self_attn.q_proj": 4 for layer in range(2)}
    assert (config["r"], config["lora_alpha"], config["rank_pattern"]) == (8, 16, patterns)
    assert config["modules_to_save"] == ["norm", "o_proj"] and config["init_lora_weights"] is True

    def loss(*words):
        line = ("evaluate", *words, "--mock_data", "--seq_length", 16, "--eval_iters", 2, "--device", "cpu", "--fp32")
        return json.loads(program.run(*line, "--num_threads", 1)[1])["loss"]

    adapter = ("--adapter", place / "adapter")
    trained = loss("--load_hf", base, "--load", place / "saved")
    assert loss("--load_hf", base, *adapter) == pytest.approx(trained, abs=1e-5)
    merge = ("convert", "--load_hf", base, "--merge_adapter", place / "adapter", "--save_hf", tmp_path / "merged")
    program.run(*merge, "--dtype", "fp32", "--check")
    assert loss("--load_hf", tmp_path / "merged") == pytest.approx(trained, abs=1e-5)
    assert abs(loss("--load_hf", base) - trained) > 1e-3
    line = ("train", "--load_hf", base, *adapter, "--mock_data", "--seq_length", 16, "--lora.init_lora_weights", "pissa")
    assert "have begun" in program.run(*line, expected=2)[2]


def test_doctor_compares_their_layouts(program):
    line = ("doctor", "--parallel", *TINY[:-5], *ADAPTERS, "--tensor_model_parallel_size", 2, "--sequence_parallel")
    _, output, errors = program.run(*line, "--dry_run_world_size", 4)
    assert "agree with one rank" in output, output + errors


def test_latent_attention_has_no_fused_queries(program, tmp_path):
    line = ("train", "--config", "deepseek_v2_lite", "--mock_data", "--dry_run", "--device", "cpu", "--lora.enabled")
    _, output, errors = program.run(*line, cwd=tmp_path)
    assert "adapters go to linear_proj, linear_fc1, linear_fc2 only" in output + errors
    _, _, errors = program.run(*line, "--lora.target_modules", "linear_qkv", expected=2, cwd=tmp_path)
    assert "no linear layer of the model is 'linear_qkv'" in errors
