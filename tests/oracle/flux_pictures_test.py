"""From pictures to a trained FLUX: prepared by the folder's own encoders, and learned."""

import copy

import flux_encoders_test as encoders
import numpy as np
import pytest
import torch
from flux_generation_test import flux  # noqa: F401  the tiny pipelines, dev and schnell
from PIL import Image
from program import read_metrics
from safetensors.torch import load_file

CAPTIONS = ["a red boat", "the lake", "a cat on a lake", "the red cat"]
SIZE = 32


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number, caption in enumerate(CAPTIONS):
        rows = np.linspace(0, 255, 48)[:, None, None] * np.array([number % 2, number // 2, 1 - number % 2])
        Image.fromarray(np.broadcast_to(rows, (48, 40, 3)).astype(np.uint8)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(caption)
    return folder


@pytest.mark.parametrize("mode", ["presampled", "resample"])
def test_prepared_pictures_are_trained_on(mode, flux, pictures, program, tmp_path):  # noqa: F811
    torch.set_num_threads(1)
    folder = tmp_path / "flux"
    flux[1].save_pretrained(folder)
    prepared = tmp_path / "prepared"
    program.run(
        *("prepare", "flux", "--input", pictures, "--output", prepared, "--load_hf", folder, "--image_size", SIZE),
        *("--text_length", encoders.TEXT_LENGTH, "--vae_latent_mode", mode),
    )
    run = (
        *("train", "--load_hf", folder, "--data_path", prepared, "--split", "100,0,0", "--image_size", SIZE),
        *("--text_length", encoders.TEXT_LENGTH, "--cfg_dropout_prob", 0.1, "--micro_batch_size", 4, "--lr", 2e-3, "--train_iters", 40),
        *("--lr_decay_style", "constant", "--eval_iters", 0, "--device", "cpu"),
    )
    program.run(*run, "--metrics_file", tmp_path / "metrics.jsonl", "--save_hf", tmp_path / "trained")
    losses = [line["mse_loss"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10]), losses
    program.run(*run, "--exit_interval", 3, "--metrics_file", tmp_path / "again.jsonl")
    assert [line["mse_loss"] for line in read_metrics(tmp_path / "again.jsonl")] == losses[:3], "another order, or other draws"
    other = {"presampled": "resample", "resample": "presampled"}[mode]
    _, _, errors = program.run(*run, "--vae_latent_mode", other, expected=2)
    assert f"was prepared with vae_latent_mode {mode}" in errors


def captions_of(pipeline):
    states, pooled, _ = pipeline.encode_prompt(CAPTIONS, None, device="cpu", max_sequence_length=encoders.TEXT_LENGTH)
    return {"text_states": states, "pooled_text": pooled}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_hold_what_the_pipeline_encodes(dtype, flux, program, tmp_path):  # noqa: F811
    torch.set_num_threads(1)
    folder, pipeline = flux
    draw = np.random.default_rng(3)
    (tmp_path / "pictures").mkdir()
    pixels = []
    for number, caption in enumerate(CAPTIONS):
        picture = Image.fromarray(draw.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8))
        picture.save(tmp_path / "pictures" / f"{number}.png")
        (tmp_path / "pictures" / f"{number}.txt").write_text(caption)
        pixels.append(torch.from_numpy(np.asarray(picture, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1))
    program.run(
        *("prepare", "flux", "--input", tmp_path / "pictures", "--output", tmp_path / "out", "--load_hf", folder),
        *("--image_size", SIZE, "--text_length", encoders.TEXT_LENGTH, "--vae_latent_mode", "resample", "--encoder_dtype", dtype),
    )
    shard = load_file(tmp_path / "out" / "shard-00000.safetensors")
    pixels = torch.stack(pixels)
    with torch.no_grad():
        exact = captions_of(pipeline) | {"latent_means": pipeline.vae.encode(pixels).latent_dist.mean}
    if dtype == "float32":
        for name, expected in exact.items():
            encoders.assert_close(shard[name], expected)
        return
    # No further from fp32 than the pipeline's own bf16 is, but for a third.
    narrow = copy.deepcopy(pipeline).to(torch.bfloat16)
    with torch.no_grad():
        theirs = captions_of(narrow) | {"latent_means": narrow.vae.encode(pixels.bfloat16()).latent_dist.mean}
    assert shard["text_states"].dtype == shard["pooled_text"].dtype == torch.bfloat16
    for name, expected in exact.items():
        assert (shard[name].float() - expected).norm() <= 4 / 3 * (theirs[name].float() - expected).norm(), name
