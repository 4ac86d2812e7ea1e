"""The planner's first layouts for well-known models on 8 to 2,048 GPUs (docs/planning.md, results/planning.md).

Each line is a search; its first layout is then planned by itself, so that memory is the dry run's. The commands follow
the table; with --dry_run --dry_run_world_size N each is a dry run.

usage: worked_answers.py --program build/megalith [--only deepseek_v3] [--pictures docs/pictures]
"""

import argparse
import json
import resource
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Preset, length, and batches by number of GPUs.
MODELS = [
    ("llama3.1_8B", 8192, {8: 128, 64: 512, 512: 1024}),
    ("llama3.1_70B", 8192, {8: 64, 64: 256, 512: 1024}),
    ("llama3.1_405B", 8192, {512: 1024, 2048: 2048}),
    ("mixtral_8x7B_v0.1", 4096, {8: 128, 64: 512, 512: 2048}),
    ("deepseek_v3", 4096, {256: 2048, 1024: 4096, 2048: 8192}),
]
PICTURES = {("llama3.1_70B", 64, "mi300x"), ("deepseek_v3", 1024, "h200")}


def run(program, *words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(program), "plan", *map(str, words), "--json"], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[0]}, 0
    return json.loads(done.stdout), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row_of(program, pictures, preset, length, gpus, batch, chip):
    cluster = f"{chip}:8x{gpus // 8}"
    base = ("--cluster", cluster, "--config", preset, "--bf16", "--seq_length", length, "--global_batch_size", batch)
    picture = ()
    if pictures and (preset, gpus, chip) in PICTURES:
        file = pictures / f"plan_{preset.replace('.', '_')}_{gpus}_{chip}.svg"
        picture = ("--pareto_file", file, "--overwrite")
    found, cpu_s = run(program, *base, "--search", *picture)
    if "error" in found:
        return f"| {preset} | {gpus} {chip} | {found['error']} | | | | | |", None
    first = found["layouts"][0]
    words = first["command"].split()[2:]
    plan, _ = run(program, "--cluster", cluster, *words)
    most = [f"{name} {100 * seconds / plan['step_s']:.0f} %" for name, seconds in plan["causes_s"].items()
            if "products" not in name][:2]  # fmt: skip
    gib = plan["memory_total_bytes"] / 2**30
    return (f"| {preset} | {gpus} {chip} | {first['layout']} | {plan['step_s']:.3g} s | {plan['tokens_per_s_gpu']:,.0f} | "
            f"{plan['tflops_gpu_seen']:.0f} | {gib:.0f} GiB | {', '.join(most)} | {cpu_s:.1f} s |"), (  # fmt: skip
        f"megalith plan --cluster {cluster} {' '.join(words)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/megalith")
    parser.add_argument("--only", default="", help="only presets whose name begins so")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of step time against memory")
    arguments = parser.parse_args()
    print("| model | machine | layout | step | tokens/s/GPU | TFLOP/s, seen | memory | most time beside products | search, CPU |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    commands = []
    for preset, length, batches in MODELS:
        for gpus, batch in batches.items():
            for chip in ("h200", "mi300x"):
                if not preset.startswith(arguments.only):
                    continue
                row, command = row_of(arguments.program, arguments.pictures, preset, length, gpus, batch, chip)
                print(row, flush=True)
                commands += [command] if command else []
    print("\n```sh\n" + "\n".join(commands) + "\n```")


if __name__ == "__main__":
    main()
