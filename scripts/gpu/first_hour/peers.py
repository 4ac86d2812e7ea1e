"""Stage 5: beside PyTorch with transformers, eager and compiled, in turn with ours on the same shapes.

The peers keep weights, gradients and both moments in bf16 (8 bytes a parameter); ours keeps fp32 masters and gradients with
moments in bf16 (14). A peer that recomputes nothing may not fit: its row says so.
"""

import importlib.util
import json
import statistics
import sys

from ceilings import BF16
from machine import HERE
from training import step_words


def run(stage, machine):
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        stage.add("peers", "left out", note=f"{sys.executable} has no {' and no '.join(missing)}")
        return
    for shape in machine.sizes.models[: machine.sizes.compared]:
        compare(stage, machine, shape)


def compare(stage, machine, shape):
    rates = {"megalith": [], "eager": [], "compile": []}
    for number in range(machine.sizes.peer_rounds):
        for name in rates:
            measure = measure_ours if name == "megalith" else measure_peer
            rate, ran = measure(stage, machine, shape, name, number)
            if rate is None:
                stage.add_ran(f"{shape.name}_{name}", ran)
            else:
                rates[name].append(rate)
    figures = {f"{name}_tokens_per_s": statistics.median(found) for name, found in rates.items() if found}
    best = max((figures.get(f"{name}_tokens_per_s", 0) for name in ("eager", "compile")), default=0)
    if rates["megalith"] and best:
        figures["ratio"] = figures["megalith_tokens_per_s"] / best
    stage.add(shape.name, "pass" if "ratio" in figures else "left out", details=rates,
              note="" if "ratio" in figures else "one side has no figure", **figures)


def measure_ours(stage, machine, shape, _, number):
    rows, ran = machine.bench(stage, f"{shape.name}_megalith_{number}", "train", *step_words(machine, shape), *BF16,
                              *machine.sizes.iterations, limit_s=120)
    return (rows[0]["tokens_per_s_per_device"] if rows else None), ran


def measure_peer(stage, machine, shape, kind, number):
    words = [sys.executable, HERE / "peer.py", kind, machine.config(shape.config)[1], "--device", machine.peer_device]
    words += ["--batch", shape.batch, "--sequence", shape.sequence, "--microbatches", machine.sizes.num_microbatches]
    words += ["--steps", machine.sizes.peer_steps, "--backend", machine.sizes.compile_backend]
    if "--vocab_size" in machine.sizes.model_words:
        words += ["--vocab_size", 257, "--layers", 2]
    ran = stage.command(f"{shape.name}_{kind}_{number}", words, 120)
    if ran is None or ran.code != 0:
        return None, ran
    return json.loads(ran.output.splitlines()[-1])["tokens_per_s"], ran
