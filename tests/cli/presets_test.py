"""Presets by name: what is listed, found from any folder, and turned into a recipe that runs."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODELS = sorted(path.stem for path in (ROOT / "configs/models").glob("*.yaml"))
RECIPES = [f"{kind}/{path.stem}" for kind in ("experiments", "recipes") for path in (ROOT / "configs" / kind).glob("*.yaml")]


@pytest.fixture(scope="module")
def listed(program):
    return {preset["name"]: preset for preset in json.loads(program.run("presets", "--json")[1])}


def test_every_file_is_listed(listed):
    assert sorted(listed) == sorted([*MODELS, *RECIPES])


def test_sizes_of_a_model_stand_together(listed):
    names = list(listed)
    assert names.index("llama3.1_8B") + 1 == names.index("llama3.1_70B") == names.index("llama3.1_405B") - 1


def test_counts_are_those_that_the_files_name(listed):
    compared = 0
    for preset in listed.values():
        named = re.search(r"([\d,]{7,}) parameters", preset["about"])
        if named and "prediction" not in preset["about"] and "deepseek" not in preset["name"]:
            compared += 1
            assert preset["parameters"] == int(named[1].replace(",", "")), preset["name"]
    assert compared >= 30


def test_the_list_fits_a_terminal_and_is_filtered_by_words(program):
    text = program.run("presets")[1]
    assert max(map(len, text.splitlines())) <= 110
    names = [line.split()[0] for line in program.run("presets", "llama3", "8b")[1].splitlines()]
    assert [name for name in names if "/" not in name] == ["name", "llama3_8B", "llama3.1_8B"]
    assert {name for name in names if "/" in name} == {f"recipes/llama{n}_8B_{kind}" for n in (3, 3.1) for kind in ("full", "lora", "qlora")}
    assert [line.split()[0] for line in program.run("presets", "xx")[1].splitlines()] == ["name", "t5_v1.1_xxl"]
    for word in ("llama9", "qq"):
        _, output, errors = program.run("presets", word, expected=2)
        assert not output and f"no preset has '{word}' in its name" in errors


def test_a_preset_is_found_from_any_folder(program, tmp_path):
    small = ("--num_layers", 1, "--train_iters", 1, "--seq_length", 16, "--mock_data", "--dry_run")
    program.run("train", "--config", "qwen2.5_0.5B", *small, cwd=tmp_path)
    _, _, errors = program.run("train", "--config", "qwen2.5_5B", *small, cwd=tmp_path, expected=2)
    assert "Did you mean 'qwen2.5_" in errors and "megalith presets" in errors


@pytest.mark.parametrize("name", ["llama3.1_8B", "gpt2", "mixtral_8x7B_v0.1", "demo"])
def test_a_recipe_runs_as_it_is_written(name, program, tmp_path):
    assert program.run("init", name, cwd=tmp_path)[1] == f"{name}-pretrain.yaml\n"
    recipe = (tmp_path / f"{name}-pretrain.yaml").read_text(encoding="utf-8")
    assert max(map(len, recipe.splitlines())) <= 120
    # What is written as a comment is an option too, ready to be used.
    ready = re.sub(r"^      # (\w+: \S+)$", r"      \1", recipe, flags=re.MULTILINE)
    assert len(ready) < len(recipe)
    assert "data_path" in ready
    dry = ("--dry_run", "--num_layers", 1, "--hidden_size", 128, "--kv_channels", 16)
    program.run("train", "--config", f"{name}-pretrain.yaml", *dry, cwd=tmp_path)
    (tmp_path / "ready.yaml").write_text(ready, encoding="utf-8")
    values = program.run("inspect", "config", "--config", "ready.yaml", cwd=tmp_path, expected=None)
    assert "unknown" not in values[2]


def test_a_recipe_replaces_nothing(program, tmp_path):
    (tmp_path / "demo-pretrain.yaml").write_text("mine: 1\n", encoding="utf-8")
    _, _, errors = program.run("init", "demo", cwd=tmp_path, expected=2)
    assert "demo-pretrain.yaml exists" in errors and "--output" in errors
    assert (tmp_path / "demo-pretrain.yaml").read_text(encoding="utf-8") == "mine: 1\n"
    program.run("init", "demo", "--output", "second.yaml", cwd=tmp_path)


@pytest.mark.parametrize("words, parts", [((), ["takes one name, and got 0"]), (("demo", "gpt2"), ["got 2"]),
                                          (("nobody",), ["nobody", "megalith presets"]),
                                          (("experiments/demo",), ["experiments/demo", "no model"])])
def test_what_init_refuses(words, parts, program, tmp_path):
    _, _, errors = program.run("init", *words, cwd=tmp_path, expected=2)
    assert all(part in errors for part in parts), errors
