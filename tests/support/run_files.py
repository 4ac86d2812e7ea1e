"""A run of a second, and what it wrote."""

import json
import re

TINY = (
    *("--num_layers", 1, "--hidden_size", 16, "--ffn_hidden_size", 32, "--num_attention_heads", 2),
    *("--vocab_size", 67, "--seq_length", 16, "--max_position_embeddings", 16, "--swiglu", "--normalization", "RMSNorm"),
    *("--position_embedding_type", "rope", "--disable_bias_linear"),
    *("--device", "cpu", "--num_threads", 1, "--mock_data", "--eval_iters", 1, "--eval_interval", 2),
)


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused(program, place, *words, ranks=None):
    """The errors; nothing is written, and the device was not even chosen."""
    before = contents(place)
    environment = {} if ranks is None else ranks
    _, output, errors = program.run(*words, expected=2, timeout=60, cwd=place, environment=environment)
    assert contents(place) == before
    assert "device:" not in errors and "dry run" not in output, errors
    return errors


def iterations(folder):
    return sorted(int(path.name[5:]) for path in folder.glob("iter_*"))


def points(page, chart, name):
    (text,) = re.findall(r'id="points">(.*?)</script>', page.read_text())
    (series,) = [one for one in json.loads(text)[chart] if one["name"] == name]
    return dict(zip(series["x"], series["y"]))


def plotted(picture):
    (text,) = re.findall(r'<metadata id="megalith-history">(.*?)</metadata>', picture.read_text())
    history = json.loads(text)
    return {one["name"]: dict(zip(one["x"], one["y"])) for one in (history["train"], *history["validation"])}
