"""The record of a build's numbers repeats to the bit, and a comparison sees a number that moved."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RECORD = Path(__file__).with_name("record.py")


def run(*words):
    return subprocess.run([sys.executable, RECORD, *map(str, words)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def records(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    paths = [folder / "first.json", folder / "second.json"]
    for path in paths:
        merged = {}
        # Two of a kind: one process, and two that exchange gradients.
        for only in ("squared_relu_fp32", "dp2_llama_tied_bf16"):
            found = run("record", program.path, folder / only, "--only", only)
            assert found.returncode == 0, found.stderr
            merged |= load(folder / only)
        path.write_text(json.dumps(merged))
    return paths


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_build_repeats_its_numbers(records):
    found = run("compare", *records)
    assert (found.returncode, found.stdout) == (0, "2 configurations, 0 differ\n"), found.stdout


def test_the_smallest_move_of_a_loss_is_seen(records, tmp_path):
    moved = load(records[1])
    step = moved["squared_relu_fp32"]["steps"][2]
    step["lm_loss"] += 1e-15 * step["lm_loss"] + 1e-15
    (tmp_path / "moved.json").write_text(json.dumps(moved))
    found = run("compare", records[0], tmp_path / "moved.json")
    assert found.returncode == 1 and "squared_relu_fp32: step 3: lm_loss" in found.stdout and "1 differ" in found.stdout


def test_other_weights_after_equal_losses_are_seen(records, tmp_path):
    moved = load(records[1])
    files = moved["dp2_llama_tied_bf16"]["files"]
    path = sorted(files)[-1]
    files[path] = "0" * len(files[path])
    (tmp_path / "moved.json").write_text(json.dumps(moved))
    found = run("compare", records[0], tmp_path / "moved.json")
    assert found.returncode == 1 and f"other bytes in {path}" in found.stdout


def test_an_unknown_configuration_is_named():
    found = run("record", "program", "record.json", "--only", "nothing_like_it")
    assert found.returncode == 1 and "no configuration's name contains 'nothing_like_it'" in found.stderr
