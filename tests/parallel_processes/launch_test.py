"""Ranks as processes: started by torchrun or mpirun, over Gloo, they train as one; when one dies the others say so."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from program import read_metrics
from ranks import clean_environment, environment_of, free_port

STEPS = 8
GLOBAL_BATCH = 4

OPTIONS = (
    *("--num_layers", 2, "--hidden_size", 48, "--num_attention_heads", 4, "--ffn_hidden_size", 96, "--vocab_size", 131),
    *("--group_query_attention", "--num_query_groups", 2, "--max_position_embeddings", 32, "--seq_length", 32),
    *("--swiglu", "--normalization", "RMSNorm", "--position_embedding_type", "rope", "--disable_bias_linear"),
    *("--untie_embeddings_and_output_weights", "--hidden_dropout", 0.1, "--attention_dropout", 0.1, "--fp32"),
    *("--split", "90,10,0", "--micro_batch_size", 1, "--global_batch_size", GLOBAL_BATCH, "--lr", 3e-3),
    *("--min_lr", 1e-4, "--lr_decay_style", "cosine", "--lr_warmup_iters", 2, "--eval_interval", 5, "--eval_iters", 2),
    *("--device", "cpu", "--num_threads", 1, "--distributed_timeout_minutes", 1),
)

def torchrun(num_ranks):
    pytest.importorskip("torch")
    return [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", f"--nproc-per-node={num_ranks}"]


def mpirun(num_ranks):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(num_ranks)]


LAUNCHERS = {"torchrun": torchrun, "mpirun": mpirun}


def train_words(data, folder, *more, steps=STEPS):
    return (
        *("train", *OPTIONS, "--train_iters", steps, "--data_path", data.prefix, "--data_cache_path", folder / "cache"),
        *("--metrics_file", folder / "metrics.jsonl"),
        *more,
    )


def run_launched(launcher, num_ranks, program, words, expected=0):
    process = subprocess.run(
        [*LAUNCHERS[launcher](num_ranks), *program.command(*words)],
        env=clean_environment(),
        text=True,
        capture_output=True,
        timeout=600,
    )
    if expected is not None:
        assert process.returncode == expected, f"{process.stdout[-2000:]}\n{process.stderr[-4000:]}"
    return process


def curve(folder):
    return {line["iteration"]: (line["lm_loss"], line["grad_norm"]) for line in read_metrics(folder / "metrics.jsonl")}


@pytest.fixture(scope="module")
def alone(program, data, tmp_path_factory):
    """The curve of one process."""
    folder = tmp_path_factory.mktemp("alone")
    program.run(*train_words(data, folder))
    found = curve(folder)
    assert sorted(found) == list(range(1, STEPS + 1))
    assert found[STEPS][0] < found[1][0]
    return found


def assert_same_curve(found, expected):
    assert sorted(found) == sorted(expected)
    for iteration, values in expected.items():
        # Only the order of sums differs: fp32 keeps 24 bits, and eight steps do not make 1e-5 of that.
        assert found[iteration] == pytest.approx(values, rel=1e-5), f"iteration {iteration}"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_train_as_one(launcher, alone, program, data, tmp_path):
    process = run_launched(launcher, 2, program, train_words(data, tmp_path, "--log_format", "megatron"))
    assert_same_curve(curve(tmp_path), alone)
    lines = [line for line in process.stdout.splitlines() if " iteration " in line and "consumed samples" in line]
    assert len(lines) == STEPS, process.stdout  # one rank speaks


def test_two_processes_save_and_one_goes_on(alone, program, data, tmp_path):
    checkpoint = ("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint")
    run_launched("torchrun", 2, program, train_words(data, tmp_path, *checkpoint, "--exit_interval", 3))
    program.run(*train_words(data, tmp_path, *checkpoint, "--exit_interval", 6))
    run_launched("torchrun", 2, program, train_words(data, tmp_path, *checkpoint))
    assert_same_curve(curve(tmp_path), alone)


ZERO = ("--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather", "--ddp_bucket_size", 5000)


def test_the_distributed_optimizer_trains_and_saves_as_one_process(alone, program, data, tmp_path):
    checkpoint = ("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint")
    run_launched("torchrun", 2, program, train_words(data, tmp_path, *checkpoint, *ZERO, "--exit_interval", 3))
    program.run(*train_words(data, tmp_path, *checkpoint, "--exit_interval", 6))
    run_launched("torchrun", 2, program, train_words(data, tmp_path, *checkpoint, *ZERO))
    assert_same_curve(curve(tmp_path), alone)


def test_wrong_world_size_is_refused_by_every_rank(program, data, tmp_path):
    # The others do not come, and soon each rank says it by itself.
    for rank in (0, 2):
        environment = {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        _, _, errors = program.run(*train_words(data, tmp_path), environment=environment, expected=2, timeout=240)
        assert errors.startswith(f"[rank {rank}] error: ") and "global_batch_size 4" in errors, errors


def start_by_hand(program, words, num_ranks):
    """Ranks without a launcher, which would end the others itself when one dies."""
    port = free_port()
    return [
        subprocess.Popen(
            program.command(*words),
            env=environment_of(rank, num_ranks, port),
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(num_ranks)
    ]


PATIENCE_S = 240  # of a machine that is busy with other things


def wait_for(condition, processes):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and all(process.poll() is None for process in processes):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError([process.communicate()[1] for process in processes if process.poll() is not None])


def wait_for_lines(path, count, processes):
    wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") >= count, processes)


def wait_for_step(path, iteration, processes):
    """A step's line: those of evaluations are no steps. The last line may be on its way."""

    def is_there():
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return any(line["kind"] == "step" and line["iteration"] >= iteration for line in found)

    wait_for(is_there, processes)


# With a SIGTERM to the other as well: it wants to save then, and must not.
@pytest.mark.parametrize("victim, is_stopped_too", [(0, False), (1, False), (1, True)])
def test_killing_one_rank_ends_the_other_with_a_message(victim, is_stopped_too, program, data, tmp_path):
    words = train_words(data, tmp_path, "--save", tmp_path / "checkpoint", steps=1_000_000)
    processes = start_by_hand(program, words, 2)
    try:
        wait_for_lines(tmp_path / "metrics.jsonl", 3, processes)
        processes[victim].send_signal(signal.SIGKILL)
        if is_stopped_too:
            processes[1 - victim].send_signal(signal.SIGTERM)
        other = processes[1 - victim]
        _, errors = other.communicate(timeout=PATIENCE_S)
        assert other.returncode == 1, errors
        message = errors[errors.index(f"[rank {1 - victim} dp{1 - victim}] error: ") :]
        assert " failed: " in message and f"rank {victim} is gone" in message, errors
        assert not list((tmp_path / "checkpoint").glob("*iter_*")), "a rank that lost another one must not try to save"
    finally:
        for process in processes:
            process.kill()
            process.wait()


def catches_sigterm(process):
    try:
        status = open(f"/proc/{process.pid}/status", encoding="utf-8").read()
    except OSError:
        return False
    masks = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(masks) and bool(int(masks[0], 16) >> (signal.SIGTERM - 1) & 1)


def wait_for_handlers(processes):
    end = time.monotonic() + PATIENCE_S
    while not all(catches_sigterm(process) for process in processes):
        assert time.monotonic() < end and all(process.poll() is None for process in processes)
        time.sleep(0.001)


def saved_iterations(folder):
    """The iterations of the checkpoints, and the one that the pointer to the newest names."""
    iterations = sorted(int(path.name.removeprefix("iter_")) for path in folder.glob("iter_*"))
    assert not list(folder.glob(".*")), "something unfinished is left behind"
    return iterations, int((folder / "latest_checkpointed_iteration.txt").read_text())


# who gets it, after so many steps, after so many seconds more
MOMENTS = [([1], 0, 0.0), ([0], 0, 0.05), ([0, 1], 0, 0.2), ([1], 1, 0.004), ([0], 2, 0.01), ([0, 1], 3, 0.0), ([1], 6, 0.02)]


def test_a_signal_to_some_ranks_stops_all_after_one_checkpoint(program, data, tmp_path):
    """At one moment after the other, each run going on where the one before was stopped."""
    checkpoint = tmp_path / "checkpoint"
    words = train_words(data, tmp_path, "--save", checkpoint, "--load", checkpoint, "--keep_last", 1, steps=1000)
    before = 0
    for i, (victims, num_steps, seconds) in enumerate(MOMENTS):
        processes = start_by_hand(program, (*words, *(("--async_save", "--save_interval", 2) if i % 2 else ())), 2)
        try:
            wait_for_handlers(processes)
            if num_steps > 0:
                wait_for_step(tmp_path / "metrics.jsonl", before + num_steps, processes)
            time.sleep(seconds)
            for victim in victims:
                processes[victim].send_signal(signal.SIGTERM)
            said = []
            for process in processes:
                _, errors = process.communicate(timeout=PATIENCE_S)
                assert process.returncode == 3, f"moment {i}\n{errors}"
                said += re.findall(r"stopped by a signal after iteration (\d+), which is saved", errors)
                # What the run before has saved is intact: every checksum was verified.
                assert i == 0 or f"at iteration {before}\n" in errors or process is processes[1], errors
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert said and len(set(said)) == 1, said
        iteration = int(said[0])
        assert saved_iterations(checkpoint) == ([iteration], iteration) and iteration >= before + num_steps
        before = iteration
    program.run("inspect", "checkpoint", checkpoint)


def test_sigterm_to_torchrun_saves_before_the_ranks_end(program, data, tmp_path):
    """torchrun hands the signal on and then waits for its ranks."""
    words = train_words(data, tmp_path, "--save", tmp_path / "checkpoint", steps=1_000_000)
    # torchrun itself ends with a stack trace of its own: each rank leaves its exit code in a file. The shell between
    # the two ignores the signal; the program does not.
    script = f'trap "" TERM; "$@"; echo $? > "{tmp_path}/code$RANK"'
    process = subprocess.Popen(
        [*torchrun(2), "sh", "-c", script, "sh", *program.command(*words)],
        env=clean_environment(),
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        wait_for_lines(tmp_path / "metrics.jsonl", 3, [process])
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert [(tmp_path / f"code{rank}").read_text() for rank in (0, 1)] == ["3\n", "3\n"], errors
    iterations, newest = saved_iterations(tmp_path / "checkpoint")
    assert iterations == [newest] and f"stopped by a signal after iteration {newest}, which is saved" in errors
    program.run("inspect", "checkpoint", tmp_path / "checkpoint")


def test_a_signal_to_a_rank_that_nobody_joins_ends_it_soon(program, data, tmp_path):
    words = train_words(data, tmp_path, "--save", tmp_path / "checkpoint", steps=1_000_000)
    first, second = start_by_hand(program, words, 2)
    second.kill()
    second.communicate()
    try:
        wait_for_handlers([first])
        time.sleep(0.3)
        first.send_signal(signal.SIGTERM)
        _, errors = first.communicate(timeout=PATIENCE_S)
        assert first.returncode == 1, errors
        assert "stopped by a signal while waiting for the other ranks" in errors
        assert not list((tmp_path / "checkpoint").glob("*iter_*"))
    finally:
        first.kill()
        first.wait()


def ended(processes):
    """Exit code and standard error of each."""
    try:
        return [(process.communicate(timeout=PATIENCE_S)[1], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


# Before the ranks have met, and when they train.
SHARED_ERRORS = {
    "configuration": (("--load", "nowhere", "--exit_on_missing_checkpoint"), "holds no checkpoint"),
    "run": (("--split", "0,90,10"), "the training split is empty"),
}


@pytest.mark.parametrize("moment", SHARED_ERRORS)
def test_an_error_that_all_ranks_find_ends_all_with_2_and_is_said_once(moment, program, data, tmp_path):
    words, message = SHARED_ERRORS[moment]
    said = ended(start_by_hand(program, train_words(data, tmp_path, *words), 4))
    assert [code for _, code in said] == [2] * 4, said
    together = "".join(errors for errors, _ in said)
    assert together.count(message) == 1 and together.count("error: ") == 1, together
    # All say it, so no rank is named.
    assert "\nerror: " in "\n" + together, together


def start_each(program, words_of_ranks):
    """As start_by_hand(), each rank with words of its own."""
    port = free_port()
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return [
        subprocess.Popen(program.command(*words), env=environment_of(rank, len(words_of_ranks), port), text=True, **streams)
        for rank, words in enumerate(words_of_ranks)
    ]


def test_errors_that_differ_name_their_ranks(program, data, tmp_path):
    words = train_words(data, tmp_path, "--load", "nowhere")
    said = ended(start_each(program, [words, (*words, "--lr", "many")] * 2))
    assert [code for _, code in said] == [2] * 4, said
    assert said[0][0].startswith("[rank 0 and 2] error: ") and "many" not in said[0][0], said[0]
    assert said[1][0].startswith("[rank 1 and 3] error: ") and "many" in said[1][0], said[1]
    assert not said[2][0] and not said[3][0], said


def test_a_rank_that_is_refused_tells_those_that_are_not(program, data, tmp_path):
    words = train_words(data, tmp_path)
    (well, code), (refused, refused_code) = ended(start_each(program, [words, (*words, "--lr", "many")]))
    assert refused_code == 2 and refused.startswith("[rank 1] error: ") and "many" in refused, refused
    assert code == 2 and "error: rank 1 cannot begin: " in well and "many" in well, well
    words += ("--global_batch_size", 6)
    (dry, dry_code), (well, code), (other, other_code) = ended(start_each(program, [(*words, "--dry_run"), words, words]))
    assert (dry_code, code, other_code) == (0, 2, 2) and "error" not in dry, (dry, well, other)
    assert (well + other).count("error: rank 0 cannot begin: it has dry_run, and trains nothing") == 1, (well, other)
