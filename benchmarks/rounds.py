"""What comparisons of training programs share: processes of their own that run in turn, the steps of a PyTorch peer, what
this machine is.

The programs run in turn, several rounds, so that what else the machine does falls on all of them. Ratios are of rounds:
each program's median beside the others' of the same round.
"""

import contextlib
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What keeps glibc's malloc from returning memory to the system after every step.
TUNED_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "67108864"}
# torch.compile translates in the first steps, and Megalith sizes its memory.
LEFT_OUT = 2


def run(words, environment=None, is_log=False):
    """A finished process's standard output, or error if that is its log, and its peak resident memory in bytes."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [str(word) for word in words], env={**os.environ, **(environment or {})}, stdout=out, stderr=errors, text=True
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            sys.exit(f"error: {shlex.join(map(str, words))} failed\n{errors.read()[-3000:]}")
        return (errors if is_log else out).read(), usage.ru_maxrss * 1024


def train_peer(model, make_inputs, steps, weight_decay, is_compiled=False, context=contextlib.nullcontext):
    """In a process of its own: steps of AdamW on what of the model is trained. Prints the seconds of each as JSON.

    make_inputs: gives what the model is called with; its answer has a loss. context: around the forward pass.
    """
    import torch

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=weight_decay, fused=True)
    if is_compiled:
        model = torch.compile(model)
    seconds = []
    for _ in range(steps):
        inputs = make_inputs()
        start = time.perf_counter()
        with context():
            loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


def peer_seconds(words, environment=None):
    """train_peer() in a process: the seconds of its steps and its peak of memory."""
    out, peak_bytes = run([sys.executable, *words], environment)
    return json.loads(out.splitlines()[-1]), peak_bytes


def megalith_seconds(words):
    """The same of `megalith train`."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        _, peak_bytes = run([*words, "--metrics_file", metrics])
        lines = map(json.loads, metrics.read_text().splitlines())
        return [line["elapsed_ms"] / 1e3 for line in lines if line["kind"] == "step"], peak_bytes


def rounds_of(num_rounds, programs):
    """Each program once a round: the seconds of its steps by program and round, and its peaks of memory.

    programs: name -> function that gives the seconds of its steps and its peak of memory.
    """
    seconds, peaks = {name: [] for name in programs}, {name: [] for name in programs}
    for number in range(num_rounds):
        for name, measure in programs.items():
            print(f"round {number + 1} of {num_rounds}: {name}", file=sys.stderr, flush=True)
            taken, peak_bytes = measure()
            seconds[name].append(taken[LEFT_OUT:])
            peaks[name].append(peak_bytes)
    return seconds, peaks


def medians_of(seconds):
    """Program -> the median step of each round."""
    return {name: [statistics.median(values) for values in rounds] for name, rounds in seconds.items()}


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def speed_ratio(seconds, ours, peers):
    """How many times as fast as the best peer, round by round: the rounds' median and extremes."""
    medians = medians_of(seconds)
    return spread([
        min(medians[name][number] for name in peers if name in medians) / mine for number, mine in enumerate(medians[ours])
    ])


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def instructions():
    flags = Path("/proc/cpuinfo").read_text().split()
    return ", ".join(name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags)


def machine():
    return f"{os.cpu_count()} threads of {processor()} ({instructions()})"


def commit():
    found = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def how_it_was_run(script):
    return f"`{shlex.join([f'benchmarks/{script}', *sys.argv[1:]])}`, commit {commit()}, {datetime.date.today()}"


def rate_table(seconds, peaks, tokens):
    """Tokens/s of each program over all rounds, and its highest peak of memory; a step has `tokens`."""
    rows = [
        f"| {'program':<28} | tokens/s | lowest | highest | peak memory |",
        f"| {'-' * 28} | --------:| ------:| -------:| -----------:|",
    ]
    for name, rounds in seconds.items():
        rates = [tokens / one for taken in rounds for one in taken]
        rows.append(
            f"| {name:<28} | {statistics.median(rates):8.0f} | {min(rates):6.0f} | {max(rates):7.0f} "
            f"| {max(peaks[name]) / 2**30:7.2f} GiB |"
        )
    return rows


def check_steps(parser, arguments):
    if arguments.steps <= LEFT_OUT:
        parser.error(f"--steps must be at least {LEFT_OUT + 1}: the first {LEFT_OUT} are left out")


def write(table, output):
    print(table)
    if output:
        with open(output, "a", encoding="utf-8") as file:
            file.write(f"\n{table}\n")
