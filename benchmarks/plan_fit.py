"""How well `megalith plan` predicts published training runs, and the shares of configs/clusters.yaml that fit them.

Every row of published_runs.csv whose model and layout this program can state is planned (`megalith plan --cluster … --json`).
A step's time is then products / share + memory-bound / share + the rest, so the shares are fitted on the rows without
planning again. Errors are of rows whose family (the people who measured) was left out of the fit; Kendall's tau is over runs
of one model and chip within a family. Rows that are left out are listed with the reason.

usage: plan_fit.py --program build/megalith [--data published_runs.csv] [--cache plans.json]
"""

import argparse
import csv
import itertools
import json
import math
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Who measured, by the first words of a row's source.
FAMILIES = ("LLMQ", "MBridge", "Megatron-Bridge", "torchtitan", "torchao", "nanotron", "mcore", "MLPerf", "llm.c", "MosaicML",
            "Megatron MoE")
PRESETS = {"dsv3": "deepseek_v3", "gpt-oss-120b": "gpt_oss_120B", "qwen3-235b": "qwen3_235B_A22B",
           "qwen3-30b-a3b": "qwen3_30B_A3B", "mixtral-8x22b": "mixtral_8x22B_v0.1"}  # fmt: skip
LLAMA = {"position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": "true", "add_bias_linear": "false",
         "untie_embeddings_and_output_weights": "true", "attention_dropout": "0", "hidden_dropout": "0"}  # fmt: skip
GPT2 = {"position_embedding_type": "learned_absolute", "attention_dropout": "0", "hidden_dropout": "0"}
SHARES = ("product_share", "fp8_share", "memory_share")


def family_of(row):
    return next(name for name in FAMILIES if row["source"].startswith(name))


def why_left_out(row):
    if not row["tokens_per_s_gpu"] and not row["step_s"]:
        return "no throughput"
    if not row["gpus"] or not row["seq"]:
        return "GPUs or sequence not known"
    if row["model"] not in PRESETS and not (row["layers"] and row["hidden"] and row["ffn"]):
        return "model not described"
    if row["precision"] == "nvfp4" or (row["gpu"] in ("GB200", "GB300") and not row["precision"]):
        return "4-bit products, or perhaps"
    if not row["mbs"] and row["gpus"] != "1":
        return "layout not known"
    return None


def model_words(row):
    if row["model"] in PRESETS:
        return ["--config", PRESETS[row["model"]]]
    is_gpt2 = row["model"].startswith("gpt2")
    heads = row["heads"] or str(int(row["hidden"]) // 128)
    words = {"num_layers": row["layers"], "hidden_size": row["hidden"], "ffn_hidden_size": row["ffn"],
             "num_attention_heads": heads, "vocab_size": row["vocab"], "max_position_embeddings": row["seq"],
             **(GPT2 if is_gpt2 else LLAMA)}  # fmt: skip
    if row["kv_heads"] and row["kv_heads"] != heads:
        words |= {"group_query_attention": "true", "num_query_groups": row["kv_heads"]}
    return [f"--{name}={value}" for name, value in words.items()]


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
    if pp > 1:
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
    else:
        words |= {"use_distributed_optimizer": "true", "overlap_grad_reduce": "true", "overlap_param_gather": "true"}
    if row["recompute"] in ("selective", "full"):
        words["recompute_granularity"] = row["recompute"]
        if row["recompute"] == "full":
            words |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    if row["precision"] != "bf16":
        words |= {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}
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
    command = [program, "plan", "--cluster", f"{rates[row['gpu']]}:{cluster_words(row)}", "--json", *model_words(row),
               *layout_words(row)]  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[0] if done.stderr else "no message"}
    return json.loads(done.stdout)


def plan_all(program, rows):
    """Plans with every share 1, so that a share divides its part of the time."""
    import re

    text = (ROOT / "configs/clusters.yaml").read_text()
    with tempfile.TemporaryDirectory() as folder:
        rates = {}
        for name, body in re.findall(r"^(\w+):\n((?:  .*\n)+)", text, re.MULTILINE):
            body = re.sub(r"((?:product|fp8|memory)_share): \S+", r"\1: 1", body)
            rates[name.upper()] = Path(folder) / f"{name}.yaml"
            rates[name.upper()].write_text(f"{name}:\n{body}")
        a100 = re.sub(r"^h100", "a100", rates["H100"].read_text())
        for key, value in (("tflops", 311.8), ("fp8_tflops", 0), ("memory_tb_per_s", 2.0), ("link_gb_per_s", 240)):
            a100 = re.sub(rf"(\n  {key}): \S+", rf"\1: {value}", a100)
        rates["A100"] = Path(folder) / "a100.yaml"
        rates["A100"].write_text(a100)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda row: plan(program, rates, row), rows))


def predicted(planned, shares):
    causes = planned["causes_s"]
    work = {"product_share": causes.get("products", 0) + causes.get("attention", 0),
            "fp8_share": causes.get("products in 8 bits", 0), "memory_share": causes.get("memory-bound operators", 0)}
    bubble = causes.get("bubble", 0)
    rest = planned["step_s"] - sum(work.values()) - bubble
    busy = sum(work[share] / shares[share] for share in SHARES)
    # A bubble is in proportion to the work around it.
    return busy * (1 + bubble / max(sum(work.values()), 1e-9)) + rest


def is_amd(row):
    return row["gpu"].startswith("MI")


def fit(rows):
    """Shares by vendor; those of AMD begin from NVIDIA's, which have more rows."""

    def descend(some, start):
        def loss(shares):
            errors = [abs(math.log(predicted(r["plan"], shares) / r["measured_s"])) for r in some]
            drift = sum(math.log(shares[s] / start[s]) ** 2 for s in SHARES)
            return sum(errors) + 0.5 * drift

        best, step = dict(start), 0.2
        while step > 0.002 and some:
            moves = [{**best, s: min(best[s] * math.exp(sign * step), 1.2)} for s in SHARES for sign in (-1, 1)]
            better = min(moves, key=loss)
            if loss(better) < loss(best) - 1e-9:
                best = better
            else:
                step /= 2
        return best

    nvidia = descend([r for r in rows if not is_amd(r)], {"product_share": 0.72, "fp8_share": 0.6, "memory_share": 0.8})
    return {False: nvidia, True: descend([r for r in rows if is_amd(r)], nvidia)}


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
        row["family"] = family_of(row)
    families = sorted({row["family"] for row in rows})
    for family in families:
        shares = fit([row for row in rows if row["family"] != family])
        for row in rows:
            if row["family"] == family:
                row["out_s"] = predicted(row["plan"], shares[is_amd(row)])
    everything = fit(rows)
    print("| run | model | chip | GPUs | measured, s | left out, s | error | fitted, s |\n|---|---|---|---|---|---|---|---|")
    for row in rows:
        row["in_s"] = predicted(row["plan"], everything[is_amd(row)])
        error = row["out_s"] / row["measured_s"] - 1
        print(f"| {row['id']} | {row['model']} | {row['gpu']} | {row['gpus']} | {row['measured_s']:.4g} | {row['out_s']:.4g} | "
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
        tau = kendall([(row["tokens"] / row["out_s"], row["tokens"] / row["measured_s"]) for row in some]) if len(some) > 2 else None
        if tau is not None:
            print(f"| {family} {model} {gpu} | {len(some)} | {tau:.2f} |")
    print()
    for vendor, shares in (("NVIDIA", everything[False]), ("AMD", everything[True])):
        print(f"{vendor}: " + ", ".join(f"{name} {value:.3f}" for name, value in shares.items()))
    for reason, ids in left_out.items():
        print(f"left out, {reason}: {', '.join(ids)}")


if __name__ == "__main__":
    main()
