"""How well `megalith plan` predicts published training runs, and the shares of configs/clusters.yaml that fit them.

Every row of published_runs.csv whose model and layout this program can state is planned (`megalith plan --cluster …
--json`). What a row's program does otherwise than Megalith is a line of SOFTWARE, from its sources or from counting its
operators, and never fitted. A step's time is then products / share + memory-bound / share + the rest, so the shares are
fitted on the rows without planning again. Errors are of rows whose family (the people who measured) was left out of
the fit; Kendall's tau is over runs of one model and chip within a family. Rows left out are listed with the reason.

usage: plan_fit.py --program build/megalith [--data published_runs.csv] [--cache plans.json]
"""

import argparse
import csv
import functools
import itertools
import json
import math
import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Who measured, by the first words of a row's source.
FAMILIES = ("LLMQ", "MBridge", "Megatron-Bridge", "torchtitan", "torchao", "nanotron", "mcore", "MLPerf", "llm.c",
            "MosaicML", "Megatron MoE")
PRESETS = {"dsv3": "deepseek_v3", "gpt-oss-120b": "gpt_oss_120B", "qwen3-235b": "qwen3_235B_A22B",
           "qwen3-30b-a3b": "qwen3_30B_A3B", "mixtral-8x22b": "mixtral_8x22B_v0.1"}  # fmt: skip
LLAMA = {"position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": "true", "add_bias_linear": "false",
         "untie_embeddings_and_output_weights": "true", "attention_dropout": "0", "hidden_dropout": "0"}  # fmt: skip
GPT2 = {"position_embedding_type": "learned_absolute", "attention_dropout": "0", "hidden_dropout": "0"}
# Facts from other sources that rows leave out. MPT: its config.json. torchtitan's H200s hold 51 GB: a sequence without
# recomputation, where two with it take 67 GB on the same people's H100s.
COMPLETIONS = {
    "MO7-8": {"layers": "32", "hidden": "4096", "ffn": "16384", "heads": "32", "kv_heads": "32", "vocab": "50432"},
    "TH200-32": {"mbs": "1"},
    "TH200-64": {"mbs": "1"},
}
MPT = {"position_embedding_type": "none", "add_bias_linear": "false", "attention_dropout": "0", "hidden_dropout": "0"}
SHARES = ("product_share", "fp8_share", "memory_share")


@dataclass(frozen=True)
class Software:
    """A program that made rows."""

    # Bytes that its memory-bound operators move for a byte of fused ones: counted for a layer of norms, rotation,
    # SwiGLU and additions, forward and backward.
    passes: float = 1.1
    # Bytes a logit: whether the loss keeps them in fp32, and how often it reads them. Megalith keeps none.
    logit_bytes: float = 16
    # Shares of what products reach that attention reaches, forward and backward: cuDNN's and FlashAttention-3's.
    attention: tuple = (0.74, 0.66)
    launches: int = 1  # for one of ours
    # Tensor-parallel collectives run beside parts of products: only the first part is waited for. Copy engines move
    # them, so products are not slowed.
    hides_tp: bool = False
    # A token goes to a rank once, however many of its experts are there.
    sends_tokens_once: bool = False
    # Selective recomputation is of every second product and all that is cheap: as half of the layers whole.
    recomputes_operators: bool = False
    bucket: int = 0  # elements of a reduction, and then parameters are gathered after the update
    # Autograd's gradients in 16 bits are added to fp32 ones by an operator of its own, after each microbatch.
    accumulates_apart: bool = False
    # A pipeline's stages are cut by the products of layers and head, not into equal numbers of layers.
    cuts_by_cost: bool = False
    rates: tuple = ()  # of its machines' network
    # With rows' scales the library's products are tensors', and another kernel scales their outputs (pytorch/ao, issue
    # 2184); operands are rounded once along each side.
    rescales_rows: bool = False


FLASH2 = (0.5, 0.42)  # FlashAttention-2 on an H100, of the FlashAttention-3 paper
AOTRITON = (0.6, 0.35)  # PyTorch's attention on ROCm
SOFTWARE = {
    "LLMQ": Software(passes=1, logit_bytes=8),
    "llm.c": Software(passes=1, logit_bytes=8),
    "MLPerf": Software(hides_tp=True),
    "MBridge": Software(hides_tp=True),
    "Megatron-Bridge": Software(hides_tp=True, sends_tokens_once=True),
    "mcore": Software(),
    # Triton norms and rotation, the rest eager, and a loss in fp32; gradients in DDP's buckets of 25 MB. Its machines
    # are AWS's with EFA, whose collectives over 64 nodes the same people measured at half (recalled).
    # nanotron/optim/gradient_accumulator.py and models/base.py (build_model) of its main branch.
    "nanotron": Software(1.5, 50, FLASH2, 3, bucket=12_500_000, accumulates_apart=True, cuts_by_cost=True, rates=(("network_gb_per_s", 20), ("network_us", 25))),
    # Layer norms and activations are one operator each, and so is the loss.
    "MosaicML": Software(1.3, 16, FLASH2, 3),
    "torchtitan eager": Software(4.2, 32, FLASH2, 3, recomputes_operators=True),
    "torchtitan": Software(1.1, 16, FLASH2, recomputes_operators=True),
    "torchao": Software(1.1, 16, FLASH2, recomputes_operators=True, rescales_rows=True),
    "torchao MI300X": Software(1.1, 16, AOTRITON, recomputes_operators=True, rescales_rows=True),
}
# A chip's clock goes with the root of its power, about: a GB300's limit is 1,400 W, a GB200's 1,200 W.
POWER = {"GB300": math.sqrt(1400 / 1200)}
# Meta's H100s are allowed 500 W instead of 700 W, and have HBM2e.
CAPPED = "H100 at 500 W"
# What large products of the vendors' libraries reach of the data sheet, in 16 and 8 bits: an MI300X and an H100 in
# SemiAnalysis's comparison of December 2024, an A100 with cuBLAS. Chips with few rows begin from these ratios.
LIBRARY = {"NVIDIA": (720 / 989, 1280 / 1979), "AMD": (620 / 1307, 990 / 2615), "A100": (275 / 312, 1)}


def family_of(row):
    return next(name for name in FAMILIES if row["source"].startswith(name))


def software_of(row):
    family = family_of(row)
    if "; eager" in row["notes"]:
        family += " eager"
    return SOFTWARE.get(f"{family} {row['gpu']}") or SOFTWARE[family]


def chip_of(row):
    # torchao's numbers are by the same people.
    return CAPPED if row["gpu"] == "H100" and family_of(row) in ("torchtitan", "torchao") else row["gpu"]


def why_left_out(row):
    if not row["tokens_per_s_gpu"] and not row["step_s"]:
        return "no throughput"
    if row["id"].startswith("TCP-"):
        row["gpus"] = "8"  # the largest cp
    if not row["gpus"] or not row["seq"]:
        return "GPUs, their tensor parallelism or the sequence not known"
    if row["model"] not in PRESETS and not (row["layers"] and row["hidden"] and row["ffn"]):
        return "neither the model's shape nor the micro-batch described, or a hybrid of Mamba and attention"
    if row["precision"] == "nvfp4" or (row["gpu"] in ("GB200", "GB300") and not row["precision"]):
        return "4-bit products, or perhaps"
    if not row["mbs"] and row["gpus"] != "1":
        return "layout not recorded"
    if "deterministic" in row["notes"]:
        return "a functional test with deterministic kernels"
    return None


def model_words(row):
    if row["model"] in PRESETS:
        return ["--config", PRESETS[row["model"]]]
    is_gpt2 = row["model"].startswith("gpt2")
    heads = row["heads"] or str(int(row["hidden"]) // 128)
    words = {"num_layers": row["layers"], "hidden_size": row["hidden"], "ffn_hidden_size": row["ffn"],
             "num_attention_heads": heads, "vocab_size": row["vocab"], "max_position_embeddings": row["seq"],
             **(GPT2 if is_gpt2 else MPT if row["model"] == "mpt-7b" else LLAMA)}  # fmt: skip
    if row["kv_heads"] and row["kv_heads"] != heads:
        words |= {"group_query_attention": "true", "num_query_groups": row["kv_heads"]}
    return [f"--{name}={value}" for name, value in words.items()]


def cut_by_cost(row, pp):
    """Blocks go to the next rank once their sum exceeds its share of the whole."""
    hidden, layers = int(row["hidden"]), int(row["layers"])
    costs = [4 * hidden * hidden + 3 * hidden * int(row["ffn"])] * layers + [int(row["vocab"]) * hidden]
    rank, done, counts = 0, 0, [0] * pp
    for cost in costs[:-1]:
        done += cost
        if rank + 1 < pp and done > sum(costs) * (rank + 1) / pp:
            rank += 1
        counts[rank] += 1
    parts = [f"t*{count}" if count else "" for count in counts]
    return "|".join(["E" + parts[0], *parts[1:-1], parts[-1] + "L"])


def layout_words(row):
    number = lambda key: int(row[key] or 1)  # noqa: E731
    tp, cp, pp, vp = number("tp"), number("cp"), number("pp"), number("vp")
    gpus = int(row["gpus"])
    dp = gpus // (tp * cp * pp)
    # One GPU's microbatches were chosen by size.
    micro = number("mbs") if row["mbs"] else 8
    batch = int(row["gbs"] or micro * dp)
    words = {"micro_batch_size": micro, "global_batch_size": batch, "seq_length": row["seq"], "bf16": "true",
             "tensor_model_parallel_size": tp, "sequence_parallel": "true" if tp > 1 else "false",
             "context_parallel_size": cp, "pipeline_model_parallel_size": pp,
             "expert_model_parallel_size": number("ep")}  # fmt: skip
    if row["experts"]:
        words["expert_tensor_parallel_size"] = number("etp")
    software = software_of(row)
    if pp > 1 and software.cuts_by_cost:
        words["pipeline_model_parallel_layout"] = cut_by_cost(row, pp)
    elif pp > 1:
        stages = pp * vp
        layers = int(row["layers"])
        if row["model"] == "dsv3" or layers % stages:
            each, module = layers + 2, row["model"] == "dsv3"
            counts = [each * (i + 1) // stages - each * i // stages for i in range(stages)]
            counts[0] -= 1
            counts[-1] -= 1
            parts = [f"t*{count}" if count else "" for count in counts]
            parts[0] = "E" + parts[0]
            parts[-1] += "mL" if module else "L"
            words["pipeline_model_parallel_layout"] = "|".join(parts)
        elif vp > 1:
            words["num_virtual_stages_per_pipeline_rank"] = vp
    if row["dp_sharding"] == "fsdp":
        words["use_torch_fsdp2"] = "true"
    elif row["dp_sharding"] == "none":
        words["overlap_grad_reduce"] = "true"
    else:
        words |= {"use_distributed_optimizer": "true", "overlap_grad_reduce": "true", "overlap_param_gather": "true"}
    if row["recompute"] == "full":
        words |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    elif row["recompute"] == "selective" and software.recomputes_operators:
        words |= {"recompute_granularity": "full", "recompute_method": "block",
                  "recompute_num_layers": int(row["layers"]) // 2}  # fmt: skip
    elif row["recompute"] == "selective":
        words["recompute_granularity"] = "selective"
    if software.bucket and row["dp_sharding"] != "fsdp":
        words |= {"ddp_bucket_size": software.bucket, "overlap_param_gather": "false"}
    if row["precision"] != "bf16":
        recipe = {"mxfp8": "blockwise", "fp8": "delayed" if family_of(row) == "MLPerf" else "tensorwise"}
        words |= {"fp8_format": "hybrid", "fp8_recipe": recipe.get(row["precision"], "tensorwise")}
    return [f"--{name}={value}" for name, value in words.items()]


def tokens_per_s(row):
    if row["tokens_per_s_gpu"]:
        return float(row["tokens_per_s_gpu"])
    return int(row["gbs"]) * int(row["seq"]) / float(row["step_s"]) / int(row["gpus"])


def cluster_words(row):
    per_node = min(int(row["gpus"]), 72 if row["gpu"].startswith("GB") else 8)
    gpus = int(row["gpus"])
    while gpus % per_node:
        per_node -= 1
    return f"{per_node}x{gpus // per_node}"


def plan(program, rates, row):
    command = [program, "plan", "--cluster", f"{rates(row)}:{cluster_words(row)}", "--json", *model_words(row),
               *layout_words(row)]  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[0] if done.stderr else "no message"}
    return json.loads(done.stdout)


def chips():
    """Rates by chip, of configs/clusters.yaml and of two chips that only published runs have."""
    text = (ROOT / "configs/clusters.yaml").read_text()
    found = {name.upper(): body for name, body in re.findall(r"^(\w+):\n((?:  .*\n)+)", text, re.MULTILINE)}
    a100 = {"tflops": 311.8, "fp8_tflops": 0, "units": 108, "memory_tb_per_s": 2.0, "link_gb_per_s": 240}
    capped = {"tflops": 989.4 * math.sqrt(500 / 700), "fp8_tflops": 1978.9 * math.sqrt(500 / 700), "memory_gib": 94,
              "memory_tb_per_s": 2.4}  # fmt: skip
    return found | {"A100": changed(found["H100"], a100), CAPPED: changed(found["H100"], capped)}


def changed(body, values):
    for key, value in values.items():
        body = re.sub(rf"^  {key}: .*\n", "", body, flags=re.MULTILINE) + f"  {key}: {value}\n"
    return body


def plan_all(program, rows):
    """Plans with the shares of the file, which a fit then moves."""
    known = chips()
    with tempfile.TemporaryDirectory() as folder:

        @functools.cache
        def file_of(chip, software_name, software):
            forward, backward = software.attention
            rates = {"attention_share": forward, "attention_backward_share": backward,
                     "operator_us": 5 * software.launches, **dict(software.rates)}  # fmt: skip
            file = Path(folder) / f"{chip}_{software_name}.yaml".replace(" ", "_")
            file.write_text(f"chip:\n{changed(known[chip], rates)}")
            return file

        def rates(row):
            software = software_of(row)
            name = next(name for name, value in SOFTWARE.items() if value is software)
            return file_of(chip_of(row), name, software)

        for row in rows:
            rates(row)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda row: plan(program, rates, row), rows))


def rates_of(chip):
    return {key: float(value) for key, value in re.findall(r"^  (\w+): ([\d.]+)$", chips()[chip], re.MULTILINE)}


def data_parallel_size(row):
    return int(row["gpus"]) // math.prod(int(row[axis] or 1) for axis in ("tp", "cp", "pp"))


def logits_s(row, memory_bytes_per_s):
    """What the loss moves of a step's logits in the rank that has them."""
    tokens = row["tokens"] * int(row["pp"] or 1)
    return tokens * int(row["vocab"]) * software_of(row).logit_bytes / memory_bytes_per_s


def rowwise_bytes(row):
    """A step of Llama's layers with a scale a row moves so many more: outputs are read and written again in 16 bits by
    each 8-bit product, and operands read again in 16 bits and written in 8 for the weights' gradients."""
    hidden, ffn, layers = int(row["hidden"]), int(row["ffn"]), int(row["layers"])
    keys = hidden * int(row["kv_heads"]) // int(row["heads"])
    outs, ins = 2 * hidden + 2 * keys + 2 * ffn, 3 * hidden + ffn
    weights = hidden * (2 * hidden + 2 * keys + 3 * ffn)
    has_wide_gradients = row["precision"].endswith("gw-hp")
    passes = 1.5 if row["recompute"] == "selective" else 1  # half of the layers run twice
    scaled = row["tokens"] * (passes * outs + ins) + (0 if has_wide_gradients else weights)
    rounded = 0 if has_wide_gradients else row["tokens"] * (outs + ins)
    return layers * ((2 + 2) * scaled + (2 + 1) * rounded)


def predicted(row, shares):
    causes, rates, software = row["plan"]["causes_s"], row["rates"], software_of(row)
    tp, ep = int(row["tp"] or 1), int(row["ep"] or 1)
    moved = causes.get("memory-bound operators", 0) * software.passes
    moved += logits_s(row, rates["memory_tb_per_s"] * 1e12 * rates["memory_share"])
    if software.accumulates_apart:
        # Read in 16 bits and written before, read and written in fp32.
        parameters = row["plan"]["memory_bytes"]["gradients"] / 4
        microbatches = row["tokens"] * int(row["gpus"]) / int(row["seq"]) / int(row["mbs"]) / data_parallel_size(row)
        moved += microbatches * (2 + 2 + 8) * parameters / (rates["memory_tb_per_s"] * 1e12 * rates["memory_share"])
    if software.rescales_rows and "rowwise" in row["precision"]:
        moved += rowwise_bytes(row) / (rates["memory_tb_per_s"] * 1e12 * rates["memory_share"])
    work = {"product_share": causes.get("products", 0) + causes.get("attention", 0),
            "fp8_share": causes.get("products in 8 bits", 0), "memory_share": moved}
    bubble = causes.get("bubble", 0)
    planned_s = sum(work.values())
    rest = row["plan"]["step_s"] - planned_s - bubble
    rest += moved - causes.get("memory-bound operators", 0)
    if software.hides_tp:
        rest -= (1 - 1 / tp) * causes.get("tp over the link", 0)
    if software.sends_tokens_once and row["experts"]:
        picked = int(row["topk"])
        met = ep * (1 - (1 - 1 / ep) ** picked)
        rest -= (1 - met / picked) * causes.get("etp_ep over the link", 0)
    reached = {share: shares[share] * (1 if share == "memory_share" else POWER.get(row["gpu"], 1)) for share in SHARES}
    if row["precision"].endswith("gw-hp"):  # weight gradients, a third of the products, in 16 bits
        third = work["fp8_share"] / 3
        work["fp8_share"] -= third
        work["product_share"] += third * rates["fp8_tflops"] * rates["fp8_share"] / rates["tflops"] / rates["product_share"]
    busy = sum(work[share] * rates[share] / reached[share] for share in SHARES)
    # A bubble is in proportion to the work around it.
    return busy * (1 + bubble / max(planned_s, 1e-9)) + rest


def kind_of(row):
    if row["gpu"].startswith("MI") or row["gpu"] == "A100":
        return "A100" if row["gpu"] == "A100" else "AMD"
    return CAPPED if chip_of(row) == CAPPED else "NVIDIA"


def fit(rows):
    """Shares by kind of chip; those of AMD and of capped chips begin from NVIDIA's, which have more rows."""

    def descend(some, start):
        def loss(shares):
            errors = [abs(math.log(predicted(r, shares) / r["measured_s"])) for r in some]
            drift = sum(math.log(shares[s] / start[s]) ** 2 for s in SHARES)
            return sum(errors) + 2 * drift

        best, step = dict(start), 0.2
        while step > 0.002 and some:
            moves = [{**best, s: min(best[s] * math.exp(sign * step), 1.0)} for s in SHARES for sign in (-1, 1)]
            better = min(moves, key=loss)
            if loss(better) < loss(best) - 1e-9:
                best = better
            else:
                step /= 2
        return best

    of = lambda kind: [row for row in rows if kind_of(row) == kind]  # noqa: E731
    nvidia = descend(of("NVIDIA"), dict(zip(SHARES, (*LIBRARY["NVIDIA"], 0.85))))
    fits = {"NVIDIA": nvidia, CAPPED: descend(of(CAPPED), nvidia)}
    for kind in ("AMD", "A100"):
        ratios = [of_kind / of_nvidia for of_kind, of_nvidia in zip(LIBRARY[kind], LIBRARY["NVIDIA"])]
        start = {share: nvidia[share] * ratio for share, ratio in zip(SHARES, (*ratios, 1))}
        fits[kind] = descend(of(kind), start)
    return fits


def kendall(pairs):
    concordant = total = 0
    for (p1, m1), (p2, m2) in itertools.combinations(pairs, 2):
        if m1 != m2:
            total += 1
            concordant += 1 if (p1 - p2) * (m1 - m2) > 0 else -1
    return concordant / total if total else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/megalith")
    parser.add_argument("--data", type=Path, default=ROOT / "benchmarks/published_runs.csv")
    parser.add_argument("--cache", type=Path, help="plans are read from here, or written")
    parser.add_argument("--only", default="", help="only rows whose id begins so")
    arguments = parser.parse_args()
    lines = [line for line in arguments.data.read_text().splitlines() if not line.startswith("#")]
    rows, left_out = [], {}
    for row in csv.DictReader(lines):
        if not row["id"].startswith(arguments.only):
            continue
        row |= COMPLETIONS.get(row["id"], {})
        reason = why_left_out(row)
        if reason:
            left_out.setdefault(reason, []).append(row["id"])
        else:
            rows.append(row)
    if arguments.cache and arguments.cache.exists():
        plans = json.loads(arguments.cache.read_text())
    else:
        plans = dict(zip((row["id"] for row in rows), plan_all(arguments.program, rows)))
        if arguments.cache:
            arguments.cache.write_text(json.dumps(plans))
    for row in list(rows):
        row["plan"] = plans[row["id"]]
        if "error" in row["plan"]:
            left_out.setdefault("refused: " + row["plan"]["error"], []).append(row["id"])
            rows.remove(row)
            continue
        tokens = row["plan"]["tokens_per_s_gpu"] * row["plan"]["step_s"]
        row["measured_s"] = tokens / tokens_per_s(row)
        row["tokens"] = tokens
        row["rates"] = rates_of(chip_of(row))
        row["family"] = family_of(row)
    families = sorted({row["family"] for row in rows})
    for family in families:
        shares = fit([row for row in rows if row["family"] != family])
        for row in rows:
            if row["family"] == family:
                row["out_s"] = predicted(row, shares[kind_of(row)])
    everything = fit(rows)
    print("| run | model | chip | GPUs | measured, s | left out, s | error | fitted, s |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        row["in_s"] = predicted(row, everything[kind_of(row)])
        error = row["out_s"] / row["measured_s"] - 1
        print(f"| {row['id']} | {row['model']} | {row['gpu']} | {row['gpus']} | {row['measured_s']:.4g} | "
              f"{row['out_s']:.4g} | "
              f"{100 * error:+.0f} % | {row['in_s']:.4g} |")  # fmt: skip

    def mape(some, key):
        return 100 * sum(abs(r[key] / r["measured_s"] - 1) for r in some) / len(some)

    print("\n| family | runs | MAPE, left out | MAPE, fitted |\n|---|---|---|---|")
    for family in families:
        some = [row for row in rows if row["family"] == family]
        print(f"| {family} | {len(some)} | {mape(some, 'out_s'):.1f} % | {mape(some, 'in_s'):.1f} % |")
    if rows:
        print(f"| all | {len(rows)} | {mape(rows, 'out_s'):.1f} % | {mape(rows, 'in_s'):.1f} % |")
    print("\n| sweep | runs | Kendall's tau |\n|---|---|---|")
    sweeps = {}
    for row in rows:
        sweeps.setdefault((row["family"], row["model"], row["gpu"]), []).append(row)
    for (family, model, gpu), some in sorted(sweeps.items()):
        rates = [(row["tokens"] / row["out_s"], row["tokens"] / row["measured_s"]) for row in some]
        tau = kendall(rates) if len(some) > 2 else None
        if tau is not None:
            print(f"| {family} {model} {gpu} | {len(some)} | {tau:.2f} |")
    print("\n| run | memory measured, GB | planned, GB | at most, GB |\n|---|---|---|---|")
    for row in rows:
        if row["peak_mem_gb"]:
            planned = [row["plan"][f"memory_{name}_bytes"] / 1e9 for name in ("total", "at_most")]
            print(f"| {row['id']} | {row['peak_mem_gb']} {row['mem_kind']} | {planned[0]:.1f} | {planned[1]:.1f} |")
    print()
    for kind, shares in everything.items():
        print(f"{kind}: " + ", ".join(f"{name} {value:.3f}" for name, value in shares.items()))
    for reason, ids in left_out.items():
        print(f"left out, {reason}: {', '.join(ids)}")


if __name__ == "__main__":
    main()
