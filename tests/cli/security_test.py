"""What others' texts and a person's secrets may not do: reach a terminal as commands, stay in what a run leaves."""

import json
import os
import pty
import re
import select
import subprocess

import pytest

MODEL = (
    *("--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4, "--vocab_size", 131, "--seq_length", 32),
    *("--max_position_embeddings", 64, "--device", "cpu", "--global_batch_size", 2, "--train_iters", 3),
)
SECRETS = {"HF_TOKEN": "hf_neverToBeSeen0", "WANDB_API_KEY": "0123456789neverToBeSeen1"}
EVIL = "x\x1b]0;owned\x07\x1b[2J\r\x9b\u202ey"


def on_terminal(program, *words, cwd):
    """(exit code, every byte that a terminal got from both outputs)."""
    main, other = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    process = subprocess.Popen(program.command(*words), stdout=other, stderr=other, stdin=other, cwd=cwd, env=environment)
    os.close(other)
    got = b""
    try:
        while select.select([main], [], [], 120)[0]:
            piece = os.read(main, 65536)
            if not piece:
                break
            got += piece
    except OSError:  # the other end is closed
        pass
    os.close(main)
    return process.wait(timeout=120), got


def assert_harmless(got):
    # The terminal's own line ends, and the status line that is written again.
    left = got.replace(b"\r\n", b"\n").replace(b"\r\x1b[K", b"")
    text = re.sub("\x1b\\[(1;32|0)m", "", left.decode("utf-8"))  # our colours; so no byte that is no text
    bad = [c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or 0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069]
    assert not bad, text[-2000:]


def test_names_of_files_cannot_speak_to_a_terminal(program, tmp_path):
    folder = tmp_path / EVIL
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": EVIL, "architectures": [EVIL]}))
    (tmp_path / "recipe.yaml").write_text(f"{json.dumps(EVIL)}: 1\n")
    for expected, words in (
        (2, ("train", "--load_hf", folder)),
        (2, ("train", "--config", tmp_path / "recipe.yaml")),
        (2, ("train", "--data_path", f"/nowhere/{EVIL}", *MODEL)),
        (0, ("inspect", "config", "--load_hf", folder)),
        (2, (EVIL,)),
    ):
        code, got = on_terminal(program, *words, cwd=tmp_path)
        assert code == expected, got
        assert_harmless(got)
        assert b"\\x1b]0;owned\\x07" in got


def test_what_data_hold_cannot_speak_to_a_terminal(program, tmp_path):
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": EVIL * 40}) + "\n")
    program.run("prepare", "--input", tmp_path / "text.jsonl", "--output_prefix", tmp_path / "data", "--tokenizer_type", "ByteTokenizer")
    words = ("inspect", "data", tmp_path / "data_text_document", "--tokenizer_type", "ByteTokenizer")
    code, got = on_terminal(program, *words, cwd=tmp_path)
    assert code == 0, got
    assert_harmless(got)
    assert b"owned" in got


def chat_model(folder, template):
    folder.mkdir()
    (folder / "chat_template.jinja").write_text(template)
    return ("inspect", "sft", "--load_hf", folder, "--tokenizer_type", "ByteTokenizer", "--sft_data_path")


CHAT = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}"
ROW = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "an answer"}]}


def test_colours_of_data_hide_nothing(program, tmp_path):
    hidden = {"messages": [{"role": "user", "content": "see \x1b[8mthis\x1b[0m" + EVIL}, {"role": "assistant", "content": "\x1b[8mand\u2066 this"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(hidden) + "\n")
    words = (*chat_model(tmp_path / "model", CHAT), "rows.jsonl")
    code, got = on_terminal(program, *words, cwd=tmp_path)
    assert code == 0, got
    assert_harmless(got)
    assert b"see \\x1b[8mthis\\x1b[0m" in got and b"\\x1b[8mand\\u2066 this" in got and b"\x1b[1;32m" in got, got
    # A file is no terminal: bytes as they are.
    assert "see \x1b[8mthis" in program.run(*words, cwd=tmp_path)[1]


def test_a_template_that_wants_much_is_refused_by_its_line(program, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    words = chat_model(tmp_path / "model", "{{ messages[0].content }}\n{% for i in range(300) %}{% set n = namespace(x='a' * 16000000) %}{% endfor %}")
    errors = program.run(*words, "rows.jsonl", cwd=tmp_path, expected=2)[2]
    assert "chat_template.jinja:2: the template holds more than 256 MiB at once" in errors, errors


@pytest.mark.parametrize("option", ["sft_data_path", "config"])
def test_a_pipe_that_is_waited_for_is_told(program, tmp_path, option):
    words = chat_model(tmp_path / "model", CHAT)
    pipe, rows = tmp_path / "pipe\x1b[8m", tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(ROW) + "\n")
    os.mkfifo(pipe)
    content = rows.read_text() if option == "sft_data_path" else f"sft_data_path: {rows}\n"
    words = (*words, pipe) if option == "sft_data_path" else (*words[:-1], "--config", pipe)
    process = program.start(*words, cwd=tmp_path)
    try:
        said = process.stderr.readline()
        assert said == f"note: {tmp_path}/pipe\\x1b[8m is a pipe (FIFO): waiting for what a program writes into it\n", said
        pipe.write_text(content)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0 and "an answer" in output, errors


def test_ids_without_a_token_are_noted(program, tmp_path):
    def notes(vocab_size):
        words = [vocab_size if word == 131 else word for word in MODEL]
        return program.run("train", *words, "--mock_data", "--dry_run", "--tokenizer_type", "ByteTokenizer", cwd=tmp_path)[2]

    assert "has 257 ids, and the model's vocabulary 4096: the others have no text, and are shown as <|id:257|>" in notes(4096)
    assert "have no text" not in notes(384)  # the next multiple of 128, to which every trainer pads


def left_files(folder):
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


@pytest.mark.parametrize("fails", [False, True], ids=["run", "failed"])
def test_secrets_are_nowhere_afterwards(program, tmp_path, fails):
    run = tmp_path / "run"
    options = [
        *("--mock_data", "--output_dir", run, "--save_interval", 2, "--page_file", tmp_path / "page.html"),
        *("--tensorboard_dir", tmp_path / "board", "--metrics_file", tmp_path / "metrics.jsonl", "--verbose"),
    ]
    if fails:
        options += ["--load_hf", "nobody/nothing"]
    process = program.start("train", *MODEL, *options, environment={**SECRETS, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hub")})
    words = b""
    try:
        words = open(f"/proc/{process.pid}/cmdline", "rb").read()
    finally:
        output, errors = process.communicate(timeout=300)
    assert (process.returncode == 0) != fails, errors
    everything = {"words": words, "output": output.encode(), "errors": errors.encode()}
    everything |= {str(path): path.read_bytes() for path in left_files(tmp_path)}
    assert fails or len(everything) > 10
    for place, held in everything.items():
        for secret in SECRETS.values():
            assert secret.encode() not in held, place
