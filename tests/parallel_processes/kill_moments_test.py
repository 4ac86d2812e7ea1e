"""SIGKILL at chosen moments: every survivor names the victim, also while the ranks connect and while they save.

A small library (stop_at_call.c) stops one rank before one of its calls to the system; kill_test.py kills at random.
"""

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from launch_test import clean_environment, train_words, wait_for_lines

NUM_RANKS = 3
TIMEOUT_S = 120
# A kill is noticed within about 5 s where nothing breaks, otherwise at once. The rest is for a machine with more
# processes than cores; it is far from the time-out.
BOUND_S = 100
OPTIONS = ("--distributed_timeout_minutes", TIMEOUT_S / 60, "--global_batch_size", 3, "--eval_iters", 0)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("library") / "stop_at_call.so"
    source = Path(__file__).with_name("stop_at_call.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, source, "-ldl"], check=True)
    return path


@pytest.fixture
def start(program, data, tmp_path, library):
    """Starts the ranks, of which some stop themselves: {rank: "connect:2"}."""
    processes = []

    def start_ranks(stops, *more):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(NUM_RANKS):
            environment = clean_environment() | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
            environment |= {"WORLD_SIZE": str(NUM_RANKS), "LOCAL_WORLD_SIZE": str(NUM_RANKS), "MASTER_PORT": str(port)}
            if rank in stops:
                environment |= {"LD_PRELOAD": str(library), "STOP_AT": stops[rank]}
                environment |= {"STOP_UNDER": str(tmp_path / "checkpoint" / ".iter_")}  # saves, not the folder's lock
            processes.append(
                subprocess.Popen(
                    program.command(*train_words(data, tmp_path, *OPTIONS, *more, steps=1_000_000)),
                    env=environment,
                    text=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
            )
            if rank == 0:
                wait_until_listened_at(port)  # no other rank has to try twice
        return processes

    yield start_ranks
    for process in processes:
        process.kill()
        process.wait()


def wait_until_listened_at(port):
    end = time.monotonic() + 240
    while time.monotonic() < end:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.01)
    raise AssertionError("rank 0 does not listen")


def state(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until_stopped(process, processes):
    end = time.monotonic() + 240
    while state(process) != "T":
        ended = [other.communicate()[1] for other in processes if other.poll() is not None]
        assert not ended and time.monotonic() < end, ended
        time.sleep(0.01)


def assert_named(victim, processes):
    """By every survivor, and no other rank is blamed."""
    begin = time.monotonic()
    for rank, process in enumerate(processes):
        if rank == victim:
            continue
        try:
            _, errors = process.communicate(timeout=max(begin + BOUND_S - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {rank} does not notice that rank {victim} is gone") from None
        assert process.returncode == 1, errors
        named = re.findall(r"ranks? ([\d, ]+) (?:is|are) gone", errors)
        assert named and set(named) == {str(victim)}, f"rank {rank} names {named}:\n{errors}"


# A rank connects to the store, and to it again for the watchdog; after that, which of two ranks connects to the other is
# Gloo's choice. Gloo listens before it leaves its address in the store; rank 0 listens for the store before that, in two
# calls.
CONNECTING = [(0, "connect:2"), (0, "listen:3"), (1, "connect:2"), (1, "listen:1"), (2, "listen:1")]


@pytest.mark.parametrize("victim, moment", CONNECTING)
def test_a_rank_killed_while_the_ranks_connect_is_named(victim, moment, start):
    processes = start({victim: moment})
    wait_until_stopped(processes[victim], processes)
    processes[victim].kill()
    assert_named(victim, processes)


@pytest.mark.parametrize("moment", ["connect:2", "listen:1"])
def test_a_store_that_goes_before_a_rank_has_asked_all_is_rank_0s_end(moment, start):
    """The others have met, and rank 1 is about to connect the second time, or to connect to the ranks."""
    # A connection that no process takes is tried for half of the time-out.
    processes = start({1: moment}, "--distributed_timeout_minutes", 0.4)
    wait_until_stopped(processes[1], processes)
    time.sleep(0.5)  # the others have come as far as they can
    processes[0].kill()
    processes[0].wait()
    processes[1].send_signal(signal.SIGCONT)
    assert_named(0, processes)


def test_those_that_end_because_of_rank_0_are_not_blamed(start, tmp_path):
    """Rank 2 looks around only when rank 1 has ended too, and the store with rank 0."""
    processes = start({})
    wait_for_lines(tmp_path / "metrics.jsonl", 2, processes)
    processes[2].send_signal(signal.SIGSTOP)
    processes[0].kill()
    end = time.monotonic() + BOUND_S
    while state(processes[1]) != "Z":
        assert time.monotonic() < end, "rank 1 does not notice that rank 0 is gone"
        time.sleep(0.01)
    processes[2].send_signal(signal.SIGCONT)
    assert_named(0, processes)


# Each rank flushes its own file; rank 0 then renames the manifest's file, and the folder.
SAVING = [(0, "fsync:1"), (1, "fsync:1"), (0, "rename:1"), (0, "rename:2")]


@pytest.mark.parametrize("is_async", [False, True], ids=["at once", "beside training"])
@pytest.mark.parametrize("victim, moment", SAVING)
def test_a_rank_killed_while_a_save_is_under_way_is_named(victim, moment, is_async, start, tmp_path):
    save = ("--save", tmp_path / "checkpoint", "--save_interval", 2, *(("--async_save",) if is_async else ()))
    processes = start({victim: moment}, *save)
    wait_until_stopped(processes[victim], processes)
    assert (tmp_path / "checkpoint").exists() and not list((tmp_path / "checkpoint").glob("iter_*"))
    processes[victim].kill()
    assert_named(victim, processes)
