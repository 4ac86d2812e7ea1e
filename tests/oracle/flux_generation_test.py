"""`megalith generate` of a whole tiny FLUX folder against diffusers' FluxPipeline, from the same noise."""

import flux_encoders_test as encoders
import numpy as np
import pytest
import torch
from hub_server import Hub
from PIL import Image

diffusers = pytest.importorskip("diffusers")
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel  # noqa: E402
from transformers import CLIPTokenizerFast, PreTrainedTokenizerFast  # noqa: E402

HEIGHT, WIDTH, STEPS, SEED = 48, 64, 3, 17
PROMPT = "A red boat on the lake"


@pytest.fixture(scope="module", params=["dev", "schnell"])
def flux(request, tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    flux = encoders.Flux(folder)
    # FLUX's latents are of 8 pixels a side.
    vae = {**encoders.VAE, "block_out_channels": (16, 16, 32, 32), "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    flux.vae = encoders.enlarge(AutoencoderKL(**vae))
    is_dev = request.param == "dev"
    transformer = encoders.enlarge(
        FluxTransformer2DModel(
            in_channels=4 * vae["latent_channels"], num_layers=2, num_single_layers=2, attention_head_dim=32, num_attention_heads=2,
            joint_attention_dim=encoders.T5["d_model"], pooled_projection_dim=encoders.CLIP["hidden_size"], guidance_embeds=is_dev,
            axes_dims_rope=(8, 12, 12),
        )  # fmt: skip
    )
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=is_dev, shift=3.0 if is_dev else 1.0), vae=flux.vae, text_encoder=flux.clip,
        text_encoder_2=flux.t5, transformer=transformer, tokenizer=CLIPTokenizerFast.from_pretrained(folder / "tokenizer"),
        tokenizer_2=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer_2"),
    )  # fmt: skip
    folder = folder / "whole"
    pipeline.save_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return folder, pipeline


def words(folder, output, *more):
    size = ["--height", HEIGHT, "--width", WIDTH, "--steps", STEPS, "--seed", SEED, "--guidance", 2.5, "--text_length", encoders.TEXT_LENGTH]
    return ["generate", "--load_hf", folder, "--prompt", PROMPT, "--output", output, "--device", "cpu", *size, *more]


def test_pictures_equal_the_pipelines(program, flux, tmp_path):
    folder, pipeline = flux
    program.run(*words(folder, tmp_path / "a.png", "--num_samples", 2))
    request = {"folder": str(folder), "steps": 1, "tokens": 4, "seed": SEED, "shape": [4, HEIGHT // 8, WIDTH // 8]}
    noise = encoders.tool("sample", request, tmp_path)[0]["noise"]
    packed = FluxPipeline._pack_latents(noise, 1, 4, HEIGHT // 8, WIDTH // 8)
    theirs = pipeline(
        PROMPT, height=HEIGHT, width=WIDTH, num_inference_steps=STEPS, guidance_scale=2.5, latents=packed, max_sequence_length=encoders.TEXT_LENGTH,
        output_type="np",
    ).images[0]  # fmt: skip
    ours = np.asarray(Image.open(tmp_path / "a.png")).astype(float)
    assert ours.shape == (HEIGHT, WIDTH, 3) and 20 < ours.std()
    # Half a level by rounding, and 1e-3 of the whole range.
    assert np.abs(ours - theirs * 255).max() <= 0.5 + 0.255
    assert np.asarray(Image.open(tmp_path / "a_2.png")).shape == ours.shape
    assert (tmp_path / "a_2.png").read_bytes() != (tmp_path / "a.png").read_bytes()


def test_bad_requests_are_told_at_once(program, flux, tmp_path):
    folder, _ = flux
    _, _, errors = program.run(*words(folder, tmp_path / "a.jpg", "--height", 40, "--max_new_tokens", 3), expected=2)
    for message in ("height is 40, expected a multiple of 16", "its name must end in .png", "max_new_tokens is given"):
        assert message in errors, errors


def test_a_name_of_the_hub_brings_what_is_needed(program, flux, tmp_path):
    folder, _ = flux
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    others = {"flux1-dev.safetensors": b"another form", "ae.safetensors": b"of the same", "README.md": b""}
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    Image.fromarray(np.uint8(np.random.default_rng(1).integers(0, 255, (64, 64, 3)))).save(pictures / "a red boat.png")
    prepare = ("prepare", "flux", "--input", pictures, "--image_size", 48, "--text_length", encoders.TEXT_LENGTH)
    hub = Hub()
    try:
        hub.add("org/FLUX", files | others, [name for name in files | others if name.endswith(".safetensors")])

        def run(home, *more, expected=0):
            environment = {"HF_HOME": str(home), "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "", "no_proxy": "*"}
            _, _, errors = program.run(*more, environment=environment, expected=expected)
            snapshots = list((home / "hub").glob("models--org--FLUX/snapshots/*"))
            return errors, {path.relative_to(snapshots[0]).as_posix() for path in snapshots[0].rglob("*.*") if path.is_file()} if snapshots else set()

        program.run(*words(folder, tmp_path / "folder.png"))
        _, fetched = run(tmp_path / "one", *words("org/FLUX", tmp_path / "name.png"))
        assert (tmp_path / "name.png").read_bytes() == (tmp_path / "folder.png").read_bytes()
        assert fetched == set(files)
        program.run(*prepare, "--output", tmp_path / "by_folder", "--load_hf", folder)
        _, fetched = run(tmp_path / "two", *prepare, "--output", tmp_path / "by_name", "--load_hf", "org/FLUX")
        weights = {name for name in files if name.startswith("transformer/") and name.endswith(".safetensors")}
        assert fetched == set(files) - weights
        shards = [next((tmp_path / name).glob("shard-*")).read_bytes() for name in ("by_folder", "by_name")]
        assert shards[0] == shards[1]
        hub.gated.add("org/FLUX")
        errors, fetched = run(tmp_path / "three", *words("org/FLUX", tmp_path / "gated.png"), expected=2)
        assert "HF_TOKEN" in errors and "org/FLUX" in errors and not any(name.endswith(".safetensors") for name in fetched)
    finally:
        hub.close()
