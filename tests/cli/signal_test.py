"""SIGTERM and SIGINT at random moments: exit code 3 each time, a clean checkpoint at the iteration that the program says,
and a run that goes on from it as if nothing had been."""

import json
import os
import random
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from program import read_metrics

SEED = 20240817
CHAIN = 10  # runs, each going on where the one before was stopped

OPTIONS = (
    *("--num_layers", 1, "--hidden_size", 32, "--num_attention_heads", 2, "--vocab_size", 131, "--seq_length", 16),
    *("--max_position_embeddings", 16, "--swiglu", "--normalization", "RMSNorm", "--position_embedding_type", "rope"),
    *("--disable_bias_linear", "--hidden_dropout", 0.1, "--split", "90,5,5", "--micro_batch_size", 1, "--global_batch_size", 2),
    *("--lr", 1e-3, "--lr_decay_style", "constant", "--device", "cpu", "--num_threads", 1, "--train_iters", 4000),
    *("--eval_interval", 4, "--eval_iters", 8, "--keep_last", 2),
)

MOMENTS = ("start", "step", "evaluation", "saving")


@pytest.fixture(scope="module")
def train(data, tmp_path_factory):
    """The words of a run, its sample indices in a cache that all runs share."""
    return ("train", *OPTIONS, "--data_path", data.prefix, "--data_cache_path", tmp_path_factory.mktemp("cache"))


def catches(process, number):
    """Whether the process has a handler for the signal."""
    try:
        with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
            (mask,) = (line.split()[1] for line in file if line.startswith("SigCgt:"))
    except (OSError, ValueError):
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)


def wait_until(condition, process, timeout=240):
    end = time.monotonic() + timeout
    while time.monotonic() < end and process.poll() is None and not condition():
        time.sleep(0.0005)
    assert process.poll() is None, process.communicate()
    assert time.monotonic() < end, "it did not come to the moment"


def is_being_written(root):
    """A checkpoint's folder has no name of its own until every byte is on disk."""
    return root.exists() and any(path.name.startswith(".") for path in root.iterdir())


def count_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(moment, rng, process, folder, number):
    wait_until(lambda: catches(process, number), process)  # before that no program of ours runs
    metrics, before = folder / "metrics.jsonl", count_lines(folder / "metrics.jsonl")
    if moment == "start":
        time.sleep(0.2 * rng.random() ** 3)  # most of them before the first step
    elif moment == "step":
        num_lines = before + rng.randint(1, 20)
        wait_until(lambda: count_lines(metrics) >= num_lines, process)
        time.sleep(rng.uniform(0, 0.01))
    elif moment == "evaluation":
        wait_until(lambda: count_lines(metrics) > before and read_last(metrics) % 4 == 0, process)
        time.sleep(rng.uniform(0, 0.005))
    else:
        wait_until(lambda: count_lines(metrics) > before and is_being_written(folder / "checkpoint"), process)
        time.sleep(rng.uniform(0, 0.01))


def read_last(metrics):
    """The iteration of the last whole line."""
    lines = metrics.read_text(encoding="utf-8").split("\n")
    return json.loads(lines[-2])["iteration"]


def newest(root):
    return max(int(path.name.removeprefix("iter_")) for path in root.iterdir() if path.name.startswith("iter_"))


def stop_one(program, train, folder, moment, number, rng, options, expected_start):
    """Starts or resumes the run in the folder and stops it with the signal; the iteration that it says it saved."""
    root = folder / "checkpoint"
    process = program.start(
        *(*train, "--save", root, "--load", root, "--metrics_file", folder / "metrics.jsonl", *options),
        environment={"OMP_NUM_THREADS": "1"},
    )
    output = []
    readers = [threading.Thread(target=lambda s=stream: output.append(s.read())) for stream in (process.stdout, process.stderr)]
    for reader in readers:
        reader.start()
    try:
        wait_for(moment, rng, process, folder, number)
        process.send_signal(number)
        code = process.wait(60)
    finally:
        process.kill()
        process.wait()
        for reader in readers:
            reader.join()
    text = "".join(output)
    assert code == 3, f"{moment}, {number!r}: exit code {code}\n{text[-3000:]}"
    said = re.search(r"stopped by a signal after iteration (\d+), which is saved", text)
    assert said, text[-3000:]
    iteration = int(said[1])
    assert newest(root) == iteration and (root / "latest_checkpointed_iteration.txt").read_text().strip() == str(iteration)
    assert not is_being_written(root), "something unfinished is left behind"
    if expected_start is not None:  # every checksum of the checkpoint before was verified when it was loaded
        assert f"at iteration {expected_start}\n" in text, text[:3000]
        assert iteration >= expected_start
    return iteration


def run_chain(program, train, folder, seed):
    """Runs and stops, one after the other; what was stopped when, as (moment, signal, iteration) each."""
    rng = random.Random(seed)
    options = ("--save_interval", 3, *(("--async_save",) if seed % 2 else ()))
    moments = ["start", *rng.choices(MOMENTS, weights=(2, 3, 2, 3), k=CHAIN - 1)]
    stopped, iteration = [], None
    for moment in moments:
        number = signal.SIGINT if rng.random() < 0.2 else signal.SIGTERM
        iteration = stop_one(program, train, folder, moment, number, rng, options, iteration)
        stopped.append((moment, number.name, iteration))
    program.run("inspect", "checkpoint", folder / "checkpoint")  # the last one is clean too
    return stopped


def losses(folder):
    """By iteration; an iteration that was done twice must have had the same values."""
    by_iteration = {}
    for line in read_metrics(folder / "metrics.jsonl"):
        values = (line["lm_loss"], line["grad_norm"], line["consumed_samples"])
        assert by_iteration.setdefault(line["iteration"], values) == values, f"iteration {line['iteration']} differs"
    return by_iteration


def test_fifty_signals_at_random_moments(program, train, tmp_path):
    print("seeds", SEED, "to", SEED + 4)
    folders = [tmp_path / str(i) for i in range(5)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        chains = list(pool.map(lambda i: run_chain(program, train, folders[i], SEED + i), range(5)))
    for chain in chains:
        print(*(f"{moment} {name} -> {iteration}" for moment, name, iteration in chain), sep=", ")
    assert sum(len(chain) for chain in chains) == 50
    # How far a run comes before a signal meant for its start depends on the machine; that all kinds were meant does not.
    assert {moment for chain in chains for moment, _, _ in chain} == {"start", "step", "evaluation", "saving"}
    # Nothing was lost or done differently.
    found = [losses(folder) for folder in folders]
    last = max(max(values) for values in found)
    (tmp_path / "straight").mkdir()
    straight = ("--exit_interval", last, "--metrics_file", tmp_path / "straight" / "metrics.jsonl")
    program.run(*train, *straight, environment={"OMP_NUM_THREADS": "1"})
    expected = losses(tmp_path / "straight")
    for values in found:
        assert sorted(values) == list(range(1, max(values) + 1))
        assert values == {iteration: expected[iteration] for iteration in values}


@pytest.mark.parametrize("disable", [(), ("--disable_last_saving",)])
def test_a_signal_after_the_last_step_leaves_the_rest_to_the_next_run(disable, program, train, tmp_path):
    """In the evaluation at the end: the weights are saved, the export is not begun, and the next run makes up for it."""
    words = (*train, "--train_iters", 2, "--eval_iters", 4000, "--save", tmp_path / "checkpoint", *disable)
    words += ("--load", tmp_path / "checkpoint", "--save_hf", tmp_path / "hf", "--metrics_file", tmp_path / "metrics.jsonl")
    process = program.start(*words)
    wait_until(lambda: count_lines(tmp_path / "metrics.jsonl") == 2, process)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 3, errors
    assert newest(tmp_path / "checkpoint") == 2 and not (tmp_path / "hf").exists()
    program.run(*words, "--eval_iters", 1)
    assert (tmp_path / "hf" / "model.safetensors").exists()


def test_a_second_signal_ends_at_once(program, train, tmp_path):
    words = (*train, "--train_iters", 2, "--eval_iters", 20_000, "--save", tmp_path / "checkpoint")
    process = program.start(*words, "--metrics_file", tmp_path / "metrics.jsonl")
    wait_until(lambda: count_lines(tmp_path / "metrics.jsonl") == 2, process)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: not catches(process, signal.SIGTERM), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == -signal.SIGTERM
    process.communicate()


def test_without_save_it_says_that_nothing_was_saved(program, train, tmp_path):
    process = program.start(*train, "--metrics_file", tmp_path / "metrics.jsonl")
    wait_until(lambda: count_lines(tmp_path / "metrics.jsonl") >= 1, process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 3, errors
    assert re.search(r"stopped by a signal after iteration \d+; nothing was saved", output + errors)


def test_asynchronous_checkpoints_equal_synchronous_ones(program, train, tmp_path):
    """File by file and byte by byte, while the parameters go on changing."""
    words = (*train, "--train_iters", 12, "--save_interval", 3, "--keep_last", 9, "--eval_iters", 0, "--bf16")
    for name, more in (("synchronous", ()), ("asynchronous", ("--async_save",))):
        program.run(*words, "--save", tmp_path / name, *more, environment={"OMP_NUM_THREADS": "1"})
    files = {path.relative_to(tmp_path / "synchronous") for path in (tmp_path / "synchronous").rglob("*") if path.is_file()}
    assert files == {path.relative_to(tmp_path / "asynchronous") for path in (tmp_path / "asynchronous").rglob("*") if path.is_file()}
    tensors = [name for name in files if name.suffix == ".safetensors"]
    assert len({name.parent.parts[0] for name in tensors}) == 4
    for name in tensors:
        assert (tmp_path / "synchronous" / name).read_bytes() == (tmp_path / "asynchronous" / name).read_bytes(), name


def test_retention_keeps_the_newest_and_the_multiples(program, train, tmp_path):
    words = (*train, "--train_iters", 17, "--save_interval", 2, "--eval_iters", 0, "--save", tmp_path / "checkpoint")
    program.run(*words, "--keep_last", 3, "--save_retain_interval", 6)
    kept = sorted(path.name for path in (tmp_path / "checkpoint").iterdir() if path.is_dir())
    assert kept == [f"iter_{i:07d}" for i in (6, 12, 14, 16, 17)]


def test_a_signal_ends_the_wait_for_a_pipes_writer(program, tmp_path):
    os.mkfifo(tmp_path / "recipe")
    process = program.start("train", "--config", tmp_path / "recipe", "--mock_data")
    assert "waiting for what a program writes" in process.stderr.readline()
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and "cannot read" in errors, errors


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_batch_systems_warning_stops_a_run(number, program, train, tmp_path):
    process = program.start(*train, "--save", tmp_path / "checkpoint", "--metrics_file", tmp_path / "metrics.jsonl")
    wait_until(lambda: count_lines(tmp_path / "metrics.jsonl") >= 1, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3 and "which is saved" in errors, errors


def test_a_closed_terminal_stops_a_run_as_a_signal_does(program, train, tmp_path):
    words = (*train, "--save", tmp_path / "checkpoint", "--metrics_file", tmp_path / "metrics.jsonl")
    process = program.start(*words)
    wait_until(lambda: count_lines(tmp_path / "metrics.jsonl") >= 1, process)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3 and "which is saved" in errors, errors
    # Under nohup a run goes on.
    words = (*train, "--train_iters", 4, "--metrics_file", tmp_path / "nohup.jsonl", "--eval_iters", 400)
    process = program.start(*words, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_until(lambda: count_lines(tmp_path / "nohup.jsonl") >= 1, process)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("has_log", [False, True])
def test_a_closed_pipe_stops_a_run_unless_it_has_a_log(has_log, program, train, tmp_path):
    words = (*train, "--save", tmp_path / "checkpoint", "--log_interval", 1, "--metrics_file", tmp_path / "metrics.jsonl")
    words += ("--train_iters", 300, "--eval_interval", 300, *(("--log_file", tmp_path / "log.txt") if has_log else ()))
    process = program.start(*words)
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(60) == (0 if has_log else 3), errors
    assert newest(tmp_path / "checkpoint") == read_last(tmp_path / "metrics.jsonl")
    if has_log:
        assert "the run goes on" in errors and "step 300/300" in (tmp_path / "log.txt").read_text()
    else:
        assert "standard output is closed" in errors and "which is saved" in errors
