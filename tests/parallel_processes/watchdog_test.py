"""A rank that stops, or stays away from a collective: watchdogs name it and what all wait in, and the run ends."""

import fcntl
import os
import random
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from launch_test import torchrun, train_words, wait_for_lines
from ranks import clean_environment, environment_of, free_port

TIMEOUT_S = 12  # the ranks have so long to meet, too
OPTIONS = ("--distributed_timeout_minutes", TIMEOUT_S / 60)
# What is promised is the time-out plus 5 s. The rest is for a machine with more processes than cores, where the step
# that the others still compute, and a thread that wants to speak, take their time.
BOUND_S = TIMEOUT_S + 5 + 60

COLLECTIVE = r"[a-z_]+ [a-z_]+ \S.* [\d.]+ (B|KiB|MiB) \(#\d+\)"


def start(program, words, num_ranks, outputs=None):
    """Ranks without a launcher; outputs[rank] is where its standard output goes."""
    port = free_port()
    return [
        subprocess.Popen(
            program.command(*words),
            env=environment_of(rank, num_ranks, port),
            text=True,
            stdout=(outputs or {}).get(rank, subprocess.DEVNULL),
            stderr=subprocess.PIPE,
        )
        for rank in range(num_ranks)
    ]


def end(processes):
    for process in processes:
        process.kill()
        process.wait()


def errors_within_bound(processes, ranks, begin):
    """What these ranks say, which end with 1 before the bound."""
    errors = {}
    for rank in ranks:
        left = begin + BOUND_S - time.monotonic()
        try:
            _, errors[rank] = processes[rank].communicate(timeout=max(left, 0.01))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {rank} still runs after {BOUND_S} s; the others said:\n{errors}") from None
        assert processes[rank].returncode == 1, errors[rank]
    return errors


def ranks_of(text):
    """{0, 1, 2, 5} of "ranks 0-2, 5"."""
    ranks = set()
    for part in re.sub("ranks? ", "", text).split(", "):
        first, _, last = part.partition("-")
        ranks |= set(range(int(first), int(last or first) + 1))
    return ranks


def states(errors):
    """What is said of each rank, from all messages: the lines "ranks 0, 1: waiting in …"."""
    found = {}
    for line in "\n".join(errors).splitlines():
        match = re.match(r"  (ranks? [\d, -]+): (.*)", line)
        for rank in ranks_of(match[1]) if match else ():
            found.setdefault(rank, []).append(match[2])
    return found


def assert_all_wait(errors, ranks):
    said = states(errors.values())
    for rank in ranks:
        pattern = rf"waiting in {COLLECTIVE} for [\d.]+ \w+; last finished {COLLECTIVE}, [\d.]+ \w+ ago"
        assert any(re.fullmatch(pattern, state) for state in said.get(rank, ())), f"rank {rank}: {said}\n{errors}"


def finding_about_stopped(victim):
    if victim == 0:
        return "rank 0, which serves the ranks' store, does not answer: stopped"
    return f"rank {victim} does not answer: stopped"


LAYOUTS = {
    "dp 2": (2, ()),
    "dp 3": (3, ("--global_batch_size", 3)),
    "pp 2 dp 2": (4, ("--pipeline_model_parallel_size", 2)),
    "tp 2 dp 2": (4, ("--tensor_model_parallel_size", 2)),
}
CASES = [("dp 2", 0), ("dp 2", 1), ("dp 3", 0), ("dp 3", 1), ("dp 3", 2), ("pp 2 dp 2", 2), ("tp 2 dp 2", 3)]


def stop_a_rank(layout, victim, program, data, tmp_path):
    num_ranks, options = LAYOUTS[layout]
    processes = start(program, train_words(data, tmp_path, *OPTIONS, *options, steps=1_000_000), num_ranks)
    others = [rank for rank in range(num_ranks) if rank != victim]
    try:
        wait_for_lines(tmp_path / "metrics.jsonl", 3, processes)
        time.sleep(random.uniform(0, 0.3))
        processes[victim].send_signal(signal.SIGSTOP)
        errors = errors_within_bound(processes, others, time.monotonic())
        for rank in others:
            message = errors[rank][errors[rank].index(f"[rank {rank} ") :]
            assert re.match(rf"\[rank {rank} [a-z0-9 ]+\] error: ", message), message
            assert finding_about_stopped(victim) in message, errors
        assert_all_wait(errors, others)
        if victim != 0:
            assert states(errors.values())[victim] == ["no answer"], errors
    finally:
        end(processes)


def keep_a_rank_away(program, data, tmp_path):
    """The reporting rank stands in the middle of a line, because no process reads its standard output any more."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    processes = start(program, train_words(data, tmp_path, *OPTIONS, steps=1_000_000), 2, {1: writer})
    os.close(writer)
    try:
        wait_for_lines(tmp_path / "metrics.jsonl", 3, processes)
        lines = -1
        while lines != (lines := (tmp_path / "metrics.jsonl").read_bytes().count(b"\n")):
            time.sleep(1)
        errors = errors_within_bound(processes, [0, 1], time.monotonic())
        for rank in (0, 1):
            finding = rf"\n  rank 1 has not issued {COLLECTIVE}: in no collective for [\d.]+ s"
            assert re.search(finding, errors[rank]), errors
        assert_all_wait(errors, [0])
    finally:
        end(processes)
        os.close(reader)


def stop_a_rank_of_torchrun(program, data, tmp_path):
    """With the launcher's store, which goes on when rank 0 is stopped."""
    words = train_words(data, tmp_path, *OPTIONS, steps=1_000_000)
    # torchrun waits half a minute for the stopped rank, and ends with a stack trace: each rank leaves its exit code.
    script = 'trap "" TERM; "$@" 2> "$0/errors$RANK" & echo $! > "$0/id$RANK"; wait $!; echo $? > "$0/code$RANK"'
    launcher = subprocess.Popen(
        [*torchrun(2), "sh", "-c", script, tmp_path, *program.command(*words)],
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    ids = []
    try:
        wait_for_lines(tmp_path / "metrics.jsonl", 3, [launcher])
        ids = [int((tmp_path / f"id{rank}").read_text()) for rank in (0, 1)]
        os.kill(ids[0], signal.SIGSTOP)
        begin = time.monotonic()
        code = tmp_path / "code1"
        while not (code.exists() and code.read_text()) and time.monotonic() < begin + BOUND_S:
            time.sleep(0.05)
        errors = (tmp_path / "errors1").read_text()
        assert code.exists() and code.read_text() == "1\n", errors
        assert "rank 0 does not answer: stopped" in errors, errors
        assert_all_wait({1: errors}, [1])
        assert states([errors])[0] == ["no answer"], errors
    finally:
        for process in ids:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()


def suspend_all_and_go_on(program, data, tmp_path):
    """Also when all of it was suspended for longer than the time-out, as Slurm and a terminal can do.

    A signal that says that some connection was closed, as a killed rank closes its own, ends no other rank.
    """
    processes = start(program, train_words(data, tmp_path, *OPTIONS, "--exit_interval", 400, steps=1_000_000), 2)
    try:
        wait_for_lines(tmp_path / "metrics.jsonl", 3, processes)
        for process in processes:
            process.send_signal(signal.SIGPIPE)
            process.send_signal(signal.SIGSTOP)
        time.sleep(TIMEOUT_S + 3)
        assert all(process.poll() is None for process in processes)
        for process in processes:
            process.send_signal(signal.SIGCONT)
        for process in processes:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
            assert not re.search("error|warning|hang|answer", errors), errors
    finally:
        end(processes)


@pytest.fixture(scope="module")
def running(program, data, tmp_path_factory):
    """Every scenario, of which three run at a time: what each does most is to wait for its time-out."""
    scenarios = (suspend_all_and_go_on, stop_a_rank_of_torchrun, keep_a_rank_away)
    with ThreadPoolExecutor(max_workers=3) as pool:
        started = {}
        for scenario in scenarios:
            started[scenario] = pool.submit(scenario, program, data, tmp_path_factory.mktemp(scenario.__name__))
        for case in CASES:
            started[case] = pool.submit(stop_a_rank, *case, program, data, tmp_path_factory.mktemp("stopped"))
        yield started
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("layout, victim", CASES)
def test_a_stopped_rank_is_named_by_all_others(layout, victim, running):
    running[layout, victim].result()


def test_a_rank_that_stays_away_is_named_and_ends_too(running):
    running[keep_a_rank_away].result()


def test_under_torchrun_the_ranks_end_themselves(running):
    running[stop_a_rank_of_torchrun].result()


def test_a_run_that_goes_well_hears_nothing_of_it(running):
    running[suspend_all_and_go_on].result()
