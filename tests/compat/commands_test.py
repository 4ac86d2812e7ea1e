"""The commands of other tools' guides, as they are printed: each row of commands.txt in a fresh copy of the tree."""

import json
import re
import shlex
import shutil
from pathlib import Path

import indexed_data
import pytest
from shells import NO_NETWORK, shell

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    [part.strip() for part in line.split(" | ")]
    for line in (ROOT / "tests/compat/commands.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
KINDS = {"dry run", "words", "container", "setting", "typed", "overrides", "benchmark", "slurm", "documented"}
# What a reader fills in.
READERS_WORDS = ((r"\{\{ docker\.pull_tag \}\}", "rocm/some:tag"), (r"<[^>]*>", "filled-in"))
TEMPLATE = {"training_mode": "pretrain", "model_repo": "Llama-3.1-8B", "datatype": "BF16", "sequence_length": "4096"}
BENCHMARKS = "scripts/pytorch-train"
# Everything that the guides' commands need, without what was built and tested.
COPIED = ("configs", "docker", "docs", "examples", "scripts", "requirements.txt")


def filled_in(text):
    for pattern, value in READERS_WORDS:
        text = re.sub(pattern, value, text)
    return text


def of_kind(kind):
    rows = [(row[0], filled_in(row[2]), filled_in(row[3])) for row in COMMANDS if row[1] == kind]
    return pytest.mark.parametrize("source, expected, command", rows, ids=[f"{row[0]} {row[2][:40]}" for row in rows])


@pytest.fixture(scope="module")
def tree(program, tmp_path_factory):
    """The program is found where a build leaves it."""
    folder = tmp_path_factory.mktemp("workspace") / "Megatron-LM"
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy(ROOT / name, folder)
    (folder / "build").mkdir()
    (folder / "build/megalith").symlink_to(program.path)
    (folder / "data").mkdir()
    indexed_data.write(folder / "data/bookcorpus_text_sentence", indexed_data.random_documents(3, 100, seed=1))
    (folder.parent / "MAD").symlink_to(folder)
    return folder


def typed(command, program, tree, **options):
    return shell(command, program, tree, before=NO_NETWORK, MEGALITH=None, **options)


def test_every_row_is_checked():
    assert {row[1] for row in COMMANDS} == KINDS and {len(row) for row in COMMANDS} == {4}
    assert len({(row[0], row[3]) for row in COMMANDS}) == len(COMMANDS)


def figures(resolved):
    recompute = [resolved["recompute"][key] for key in ("granularity", "method", "num_layers")]
    precision = resolved["precision"].split()[0]
    if resolved["options"].get("keep_fp8_weight_transpose_cache") == "false":
        precision += "-without-transposes"
    return " ".join(
        str(part)
        for part in (
            resolved["world_size"],
            resolved["num_layers"],
            "/".join(str(resolved[key]) for key in ("micro_batch_size", "global_batch_size", "seq_length")),
            resolved["pipeline_model_parallel_size"],
            resolved["expert_model_parallel_size"],
            resolved["data_parallel_size"],
            resolved["num_microbatches"],
            resolved["tokens_per_iteration"],
            resolved["sharding"],
            "/".join(str(part) for part in recompute) if recompute[0] else "-",
            precision,
            resolved["train_iters"],
            "+".join(str(resolved[key]) for key in ("parameters", "prediction_parameters") if resolved[key]),
        )
    )


@of_kind("dry run")
def test_a_printed_command_resolves_to_its_figures(source, expected, command, program, tree):
    printed, _ = typed(f"export DRY_RUN=json; {command}", program, tree, MEGALITH_DRY_RUN_DEVICE="MI300X")
    resolved = json.loads(printed)
    assert figures(resolved) == expected
    assert resolved["fit"]["fits"], resolved["fit"]  # within 95 % of the memory of the GPU that it is printed for
    memory = resolved["memory_bytes"]
    assert memory["total"] == sum(value for key, value in memory.items() if key != "total") > 0
    assert "train" in resolved["command"]
    assert resolved["command"][0].endswith("torchrun" if resolved["world_size"] > 1 else "build/megalith")


@of_kind("words")
def test_a_printed_command_says_what_it_would_do(source, expected, command, program, tree):
    before = sorted(tree.rglob("*"))
    printed, said = typed(f"export DRY_RUN=1; {command}", program, tree)
    for words in expected.split(" & "):
        assert words in printed + said, f"{words!r} is not in\n{printed}{said}"
    assert sorted(tree.rglob("*")) == before  # nothing is written


@of_kind("container")
def test_a_container_command_is_made_as_it_is_printed(source, expected, command, program, tree):
    printed, _ = typed(f"{expected}", program, tree, DRY_RUN="1", DOCKER="docker", INFINIBAND="1")
    assert shlex.split(printed) == shlex.split(command.replace("$HOME", str(tree)))


def check_effect(effect, command, program, tree):
    """What a dry run shows: "path=value", "command has words", "says text" or "refuses text"."""
    if effect.startswith("refuses "):
        printed, said = typed(f"export DRY_RUN=json; {command}", program, tree, expected=2)
        assert printed == "" and f"error: {effect.removeprefix('refuses ')}" in said, said
        return
    printed, said = typed(f"export DRY_RUN=json; {command}", program, tree)
    if effect.startswith("says "):
        assert effect.removeprefix("says ") in said, said
        return
    resolved = json.loads(printed)
    if effect.startswith("command has "):
        assert f" {effect.removeprefix('command has ')} " in " ".join(resolved["command"])
        return
    path, _, value = effect.partition("=")
    found = resolved
    for key in path.split("."):
        found = found.get(key)
    assert str("default" if found is None else found) == value, f"{path} is {found}"


SETTINGS_END = "# ---- end of your settings ----"


@of_kind("setting")
def test_a_line_typed_into_a_script_acts(source, expected, command, program, tree):
    start, _, effect = expected.partition(": ")
    *variables, script = start.split()
    text = (tree / script).read_text()
    mine = tree / script.replace(".sh", "_mine.sh")
    mine.write_text(text.replace(SETTINGS_END, f"{command}\n{SETTINGS_END}"))
    assert mine.read_text() != text
    check_effect(effect, f"{' '.join(variables)} bash {mine.relative_to(tree)}", program, tree)
    # Without the line and the variable the effect is another: it is the line that acts.
    if not variables:
        with pytest.raises(AssertionError):
            check_effect(effect, f"bash {script}", program, tree)


@of_kind("typed")
def test_a_line_typed_before_the_command_acts(source, expected, command, program, tree):
    start, _, effect = expected.partition(": ")
    check_effect(effect, f"{command}\n{start}", program, tree)
    if effect.startswith("says HF_TOKEN"):
        printed, said = typed(f"export DRY_RUN=json; {command}\n{start}", program, tree)
        assert "filled-in" not in printed + said


@of_kind("overrides")
def test_a_line_typed_into_an_experiment_acts(source, expected, command, program, tree):
    file, _, effect = expected.partition(": ")
    key = command.partition(":")[0]
    kept = [line for line in (tree / file).read_text().splitlines() if not line.strip().startswith(f"{key}:")]
    at = next(i for i, line in enumerate(kept) if line.strip() == "overrides:")
    indent = re.match(r" *", kept[at + 1])[0]
    mine = (tree / file).with_name("mine-pretrain.yaml")
    mine.write_text("\n".join([*kept[: at + 1], indent + command, *kept[at + 1 :]]) + "\n")
    words = {"profile": "profile_step_start=6 profile_step_end=7", "profile_step_end": "profile=true profile_step_start=6",
             "profile_step_start": "profile=true profile_step_end=7", "train_data_path": "mock_data=false"}.get(key, "")
    check_effect(effect, f"EXP={mine.relative_to(tree)} bash examples/run_pretrain.sh {words}", program, tree)


@of_kind("benchmark")
def test_a_benchmark_command_says_what_it_would_do(source, expected, command, program, tree):
    variables = TEMPLATE | {"MEGALITH_DRY_RUN_DEVICE": "MI300X"}
    printed, said = typed(f"export DRY_RUN=1; cd ../MAD/{BENCHMARKS}; {command}", program, tree, **variables)
    assert "_setup.sh" in command or "\nfits MI300X" in printed, printed
    for words in expected.split(" & "):
        assert words in printed + said, f"{words!r} is not in\n{printed}{said}"


@of_kind("slurm")
def test_a_script_for_slurm_is_submitted_by_a_test_of_its_own(source, expected, command):
    program, script = command.split()
    text = (ROOT / "tests/parallel_processes/slurm_test.py").read_text()
    assert f'"{program}"' in text and script in text


@of_kind("documented")
def test_a_page_says_what_stands_for_another_programs_command(source, expected, command):
    page, _, words = expected.partition(": ")
    assert (words or command) in (ROOT / page).read_text(), f"{page} does not say {words or command!r}"


def test_fsdp_typed_beside_tensor_parallelism_works_with_a_note(program):
    words = ("--mock_data", "--vocab_size", 64, "--dry_run", "--dry_run_world_size", 4, "--use_torch_fsdp2")
    model = ("--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4, "--seq_length", 16, "--max_position_embeddings", 16)
    note = "guides to FSDP2 find 1 faster"
    _, _, errors = program.run("train", *model, *words, "--tensor_model_parallel_size", 2)
    assert f"use_torch_fsdp2 with tensor_model_parallel_size 2 works, but {note}" in errors
    assert note not in program.run("train", *model, *words)[2]
    # The scripts' own switch takes tensor parallelism away, so there is nothing to note.
    _, said = shell(f"DRY_RUN=1 FSDP=1 TP=2 BS=16 bash {ROOT}/examples/llama/train_llama3.sh", program, ROOT)
    assert note not in said


def test_a_verdict_names_what_is_missing_and_the_cheapest_savings(program, tree):
    words = ("train", "--config", "llama3.1_8B", "--bf16", "--mock_data", "--seq_length", 512, "--dry_run")
    _, printed, _ = program.run(*words, "--dry_run_device", "h100", "--attn_logit_softcapping", 50)
    assert re.search(r"^does not fit H100 of 79\S* GiB, .*: \S+ GiB missing$", printed, re.MULTILINE), printed
    savings = re.findall(r"^  (--\S.*) gives (\S+ \S+), and costs (\S.*)$", printed, re.MULTILINE)
    assert "--master_weights remainder" in [saving[0] for saving in savings] and 1 < len(savings) <= 3, savings
    prices = [float(re.match(r"([+-][\d.]+) % GPU time a token \(", saving[2])[1]) for saving in savings]
    assert prices == sorted(prices) and prices[0] <= 0, savings
    assert "note: attn_logit_softcapping on H100 (sm_90): attention is the reference" in printed
    _, printed, _ = program.run(*words, "--dry_run_device", "B200")
    assert re.search(r"^fits B200 of 179\S* GiB, .*: \S+ GiB left$", printed, re.MULTILINE), printed
    _, _, said = program.run(*words, "--dry_run_device", "MI3000", expected=2)
    assert "MI3000 is no GPU whose memory is known" in said and "MI300X" in said
    # A file in a folder of a GPU's name asks for that GPU.
    file = "examples/megatron/configs/MI300X/llama3.1_8B-FP8-pretrain.yaml"
    printed, _ = typed(f"export DRY_RUN=json EXP={file}; bash examples/run_pretrain.sh", program, tree)
    fit = json.loads(printed)["fit"]
    assert fit["device"] == "MI300X" and fit["fits"] and not fit["notes"]
    # The scripts' own words for it count more; one of an architecture names no GPU.
    for word, device in (("mi355x", "MI355X"), ("gfx950", "MI300X")):
        printed, _ = typed(f"export DRY_RUN=json EXP={file} GPU_ARCH={word}; bash examples/run_pretrain.sh", program, tree)
        assert json.loads(printed)["fit"]["device"] == device
