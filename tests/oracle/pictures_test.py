"""Pictures against Pillow: what is decoded, turned upright and made smaller is what diffusers' pipelines would see."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

FILTERS = {"lanczos": Image.Resampling.LANCZOS, "bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def scene(width, height, mode="RGB"):
    """Slopes, edges and noise, so that rounding and smoothing both show."""
    draw = np.random.default_rng(width * height)
    y, x = np.mgrid[0:height, 0:width]
    channels = [x * 255 // max(1, width - 1), y * 255 // max(1, height - 1), ((x // 5 + y // 7) % 2) * 200]
    picture = np.stack(channels, -1) + draw.integers(-20, 20, (height, width, 3))
    return Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).convert(mode)


def files():
    """Name, bytes, and the largest difference to Pillow."""
    cases = []

    def add(name, picture, largest, **options):
        out = io.BytesIO()
        picture.save(out, **options)
        cases.append((name, out.getvalue(), largest))

    for sampling, name in ((0, "444"), (1, "422"), (2, "420")):
        add(f"{name}.jpg", scene(67, 45), 1, format="JPEG", quality=90, subsampling=sampling)
    add("progressive.jpg", scene(120, 80), 1, format="JPEG", quality=70, progressive=True)
    add("grey.jpg", scene(31, 33, "L"), 1, format="JPEG")
    add("inks.jpg", scene(40, 24, "CMYK"), 1, format="JPEG", quality=95)
    add("plain.png", scene(33, 29), 0, format="PNG")
    add("grey.png", scene(33, 29, "L"), 0, format="PNG")
    add("palette.png", scene(33, 29).quantize(50), 0, format="PNG")
    add("bits.png", scene(33, 29, "1"), 0, format="PNG")
    clear = scene(33, 29, "RGBA")
    clear.putalpha(Image.fromarray(np.arange(33 * 29, dtype=np.uint8).reshape(29, 33)))
    add("transparent.png", clear, 0, format="PNG")
    add("grey_transparent.png", scene(33, 29, "LA"), 0, format="PNG")
    add("lossy.webp", scene(64, 48), 1, format="WEBP", quality=80)
    add("lossless.webp", clear, 0, format="WEBP", lossless=True, exact=True)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        add(f"turned{orientation}.jpg", scene(40, 26), 1, format="JPEG", exif=exif)
    exif[0x0112] = 6
    add("turned.png", scene(40, 26), 0, format="PNG", exif=exif)
    add("turned.webp", scene(40, 26), 1, format="WEBP", exif=exif)
    return cases


def seen(program, folder, name, content, *options):
    (folder / name).write_bytes(content)
    program.run("inspect", "picture", folder / name, "--output", folder / "seen.png", "--overwrite", *options)
    return np.asarray(Image.open(folder / "seen.png"), dtype=int)


@pytest.mark.parametrize("name, content, largest", files(), ids=[name for name, _, _ in files()])
def test_pictures_are_decoded_as_pillow_does(name, content, largest, program, tmp_path):
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"), dtype=int)
    found = seen(program, tmp_path, name, content)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= largest


@pytest.mark.parametrize("word", FILTERS)
@pytest.mark.parametrize("width, height", [(97, 61), (61, 97), (40, 40), (300, 41)])
def test_pictures_are_made_smaller_as_pillow_does(word, width, height, program, tmp_path):
    picture, size = scene(width, height), 32
    out = io.BytesIO()
    picture.save(out, format="PNG")
    found = seen(program, tmp_path, "a.png", out.getvalue(), "--image_size", size, "--resize_filter", word)
    short = min(width, height)
    sides = (size if width == short else width * size // short, size if height == short else height * size // short)
    resized = picture.resize(sides, FILTERS[word])
    left, top = (sides[0] - size) // 2, (sides[1] - size) // 2
    expected = np.asarray(resized.crop((left, top, left + size, top + size)), dtype=int)
    assert np.abs(found - expected).max() == 0
