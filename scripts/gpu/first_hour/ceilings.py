"""Stage 2: what the device gives at best (copies, products, attention), and what our kernels reach of it."""

import json
import sys

from machine import FP8, HERE

CAUSAL = ("--mask", "causal")
BF16 = ("--dtype", "bf16")
STEPS = ("forward", "dgrad", "wgrad")


def run(stage, machine):
    copied = measure_copy(stage, machine)
    side = machine.sizes.square_product
    rows, ran = machine.bench(stage, "square", "gemm", *machine.config("llama_125M"), "--shapes",
                              f"{side}x{side}x{side}", *BF16, *machine.sizes.quick, limit_s=60)
    stage.add_ran("square", ran, **{f"{row['pass']}_tflops": row["tflops"] for row in fused(rows)})
    for shape in machine.sizes.models[::2]:  # each model once
        measure_products(stage, machine, shape)
    for name, shape in machine.sizes.attention.items():
        measure_attention(stage, machine, f"attention_{name}", shape)
    measure_operators(stage, machine, copied)


def fused(rows):
    return [row for row in rows if row["kernels"] == "fused"]


def measure_copy(stage, machine):
    """GB/s of a copy from device memory to device memory; None where PyTorch's Python is missing."""
    words = [sys.executable, HERE / "copy_bandwidth.py", machine.peer_device, machine.sizes.copied_bytes]
    ran = stage.command("copy", words, 60)
    rate = json.loads(ran.output.splitlines()[-1])["gigabytes_per_s"] if ran and ran.code == 0 else None
    stage.add_ran("copy", ran, **({"gigabytes_per_s": rate} if rate else {}))
    return rate


def shape_words(machine, shape):
    """For benchmarks of operators, which have no optimizer."""
    length = ("--seq_length", shape.sequence) if shape.sequence else ()
    return (*machine.config(shape.config), *shape.model_words, *length, "--micro_batch_size", shape.batch)


def measure_products(stage, machine, shape):
    """The products of a model's layers and head: all of them together, wgrad beside forward, and in eight bits."""
    name = f"products_{shape.name}"
    rows, ran = machine.bench(stage, name, "gemm", *shape_words(machine, shape), *BF16, *FP8, *machine.sizes.quick, limit_s=90)
    figures = {}
    if rows:
        rates = {step: rate_of([row for row in fused(rows) if row["pass"] == step]) for step in STEPS}
        figures = {f"{step}_tflops": rate for step, rate in rates.items()}
        figures["wgrad_of_forward"] = rates["wgrad"] / rates["forward"]
        eight_bits = [row for row in rows if row["kernels"] == "fp8"]
        if eight_bits:  # a library multiplies them here
            figures |= {f"fp8_{step}_tflops": rate_of([row for row in eight_bits if row["pass"] == step]) for step in STEPS}
    stage.add_ran(name, ran, **figures)


def rate_of(rows):
    """TFLOP/s of several products one after the other."""
    return sum(row["tflops"] * row["ms"] for row in rows) / sum(row["ms"] for row in rows)


def measure_attention(stage, machine, name, shape):
    rows, ran = machine.bench(stage, name, "attention", *machine.config("llama_125M"), "--shapes", shape, *CAUSAL,
                              *BF16, *machine.sizes.quick, limit_s=60)
    stage.add_ran(name, ran, **{
        f"{row['pass']}_{row['kernels']}_tflops": row["tflops"] for row in rows if row["kernels"] in ("fused", "sdpa")
    })


def measure_operators(stage, machine, copied):
    """Each operator that only moves memory, in GB/s and as a share of the copy."""
    shape = machine.sizes.models[0]
    rows, ran = machine.bench(stage, "operators", "ops", *shape_words(machine, shape), *BF16, *machine.sizes.quick, limit_s=180)
    moving = [row for row in fused(rows) if "gb_per_s" in row and "tflops" not in row]
    shares = {f"{row['name']} {row['pass']}": row["gb_per_s"] / copied for row in moving} if copied else {}
    figures, note = {}, ""
    if shares:
        worst = min(shares, key=shares.get)
        figures, note = {"least_share_of_copy": shares[worst]}, f"least: {worst}"
    stage.add_ran("operators", ran, note, details=shares, **figures)
