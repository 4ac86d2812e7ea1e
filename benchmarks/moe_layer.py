"""A layer's experts on this machine: Megalith beside a dense MLP of the same active work and beside Hugging Face's Mixtral
block in PyTorch, forward and backward in bf16.

The programs run in turn, several rounds, so that what else the machine does falls on all of them; each run is a process of
its own. The dense MLP, in Megalith's operators, runs in turn with the experts in one process (`megalith bench moe`).

  random   each token goes to any of the experts
  uneven   every token goes to the first expert, which gets half of all rows at two experts a token; the last two get none

The Mixtral block includes its router, less than a thousandth of the work; its gradients are in bf16 and dropped after each
step, while Megalith adds to gradients in fp32. "malloc tuned": glibc told not to give memory back between steps.

usage: moe_layer.py --program build/megalith --python .venv-tools/bin/python [--shape 4096x1024x2048x8x2] [--rounds 3]
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
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What keeps glibc's malloc from returning memory to the system after every step.
TUNED_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "67108864"}
PEERS = {"transformers": {}, "transformers, malloc tuned": TUNED_MALLOC}
ROUTINGS = ("random", "uneven")


def run_peer(arguments):
    """In a process of its own. Prints the milliseconds of each step as JSON."""
    import torch
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    tokens, hidden, ffn, experts, chosen = sides_of(arguments.shape)
    config = MixtralConfig(
        hidden_size=hidden, intermediate_size=ffn, num_local_experts=experts, num_experts_per_tok=chosen
    )
    block = MixtralSparseMoeBlock(config).bfloat16().train()
    with torch.no_grad():
        for weight in block.parameters():
            weight.normal_(std=0.02)
    x = torch.randn(1, tokens, hidden).bfloat16()
    if arguments.peer_routing == "uneven":
        # A constant column of x raises the first expert's score and lowers those of the last two.
        x[..., 0] = 8
        with torch.no_grad():
            block.gate.weight[0, 0] = 8
            block.gate.weight[-2:, 0] = -8
    x.requires_grad_()
    gradient = torch.randn_like(x)
    milliseconds = []
    for _ in range(arguments.warmup + arguments.iterations):
        block.zero_grad(set_to_none=True)
        x.grad = None
        start = time.perf_counter()
        out, logits = block(x)
        out.backward(gradient)
        milliseconds.append(1e3 * (time.perf_counter() - start))
    rows = torch.bincount(logits.topk(chosen, -1).indices.flatten(), minlength=experts)
    print(json.dumps({"ms": milliseconds[arguments.warmup :], "rows": rows.tolist()}))


def sides_of(shape):
    return [int(side) for side in shape.split("x")]


def run(words, environment=None):
    words = [str(word) for word in words]
    done = subprocess.run(words, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {shlex.join(words)} failed\n{done.stderr[-3000:]}")
    return done.stdout


def measure_megalith(arguments, routing):
    """Milliseconds of the experts and of the dense MLP, each the median of a process."""
    words = [arguments.program, "bench", "moe", "--json", "--device", "cpu", "--dtype", "bf16", "--routing", routing]
    words += ["--shapes", arguments.shape, "--iterations", arguments.iterations, "--warmup", arguments.warmup]
    rows = [json.loads(line) for line in run(words + ["--num_threads", arguments.threads]).splitlines()]
    return {row["kernels"]: row["ms"] for row in rows}


def measure_peer(arguments, routing, environment):
    words = [arguments.python, __file__, "--peer", "--peer_routing", routing, "--shape", arguments.shape]
    words += ["--iterations", arguments.iterations, "--warmup", arguments.warmup, "--threads", arguments.threads]
    measured = json.loads(run(words, environment).splitlines()[-1])
    return statistics.median(measured["ms"]), measured["rows"]


def measure(arguments, routing):
    """One dictionary of milliseconds a round, and the rows that the peer's experts got."""
    rounds, rows = [], []
    for number in range(arguments.rounds):
        times = measure_megalith(arguments, routing)
        for peer, environment in PEERS.items():
            times[peer], rows = measure_peer(arguments, routing, environment)
        print(f"{routing}, round {number + 1}: {times}", file=sys.stderr)
        rounds.append(times)
    return rounds, rows


def report(arguments, measured):
    tokens, hidden, ffn, experts, chosen = sides_of(arguments.shape)
    lines = [
        f"# Experts of a layer: {tokens} tokens, hidden {hidden}, {experts} experts of ffn {ffn}, top-{chosen}, bf16",
        "",
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {arguments.threads} threads, "
        f"{arguments.rounds} rounds of {arguments.iterations} steps. Ratios are medians of the rounds' own.",
        "",
        f"`{shlex.join(['python3', 'benchmarks/moe_layer.py', *sys.argv[1:]])}`",
        "",
        "| routing | variant | ms | time, experts = 1 |",
        "| --- | --- | ---: | ---: |",
    ]
    for routing, (rounds, rows) in measured.items():
        for variant in rounds[0]:
            ms = statistics.median(times[variant] for times in rounds)
            ratio = statistics.median(times[variant] / times["fused"] for times in rounds)
            name = {"fused": "experts", "dense": "dense MLP", "reference": "experts, reference"}.get(variant, variant)
            lines.append(f"| {routing} | {name} | {ms:.1f} | {ratio:.2f} |")
        lines.append(f"| {routing} | rows of the peer's experts: {' '.join(map(str, rows))} | | |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build" / "megalith", help="the program to measure")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch and transformers 4")
    parser.add_argument("--shape", default="4096x1024x2048x8x2", help="tokens, hidden, ffn, experts, experts of a token")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, help="also write the table here")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peer_routing", choices=ROUTINGS, default="random", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        return run_peer(arguments)
    table = report(arguments, {routing: measure(arguments, routing) for routing in ROUTINGS})
    print(table)
    if arguments.output:
        arguments.output.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
