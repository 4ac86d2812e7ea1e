"""AMD's settings for MI300X, line by line: would the planner choose them too, and if not, why?

The lines are the training commands that Primus's and Megatron-LM for ROCm's pages print, with the presets they name,
and what CVS's tables add. Each is planned as it is, and searched with the same model, batch, length and precision. The
reason is what AMD's layout spends more time on than the planner's first, or that its memory does not fit.

usage: seed_layouts.py --program build/megalith [--only llama3.1_8B]
"""

import argparse
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FSDP = ("--use_torch_fsdp2", "true")
ZERO1 = ("--use_distributed_optimizer", "true", "--overlap_grad_reduce", "true", "--overlap_param_gather", "true")
FP8 = ("--fp8_format", "hybrid")
TP8 = ("--tensor_model_parallel_size", 8, "--sequence_parallel", "true")
EP8 = ("--expert_model_parallel_size", 8)


def recomputed(layers):
    return ("--recompute_granularity", "full", "--recompute_method", "block", "--recompute_num_layers", layers)


# Preset, nodes, micro-batch, batch, length, words of the model and precision, words of the layout.
LINES = [
    ("llama3.3_70B", 1, 2, 16, 8192, (), (*FSDP, *recomputed(80))),
    ("llama3.1_8B", 1, 2, 128, 8192, FP8, ZERO1),
    ("llama3.1_8B", 1, 2, 128, 8192, (), ZERO1),
    ("llama3.1_70B", 1, 3, 24, 8192, (), (*FSDP, *recomputed(80))),
    ("llama3.1_70B", 1, 3, 24, 8192, (*FP8, "--num_layers", 40), (*FSDP, *recomputed(40))),
    ("llama2_7B", 1, 4, 256, 4096, FP8, ZERO1),
    ("llama2_7B", 1, 4, 256, 4096, (), ZERO1),
    ("llama2_70B", 1, 7, 56, 4096, (), (*FSDP, *recomputed(80))),
    ("deepseek_v3", 1, 4, 256, 4096, ("--num_layers", 3, "--moe_layer_freq", 1), (*ZERO1, *EP8)),
    ("deepseek_v2_lite", 1, 4, 256, 4096, (), (*ZERO1, *EP8)),
    ("mixtral_8x7B_v0.1", 1, 2, 32, 4096, (), (*ZERO1, *EP8)),
    ("mixtral_8x22B_v0.1", 1, 1, 16, 8192, ("--num_layers", 4), (*ZERO1, *EP8)),
    ("qwen2.5_7B", 1, 10, 640, 2048, (), ZERO1),
    ("qwen2.5_7B", 1, 10, 640, 2048, FP8, ZERO1),
    ("qwen2.5_72B", 1, 4, 32, 2048, (), (*FSDP, *recomputed(80))),
    ("llama3.1_8B", 2, 2, 256, 8192, FP8, ZERO1),
    ("llama3.3_70B", 8, 4, 256, 8192, FP8, (*FSDP, *recomputed(80))),
    ("llama3.3_70B", 8, 1, 256, 8192, (), (*FSDP, *recomputed(12))),
    ("llama3.1_8B", 8, 2, 1024, 8192, FP8, ZERO1),
    ("llama2_7B", 8, 4, 2048, 4096, FP8, ZERO1),
    ("llama2_70B", 8, 10, 640, 4096, FP8, (*FSDP, *recomputed(80))),
    ("llama2_70B", 8, 2, 1536, 4096, (), (*FSDP, *recomputed(12))),
    ("mixtral_8x7B_v0.1", 8, 2, 256, 4096, (), (*ZERO1, *EP8)),
    ("qwen2.5_72B", 8, 8, 512, 2048, FP8, (*FSDP, *recomputed(80))),
    ("llama3.1_70B", 1, 1, 128, 8192, FP8, (*ZERO1, *TP8)),  # CVS's thresholds
]  # fmt: skip


def planned(program, *words):
    command = [program, "plan", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[0]}
    return json.loads(done.stdout)


def layout_of(words, micro):
    """(tp, pp, ep, micro-batch, sharding, recomputation) of a command."""
    given = dict(zip(words, words[1:]))
    number = lambda name, default=1: int(given.get(f"--{name}", default))  # noqa: E731
    sharding = "FSDP" if given.get("--use_torch_fsdp2") == "true" else "ZeRO-1"
    recompute = given.get("--recompute_granularity", "none")
    if recompute == "full" and given.get("--recompute_method") == "block":
        recompute = f"full, {given['--recompute_num_layers']} layers"
    return {"tp": number("tensor_model_parallel_size"), "pp": number("pipeline_model_parallel_size"),
            "ep": number("expert_model_parallel_size"), "micro-batch": number("micro_batch_size", micro),
            "sharding": sharding, "recomputation": recompute}  # fmt: skip


def text_of(layout):
    words = [f"{name} {layout[name]}" for name in ("tp", "pp", "ep") if layout[name] > 1]
    words += [layout["sharding"], f"micro-batch {layout['micro-batch']}"]
    return ", ".join(words + ([f"recomputes {layout['recomputation']}"] if layout["recomputation"] != "none" else []))


def reason(theirs, best):
    if not theirs["fits"]:
        gib = theirs["memory_total_bytes"] / 2**30
        return f"theirs needs {gib:.0f} GiB here, which does not fit"
    more = {name: theirs["causes_s"].get(name, 0) - best["causes_s"].get(name, 0)
            for name in {*theirs["causes_s"], *best["causes_s"]}}  # fmt: skip
    longest = sorted(more.items(), key=lambda cause: -cause[1])[:2]
    parts = [f"{name} {seconds:+.2f} s" for name, seconds in longest if seconds > 0.003 * best["step_s"]]
    return "theirs spends more: " + ", ".join(parts) if parts else "equally fast"


def row_of(program, line):
    preset, nodes, micro, batch, length, model, layout = line
    base = ("--cluster", f"mi300x:8x{nodes}", "--config", preset, "--bf16", "--seq_length", length,
            "--global_batch_size", batch, *model)  # fmt: skip
    theirs = planned(program, *base, "--micro_batch_size", micro, *layout)
    found = planned(program, *base, "--search")
    title = f"{preset}{' ' + ' '.join(map(str, model)) if model else ''}, {8 * nodes} GPUs, batch {batch} of {length}"
    for answer in (theirs, found):
        if "error" in answer:
            return title, "", "", "", "", answer["error"]
    command = found["layouts"][0]["command"].split()[2:]
    best = planned(program, *base[:2], *command)
    own, chosen = layout_of([str(word) for word in layout], micro), layout_of(command, 1)
    differing = [name for name in own if own[name] != chosen[name]]
    gain = theirs["step_s"] / best["step_s"] - 1
    why = "the same" if not differing else f"{reason(theirs, best)}; differs in {', '.join(differing)}"
    own_s, best_s = f"{theirs['step_s']:.3g}", f"{best['step_s']:.3g} ({100 * gain:+.0f} %)"
    return title, text_of(own), own_s, text_of(chosen), best_s, why


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/megalith")
    parser.add_argument("--only", default="", help="only presets whose name begins so")
    arguments = parser.parse_args()
    lines = [line for line in LINES if line[0].startswith(arguments.only)]
    print("| line | AMD's layout | step, s | the planner's | step, s (theirs slower by) | why |")
    print("|---|---|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        for row in pool.map(lambda line: row_of(arguments.program, line), lines):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
