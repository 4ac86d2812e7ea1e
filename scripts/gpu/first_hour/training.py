"""Stages 3, 4 and 6: whole training steps, as tokens per second, MFU, and a share of what products and attention allow."""

import json

from ceilings import BF16, CAUSAL, fused, shape_words
from machine import FP8

# NVIDIA's figure for dense bf16 on an H100 or H200, TFLOP/s.
PEAK_TFLOPS = 989
# One step without graphs, one that captures; both warm up.
GRAPHS = ("--cuda_graphs", "microbatch", "--cuda_graph_warmup_steps", 1, "--warmup", 3)


def run_bf16(stage, machine):
    for shape in machine.sizes.models:
        bound_ms = measure_bound(stage, machine, shape)
        measure_step(stage, machine, shape.name, shape, bound_ms)
    trace(stage, machine, machine.sizes.models[0])


def run_fp8(stage, machine):
    for shape in machine.sizes.models:
        # Weights' copies and their transposes take two bytes a parameter, which remainders of masters give back.
        measure_step(stage, machine, f"fp8_{shape.name}", shape, None, *FP8, "--master_weights", "remainder")
    compare_losses(stage, machine)


def run_rest(stage, machine):
    for shape in machine.sizes.kinds:
        measure_step(stage, machine, shape.name, shape, None)
    for shape in machine.sizes.small:
        measure_step(stage, machine, shape.name, shape, None)
        measure_step(stage, machine, f"graphs_{shape.name}", shape, None, *GRAPHS)
    for shape in machine.sizes.models[:2]:
        measure_step(stage, machine, f"again_{shape.name}", shape, None)


def measure_bound(stage, machine, shape):
    """Milliseconds that the products and the attention of one microbatch take by themselves; None where not measured."""
    name = f"bound_{shape.name}"
    products, ran = machine.bench(stage, f"{name}_products", "gemm", *shape_words(machine, shape), *BF16, *machine.sizes.quick,
                                  limit_s=60)
    if not products:
        stage.add_ran(name, ran)
        return None
    heads, ran = machine.bench(stage, f"{name}_attention", "attention", *shape_words(machine, shape), *CAUSAL, *BF16,
                               *machine.sizes.quick, limit_s=60)
    # Without shapes the topic measures a sample four times as long too: the model's own comes first.
    own = [row for row in fused(heads) if row["shape"] == heads[0]["shape"]]
    if not own:
        stage.add_ran(name, ran)
        return None
    layers = num_layers(machine, shape)
    head_ms = sum(row["ms"] for row in fused(products) if row["name"] == "output_layer")
    layer_ms = sum(row["ms"] for row in fused(products)) - head_ms + sum(row["ms"] for row in own)
    bound_ms = layers * layer_ms + head_ms
    stage.add(name, "pass", ran.seconds, microbatch_ms=bound_ms)
    return bound_ms


def num_layers(machine, shape):
    words = list(shape.words)
    if "--num_layers" in words:
        return int(words[words.index("--num_layers") + 1])
    for line in machine.config(shape.config)[1].read_text(encoding="utf-8").splitlines():
        if line.startswith("num_layers:"):
            return int(line.split(":")[1].split("#")[0])
    raise ValueError(f"{shape.config} has no num_layers")


def step_words(machine, shape):
    return (*shape_words(machine, shape), *shape.states, "--global_batch_size", shape.batch * machine.sizes.num_microbatches)


def measure_step(stage, machine, name, shape, bound_ms, *words):
    rows, ran = machine.bench(stage, name, "train", *step_words(machine, shape), *BF16, *machine.sizes.iterations, *words,
                              limit_s=150)
    figures = {}
    if rows:
        row = rows[0]
        figures = {
            "tokens_per_s": row["tokens_per_s_per_device"],
            "tflops": row["causal_tflops"],
            "mfu_percent": 100 * row["causal_tflops"] / PEAK_TFLOPS,
            "peak_gib": row["peak_allocated_bytes"] / 2**30,
        }
        if bound_ms:
            figures["share_of_bound"] = machine.sizes.num_microbatches * bound_ms / row["ms"]
    stage.add_ran(name, ran, details=rows, **figures)


def trace(stage, machine, shape):
    """One step for Perfetto, and the report of a run's start, which says what owns the memory."""
    words = (*step_words(machine, shape), "--mock_data", "--bf16", "--eval_iters", 0, "--train_iters", 3, "--profile",
             "--profile_step_start", 1, "--profile_step_end", 2, "--profile_dir", stage.folder / "trace")
    ran = stage.command("trace", machine.megalith("train", *words), 90)
    traces = sorted((stage.folder / "trace").rglob("*.json*"))
    stage.add_ran("trace", ran, passed=bool(traces), note=str(traces[0].name) if traces else "no trace was written")


def compare_losses(stage, machine):
    """The same steps in bf16 and in FP8: how far the last losses are apart."""
    config, batch, sequence = machine.sizes.loss_run
    steps = machine.sizes.loss_steps
    losses = {}
    for name, words in (("loss_bf16", ()), ("loss_fp8", FP8)):
        metrics = stage.folder / f"{name}.jsonl"
        words = (
            *(*machine.config(config), *machine.sizes.model_words, "--mock_data", "--bf16", "--eval_iters", 0, *words),
            *("--train_iters", steps, "--seq_length", sequence, "--micro_batch_size", batch, "--metrics_file", metrics),
        )
        ran = stage.command(name, machine.megalith("train", *words), 90)
        if ran is None or ran.code != 0:
            stage.add_ran(name, ran)
            return
        lines = map(json.loads, metrics.read_text().splitlines())
        last = [line["lm_loss"] for line in lines if line["kind"] == "step"][-10:]
        losses[name] = sum(last) / len(last)
    gap = 100 * abs(losses["loss_fp8"] / losses["loss_bf16"] - 1)
    stage.add("loss", "pass" if gap <= 0.5 else "fail", ran.seconds, gap_percent=gap, bf16=losses["loss_bf16"],
              fp8=losses["loss_fp8"])
