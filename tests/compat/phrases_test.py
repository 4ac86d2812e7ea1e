"""No word of ours is a phrase by which CVS takes a run for failed: help, pages, scripts, presets, and what is refused."""

import re
from pathlib import Path

import log_patterns
import pytest
from shells import shell

ROOT = Path(__file__).resolve().parents[2]
# Folders of which people see words: pages, comments and banners of scripts, notes of presets.
SHOWN = ("README.md", "ARCHITECTURE.md", "docs", "examples", "configs", "docker", "scripts")
LLAMA3 = ROOT / "examples/llama/train_llama3.sh"
# Where a phrase must stand, and why.
EXCEPTIONS = {"src/config/dialects/cvs_phrases.table": "the list by which verify judges; its findings quote what a log has"}


def help_texts(program):
    """The help of every command and of every topic that one of them names."""
    text = program.run("--help")[1]
    commands = [(name,) for name in re.findall(r"^  (\w+) +\S", text, re.MULTILINE)]
    assert len(commands) > 10, text
    for command in commands:
        try:
            text = program.run(*command, "--help", "all")[1]
        except AssertionError:  # completion has no options
            text = program.run(*command, "--help")[1]
        yield command, text
        for topic in re.findall(rf"megalith {command[0]} ([a-z_]+) +--help", text):
            yield (*command, topic), program.run(*command, topic, "--help")[1]
    names = re.search(r"^names: (.*)", program.run("launch", "--help")[1], re.MULTILINE)[1]
    for name in names.split(", "):
        yield ("launch", name), program.run("launch", name, "--help")[1]


def test_help_has_none(program):
    found = {command: log_patterns.failures(text) for command, text in help_texts(program)}
    assert ("prepare", "merge") in found and ("launch", "llama3") in found
    assert {command: phrases for command, phrases in found.items() if phrases} == {}


def test_pages_scripts_and_sources_have_none():
    """Messages stand in the sources, so a phrase in one of them would be found here before anybody meets it."""
    files = [path for name in SHOWN for path in sorted((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])]
    files += sorted((ROOT / "src").rglob("*"))
    files = [path for path in files if path.suffix in (".md", ".sh", ".yaml", ".json", ".py", ".cc", ".h", ".cu", ".table", ".rocm", ".cuda")]
    assert len(files) > 500
    found = {}
    for path in files:
        phrases = log_patterns.failures(path.read_text(encoding="utf-8"))
        if phrases:
            found[str(path.relative_to(ROOT))] = phrases
    assert set(found) == set(EXCEPTIONS), found


def test_verify_judges_by_the_same_phrases():
    """Its list, and the one here, were each taken from CVS."""
    text = (ROOT / "src/config/dialects/cvs_phrases.table").read_text()
    assert sorted(re.findall(r"^failure \| (.+)$", text, re.MULTILINE)) == sorted(log_patterns.CVS_FAILURES)


@pytest.mark.parametrize(
    "command",
    [
        f"NNODES=2 bash {LLAMA3}",
        f"TP=3 GPUS_PER_NODE=1 bash {LLAMA3}",
        f"MOCK_DATA=0 DATA_PATH=a/b GPUS_PER_NODE=4096 bash {LLAMA3}",
        '"$MEGALITH" train --mock_data --vocab_size 64 --device cuda --num_layers 99',
        '"$MEGALITH" doctor --device cpu; exit 2',
    ],
)
def test_errors_and_warnings_have_none(command, program, tmp_path):
    """A log may hold what was refused, and the report of the machine."""
    printed, said = shell(command, program, tmp_path, expected=2)
    assert printed + said != "" and log_patterns.failures(printed + said) == []
