"""What cannot be prepared: pictures, captions, sources, sizes and folders that are wrong, one row each."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image
from refusals import refused

PREPARE = ("prepare", "flux", "--load_hf", "encoders", "--output", "out")


def picture(width=40, height=40, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)).save(out, format=kind)
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("good", "empty", "done", "texts"):
        (folder / name).mkdir()
    (folder / "good/a.png").write_bytes(picture())
    (folder / "done/index.json").write_text("{}")
    (folder / "one.png").write_bytes(picture())
    (folder / "one.gif").write_bytes(picture(kind="GIF"))
    (folder / "cut.jpg").write_bytes(picture(kind="JPEG")[:300])
    (folder / "cut.png").write_bytes(picture()[:60])
    (folder / "cut.webp").write_bytes(picture(kind="WEBP")[:40])
    (folder / "nothing.png").write_bytes(b"")
    (folder / "texts.txt").write_text("no pictures\n")
    (folder / "texts/readme.md").write_text("no pictures\n")
    (folder / "rows.jsonl").write_text(json.dumps({"image": "one.png", "caption": "a"}) + "\n")
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(folder / "one.png", "a.png")
    huge = bytearray(picture(kind="JPEG"))
    at = huge.index(b"\xff\xc0")
    huge[at + 5 : at + 9] = b"\xff\xdc\xff\xdc"
    (folder / "huge.jpg").write_bytes(huge)
    frames = [Image.fromarray(np.full((8, 8, 3), shade, dtype=np.uint8)) for shade in (0, 200)]
    frames[0].save(folder / "moving.webp", save_all=True, append_images=frames[1:], duration=100)
    return folder


# what is wrong, command, parts of the message in any order
WRONG = [
    ("no input", PREPARE, ["no pictures are named", "--input"]),
    ("an input that is not there", (*PREPARE, "--input", "nowhere"), ["nowhere does not exist"]),
    ("no output", ("prepare", "flux", "--input", "good", "--load_hf", "encoders"), ["no output is given", "--output"]),
    ("an output that is a file", ("prepare", "flux", "--input", "good", "--load_hf", "e", "--output", "one.png"), ["one.png is a file"]),
    ("an output that is full", ("prepare", "flux", "--input", "good", "--load_hf", "e", "--output", "done"), ["holds prepared", "--overwrite"]),
    ("no encoders", ("prepare", "flux", "--input", "good", "--output", "out"), ["no encoders are named", "--load_hf"]),
    ("a folder without encoders", (*PREPARE[:2], "--load_hf", "empty", "--output", "out", "--input", "good"), ["empty has no vae", "text_encoder"]),
    ("a size that is no multiple of 16", (*PREPARE, "--input", "good", "--image_size", 500), ["image_size 500", "496 or 512"]),
    ("a folder without pictures", (*PREPARE, "--input", "texts"), ["texts holds no pictures"]),
    ("one picture", (*PREPARE, "--input", "one.png"), ["one.png is one picture", "folder"]),
    ("a text", (*PREPARE, "--input", "texts.txt"), ["texts.txt holds no pictures that are known"]),
    ("two kinds of sources", (*PREPARE, "--input", "good", "a.tar"), ["tar archives", "different kinds"]),
    ("a mode that is none", (*PREPARE, "--input", "good", "--vae_latent_mode", "mean"), ["vae_latent_mode", "presampled"]),
    ("an option of texts", (*PREPARE, "--input", "good", "--append_eod"), ["append_eod"]),
    ("a JPEG that is cut", ("inspect", "picture", "cut.jpg"), ["cut.jpg is a damaged JPEG"]),
    ("a PNG that is cut", ("inspect", "picture", "cut.png"), ["cut.png is a damaged PNG"]),
    ("a WebP that is cut", ("inspect", "picture", "cut.webp"), ["cut.webp is a damaged WebP", "ends too early"]),
    ("an empty picture", ("inspect", "picture", "nothing.png"), ["nothing.png is empty"]),
    ("another kind", ("inspect", "picture", "one.gif"), ["one.gif is no JPEG, PNG or WebP"]),
    ("an animation", ("inspect", "picture", "moving.webp"), ["moving.webp is an animated WebP"]),
    ("too many pixels", ("inspect", "picture", "huge.jpg"), ["65500 × 65500 pixels", "at most"]),
]


@pytest.mark.parametrize("what, words, parts", WRONG, ids=[what for what, _, _ in WRONG])
def test_wrong_input_is_refused(what, words, parts, program, folder):
    refused(program, words, parts, folder)
    assert not (folder / "out").exists(), "something was written"


def test_all_that_is_wrong_is_told_at_once(program, folder):
    words = ("prepare", "flux", "--input", "nowhere", "texts.txt", "--image_size", 100)
    parts = ("nowhere does not exist", "texts.txt holds no pictures", "image_size 100", "no output", "no encoders")
    refused(program, words, parts, folder)
