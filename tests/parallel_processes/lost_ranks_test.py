"""Runs that outlive a rank (--fault_tolerance): a rank is killed, stopped or cut off at a random moment of training,
evaluating or saving, the others go on within seconds with the samples that it would have had, a replacement joins, and
the curve is that of a run without a loss. Replacements die while they join, and bits are flipped in what they receive.

Every step is made once with its whole global batch, by however many replicas there are. So losses are those of an
undisturbed run up to the order of sums in fp32, and replicas, compared bit by bit at each change of ranks
(trainer_eras.cc) and every two steps (--check_sync), are equal.

MEGALITH_LOSSES says how many ranks are lost (20), MEGALITH_LOSS_SEED where, MEGALITH_LOSS_RANKS of how many (4). A line
a loss, with the seconds until the next step, is added to the file MEGALITH_LOSS_TIMES.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hosts import HostsUnavailable, Switch
from launch_test import curve
from program import read_metrics
from ranks import environment_of, free_port

LOSSES = int(os.environ.get("MEGALITH_LOSSES", 20))
SEED = int(os.environ.get("MEGALITH_LOSS_SEED", 11))
RANKS = int(os.environ.get("MEGALITH_LOSS_RANKS", 4))
TIMES = os.environ.get("MEGALITH_LOSS_TIMES")
STEPS, LOSSES_A_RUN = 100_000, 5  # more steps than are made
KNOWN_STEPS = 150
PATIENCE_S = 3
NEXT_STEP_S = float(os.environ.get("MEGALITH_NEXT_STEP_S", 60))  # a busy machine; 10 s on one with a core a rank
END_S = 120

OPTIONS = (
    *("--num_layers", 2, "--hidden_size", 48, "--num_attention_heads", 4, "--ffn_hidden_size", 96, "--vocab_size", 131),
    *("--max_position_embeddings", 32, "--seq_length", 32, "--normalization", "RMSNorm", "--disable_bias_linear"),
    *("--swiglu", "--position_embedding_type", "rope", "--untie_embeddings_and_output_weights", "--fp32"),
    *("--hidden_dropout", 0.1, "--attention_dropout", 0.1, "--split", "80,20,0", "--eval_iters", 1, "--eval_interval", 5),
    *("--micro_batch_size", 1, "--lr", 1e-3, "--min_lr", 1e-3, "--lr_decay_style", "constant"),
    *("--device", "cpu", "--num_threads", 1, "--distributed_timeout_minutes", 0.5, "--check_sync", 2),
    *("--fault_patience_s", PATIENCE_S),
)
INSTANCES = ("--num_distributed_optimizer_instances", 2)
LAYOUTS = {
    "dp": (),
    "dp_tp": ("--tensor_model_parallel_size", 2),
    "zero_instances": ("--use_distributed_optimizer", *INSTANCES),
    "fsdp_instances": ("--use_torch_fsdp2", *INSTANCES),
}
# flip: once in the state that the replacement receives; flips: each time, until it leaves. join: the replacement dies
# while it joins.
WAYS = ("kill", "kill", "stop", "cut", "flip", "flips", "join")
SERVER = """
import sys
from torch.distributed import TCPStore
stores = []
for line in sys.stdin:
    stores.append(TCPStore("0.0.0.0", int(line), is_master=True, wait_for_workers=False))
    print("up", flush=True)
"""


class Network:
    """The ranks' machines, and a store that no rank serves, as a launcher's."""

    def __init__(self, switch):
        self.switch = switch
        words = [sys.executable, "-c", SERVER]
        self.server = subprocess.Popen(switch.command(-1, *words) if switch else words, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)

    def serve(self):
        """The variables of a run that meets there."""
        port = free_port()
        self.server.stdin.write(f"{port}\n")
        self.server.stdin.flush()
        assert self.server.stdout.readline() == "up\n"
        address = Switch.hub if self.switch else "127.0.0.1"
        return {"MASTER_ADDR": address, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.fixture(scope="module")
def network():
    try:
        switch = Switch(RANKS).__enter__()
    except HostsUnavailable:
        switch = None  # nothing can be cut
    made = Network(switch)
    yield made
    made.server.kill()
    made.server.wait()
    if switch:
        switch.__exit__()


@pytest.fixture(scope="module")
def flips(tmp_path_factory):
    """A library that flips bits of what is received."""
    if shutil.which("cc") is None:
        return None
    path = tmp_path_factory.mktemp("library") / "flip_received.so"
    source = Path(__file__).with_name("flip_received.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, source, "-ldl"], check=True)
    return path


class Ranks:
    """Processes by rank, their words in files."""

    def __init__(self, program, folder, data, *more, steps=STEPS, network=None):
        self.words = program.command("train", *OPTIONS, *more, "--train_iters", steps, "--data_path", data.prefix,
                                     "--data_cache_path", folder / "cache", "--metrics_file", folder / "metrics.jsonl")
        self.folder, self.port, self.switch = folder, free_port(), network and network.switch
        self.meeting = network.serve() if network else {}
        self.processes, self.logs, self.num_starts = {}, {}, 0
        for rank in range(RANKS):
            self.start(rank)

    def start(self, rank, environment={}):
        self.num_starts += 1
        restarts = {"TORCHELASTIC_RESTART_COUNT": str(int(rank in self.processes))}  # a launcher's agent says so
        self.logs[rank] = self.folder / f"{self.num_starts}_of_rank_{rank}.log"
        words = self.switch.command(rank, *self.words) if self.switch else self.words
        variables = environment_of(rank, RANKS, self.port) | self.meeting | restarts | environment
        with self.logs[rank].open("wb") as log:
            self.processes[rank] = subprocess.Popen(words, env=variables, stdout=log, stderr=log)

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

    def wait_for_change(self, kind, more_than, what, is_whole=False):
        """Ranks left or joined; whole: in the end, all are there."""

        def has_come(lines):
            changes = [line for line in lines if line.get("event") in ("ranks_left", "ranks_joined")]
            if is_whole and f"{RANKS} of {RANKS} ranks go on" not in changes[-1]["text"]:
                return False
            return sum(line["event"] == kind for line in changes) > more_than

        self.wait(has_come, what)

    def kill(self, rank):
        self.processes[rank].kill()
        self.processes[rank].wait()

    def ends_with(self, rank, *reasons):
        """A rank that leaves says why."""
        code, said = self.processes[rank].wait(END_S), self.logs[rank].read_text(errors="replace")
        assert code == 1 and any(reason in said for reason in reasons), f"rank {rank}: {code}\n{self.said()}"

    def stop_all(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        for rank, process in self.processes.items():
            assert process.wait(END_S) in (0, 3), f"rank {rank}: {process.returncode}\n{self.said()}"

    def kill_all(self):
        for rank in self.processes:
            self.kill(rank)


def batch_of(layout):
    """The samples of a step, divided evenly by the ranks with and without one replica."""
    return 12 if RANKS == 4 else (RANKS - 1) * RANKS if layout == "dp" else 3 * RANKS


@pytest.fixture(scope="module")
def undisturbed(program, data, tmp_path_factory):
    """Losses of one process, long enough for every run, by the size of a step: of its steps, and of evaluations."""
    known = {}

    def losses(batch):
        if batch not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            program.run("train", *OPTIONS, "--global_batch_size", batch, "--train_iters", STEPS, "--exit_interval", KNOWN_STEPS,
                        "--data_path", data.prefix, "--data_cache_path", folder / "cache", "--metrics_file", folder / "metrics.jsonl")
            known[batch] = curve(folder), evaluations(folder)
        return known[batch]

    return losses


def evaluations(folder):
    return {line["iteration"]: line["evaluation_loss"] for line in read_metrics(folder / "metrics.jsonl", "evaluation")}


def lose(ranks, victim, way, rng):
    """Until the others have made a step, in seconds."""
    time.sleep(rng.uniform(0, 0.3))
    before, begin = len(ranks.events("ranks_left")), time.monotonic()
    if way == "cut":
        ranks.switch.cut(victim)
    else:
        ranks.processes[victim].send_signal(signal.SIGSTOP if way == "stop" else signal.SIGKILL)
    ranks.wait_for_change("ranks_left", before, f"loss of rank {victim} ({way})")
    ranks.wait_for_steps(1, f"a step after the loss of rank {victim} ({way})", NEXT_STEP_S)
    return time.monotonic() - begin


def replace(ranks, victim, way, rng, flips):
    """Until the rank is back, after what is done to its replacement."""
    if way == "stop":
        ranks.processes[victim].send_signal(signal.SIGCONT)  # finds itself left out, and joins again
    elif way == "cut":
        ranks.ends_with(victim, "does not answer", "is gone")
        ranks.switch.mend(victim)
    else:
        ranks.processes[victim].wait()
    flipped = {"LD_PRELOAD": str(flips), "FLIP_FIRST": str(rng.randrange(20)), "FLIP_COUNT": "1"}
    if way == "flips":
        ranks.start(victim, flipped | {"FLIP_COUNT": "1000000"})
        ranks.ends_with(victim, "was changed on its way, 3 times in a row")
    elif way == "join":
        ranks.start(victim)
        time.sleep(rng.uniform(0, 3))
        ranks.kill(victim)
        time.sleep(1.5)  # it may have joined, and is lost again
    num_joined = len(ranks.events("ranks_joined"))
    if way != "stop":
        ranks.start(victim, flipped if way == "flip" else {})
    ranks.wait_for_change("ranks_joined", num_joined, f"rank {victim} joins ({way})", is_whole=True)
    if way == "flip":
        said = ranks.logs[victim].read_text()
        assert "flipped a bit" in said and "it is sent again" in said, ranks.said()
    ranks.wait_for_steps(2, f"steps with rank {victim} ({way})")


def rounds():
    count = -(-LOSSES // LOSSES_A_RUN)
    return [(i, LOSSES // count + (i < LOSSES % count)) for i in range(count)]


@pytest.mark.parametrize("number, count", rounds())
def test_a_run_outlives_its_ranks(number, count, undisturbed, network, flips, program, data, tmp_path):
    layout = list(LAYOUTS)[number % len(LAYOUTS)]
    rng = random.Random(f"{SEED}/{number}")
    save = ("--save", tmp_path / "saved", "--load", tmp_path / "saved", "--save_interval", 4, "--keep_last", 2)
    more = (*LAYOUTS[layout], *save, *(("--async_save",) if rng.random() < 0.5 else ()))
    steps_of, evaluations_of = undisturbed(batch_of(layout))
    ways = [way for way in WAYS if (way != "cut" or network.switch) and ("flip" not in way or flips)]
    ranks = Ranks(program, tmp_path, data, "--fault_tolerance", "replicas", "--global_batch_size", batch_of(layout), *more,
                  network=network)
    seconds = []
    try:
        ranks.wait_for_steps(3, "the first steps")
        for _ in range(count):
            victim, way = rng.randrange(RANKS), rng.choice(ways)
            seconds.append((way, lose(ranks, victim, way, rng)))
            replace(ranks, victim, way, rng, flips)
        ranks.stop_all()
    finally:
        ranks.kill_all()
        print(f"{layout}: next step after {', '.join(f'{one:.1f} s ({way})' for way, one in seconds)}")
        if TIMES:
            with open(TIMES, "a") as times:
                times.writelines(json.dumps({"layout": layout, "way": way, "seconds": one}) + "\n" for way, one in seconds)
    found = curve(tmp_path)
    steps = read_metrics(tmp_path / "metrics.jsonl")
    iterations = [line["iteration"] for line in steps]
    assert len(set(iterations)) == len(iterations), "a step was recorded twice"
    # A reporting rank may be killed between a step and its line.
    left = ranks.events("ranks_left")
    assert len(set(range(1, max(iterations) + 1)) - set(iterations)) <= len(left)
    for line in steps:
        assert line["consumed_samples"] == batch_of(layout) * line["iteration"], line
        if line["iteration"] in steps_of:
            # Sums of other orders in fp32, which training carries on.
            assert found[line["iteration"]] == pytest.approx(steps_of[line["iteration"]], rel=1e-4), line
    for iteration, loss in evaluations(tmp_path).items():
        if iteration in evaluations_of:
            assert loss == pytest.approx(evaluations_of[iteration], rel=1e-4), iteration
    assert len(left) >= count and any(line.get("is_repeated") for line in steps), ranks.said()
    loaded = program.run("inspect", "checkpoint", tmp_path / "saved")
    assert loaded[0] == 0


def test_without_replicas_ranks_are_replaced_and_the_losses_have_the_same_bits(network, program, data, tmp_path):
    """Once from the memory of another rank; once, a rank and its partner being lost together, from disk."""
    layout = ("--pipeline_model_parallel_size", 2, "--tensor_model_parallel_size", RANKS // 2, "--global_batch_size", 4)
    straight, lossy = tmp_path / "straight", tmp_path / "lossy"
    for folder in (straight, lossy):
        folder.mkdir()
    ranks = Ranks(program, straight, data, *layout, "--exit_interval", 60)
    for process in ranks.processes.values():
        assert process.wait(END_S) == 0, ranks.said()
    known = {line["iteration"]: line["lm_loss"] for line in read_metrics(straight / "metrics.jsonl")}
    save = ("--save", lossy / "saved", "--load", lossy / "saved", "--save_interval", 3)
    more = ("--fault_tolerance", "restart", "--memory_checkpoint_interval", 4)
    ranks = Ranks(program, lossy, data, *layout, *save, *more, network=network)
    rng = random.Random(SEED)
    try:
        ranks.wait_for_steps(9, "the first steps")
        for number, victims in enumerate(([rng.randrange(RANKS)], [1, 2])):
            time.sleep(rng.uniform(0, 0.3))
            for victim in victims:
                ranks.kill(victim)
            for victim in victims:
                ranks.start(victim)
            ranks.wait(lambda lines: sum(line.get("event") == "ranks_restarted" for line in lines) > number, f"{victims} come anew")
            ranks.wait_for_steps(5, "steps after the loss", NEXT_STEP_S)
        ranks.stop_all()
    finally:
        ranks.kill_all()
    texts = [event["text"] for event in ranks.events("ranks_restarted")]
    assert "kept in memory" in texts[0] and "are made again" in texts[0], texts
    assert "loaded from disk, because what rank 1 held is in no memory" in texts[1], texts
    lines = read_metrics(lossy / "metrics.jsonl")
    assert any(line.get("is_repeated") for line in lines), ranks.said()
    for line in lines:
        assert line["iteration"] not in known or line["lm_loss"] == known[line["iteration"]], line


def test_without_the_rank_that_serves_the_store_the_run_ends_with_the_reason(program, data, tmp_path):
    save = ("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint", "--save_interval", 2)
    ranks = Ranks(program, tmp_path, data, "--fault_tolerance", "replicas", "--global_batch_size", 3 * RANKS, *save)
    try:
        ranks.wait_for_steps(5, "the first steps")
        ranks.kill(0)
        for rank in range(1, RANKS):
            ranks.ends_with(rank, "rank 0")
            assert "the newest checkpoint is" in ranks.logs[rank].read_text(), ranks.said()
    finally:
        ranks.kill_all()
