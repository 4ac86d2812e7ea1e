"""FLUX on made-up pictures: it learns, goes on to the same bits, says images a second, and evaluates at fixed shares of noise."""

import json
import re

import pytest
from program import read_metrics

SHAPE = (
    *("--model_type", "diffusion_model", "--num_joint_layers", 1, "--num_single_layers", 2, "--hidden_size", 64),
    *("--num_attention_heads", 4, "--axes_dim", "4,4,8", "--context_dim", 32, "--vec_in_dim", 16, "--guidance_embed"),
)
RUN = (
    *("--mock_data", "--image_size", 64, "--text_length", 8, "--micro_batch_size", 4, "--global_batch_size", 8),
    *("--cfg_dropout_prob", "0.1,0.2", "--lr", 5e-3, "--train_iters", 60, "--eval_interval", 30, "--eval_iters", 2),
    *("--device", "cpu"),
)


def train(program, folder, *words):
    return program.run(
        *("train", *SHAPE, *RUN, "--metrics_file", folder / "metrics.jsonl"),
        *("--save", folder / "checkpoint", "--load", folder / "checkpoint", *words),
    )


def steps_of(folder):
    return {line["iteration"]: line for line in read_metrics(folder / "metrics.jsonl")}


@pytest.mark.parametrize("precision", ["--fp32", "--bf16"])
def test_pictures_are_learned_and_a_run_goes_on(precision, program, tmp_path):
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    train(program, straight, precision, "--save_hf", straight / "hf")
    steps = steps_of(straight)
    losses = {i: step["mse_loss"] for i, step in steps.items()}
    # Noise and latents are normal: who tells nothing errs by 2 in the mean square, who knows all that can be by pi / 2.
    assert losses[1] == pytest.approx(2, abs=0.1)
    assert 1.5 < sum(losses[i] for i in range(51, 61)) / 10 < 1.9, losses
    assert all(0 < step["timestep"] < 1 and step["image_size"] == 64 for step in steps.values())
    for stop in (7, 31, 60):
        train(program, parts, precision, "--exit_interval", stop, "--save_hf", parts / "hf", "--overwrite")
    for i, step in steps_of(parts).items():
        assert (step["mse_loss"], step["grad_norm"]) == (losses[i], steps[i]["grad_norm"]), i
    name = "diffusion_pytorch_model.safetensors"
    assert (straight / "hf" / name).read_bytes() == (parts / "hf" / name).read_bytes()


def test_lines_tell_images_and_no_perplexity(program, tmp_path):
    _, compact, _ = train(program, tmp_path, "--train_iters", 2, "--eval_interval", 1, "--log_interval", 1)
    assert len(re.findall(r"step \d/2 .* img/s .*64 px .*timestep 0\.\d", compact)) == 2, compact
    assert "validation loss" in compact and "perplexity" not in compact
    _, lines, _ = program.run(
        *("train", *SHAPE, *RUN, "--train_iters", 2, "--eval_interval", 1, "--log_interval", 1, "--log_format", "megatron"),
        "--log_throughput",
    )
    assert len(re.findall(r"images per GPU \(images/s/GPU\): [\d.]+ \| image size: 64 \|.* mse loss: .* timestep: ", lines)) == 2, lines
    assert " loss at iteration" in lines and "PPL" not in lines


def test_an_evaluation_draws_no_share_of_noise(program, tmp_path):
    """Whatever shares training draws, an evaluation has the same ones."""
    values = []
    for strategy in (("uniform",), ("fixed", "--fixed_timestep", 0.9), ("logit_normal", "--flow_shift", 3)):
        folder = tmp_path / strategy[0]
        train(program, folder, "--train_iters", 1, "--eval_interval", 1, "--lr", 0, "--timestep_sampling_strategy", *strategy)
        values.append([line["evaluation_loss"] for line in read_metrics(folder / "metrics.jsonl", "evaluation")])
    assert values[0] == values[1] == values[2] and values[0]


def test_a_checkpoint_is_evaluated(program, tmp_path):
    train(program, tmp_path, "--train_iters", 1, "--eval_interval", 1)
    lines = read_metrics(tmp_path / "metrics.jsonl", "evaluation")
    expected = [line["evaluation_loss"] for line in lines if line["set"] == "validation"]
    words = ("--mock_data", "--image_size", 64, "--text_length", 8, "--micro_batch_size", 4, "--global_batch_size", 8)
    _, text, _ = program.run(
        *("evaluate", "--load", tmp_path / "checkpoint", *words, "--eval_split", "valid", "--eval_iters", 2, "--device", "cpu")
    )
    result = json.loads(text)
    assert result["loss"] == pytest.approx(expected[-1], rel=1e-6) and result["samples"] == 16
    assert "perplexity" not in result


@pytest.mark.parametrize("preset, count", [("flux_dev", "11,901,408,320"), ("flux_schnell", "11,891,178,560"), ("flux_535M", "535,318,336")])
def test_presets_have_the_published_counts(preset, count, program):
    words = ("--mock_data", "--dry_run", "--micro_batch_size", 1, "--bf16", "--image_size", 512)
    _, text, _ = program.run("train", "--config", preset, *words)
    assert f"{count} parameters" in text
    if preset == "flux_schnell":
        assert "64.5 TFLOP a step" in text
