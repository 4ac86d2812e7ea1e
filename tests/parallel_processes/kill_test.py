"""SIGKILL of any rank at any moment: the run ends with a message that names the rank, or torchrun starts it again;
nothing that was committed is lost, and the curve is that of a run that nobody disturbed, bit for bit.

MEGALITH_KILLS says how many kills there are (10), MEGALITH_KILL_SEED where they fall.
"""

import os
import random
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from launch_test import clean_environment, start_by_hand, torchrun
from program import read_metrics

KILLS = int(os.environ.get("MEGALITH_KILLS", 10))
SEED = int(os.environ.get("MEGALITH_KILL_SEED", 9))
MOST_KILLS_A_ROUND = 5
STEPS = 36  # a round's kills come before
TIMEOUT_S = 18

OPTIONS = (
    *("--num_layers", 2, "--hidden_size", 48, "--num_attention_heads", 4, "--ffn_hidden_size", 96, "--vocab_size", 131),
    *("--max_position_embeddings", 32, "--seq_length", 32, "--normalization", "RMSNorm", "--disable_bias_linear"),
    *("--swiglu", "--position_embedding_type", "rope", "--untie_embeddings_and_output_weights", "--fp32"),
    *("--hidden_dropout", 0.1, "--attention_dropout", 0.1, "--split", "100,0,0", "--eval_iters", 0),
    *("--micro_batch_size", 1, "--train_iters", STEPS, "--lr", 3e-3, "--min_lr", 1e-4, "--lr_decay_style", "cosine"),
    *("--device", "cpu", "--num_threads", 1, "--distributed_timeout_minutes", TIMEOUT_S / 60),
)
LAYOUTS = {
    2: ("--global_batch_size", 4, "--use_distributed_optimizer"),
    3: ("--global_batch_size", 3),
    4: ("--global_batch_size", 4, "--tensor_model_parallel_size", 2, "--use_distributed_optimizer"),
}
# launcher, ranks, whether it saves beside training
KINDS = [
    *(("hand", 3, False), ("torchrun", 2, True), ("hand", 4, True)),
    *(("torchrun", 3, False), ("hand", 2, True), ("torchrun", 4, True), ("hand", 2, False), ("torchrun", 4, False)),
]


def rounds():
    """(number, kills), as even as it goes, at least three."""
    count = max(3, -(-KILLS // MOST_KILLS_A_ROUND))
    return [(i, KILLS // count + (i < KILLS % count)) for i in range(count)]


def curve(path):
    """Loss and gradient norm by iteration. What was done again must have come out the same."""
    values = {}
    for line in read_metrics(path):
        found = (line["lm_loss"], line["grad_norm"], line["learning_rate"], line["consumed_samples"])
        assert values.setdefault(line["iteration"], found) == found, f"iteration {line['iteration']} differs"
    return values


@dataclass
class Run:
    """One command line, given again and again."""

    program: object
    folder: Path
    data: object
    ranks: int
    is_async: bool = False

    @property
    def metrics(self):
        return self.folder / "metrics.jsonl"

    @property
    def checkpoint(self):
        return self.folder / "checkpoint"

    def words(self):
        return (
            *("train", *OPTIONS, *LAYOUTS[self.ranks], "--data_path", self.data.prefix),
            *("--data_cache_path", self.folder / "cache", "--metrics_file", self.metrics),
            *("--save", self.checkpoint, "--load", self.checkpoint, "--save_interval", 2, "--keep_last", 2),
            *(("--async_save",) if self.is_async else ()),
        )

    def names(self):
        try:
            return os.listdir(self.checkpoint)
        except FileNotFoundError:
            return []

    def newest(self):
        """The newest committed iteration, 0 when there is none."""
        return max((int(name.removeprefix("iter_")) for name in self.names() if name.startswith("iter_")), default=0)

    def lines(self):
        return self.metrics.read_bytes().count(b"\n") if self.metrics.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(program, data, tmp_path_factory):
    """The curve of so many ranks, computed when first asked for."""
    curves = {}

    def of(ranks):
        if ranks not in curves:
            run = Run(program, tmp_path_factory.mktemp(f"undisturbed{ranks}"), data, ranks)
            for process in start_by_hand(program, run.words(), ranks):
                _, errors = process.communicate(timeout=240)
                assert process.returncode == 0, errors
            curves[ranks] = curve(run.metrics)
            assert sorted(curves[ranks]) == list(range(1, STEPS + 1))
        return curves[ranks]

    return of


# Moments: each waits until it has come, or the run is over.


def while_starting(run, rng, is_running):
    """Until the first step at the latest: on a quick machine a whole run fits into the time that a start may take."""
    before, end = run.lines(), time.monotonic() + rng.uniform(0, 1.5)
    while is_running() and run.lines() == before and time.monotonic() < end:
        time.sleep(0.002)


def while_stepping(run, rng, is_running):
    wanted = run.lines() + rng.randint(1, 4)
    while is_running() and run.lines() < wanted:
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.05))


def while_writing(run, rng, is_running):
    seen = set(run.names())  # what an earlier kill left
    while is_running() and not any(name.startswith(".iter_") for name in set(run.names()) - seen):
        time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.03))


def while_committing(run, rng, is_running):
    """Around the renames and the deletion of old ones."""
    before = run.newest()
    while is_running() and run.newest() == before:
        time.sleep(0.0002)
    time.sleep(rng.choice((0, 0.001, 0.003, 0.01)))


MOMENTS = {
    "starting": while_starting,
    "stepping": while_stepping,
    "writing": while_writing,
    "committing": while_committing,
}


def draw_moment(rng):
    return rng.choices(list(MOMENTS), weights=(1, 2, 2, 2))[0]


@dataclass
class Kill:
    victim: int
    moment: str
    newest: int  # committed by then
    lines: int  # of the metrics file by then
    way: str = ""  # how the run went on
    seconds: float = 0.0  # until it ended


@dataclass
class Tally:
    kills: list = field(default_factory=list)


@pytest.fixture(scope="module")
def tally():
    return Tally()


def describe(kills):
    return "\n".join(map(str, kills))



def kill_started_by_hand(run, rng, count):
    """Every survivor must end with a message that names the victim; then the same command line again."""
    kills = []
    for _ in range(count):
        processes = start_by_hand(run.program, run.words(), run.ranks)
        try:
            moment, victim = draw_moment(rng), rng.randrange(run.ranks)
            start = run.newest()
            MOMENTS[moment](run, rng, lambda: all(process.poll() is None for process in processes))
            kill = Kill(victim, moment, run.newest(), run.lines())
            processes[victim].kill()
            since = time.monotonic()
            errors = [process.communicate(timeout=TIMEOUT_S + 30)[1] for process in processes]
            kill.seconds = time.monotonic() - since
        finally:
            for process in processes:
                process.kill()
                process.wait()
        kills.append(kill)
        # Only the victim's own end is without a word.
        for rank, process in enumerate(processes):
            if rank == victim:
                assert process.returncode == -9, f"{describe(kills)}\nrank {rank} had ended before\n{errors[rank]}"
                continue
            assert process.returncode == 1, f"{describe(kills)}\nrank {rank}: {process.returncode}\n{errors[rank]}"
            named = re.findall(
                # from a survivor whose collective broke; who waited for the ranks to meet; the watchdog
                r"ranks? ([\d, ]+) (?:is|are) gone|rank (\d+) has not come|rank (\d+) does not answer",
                errors[rank],
            )
            blamed = {number for pair in named for number in ",".join(pair).replace(" ", "").split(",") if number}
            assert blamed == {str(victim)}, f"{describe(kills)}\nrank {rank} names {blamed}:\n{errors[rank]}"
        kill.way = "message"
        if any("has not come" in text or "does not answer" in text for text in errors):
            kill.way = "message at the time-out"  # before the ranks had met and were connected
        loaded = re.findall(r"loaded weights and optimizer from \S+ at iteration (\d+)", errors[0])
        assert loaded in ([], [str(start)]), f"{describe(kills)}\n{errors[0]}"
    for process in start_by_hand(run.program, run.words(), run.ranks):
        _, text = process.communicate(timeout=240)
        assert process.returncode == 0, f"{describe(kills)}\n{text}"
    return kills


def ranks_of(agent, restart):
    """Rank -> process, of those that torchrun has started for this restart."""
    found = {}
    try:
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        for child in children:
            words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            environment = dict(word.decode().split("=", 1) for word in words if b"=" in word)
            if environment.get("TORCHELASTIC_RESTART_COUNT") == str(restart):
                found[int(environment["RANK"])] = int(child)
    except OSError:
        pass  # it ended meanwhile
    return found


def kill_under_torchrun(run, rng, count):
    """torchrun must bring the run back each time, without anybody's help, and finish it."""
    command = torchrun(run.ranks)
    command.insert(command.index("--no-python"), f"--max-restarts={count}")
    log = run.folder / "torchrun.log"
    kills = []
    with log.open("wb") as errors:
        agent = subprocess.Popen(
            [*command, *run.program.command(*run.words())],
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        for restart in range(count):
            end = time.monotonic() + 240
            while len(found := ranks_of(agent, restart)) < run.ranks:
                assert time.monotonic() < end and agent.poll() is None, f"{describe(kills)}\n{log.read_text()[-6000:]}"
                time.sleep(0.01)
            if kills:
                kills[-1].seconds = time.monotonic() - since
            moment, victim = draw_moment(rng), rng.randrange(run.ranks)
            MOMENTS[moment](run, rng, lambda: all(Path(f"/proc/{process}/exe").exists() for process in found.values()))
            kills.append(Kill(victim, moment, run.newest(), run.lines(), "restart"))
            since = time.monotonic()
            try:
                os.kill(found[victim], 9)
            except ProcessLookupError:
                pytest.fail(f"rank {victim} had ended before\n{describe(kills)}\n{log.read_text()[-8000:]}")
        code = agent.wait(timeout=240)
        assert code == 0, f"{describe(kills)}\n{log.read_text()[-8000:]}"
        kills[-1].seconds = float("nan")  # it ran to its end
    finally:
        agent.terminate()  # it ends its ranks
        try:
            agent.wait(timeout=240)
        finally:
            agent.kill()
            agent.wait()
    return kills


KILLERS = {"hand": kill_started_by_hand, "torchrun": kill_under_torchrun}


@pytest.mark.parametrize("number, count", rounds())
def test_a_killed_rank_costs_nothing_that_was_committed(number, count, undisturbed, program, data, tally, tmp_path):
    launcher, ranks, is_async = KINDS[number % len(KINDS)]
    expected = undisturbed(ranks)
    print(f"round {number} of seed {SEED}: {launcher}, {ranks} ranks{', async_save' if is_async else ''}")
    rng = random.Random(f"{SEED}/{number}")
    run = Run(program, tmp_path, data, ranks, is_async)
    kills = KILLERS[launcher](run, rng, count)
    print(describe(kills))
    tally.kills += kills
    assert len(kills) == count
    assert curve(run.metrics) == expected
    iterations = [line["iteration"] for line in read_metrics(run.metrics)]
    for kill in kills:
        again = [iteration for iteration in iterations[kill.lines :] if iteration <= kill.newest]
        assert not again, f"{kill}: iterations {again} were committed, and were done again\n{iterations}"
    # Nothing half-written is left, and what is there is intact.
    assert not [name for name in run.names() if name.startswith(".")]
    assert run.newest() == STEPS
    program.run("inspect", "checkpoint", run.checkpoint)


def test_there_were_as_many_kills_as_asked_for(tally):
    by = {}
    for kill in tally.kills:
        by.setdefault((kill.way, kill.moment), []).append(kill.seconds)
    for (way, moment), seconds in sorted(by.items()):
        print(f"{len(seconds):4} {way}, {moment}: up to {max(seconds):.1f} s")
    assert len(tally.kills) == KILLS
    assert len(by) >= 2
