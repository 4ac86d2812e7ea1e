"""Training speed and memory on this machine: Megalith beside what one would otherwise use, Hugging Face's Llama in PyTorch.

The programs run in turn, several rounds, so that what else the machine does falls on all of them. Each run is a process
of its own; its first two steps are left out. The peers:

  eager             transformers on PyTorch as they come: model.bfloat16(), torch.optim.AdamW on bf16 parameters and moments
  compile           the same under torch.compile
  …, malloc tuned   glibc told not to give memory back between steps, which is what costs PyTorch most on a CPU
  autocast          fp32 parameters and moments under torch.autocast(bf16): the one that keeps what Megalith keeps

Megalith keeps fp32 master weights, moments and gradients, and computes in bf16.

usage: training.py --program build/megalith [--config configs/models/llama_125M.yaml] [--rounds 3] [--steps 6]
"""

import argparse
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
DEFAULT_PEERS = ("eager", "compile")
TUNED_PEERS = ("eager, malloc tuned", "compile, malloc tuned")


def read_preset(path):
    """The flat `name: value` lines of a model preset."""
    values = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, colon, value = line.split("#")[0].partition(":")
        if colon and value.strip():
            values[name.strip()] = value.strip()
    return values


def run_peer(arguments):
    """In a process of its own. Prints the seconds of each step as JSON."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    preset = read_preset(arguments.config)
    heads = int(preset["num_attention_heads"])
    config = LlamaConfig(
        vocab_size=arguments.vocab_size or int(preset["vocab_size"]),
        hidden_size=int(preset["hidden_size"]),
        intermediate_size=int(preset["ffn_hidden_size"]),
        num_hidden_layers=int(preset["num_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=int(preset.get("num_query_groups", heads)),
        max_position_embeddings=int(preset["max_position_embeddings"]),
        tie_word_embeddings=preset.get("untie_embeddings_and_output_weights") == "false",
        use_cache=False,
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).train()
    under_autocast = arguments.peer == "autocast" and arguments.bf16
    if arguments.bf16 and not under_autocast:
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    if arguments.peer == "compile":
        model = torch.compile(model)
    seconds = []
    for _ in range(arguments.steps):
        tokens = torch.randint(config.vocab_size, (arguments.batch, arguments.sequence + 1))
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=under_autocast):
            loss = model(tokens[:, :-1], labels=tokens[:, :-1]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


def run(words, environment):
    """A finished process's standard output and its peak resident memory in bytes."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [str(word) for word in words], env={**os.environ, **environment}, stdout=out, stderr=errors, text=True
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            sys.exit(f"error: {shlex.join(map(str, words))} failed\n{errors.read()[-3000:]}")
        return out.read(), usage.ru_maxrss * 1024


def measure_peer(arguments, kind, environment):
    words = [sys.executable, __file__, "--peer", kind, "--config", arguments.config, "--steps", arguments.steps]
    words += ["--batch", arguments.batch, "--sequence", arguments.sequence, "--vocab-size", arguments.vocab_size]
    out, peak_bytes = run(words + (["--bf16"] if arguments.bf16 else ["--fp32"]), environment)
    return json.loads(out.splitlines()[-1]), peak_bytes


def megalith_words(arguments, metrics, steps, kernels="fused"):
    words = [arguments.program, "train", "--config", arguments.config, "--mock_data", "--eval_iters", 0]
    words += ["--micro_batch_size", arguments.batch, "--seq_length", arguments.sequence, "--train_iters", steps]
    words += ["--lr", 1e-4, "--weight_decay", 0.1, "--metrics_file", metrics, "--device", "cpu", "--kernels", kernels]
    words += ["--vocab_size", arguments.vocab_size] if arguments.vocab_size else []
    return words + (["--bf16"] if arguments.bf16 else [])


def measure_megalith(arguments, kernels):
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        _, peak_bytes = run(megalith_words(arguments, metrics, arguments.steps, kernels), {})
        lines = map(json.loads, metrics.read_text().splitlines())
        return [line["elapsed_ms"] / 1e3 for line in lines if line["kind"] == "step"], peak_bytes


def seconds_to_first_step(arguments):
    """From the start of the process to the end of its first step."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        start = time.perf_counter()
        run(megalith_words(arguments, metrics, 1), {})
        return time.perf_counter() - start


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def instructions():
    flags = Path("/proc/cpuinfo").read_text().split()
    return ", ".join(name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags)


def commit():
    found = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def ratio_line(rates, ours, peers):
    """Megalith's rate over the best peer's, round by round: the rounds' median and extremes."""
    medians = {name: [statistics.median(values) for values in rounds] for name, rounds in rates.items()}
    ratios = [
        mine / max(medians[name][number] for name in peers if name in medians)
        for number, mine in enumerate(medians[ours])
    ]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def report(arguments, rates, peaks):
    rows = [
        f"`{shlex.join(['benchmarks/training.py', *sys.argv[1:]])}`, commit {commit()}, {datetime.date.today()}",
        "",
        f"{Path(arguments.config).stem}, {arguments.batch} x {arguments.sequence} tokens, "
        f"{'bf16' if arguments.bf16 else 'fp32'}, AdamW; {os.cpu_count()} threads of {processor()} ({instructions()}).",
        f"{arguments.rounds} rounds in turn, steps 3 to {arguments.steps} of each.",
        "",
        f"| {'program':<28} | tokens/s | lowest | highest | peak memory |",
        f"| {'-' * 28} | --------:| ------:| -------:| -----------:|",
    ]
    for name, rounds in rates.items():
        values = [rate for one in rounds for rate in one]
        rows.append(
            f"| {name:<28} | {statistics.median(values):8.0f} | {min(values):6.0f} | {max(values):7.0f} "
            f"| {max(peaks[name]) / 2**30:7.2f} GiB |"
        )
    rows += ["", "Megalith's tokens/s over the better of eager and compile, each round apart, median (lowest to highest):", ""]
    rows.append(f"* as they come: {ratio_line(rates, 'megalith', DEFAULT_PEERS)}")
    if all(name in rates for name in TUNED_PEERS):
        rows.append(f"* with malloc tuned: {ratio_line(rates, 'megalith', TUNED_PEERS)}")
    return "\n".join(rows)


def add_arguments(parser):
    """What every comparison of training programs is told."""
    parser.add_argument("--program", default=str(ROOT / "build" / "megalith"))
    parser.add_argument("--config", default=str(ROOT / "configs" / "models" / "llama_125M.yaml"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of which the first two are left out")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--vocab-size", type=int, default=0, help="where the preset leaves it to the tokenizer")
    parser.add_argument("--output", help="append the table to this file (Markdown)")
    parser.add_argument("--bf16", action="store_true", default=None)
    parser.add_argument("--fp32", dest="bf16", action="store_false")


def parsed(parser):
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps must be at least 3: the first two are left out")
    if arguments.bf16 is None:
        arguments.bf16 = "bf16" in Path("/proc/cpuinfo").read_text()
    return arguments


def rounds_of(arguments, programs):
    """Each program once a round: tokens/s of its steps by program and round, and its peaks of memory."""
    tokens = arguments.batch * arguments.sequence
    rates = {name: [] for name in programs}
    peaks = {name: [] for name in programs}
    for number in range(arguments.rounds):
        for name, measure in programs.items():
            print(f"round {number + 1} of {arguments.rounds}: {name}", file=sys.stderr, flush=True)
            seconds, peak_bytes = measure()
            rates[name].append([tokens / one for one in seconds[2:]])
            peaks[name].append(peak_bytes)
    return rates, peaks


def write(table, output):
    print(table)
    if output:
        with open(output, "a", encoding="utf-8") as file:
            file.write(f"\n{table}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--peer", choices=("eager", "compile", "autocast"), help=argparse.SUPPRESS)
    arguments = parsed(parser)
    if arguments.peer:
        run_peer(arguments)
        return

    programs = {
        "megalith": lambda: measure_megalith(arguments, "fused"),
        "eager": lambda: measure_peer(arguments, "eager", {}),
        "compile": lambda: measure_peer(arguments, "compile", {}),
        "eager, malloc tuned": lambda: measure_peer(arguments, "eager", TUNED_MALLOC),
        "compile, malloc tuned": lambda: measure_peer(arguments, "compile", TUNED_MALLOC),
        "autocast": lambda: measure_peer(arguments, "autocast", {}),
        "megalith, reference kernels": lambda: measure_megalith(arguments, "reference"),
    }
    rates, peaks = rounds_of(arguments, programs)
    table = report(arguments, rates, peaks)
    starts = [seconds_to_first_step(arguments) for _ in range(arguments.rounds)]
    table += f"\n* process start to the end of Megalith's first step and exit: {statistics.median(starts):.1f} s"
    write(table, arguments.output)


if __name__ == "__main__":
    main()
