"""Runs that outlive a rank (--fault_tolerance): a rank is killed or stopped at a random moment, the others go on within
seconds with the samples that it would have had, a replacement joins, and the curve is that of a run without a loss.

Every step is made once with its whole global batch, by however many replicas there are. So losses are those of an
undisturbed run up to the order of sums in fp32, and replicas, compared bit by bit at each change of ranks
(trainer_eras.cc) and every two steps (--check_sync), are equal.

MEGALITH_LOSSES says how many ranks are lost (18), MEGALITH_LOSS_SEED where.
"""

import json
import os
import random
import signal
import subprocess
import time

import pytest
from launch_test import curve
from program import read_metrics
from ranks import environment_of, free_port

LOSSES = int(os.environ.get("MEGALITH_LOSSES", 18))
SEED = int(os.environ.get("MEGALITH_LOSS_SEED", 11))
RANKS, STEPS, LOSSES_A_RUN = 4, 100_000, 6  # more steps than are made
PATIENCE_S = 3
NEXT_STEP_S = float(os.environ.get("MEGALITH_NEXT_STEP_S", 60))  # a busy machine; 10 s on one with a core a rank
END_S = 240

OPTIONS = (
    *("--num_layers", 2, "--hidden_size", 48, "--num_attention_heads", 4, "--ffn_hidden_size", 96, "--vocab_size", 131),
    *("--max_position_embeddings", 32, "--seq_length", 32, "--normalization", "RMSNorm", "--disable_bias_linear"),
    *("--swiglu", "--position_embedding_type", "rope", "--untie_embeddings_and_output_weights", "--fp32"),
    *("--hidden_dropout", 0.1, "--attention_dropout", 0.1, "--split", "100,0,0", "--eval_iters", 0),
    *("--micro_batch_size", 1, "--global_batch_size", 12, "--lr", 1e-3, "--min_lr", 1e-3, "--lr_decay_style", "constant"),
    *("--device", "cpu", "--num_threads", 1, "--distributed_timeout_minutes", 0.5, "--check_sync", 2),
    *("--fault_patience_s", PATIENCE_S),
)
LAYOUTS = {
    "dp": (),
    "dp_tp": ("--tensor_model_parallel_size", 2),
    "zero_instances": ("--use_distributed_optimizer", "--num_distributed_optimizer_instances", 2),
    "fsdp_instances": ("--use_torch_fsdp2", "--num_distributed_optimizer_instances", 2),
}


class Ranks:
    """Processes by rank, their words in files."""

    def __init__(self, program, folder, data, *more, steps=STEPS):
        self.words = program.command("train", *OPTIONS, *more, "--train_iters", steps, "--data_path", data.prefix,
                                     "--data_cache_path", folder / "cache", "--metrics_file", folder / "metrics.jsonl")
        self.folder, self.port = folder, free_port()
        self.processes, self.num_starts, self.ended = {}, 0, []
        for rank in range(RANKS):
            self.start(rank)

    def start(self, rank):
        self.num_starts += 1
        with (self.folder / f"{self.num_starts}_of_rank_{rank}.log").open("wb") as log:
            self.processes[rank] = subprocess.Popen(
                self.words, env=environment_of(rank, RANKS, self.port), stdout=log, stderr=log
            )

    def said(self):
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2500:]}" for path in sorted(self.folder.glob("*.log"))
        )

    def lines(self):
        path = self.folder / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def wait(self, condition, what, patience_s=END_S):
        end = time.monotonic() + patience_s
        while not condition(lines := self.lines()):
            assert time.monotonic() < end, f"{what}: not within {patience_s} s\n{self.said()}"
            time.sleep(0.01)
        return lines

    def newest(self):
        return max((line["iteration"] for line in self.lines() if line["kind"] == "step"), default=0)

    def wait_for_steps(self, more, what, patience_s=END_S):
        wanted = self.newest() + more
        self.wait(lambda lines: any(line["kind"] == "step" and line["iteration"] >= wanted for line in lines), what,
                  patience_s)

    def events(self, kind):
        return [line for line in self.lines() if line["kind"] == "event" and line["event"] == kind]

    def stop_all(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        for rank, process in self.processes.items():
            assert process.wait(END_S) in (0, 3), f"rank {rank}: {process.returncode}\n{self.said()}"

    def kill_all(self):
        for process in [*self.processes.values(), *self.ended]:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def undisturbed(program, data, tmp_path_factory):
    """The curve of one process, long enough for every run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    program.run("train", *OPTIONS, "--train_iters", STEPS, "--exit_interval", 300, "--data_path", data.prefix, "--data_cache_path",
                folder / "cache", "--metrics_file", folder / "metrics.jsonl")
    return curve(folder)


def lose(ranks, victim, way, rng):
    """Until the others have made a step, in seconds."""
    time.sleep(rng.uniform(0, 0.3))
    process, before = ranks.processes[victim], len(ranks.events("ranks_left"))
    begin = time.monotonic()
    process.send_signal(way)
    ranks.wait(lambda lines: sum(line.get("event") == "ranks_left" for line in lines) > before, f"loss of rank {victim}")
    ranks.wait_for_steps(1, f"a step after the loss of rank {victim}", NEXT_STEP_S)
    return time.monotonic() - begin


def rounds():
    count = -(-LOSSES // LOSSES_A_RUN)
    return [(i, LOSSES // count + (i < LOSSES % count)) for i in range(count)]


@pytest.mark.parametrize("number, count", rounds())
def test_a_run_outlives_its_ranks(number, count, undisturbed, program, data, tmp_path):
    layout = list(LAYOUTS)[number % len(LAYOUTS)]
    rng = random.Random(f"{SEED}/{number}")
    ranks = Ranks(program, tmp_path, data, "--fault_tolerance", "replicas", *LAYOUTS[layout])
    seconds = []
    try:
        ranks.wait_for_steps(3, "the first steps")
        for _ in range(count):
            victim = rng.randrange(1, RANKS)  # rank 0 serves the store
            way = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
            num_joined = len(ranks.events("ranks_joined"))
            seconds.append(lose(ranks, victim, way, rng))
            if way == signal.SIGKILL:
                ranks.processes[victim].wait()
                ranks.start(victim)
            else:
                ranks.processes[victim].send_signal(signal.SIGCONT)  # finds itself left out, and joins again
            ranks.wait(lambda lines: sum(line.get("event") == "ranks_joined" for line in lines) > num_joined,
                       f"rank {victim} joins")
            ranks.wait_for_steps(2, f"steps with rank {victim}")
        ranks.stop_all()
    finally:
        ranks.kill_all()
    print(f"{layout}: next step after {', '.join(f'{one:.1f}' for one in seconds)} s")
    found = curve(tmp_path)
    steps = [line for line in read_metrics(tmp_path / "metrics.jsonl")]
    iterations = [line["iteration"] for line in steps]
    assert len(set(iterations)) == len(iterations), "a step was recorded twice"
    # A reporting rank may be killed between a step and its line.
    assert len(set(range(1, max(iterations) + 1)) - set(iterations)) <= count
    for line in steps:
        assert line["consumed_samples"] == 12 * line["iteration"], line
        if line["iteration"] in undisturbed:
            # Sums of other orders in fp32, which training carries on.
            assert found[line["iteration"]] == pytest.approx(undisturbed[line["iteration"]], rel=1e-4), line
    left = ranks.events("ranks_left")
    assert len(left) == count == sum(bool(line.get("is_repeated")) for line in steps), ranks.said()


def test_without_the_rank_that_serves_the_store_the_run_ends_with_the_reason(program, data, tmp_path):
    save = ("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint", "--save_interval", 2)
    ranks = Ranks(program, tmp_path, data, "--fault_tolerance", "replicas", *save)
    try:
        ranks.wait_for_steps(5, "the first steps")
        ranks.processes[0].kill()
        for rank in range(1, RANKS):
            assert ranks.processes[rank].wait(END_S) == 1, ranks.said()
            said = (tmp_path / f"{rank + 1}_of_rank_{rank}.log").read_text()
            assert "rank 0" in said and "the newest checkpoint is" in said, said
    finally:
        ranks.kill_all()
