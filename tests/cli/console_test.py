"""What a run prints: a line a step for people, Megatron-LM's line or JSON where it is asked for, more or less of it."""

import json
import os
import pty
import re
import subprocess

import pytest

MODEL = (
    *("--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4, "--vocab_size", 131, "--seq_length", 32),
    *("--max_position_embeddings", 64, "--swiglu", "--normalization", "RMSNorm", "--position_embedding_type", "rope"),
    *("--disable_bias_linear", "--device", "cpu", "--mock_data", "--global_batch_size", 2, "--train_iters", 4),
    *("--eval_interval", 2, "--eval_iters", 1, "--sample_interval", 4, "--sample_prompt_ids", 7),
)
COLUMNS = 110


@pytest.fixture(scope="module")
def printed(program):
    """Options -> (standard output, standard error) of a run of four steps."""
    kept = {}

    def run(*options):
        if options not in kept:
            kept[options] = program.run("train", *MODEL, *options)[1:]
        return kept[options]

    return run


def test_a_line_a_step_of_at_most_110_columns(printed):
    output, _ = printed()
    steps = [line for line in output.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["1/4", "2/4", "3/4", "4/4"]
    for line in steps:
        assert len(line) <= COLUMNS
        assert re.match(r"step \d/4  loss \d\.\d{4}  grad +\S+  lr \d\.\d\de[-+]\d\d  +[\d.]+( k| M)? tok/s  mem ", line)
    assert [bool(re.search(r"  left \d", line)) for line in steps] == [True, True, True, False]
    assert "\neval 2/4  validation loss " in output and "\x1b" not in output


def test_the_end_is_a_table(printed):
    output, _ = printed()
    table = output[output.index("\ndone ") :]
    assert re.search(r"^done +4 of 4 steps in ", table, re.MULTILINE)
    assert re.search(r"^loss +\d\.\d+ in training \(mean of the last 4 steps\)\n +\d\.\d+ on validation", table, re.MULTILINE)
    assert "throughput per GPU" not in output


def test_the_report_fits_a_screen(printed):
    _, errors = printed()
    report = errors[errors.index("model      ") :].splitlines()
    assert len(report) <= 25 and max(map(len, report)) <= COLUMNS
    topics = [line[:11].strip() for line in report if line[:11].strip()]
    expected = ["model", "precision", "optimizer", "data", "batch", "layout", "device", "memory", "compute", "output"]
    assert topics == expected


def test_megatron_is_the_line_that_tools_read(printed):
    output, _ = printed("--log_format", "megatron")
    assert len(re.findall(r"^ iteration +\d/ +4 \| consumed samples: ", output, re.MULTILINE)) == 4
    assert len(re.findall(r"^ validation loss at iteration ", output, re.MULTILINE)) == 2
    last = output.splitlines()[-4:]
    assert [line.split(":")[0] for line in last] == [
        *("throughput per GPU", "elapsed time per iteration", "tokens/GPU/s", "mem usages"),
    ]
    assert "\nstep " not in output and "\ndone " not in output


def test_json_is_an_object_a_line(printed):
    output, _ = printed("--log_format", "json")
    objects = [json.loads(line) for line in output.splitlines()]
    steps = [one for one in objects if "lm_loss" in one and one.get("kind", "step") == "step"]
    assert [one["iteration"] for one in steps] == [1, 2, 3, 4]
    assert {one.get("kind") for one in objects} >= {"evaluation", "text", "summary"}
    # The words of metrics.jsonl.
    assert all({"set", "evaluation_loss", "evaluation_losses"} <= set(one) for one in objects if one["kind"] == "evaluation")


def test_quiet_prints_nothing_of_a_run_that_goes_well(printed):
    assert printed("--quiet") == ("", "")


def test_verbose_and_explain_list_the_options_that_differ(printed):
    heading = "options that differ from their defaults:\n"
    for option in ("--verbose", "--explain_options"):
        _, errors = printed(option)
        assert heading in errors and re.search(r"^  num_layers +2  \(command line\)$", errors, re.MULTILINE)
    assert heading not in printed()[1]


def test_the_environment_may_choose_the_format(program):
    environment = {"MEGALITH_LOG_FORMAT": "megatron"}
    _, output, _ = program.run("train", *MODEL, environment=environment)
    assert "\n iteration " in "\n" + output


@pytest.mark.parametrize(("variables", "has_colour"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_has_colour_unless_somebody_objects(variables, has_colour, program, tmp_path):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "NO_COLOR": "", **variables}
    command = program.command("train", *MODEL, "--eval_iters", 0, "--log_file", tmp_path / "log.txt")
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        text = b""
        try:
            while block := os.read(ours, 65536):
                text += block
        except OSError:
            pass  # the other side was closed
    assert process.returncode == 0, text
    assert b"4/4" in text and (b"\x1b[1m" in text) == has_colour
    log = (tmp_path / "log.txt").read_text()
    assert "\nstep 4/4  loss " in log and "\x1b" not in log


def test_that_waiting_threads_sleep_is_said_once_and_where_they_compute(program, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    run = (*MODEL, "--num_threads", os.cpu_count() + 1, "--train_iters", 1, "--eval_iters", 0)
    counts = {}
    for words in (
        ("train", *run, "--save", tmp_path / "run"), ("train", *run, "--dry_run"),
        ("inspect", "checkpoint", tmp_path / "run"), ("convert", "--load", tmp_path / "run", "--save_hf", tmp_path / "hf"),
    ):  # fmt: skip
        ran = subprocess.run(program.command(*words), env=environment, text=True, capture_output=True, timeout=100)
        assert ran.returncode == 0, ran.stderr
        counts[words[0] + str(words[-1])] = (ran.stdout + ran.stderr).count("threads that wait sleep")
    assert list(counts.values()) == [1, 0, 0, 0], counts
