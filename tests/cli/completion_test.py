"""`megalith completion`: bash itself completes commands, topics, options and values by the script; zsh and fish read theirs."""

import re
import shutil
import subprocess

import pytest

DRIVER = """
source "$1"; shift
complete -p megalith
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_megalith
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "megalith.bash"
    path.write_text(program.run("completion", "bash")[1], encoding="utf-8")
    subprocess.run(["bash", "-n", path], check=True)
    return path


def complete(script, *words, cwd=None):
    """What bash offers for the last word, as it splits the line: --name=value is three words."""
    run = subprocess.run(
        ["bash", "--norc", "-c", DRIVER, "bash", script, "megalith", *words], cwd=cwd, check=True, capture_output=True, text=True
    )
    assert not run.stderr, run.stderr
    first, *offered = run.stdout.splitlines()
    assert first == "complete -F _megalith megalith"
    return [word for word in offered if word]


CASES = [
    (("tr",), ["train"]),
    (("inspect", "log"), ["logits"]),
    (("train", "--lr_decay_st"), ["--lr_decay_style"]),
    (("train", "--lr_decay_style", "co"), ["constant", "cosine"]),
    (("train", "--lr_decay_style", "=", "co"), ["constant", "cosine"]),
    (("train", "--lr-decay-style", "co"), ["constant", "cosine"]),
    (("train", "--lr-decay-st"), ["--lr-decay-style"]),
    (("train", "--bf16", "--tensor_model"), ["--tensor_model_parallel_size"]),
    (("train", "--lr", "1e-3", "--lr_warmup_f"), ["--lr_warmup_fraction"]),
    (("train", "--lr", ""), []),  # a number
    (("generate", "--max_new"), ["--max_new_tokens"]),
    (("generate", "--train_it"), []),  # it does nothing there
    (("prepare", "merge", "--output_p"), ["--output_prefix"]),
    (("prepare", "--inp"), ["--input"]),
    (("prepare", "merge", "--tokenizer_m"), []),
    (("doctor", "--para"), ["--parallel"]),
    (("train", "--conf"), ["--config"]),
    (("train", "--help", "a"), ["all"]),
]


@pytest.mark.parametrize("words, expected", CASES, ids=[" ".join(words) for words, _ in CASES])
def test_bash_offers(words, expected, script):
    assert complete(script, *words) == expected


def test_bash_offers_files_where_a_text_is_wanted(script, tmp_path):
    (tmp_path / "recipe one.yaml").touch()
    (tmp_path / "recipe_two.yaml").touch()
    assert sorted(complete(script, "train", "--config", "rec", cwd=tmp_path)) == ["recipe one.yaml", "recipe_two.yaml"]
    assert complete(script, "train", "--data_path", "a", "recipe_t", cwd=tmp_path) == ["recipe_two.yaml"]


@pytest.mark.parametrize("command", ["train", "generate", "prepare", "convert", "bench gemm", "prepare check"])
def test_bash_offers_every_option_of_help(command, program, script):
    words = command.split()
    listed = re.findall(r"^  --([\w.]+)", program.run(*words, "--help", "all")[1], re.MULTILINE)
    usage = program.run(*words, "--help")[1]
    listed += re.findall(rf"^ +megalith {command} --(\w+)  --help", usage, re.MULTILINE)  # forms of the command
    offered = complete(script, *words, "--")
    assert set(offered) == {f"--{name}" for name in listed}


def balanced(text):
    """Whether the quotes and braces of a script close: what can be said without the shell."""
    quotes = re.sub(r"'[^']*'|\\.|\"(?:\\.|[^\"])*\"|(?m:^ *# .*)", "", text)
    return "'" not in quotes and '"' not in quotes and quotes.count("{") == quotes.count("}")


def test_zsh_reads_its_script(program, tmp_path):
    text = program.run("completion", "zsh")[1]
    assert text.startswith("#compdef megalith\n") and text.endswith("compdef _megalith megalith\n") and balanced(text)
    if shutil.which("zsh"):
        path = tmp_path / "_megalith"
        path.write_text(text, encoding="utf-8")
        subprocess.run(["zsh", "-n", path], check=True)


def test_fish_reads_its_script(program, tmp_path):
    text = program.run("completion", "fish")[1]
    assert "complete -c megalith -n __fish_use_subcommand -a train -d " in text
    assert re.search(r"-n '__fish_seen_subcommand_from [\w ]*' -l lr_decay_style -x -a '[^']*cosine[^']*' -d '", text)
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(line.startswith("complete -c megalith ") and balanced(line.replace("\\'", "")) for line in rows)
    if shutil.which("fish"):
        path = tmp_path / "megalith.fish"
        path.write_text(text, encoding="utf-8")
        subprocess.run(["fish", "--no-execute", path], check=True)


@pytest.mark.parametrize("words", [(), ("tcsh",), ("bash", "zsh")])
def test_other_shells_are_refused(words, program):
    _, output, errors = program.run("completion", *words, expected=2)
    assert not output and "bash" in errors
