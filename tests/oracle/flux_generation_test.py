"""`megalith generate` of a whole tiny FLUX folder against diffusers' FluxPipeline, from the same noise."""

import base64
import json

import flux_encoders_test as encoders
import numpy as np
import pytest
import torch
from hub_server import Hub
from PIL import Image
from program import read_metrics
from ranks import run_ranks
from tensorboard.backend.event_processing import event_accumulator

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


def test_a_run_draws_what_it_has_learnt(program, flux, tmp_path):
    folder, _ = flux
    run = (
        *("train", "--load_hf", folder, "--mock_data", "--image_size", 64, "--text_length", encoders.TEXT_LENGTH, "--micro_batch_size", 1),
        *("--fp32", "--train_iters", 4, "--lr", 1e-3, "--eval_iters", 0, "--device", "cpu", "--seed", SEED),
    )
    drawn = (
        *("--sample_interval", 2, "--sample_prompt", PROMPT, "--sample_steps", STEPS, "--sample_guidance", 2.5),
        *("--page_file", tmp_path / "page.html", "--tensorboard_dir", tmp_path / "events"),
    )
    program.run(*run, "--save_hf", tmp_path / "plain")
    _, log, _ = program.run(*run, *drawn, "--save", tmp_path / "saved", "--save_hf", tmp_path / "hf")
    weights = "diffusion_pytorch_model.safetensors"
    assert (tmp_path / "hf" / weights).read_bytes() == (tmp_path / "plain" / weights).read_bytes()

    files = sorted((tmp_path / "saved" / "samples").iterdir())
    assert [file.name for file in files] == ["iteration_0000002.png", "iteration_0000004.png"]
    assert all(str(file) in log for file in files) and files[0].read_bytes() != files[1].read_bytes()
    again = words(tmp_path / "hf", tmp_path / "again.png", "--encoders.path", folder, "--height", 64, "--width", 64)
    program.run(*again)
    assert (tmp_path / "again.png").read_bytes() == files[1].read_bytes()

    page = (tmp_path / "page.html").read_text()
    assert all(f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}" in page for file in files)
    events = event_accumulator.EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    images = events.Images("sample")
    assert [(image.step, image.encoded_image_string) for image in images] == [(2, files[0].read_bytes()), (4, files[1].read_bytes())]
    assert (images[0].height, images[0].width) == (64, 64)

    of_two_ranks = (*run, *drawn, "--sample_folder", tmp_path / "two", "--tensor_model_parallel_size", 2, "--sequence_parallel")
    lines = run_ranks(program, 2, *of_two_ranks, "--log_format", "json").stdout.splitlines()
    told = [line for line in map(json.loads, lines) if line["kind"] == "picture"]
    assert [(line["iteration"], line["prompt"], line["width"]) for line in told] == [(2, PROMPT, 64), (4, PROMPT, 64)]
    of_two = np.asarray(Image.open(tmp_path / "two" / "iteration_0000002.png")).astype(float)
    assert np.abs(of_two - np.asarray(Image.open(files[0]))).max() <= 1


def test_every_layout_draws_the_same(program, flux, tmp_path):
    folder, _ = flux
    run = (
        *("train", "--load_hf", folder, "--mock_data", "--image_size", 64, "--text_length", encoders.TEXT_LENGTH, "--micro_batch_size", 1),
        *("--global_batch_size", 2, "--fp32", "--train_iters", 1, "--lr", 1e-3, "--eval_iters", 0, "--device", "cpu"),
        *("--sample_interval", 1, "--sample_prompt", PROMPT, "--sample_steps", STEPS),
    )
    layouts = {"stages": ("--pipeline_model_parallel_size", 2), "shards": ("--use_torch_fsdp2",), "zero": ("--use_distributed_optimizer",)}
    program.run(*run, "--sample_folder", tmp_path / "one")
    one = np.asarray(Image.open(tmp_path / "one" / "iteration_0000001.png")).astype(float)
    for name, layout in layouts.items():
        run_ranks(program, 2, *run, *layout, "--sample_folder", tmp_path / name)
        assert np.abs(np.asarray(Image.open(tmp_path / name / "iteration_0000001.png")) - one).max() <= 1, name


def test_pictures_need_encoders_and_words(program, flux, tmp_path):
    folder, _ = flux
    mock = ("train", "--config", "flux_535M", "--mock_data", "--dry_run", "--sample_interval", 2)
    _, _, errors = program.run(*mock, "--sample_max_new_tokens", 3, expected=2)
    for message in ("without a prompt", "no encoders are named", "sample_max_new_tokens is for model_type gpt"):
        assert message in errors, errors
    text = ("train", "--config", "demo", "--vocab_size", 257, "--mock_data", "--dry_run", "--sample_steps", 3)
    _, _, errors = program.run(*text, "--sample_interval", 2, "--sample_prompt", "a", expected=2)
    assert "sample_steps is for model_type diffusion_model" in errors, errors
    _, _, errors = program.run(
        *("train", "--config", "flux_535M", "--hidden_size", 64, "--num_attention_heads", 2, "--axes_dim", "8,12,12", "--context_dim", 36),
        *("--mock_data", "--image_size", 64, "--text_length", encoders.TEXT_LENGTH, "--micro_batch_size", 1, "--train_iters", 2, "--device", "cpu"),
        *("--sample_interval", 1, "--sample_prompt", "a", "--encoders.path", folder),
        expected=2,
    )  # fmt: skip
    assert "the width of T5 is" in errors and "context_dim asks for 36" in errors, errors


def test_an_adapter_draws_as_the_merged_model(program, flux, tmp_path):
    folder, _ = flux
    program.run(
        *("train", "--load_hf", folder, "--mock_data", "--image_size", 64, "--text_length", encoders.TEXT_LENGTH, "--micro_batch_size", 1),
        *("--fp32", "--train_iters", 3, "--lr", 5e-2, "--eval_iters", 0, "--device", "cpu", "--lora.enabled", "true", "--lora.dim", 4),
        *("--save_adapter", tmp_path / "adapter"),
    )
    program.run("convert", "--load_hf", folder, "--merge_adapter", tmp_path / "adapter", "--save_hf", tmp_path / "merged")
    program.run(*words(folder, tmp_path / "plain.png"))
    program.run(*words(folder, tmp_path / "adapted.png", "--adapter", tmp_path / "adapter"))
    program.run(*words(tmp_path / "merged", tmp_path / "merged.png", "--encoders.path", folder))
    plain, adapted, merged = (np.asarray(Image.open(tmp_path / f"{name}.png")).astype(float) for name in ("plain", "adapted", "merged"))
    assert np.abs(adapted - merged).max() <= 1 and np.abs(adapted - plain).mean() > 2


def test_pictures_as_data_are_encoded_once(program, flux, tmp_path):
    folder, _ = flux
    photos, random = tmp_path / "photos", np.random.default_rng(3)
    photos.mkdir()
    for i in range(8):
        Image.fromarray(random.integers(0, 256, (72, 80 + i, 3), np.uint8)).save(photos / f"{i}.png")
        (photos / f"{i}.txt").write_text(f"picture {i} of a lake")
    size = ("--image_size", 64, "--text_length", encoders.TEXT_LENGTH)
    run = (
        *("train", "--load_hf", folder, *size, "--micro_batch_size", 2, "--fp32", "--train_iters", 4, "--lr", 1e-3, "--split", "1,0,0"),
        *("--eval_iters", 0, "--device", "cpu"),
    )

    def losses(name, *more):
        _, _, log = program.run(*run, *more, "--metrics_file", tmp_path / name)
        return [line["mse_loss"] for line in read_metrics(tmp_path / name)], log

    first, log = losses("first", "--data_path", photos)
    assert "encoding them once" in log
    again, log = losses("again", "--data_path", photos)
    assert "encoding them once" not in log and again == first
    program.run("prepare", "flux", "--input", photos, "--output", tmp_path / "ahead", "--load_hf", folder, *size, "--encoder_dtype", "float32", "--device", "cpu")
    assert losses("ahead.jsonl", "--data_path", tmp_path / "ahead")[0] == first
    cache = ("--data_path", photos, "--data_cache_path", tmp_path / "cache", "--vae_latent_mode", "resample")
    two = run_ranks(program, 2, *run, *cache)
    assert (two.stdout + two.stderr).count("encoding them once") == 1
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] != []

    _, _, errors = program.run(*run[:1], "--config", "flux_535M", *size, "--data_path", photos, expected=2)
    assert "the data path names pictures" in errors and "--encoders.path" in errors
    _, _, errors = program.run(*run, "--data_path", tmp_path / "ahead", "--encoders.path", folder, expected=2)
    assert "encoders.path is given, and this run reads no pictures" in errors
    (tmp_path / "empty").mkdir()
    _, _, errors = program.run(*run, "--data_path", tmp_path / "empty", expected=2)
    assert "empty" in errors and "picture" in errors


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
