"""examples/demo/run.sh: as many steps as fit into five minutes on this processor, and every part of it works."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "demo" / "run.sh"
pytestmark = pytest.mark.skipif(shutil.which("bible") is None, reason="the program 'bible' (Debian's bible-kjv) is missing")

# Says what it is called with; a step takes as long as STEP_MS says.
PRETENDER = """#!/bin/sh
echo "$@" >>"$CALLS"
[ "$1" = train ] || exit 0
while [ $# -gt 0 ]; do
  [ "$1" = --metrics_file ] && file=$2
  shift
done
for i in 1 2 3 4; do echo "{\\"iteration\\":$i,\\"elapsed_ms\\":$STEP_MS.25,\\"tokens\\":4096}" >>"$file"; done
"""


def training_words(tmp_path, step_ms, *options):
    program = tmp_path / "megalith"
    program.write_text(PRETENDER)
    program.chmod(0o755)
    environment = {**os.environ, "CALLS": str(tmp_path / "calls"), "STEP_MS": str(step_ms)}
    (tmp_path / "calls").unlink(missing_ok=True)
    command = ["sh", SCRIPT, program, tmp_path / "out", *options]
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    return [words for words in calls if words[0] == "train" and "--save" in words][0], len(calls)


def steps_of(words):
    return int(words[len(words) - words[::-1].index("--train_iters")])


def test_a_slow_processor_makes_fewer_steps(tmp_path):
    words, _ = training_words(tmp_path, 1500)
    assert steps_of(words) == 179, "1.5 s a step fit 179 times into 270 s"


def test_a_fast_processor_makes_those_of_the_experiment(tmp_path):
    words, _ = training_words(tmp_path, 10)
    most = next(line for line in (ROOT / "configs/experiments/demo.yaml").read_text().splitlines() if "train_iters:" in line)
    assert steps_of(words) == int(most.split()[1])


def test_who_says_how_many_steps_gets_them(tmp_path):
    words, calls = training_words(tmp_path, 1500, "--train_iters", "7")
    assert steps_of(words) == 7 and calls == 5, "no steps are tried"


WHAT_IT_SHOWS = {
    "demo": "In the beginning",
    "demo_bert": '"sop accuracy":',
    "demo_t5": "== 5/5  It fills gaps",
    "demo_ict": "of document",
}


@pytest.mark.parametrize("experiment", WHAT_IT_SHOWS)
def test_the_demo_goes_from_text_to_what_a_model_makes_of_it(experiment, program, tmp_path):
    tiny = ("--num_layers", 1, "--hidden_size", 64, "--num_attention_heads", 2, "--ffn_hidden_size", 128, "--train_iters", 2)
    tiny = (*tiny, "--seq_length", 32, "--micro_batch_size", 8, "--global_batch_size", 8, "--eval_iters", 1)
    command = ["sh", SCRIPT, program.path, tmp_path / "out", *tiny, "--lr_warmup_iters", 1]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "EXPERIMENT": experiment}
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert '"perplexity":' in done.stdout and WHAT_IT_SHOWS[experiment] in done.stdout
    for name in ("loss.svg", "run.html", "metrics.jsonl", "checkpoint/latest_checkpointed_iteration.txt"):
        assert (tmp_path / "out" / name).is_file(), name
