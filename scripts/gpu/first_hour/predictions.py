"""What each figure of the first hour is predicted to be, computed from one table of rates: configs/clusters.yaml, which the
planner reads too.

usage: predictions.py [--write]      prints the figures, or puts them into the tables of benchmarks/results/gpu.md
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True

from machine import REAL, find_root  # noqa: E402
from peer import read_preset  # noqa: E402

CHIP = "h200"
# Attention's share of the rate of products, with long sequences; the planner's (src/planner/cluster.h).
ATTENTION, ATTENTION_BACKWARD = 0.74, 0.66
HALF_SPEED_LENGTH = 600  # of a sequence whose attention has half of its rate
ELEMENT_BYTES = 113  # moved by elementwise kernels, for each layer, token and hidden channel, both passes
OPTIMIZER_BYTES = 22  # a parameter, read and written
LAUNCHES_OF_LAYER, LAUNCHES, LAUNCH_US = 60, 40, 5  # a microbatch's, and the host's time for one
LOSS_ROWS = 4096  # of logits at once
EXPERTS_GRADIENT = 200  # TFLOP/s of our kernel for experts' weight gradients, read from its instructions
# How far a figure may be off before it surprises: products decide rates, the host small models.
RATE, SMALL, MEMORY = 0.08, 0.25, 0.05


@dataclass
class Rates:
    peak: float  # TFLOP/s
    products: float
    eight_bits: float
    memory: float  # bytes/us


def read_rates(root, chip=CHIP):
    text = (root / "configs" / "clusters.yaml").read_text(encoding="utf-8")
    block = re.search(rf"^{chip}:\n((?:  .*\n)+)", text, re.MULTILINE)[1]
    value = {name: float(number) for name, number in re.findall(r"^  (\w+): ([\d.]+)$", block, re.MULTILINE)}
    return Rates(value["tflops"], value["tflops"] * value["product_share"], value["fp8_tflops"] * value["fp8_share"],
                 value["memory_tb_per_s"] * value["memory_share"] * 1e6)


class Model:
    """A token's work, forward: multiplications and additions, and what is stored."""

    def __init__(self, root, shape):
        preset = read_preset(root / "configs" / "models" / f"{shape.config}.yaml")
        words = list(shape.words)
        number = lambda name, default=None: int(preset.get(name, default))  # noqa: E731
        self.hidden = h = number("hidden_size")
        heads = number("num_attention_heads")
        channels = number("kv_channels", h // heads)
        self.is_flux = "num_joint_layers" in preset
        self.layers = int(words[words.index("--num_layers") + 1]) if "--num_layers" in words else number(
            "num_layers", int(preset.get("num_joint_layers", 0)) + int(preset.get("num_single_layers", 0)))
        self.width = heads * channels
        self.kv = number("num_query_groups", heads) * channels
        self.is_causal = preset.get("model_type", "gpt") == "gpt"
        is_gated = self.is_causal
        f = self.ffn = number("ffn_hidden_size", 4 * h)
        experts, chosen = number("num_experts", 0), number("moe_router_topk", 1)
        matrices = (3 if is_gated else 2) * h * f
        self.attention_weights = h * (self.width + 2 * self.kv) + self.width * h
        self.layer_weights = self.attention_weights + matrices * (chosen if experts else 1)
        stored = self.attention_weights + matrices * max(experts, 1)
        self.vocabulary = number("vocab_size", 0)
        head = h * self.vocabulary
        is_tied = preset.get("untie_embeddings_and_output_weights") == "false"
        self.parameters = self.layers * stored + head * (1 if is_tied else 2)
        self.head = head
        self.chosen = chosen if experts else 1
        self.expert_weights = matrices * chosen if experts else 0

    def attention(self, length):
        return self.layers * 4 * length * self.width * (0.5 if self.is_causal else 1)

    def kept_bytes(self, is_recomputing):
        """A token's activations."""
        kept = 4 * self.hidden + 2 * self.kv + 2 * self.ffn * self.chosen
        return 2 * self.layers * (kept + (0 if is_recomputing else 2 * self.hidden + self.ffn * self.chosen))


def attention_rate(rates, length, share):
    return rates.products * share * length / (length + HALF_SPEED_LENGTH) * 1.07


def step_of(rates, model, shape, microbatches, eight_bits=False, graphs=False, lora=False, recomputes=False):
    """Figures of a training step; `us` are a token's."""
    length = shape.sequence
    tokens = shape.batch * length
    passes = 2 if lora else 3
    layers = 2 * passes * model.layers * model.layer_weights
    head = 2 * passes * model.head
    forward = model.attention(length)
    products = layers / (rates.eight_bits if eight_bits else rates.products) / 1e6 + head / rates.products / 1e6
    products += 2 * model.layers * model.expert_weights * (1 / EXPERTS_GRADIENT - 1 / rates.products) / 1e6
    attention = forward / attention_rate(rates, length, ATTENTION) / 1e6
    attention += 2 * forward / attention_rate(rates, length, ATTENTION_BACKWARD) / 1e6
    elements = ELEMENT_BYTES * model.hidden * model.layers * max(1, model.chosen / 2) / rates.memory
    if eight_bits:  # read two bytes, write a code and its transpose
        cast = 6 * model.hidden + 2 * model.kv + 3 * model.ffn
        elements += 4 * cast * model.layers / rates.memory
    optimizer = 0 if lora else OPTIMIZER_BYTES * model.parameters / rates.memory / (tokens * microbatches)
    host = 0 if graphs else (LAUNCHES_OF_LAYER * model.layers + LAUNCHES) * LAUNCH_US / tokens
    us = max(products + attention + elements + optimizer, host)
    tflops = (layers + head + 3 * forward) / us / 1e6
    state = 2 if lora else (12 if eight_bits else 14) if recomputes else 18
    peak = state * model.parameters + tokens * model.kept_bytes(recomputes) + min(tokens, LOSS_ROWS) * model.vocabulary * 4
    if eight_bits and not lora:
        peak += 2 * model.layers * model.layer_weights
    return {"tokens_per_s": 1e6 / us, "tflops": tflops, "mfu_percent": 100 * tflops / rates.peak, "peak_gib": peak / 2**30,
            "bound_us": products + attention, "us": us, "elements": elements}


UNITS = {"tokens_per_s": "tokens/s", "mfu_percent": "%", "peak_gib": "GiB", "microbatch_ms": "ms", "gigabytes_per_s": "GB/s",
         "share_of_bound": "of the bound", "wgrad_of_forward": "of forward", "least_share_of_copy": "of the copy",
         "gap_percent": "%", "ratio": "times the better"}


def predict(root=None):
    """Figure -> (value, unit, share by which it may be off)."""
    root = root or find_root()
    rates, found = read_rates(root), {}

    def put(key, value, spread=RATE):
        name = key.rpartition(".")[2]
        unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "TFLOP/s")
        found[key] = (float(f"{value:.3g}"), unit, spread)

    put("2.copy.gigabytes_per_s", rates.memory / 1e3, MEMORY)
    for step, share in (("forward", 1), ("dgrad", 1), ("wgrad", 0.97)):
        put(f"2.square.{step}_tflops", rates.products * share)
        for shape in REAL.models[::2]:
            put(f"2.products_{shape.name}.{step}_tflops", rates.products * share)
            put(f"2.products_{shape.name}.fp8_{step}_tflops", rates.eight_bits * share)
    for shape in REAL.models[::2]:
        put(f"2.products_{shape.name}.wgrad_of_forward", 0.97, MEMORY)
    for name, text in REAL.attention.items():
        length = int(text.split("x")[1])
        for step, share, of_flash in (("forward", ATTENTION, 0.9), ("backward", ATTENTION_BACKWARD, 0.78)):
            rate = attention_rate(rates, length, share)
            put(f"2.attention_{name}.{step}_fused_tflops", rate)
            put(f"2.attention_{name}.{step}_sdpa_tflops", rate * of_flash)
    put("2.operators.least_share_of_copy", 0.85, RATE)
    put("4.loss.gap_percent", 0.2, 1)

    def put_step(row, step, spread=RATE):
        for name in ("tokens_per_s", "tflops", "mfu_percent"):
            put(f"{row}.{name}", step[name], spread)
        put(f"{row}.peak_gib", step["peak_gib"], MEMORY)

    for shape in REAL.models:
        model = Model(root, shape)
        step = step_of(rates, model, shape, REAL.num_microbatches, recomputes=True)
        put(f"3.bound_{shape.name}.microbatch_ms", step["bound_us"] * shape.batch * shape.sequence / 1e3)
        put_step(f"3.{shape.name}", step)
        put(f"3.{shape.name}.share_of_bound", step["bound_us"] / step["us"], MEMORY)
        put_step(f"4.fp8_{shape.name}", step_of(rates, model, shape, REAL.num_microbatches, eight_bits=True, recomputes=True))
    for shape in REAL.models[: REAL.compared]:
        step = step_of(rates, Model(root, shape), shape, REAL.num_microbatches, recomputes=True)
        # Unfused, element by element; what a compiler fuses is half of it.
        peers = {kind: 1e6 / (step["us"] + more * step["elements"]) for kind, more in (("eager", 4), ("compile", 1.5))}
        put(f"5.{shape.name}.megalith_tokens_per_s", step["tokens_per_s"])
        for kind, rate in peers.items():
            put(f"5.{shape.name}.{kind}_tokens_per_s", rate, SMALL)
        put(f"5.{shape.name}.ratio", step["tokens_per_s"] / max(peers.values()), SMALL)
    for shape in REAL.small:
        model, recomputes = Model(root, shape), bool(shape.states)
        for kind, graphs in (("", False), ("graphs_", True)):
            step = step_of(rates, model, shape, REAL.num_microbatches, graphs=graphs, recomputes=recomputes)
            put_step(f"6.{kind}{shape.name}", step, SMALL)
    for shape in REAL.kinds:
        model = Model(root, shape)
        if model.is_flux:  # counted in images, so only its rate
            continue
        put_step(f"6.{shape.name}", step_of(rates, model, shape, REAL.num_microbatches, lora="--lora.enabled" in shape.words,
                                            eight_bits="--fp8_format" in shape.words), SMALL)
    for shape in REAL.models[:2]:
        put_step(f"6.again_{shape.name}", step_of(rates, Model(root, shape), shape, REAL.num_microbatches, recomputes=True))
    return found


def cell(value, unit, spread):
    low, high = (float(f"{value * factor:.3g}") for factor in (1 - spread, 1 + spread))
    return f"{value:g} {unit} ({low:g} to {high:g})"


def page_with(text, found):
    """The page with the predicted cells of its rows replaced; rows that are missing end it."""
    for key, prediction in found.items():
        text, count = re.subn(rf"(\| `{re.escape(key)}` \| )[^|]*?( \|)", rf"\g<1>{cell(*prediction)}\2", text)
        if count != 1:
            raise SystemExit(f"error: benchmarks/results/gpu.md has no row for {key}: {cell(*prediction)}")
    return text


def main():
    found = predict()
    if "--write" not in sys.argv[1:]:
        print("\n".join(f"{key}  {cell(*prediction)}" for key, prediction in found.items()))
        return
    page = find_root() / "benchmarks" / "results" / "gpu.md"
    page.write_text(page_with(page.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
