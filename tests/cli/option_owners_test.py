"""Every command knows the options of all others, and no option stands in the table of names that are none."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Every set of options that the program has: a command, or a topic of one.
COMMANDS = [
    ("train",),
    ("launch",),
    ("prepare",),
    ("prepare", "merge"),
    ("prepare", "check"),
    ("prepare", "--sft"),
    ("prepare", "flux"),
    ("fetch",),
    ("generate",),
    ("chat",),
    ("evaluate",),
    ("serve",),
    ("embed",),
    ("inspect", "config"),
    ("inspect", "data"),
    ("inspect", "tokenizer"),
    ("inspect", "sft"),
    ("inspect", "picture"),
    ("inspect", "checkpoint"),
    ("inspect", "runs"),
    ("inspect", "logits"),
    ("inspect", "gradients"),
    ("convert",),
    ("presets",),
    ("init",),
    ("plan",),
    ("plan", "--cluster"),
    ("plan", "--failures"),
    ("doctor",),
    ("doctor", "--parallel"),
    ("verify",),
    *(
        ("bench", topic)
        for topic in (
            "ops", "gemm", "attention", "moe", "overlap", "rccl", "strided_allgather", "train", "calibrate",
        )
    ),
]


@pytest.fixture(scope="module")
def options(program):
    """Command -> every name under which its help says that an option is set."""
    found = {}
    for command in COMMANDS:
        _, text, _ = program.run(*command, "--help", "all")
        rows = re.split(r"^  --", text, flags=re.MULTILINE)[1:]
        names = set()
        for row in rows:
            if row.startswith(("config FILE", "help ")):  # read before any option, in every command
                continue
            row = " ".join(row.split())
            names.add(row.split(" ")[0])
            for others in re.findall(r"(?:also|off with) ((?:--\w+(?:, )?)+)", row):
                names.update(re.findall(r"--(\w+)", others))
        found[command] = names
    return found


def known_names():
    """The names of src/config/dialects/known_names.table that are no options; a family ends in '*'."""
    text = (ROOT / "src/config/dialects/known_names.table").read_text(encoding="utf-8")
    rows = re.sub(r"^#.*\n|\n(?= )", "", text, flags=re.MULTILINE).split("\n")[1:]
    return {entry.partition("=")[0] for row in rows for entry in row.split(" | ")[-1].split()}


def test_every_command_is_walked(program, options):
    commands = re.findall(r"^  (\w+) ", program.run("--help")[1], re.MULTILINE)
    # `completion` takes the name of a shell and no options.
    assert {command[0] for command in COMMANDS} == set(commands) - {"completion"}
    for family in ("inspect", "bench"):
        topics = set(re.findall(r"^  (\w+) ", program.run(family, "--help")[1], re.MULTILINE))
        # `inspect run` takes a folder and no options.
        assert {command[1] for command in COMMANDS if command[0] == family} == topics - {"run"}
    assert "tensor_model_parallel_size" in options["train",]
    assert "disable_bias_linear" in options["train",] or "add_bias_linear" in options["train",]


# A key that Primus's presets have with null, and an option of bench: on the command line it is the option's (the test
# below), in a file null asks for nothing.
SHARED = {"warmup"}


def test_no_known_name_is_an_option(options):
    known = known_names()
    assert {"use_flash_attn", "fp4_param", "NVTE_*", "batch_size"} <= known
    every = set().union(*options.values())
    wrong = sorted(
        f"{name} (row {row})"
        for name in every
        for row in known
        if name not in SHARED and (name == row or row.endswith("*") and name.startswith(row[:-1]))
    )
    assert not wrong, "these are options, and their rows of src/config/dialects/known_names.table say otherwise"


def owners(options, here, name):
    """The commands with that option as messages name them: topics of one's own command in full."""
    found = []
    for command in COMMANDS:
        if command == here or name not in options[command]:
            continue
        shown = " ".join(command) if command[0] == here[0] else command[0]
        if shown not in found:
            found.append(shown)
    return found


def listed(names):
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


# Options that make a command another one, and the value that the other's name needs.
CHOOSING = {("plan",): {"cluster", "search"}}
VALUES = {("plan", "--cluster"): ("h200:8",)}


@pytest.mark.parametrize("here", COMMANDS, ids=" ".join)
def test_an_option_of_another_command_is_named_as_such(here, program, options):
    foreign = sorted(set().union(*options.values()) - options[here] - CHOOSING.get(here, set()))
    assert foreign
    words = [*VALUES.get(here, ()), *(f"--{name}=1" for name in foreign)]
    _, _, message = program.run(*here, *words, expected=2)
    for name in foreign:
        expected = f"--{name} is an option of {listed(owners(options, here, name))}; {' '.join(here)} has no use for it"
        assert expected in message


@pytest.mark.parametrize(
    "form", ["--tensor_model_parallel_size 2", "--tensor-model-parallel-size=1", "--no-sequence-parallel"]
)
def test_prepare_does_not_say_that_parallelism_is_not_supported(form, program):
    _, _, message = program.run("prepare", *form.split(), expected=2)
    assert "is an option of train, generate, chat, evaluate, serve, embed, inspect, plan, doctor and bench" in message
    assert "prepare has no use for it" in message and "support" not in message
