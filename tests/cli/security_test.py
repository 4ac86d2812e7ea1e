"""What others' texts and a person's secrets may not do: reach a terminal as commands, stay in what a run leaves."""

import json
import os
import pty
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
    text = left.decode("utf-8")  # so no byte that is no text
    bad = [c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or 0x202A <= ord(c) <= 0x202E]
    colours = text.count("\x1b[")
    assert all(c == "\x1b" for c in bad) and len(bad) == colours, text[-2000:]
    assert "owned\x07" not in text


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
