"""`megalith prepare flux` of every kind of source, by the encoders of a tiny FLUX folder: what diffusers would have made."""

import base64
import io
import json
import signal
import tarfile
import time

import flux_encoders_test as encoders
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

diffusers = pytest.importorskip("diffusers")
from diffusers import AutoencoderKL  # noqa: E402
from diffusers.image_processor import VaeImageProcessor  # noqa: E402

SIZE = 32
# Wider, higher, and as large as is asked for.
SIDES = [(48, 40), (40, 56), (32, 32), (64, 33), (35, 35)]
CAPTIONS = ["a red boat", "the lake", "a cat's boat", "the red cat", "a boat on the lake"]


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    torch.set_num_threads(1)
    flux = encoders.Flux(tmp_path_factory.mktemp("flux"))
    # FLUX's latents are of 8 pixels a side.
    vae = {**encoders.VAE, "block_out_channels": (16, 16, 32, 32), "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    flux.vae = encoders.enlarge(AutoencoderKL(**vae))
    flux.vae.save_pretrained(flux.folder / "vae")
    return flux


def photograph(number):
    width, height = SIDES[number % len(SIDES)]
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(number).integers(-30, 30, (height, width, 3))
    slopes = np.stack([x * 255 / width, y * 255 / height, ((x // 6 + y // 5) % 2) * 180.0], -1)
    return Image.fromarray(np.clip(slopes + noise, 0, 255).astype(np.uint8))


def encoded(picture, kind="PNG"):
    out = io.BytesIO()
    picture.save(out, format=kind)
    return out.getvalue()


def add_to(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_text_files(folder, pictures):
    for number, (content, caption) in enumerate(pictures):
        (folder / f"{number}.png").write_bytes(content)
        (folder / f"{number}.txt").write_text(f"{caption}\n")


def write_file_names(folder, pictures):
    # Sorted by name; the order of the others is that of their rows.
    for content, caption in pictures:
        (folder / f"{caption.replace(' ', '_')}.png").write_bytes(content)


def write_lines(folder, pictures):
    (folder / "pictures").mkdir()
    rows = []
    for number, (content, caption) in enumerate(pictures):
        (folder / "pictures" / f"{number}.png").write_bytes(content)
        rows.append({"file_name": f"pictures/{number}.png", "text": caption})
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_bytes_in_lines(folder, pictures):
    rows = [{"image": {"bytes": base64.b64encode(content).decode()}, "caption": caption} for content, caption in pictures]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def write_parquet(folder, pictures):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    images = [{"bytes": content, "path": None} for content, _ in pictures]
    parquet.write_table(arrow.table({"image": images, "caption": [caption for _, caption in pictures]}), folder / "train-00000-of-00001.parquet")


def write_tar(folder, pictures):
    with tarfile.open(folder / "pictures-000000.tar", "w") as archive:
        for number, (content, caption) in enumerate(pictures):
            add_to(archive, f"{number:06}.png", content)
            if number % 2:
                add_to(archive, f"{number:06}.txt", caption.encode())
            else:
                add_to(archive, f"{number:06}.json", json.dumps({"caption": caption}).encode())


SOURCES = {
    "text files": write_text_files,
    "file names": write_file_names,
    "JSON lines": write_lines,
    "bytes in JSON lines": write_bytes_in_lines,
    "Parquet": write_parquet,
    "tar": write_tar,
}


def prepare(program, flux, source, output, *more, expected=0):
    words = ("--input", source, "--output", output, "--load_hf", flux.folder, "--image_size", SIZE, "--text_length", encoders.TEXT_LENGTH)
    return program.run("prepare", "flux", *words, "--encoder_dtype", "float32", *more, expected=expected)


def samples_of(folder):
    """By caption: what was written of each picture."""
    samples, index = {}, json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        with safe_open(folder / shard["file"], "pt") as file:
            captions = json.loads(file.metadata()["captions"])
            assert len(captions) == shard["samples"]
            for row, caption in enumerate(captions):
                samples[caption] = {name: file.get_tensor(name)[row] for name in file.keys() if name != "checksums"}
    return samples, index


@pytest.fixture(scope="module")
def pictures():
    return [(encoded(photograph(number)), caption) for number, caption in enumerate(CAPTIONS)]


def expected_latents(flux, picture):
    """Resized to the short side by Lanczos, the middle cut out, and encoded."""
    short = min(picture.size)
    sides = [SIZE if side == short else side * SIZE // short for side in picture.size]
    left, top = (sides[0] - SIZE) // 2, (sides[1] - SIZE) // 2
    cut = picture.resize(sides, Image.Resampling.LANCZOS).crop((left, top, left + SIZE, top + SIZE))
    with torch.no_grad():
        posterior = flux.vae.encode(VaeImageProcessor(vae_scale_factor=8).preprocess(cut)).latent_dist
    return posterior.mean[0], posterior.logvar[0]


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_what_diffusers_makes(kind, program, flux, pictures, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    SOURCES[kind](source, pictures)
    _, text, _ = prepare(program, flux, source, tmp_path / "out", "--center_crop", "--vae_latent_mode", "resample", "--samples_per_shard", 2)
    assert f"{len(CAPTIONS)} pictures of {SIZE} × {SIZE} pixels" in text and "left out" not in text, text
    samples, index = samples_of(tmp_path / "out")
    assert set(samples) == set(CAPTIONS) and index["samples"] == len(CAPTIONS) and len(index["shards"]) == 3
    with torch.no_grad():
        states, pooled = flux.expected_texts(CAPTIONS)
        empty_states, empty_pooled = flux.expected_texts([""])
    for number, caption in enumerate(CAPTIONS):
        mean, log_var = expected_latents(flux, photograph(number))
        encoders.assert_close(samples[caption]["latent_means"], mean)
        encoders.assert_close(samples[caption]["latent_log_vars"], log_var)
        encoders.assert_close(samples[caption]["text_states"], states[number])
        encoders.assert_close(samples[caption]["pooled_text"], pooled[number])
    with safe_open(tmp_path / "out" / "empty.safetensors", "pt") as file:
        encoders.assert_close(file.get_tensor("text_states"), empty_states[0])
        encoders.assert_close(file.get_tensor("pooled_text"), empty_pooled[0])


def test_latents_are_drawn_once_from_their_distribution(program, flux, pictures, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    write_text_files(source, pictures)
    drawn = {}
    for name, more in (("first", ()), ("same", ("--encode_batch_size", 2, "--samples_per_shard", 3)), ("other", ("--seed", 5))):
        prepare(program, flux, source, tmp_path / name, "--center_crop", *more)
        samples, index = samples_of(tmp_path / name)
        assert index["vae_latent_mode"] == "presampled" and "latent_log_vars" not in samples[CAPTIONS[0]]
        drawn[name] = samples
    noise = []
    for number, caption in enumerate(CAPTIONS):
        mean, log_var = expected_latents(flux, photograph(number))
        first = drawn["first"][caption]["latents"]
        encoders.assert_close(first, drawn["same"][caption]["latents"])
        assert not torch.allclose(first, drawn["other"][caption]["latents"])
        noise.append((first / index["latent_scale"] + index["latent_shift"] - mean) / torch.exp(log_var / 2))
    noise = torch.stack(noise)
    # 320 normal numbers: four deviations of their mean and of their variance.
    assert noise.numel() == 320 and abs(noise.mean()) < 0.23 and abs(noise.var() - 1) < 0.32
    assert not torch.allclose(noise[0], noise[1])


def test_a_killed_run_goes_on_to_the_same_bytes(program, flux, tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    write_text_files(source, [(encoded(photograph(number)), f"a red boat {number}") for number in range(60)])
    words = ("--input", source, "--image_size", SIZE, "--load_hf", flux.folder, "--text_length", encoders.TEXT_LENGTH, "--samples_per_shard", 2)
    process = program.start("prepare", "flux", *words, "--output", out)
    limit = time.monotonic() + 60
    while not (out / "prepare.json").exists() and time.monotonic() < limit and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (out / "prepare.json").exists() and not (out / "index.json").exists(), "it was not stopped in the middle"
    done = len(list(out.glob("shard-*.safetensors")))
    assert 1 <= done < 30
    _, _, errors = program.run("train", "--config", "flux_535M", "--data_path", out, "--image_size", SIZE, "--dry_run", expected=2)
    assert "its preparation was stopped" in errors and "again to finish it" in errors, errors
    _, _, errors = program.run("prepare", "flux", *words, "--output", out)
    assert "going on with" in errors, errors
    program.run("prepare", "flux", *words, "--output", tmp_path / "straight")
    names = sorted(path.name for path in (tmp_path / "straight").glob("[!.]*"))
    assert sorted(path.name for path in out.glob("[!.]*")) == names and len(names) == 32
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name


def test_what_is_left_out_is_counted(program, flux, pictures, tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    write_text_files(source, pictures)
    (source / "cut.png").write_bytes(pictures[0][0][:200])
    (source / "cut.txt").write_text("a red lake")
    (source / "small.jpg").write_bytes(encoded(photograph(0).resize((48, 31)), "JPEG"))
    (source / "small.txt").write_text("a red lake")
    (source / "silent.webp").write_bytes(encoded(photograph(1), "WEBP"))
    (source / "other.gif").write_bytes(encoded(photograph(1), "GIF"))
    (source / "other.txt").write_text("the cat")
    _, text, _ = prepare(program, flux, source, out)
    for part in ("1 left out, too small", "small.jpg has 48 × 31", "1 left out, no caption", "silent.txt does not exist", "2 left out, not readable"):
        assert part in text, text
    assert set(samples_of(out)[0]) == set(CAPTIONS)
    # A second run into the same folder replaces nothing by itself.
    before = (out / "index.json").read_bytes()
    _, _, errors = prepare(program, flux, source, out, expected=2)
    assert "--overwrite" in errors and (out / "index.json").read_bytes() == before
    prepare(program, flux, source, out, "--overwrite", "--max_samples", 3)
    assert samples_of(out)[1]["samples"] == 3
