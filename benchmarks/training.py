"""Training speed on this machine: Megalith beside Hugging Face's Llama in PyTorch, on the same shapes, in one sitting.

The programs run in turn, several rounds, so that what else the machine does falls on all of them; the table has the median of
each and its spread. PyTorch runs in eager mode, once as it is and once with an allocator that does not give memory back
between steps, which is what costs it most on a CPU.

usage: training.py --program build/megalith [--config configs/models/llama_125M.yaml] [--rounds 3] [--steps 6]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What keeps glibc's malloc from returning memory to the system after every step.
TUNED_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "67108864"}


def read_preset(path):
    """The flat `name: value` lines of a model preset."""
    values = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, colon, value = line.split("#")[0].partition(":")
        if colon and value.strip():
            values[name.strip()] = value.strip()
    return values


def run_pytorch(arguments):
    """The peer: in a process of its own. Prints the seconds of each step as JSON."""
    import time

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    preset = read_preset(arguments.config)
    heads = int(preset["num_attention_heads"])
    config = LlamaConfig(
        vocab_size=int(preset["vocab_size"]),
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
    # Like Megalith's: bf16 in the products, weights and moments of the optimizer in fp32.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(arguments.steps):
        tokens = torch.randint(config.vocab_size, (arguments.batch, arguments.sequence + 1))
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.bf16):
            loss = model(tokens[:, :-1], labels=tokens[:, :-1]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


def pytorch_seconds(arguments, environment):
    words = [sys.executable, __file__, "--peer", "--config", arguments.config, "--steps", arguments.steps]
    words += ["--batch", arguments.batch, "--sequence", arguments.sequence, *(["--bf16"] if arguments.bf16 else [])]
    found = subprocess.run(
        [str(word) for word in words], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        sys.exit(f"error: the PyTorch run failed\n{found.stderr[-3000:]}")
    return json.loads(found.stdout.splitlines()[-1])


def megalith_seconds(arguments, kernels):
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        words = [arguments.program, "train", "--config", arguments.config, "--mock_data", "--eval_iters", 0]
        words += ["--micro_batch_size", arguments.batch, "--seq_length", arguments.sequence, "--train_iters", arguments.steps]
        words += ["--lr", 1e-4, "--weight_decay", 0.1, "--metrics_file", metrics, "--device", "cpu", "--kernels", kernels]
        words += ["--bf16"] if arguments.bf16 else []
        found = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        if found.returncode != 0:
            sys.exit(f"error: the Megalith run failed\n{found.stderr[-3000:]}")
        return [json.loads(line)["elapsed_ms"] / 1e3 for line in metrics.read_text().splitlines()]


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build" / "megalith"))
    parser.add_argument("--config", default=str(ROOT / "configs" / "models" / "llama_125M.yaml"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of which the first two are left out")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--bf16", action="store_true", default=None)
    parser.add_argument("--fp32", dest="bf16", action="store_false")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps must be at least 3: the first two are left out")
    if arguments.bf16 is None:
        arguments.bf16 = not arguments.peer and "bf16" in Path("/proc/cpuinfo").read_text()
    if arguments.peer:
        run_pytorch(arguments)
        return

    tokens = arguments.batch * arguments.sequence
    programs = {
        "megalith": lambda: megalith_seconds(arguments, "fused"),
        "megalith, reference kernels": lambda: megalith_seconds(arguments, "reference"),
        "transformers on PyTorch": lambda: pytorch_seconds(arguments, {}),
        "the same, malloc tuned": lambda: pytorch_seconds(arguments, TUNED_MALLOC),
    }
    rates = {name: [] for name in programs}
    for number in range(arguments.rounds):
        for name, run in programs.items():
            print(f"round {number + 1} of {arguments.rounds}: {name}", file=sys.stderr, flush=True)
            # The first steps fill caches and pools.
            rates[name] += [tokens / seconds for seconds in run()[2:]]

    print(f"\n{Path(arguments.config).stem}, {arguments.batch} x {arguments.sequence} tokens, "
          f"{'bf16' if arguments.bf16 else 'fp32'}, AdamW, {os.cpu_count()} threads of {processor()}")
    print(f"{arguments.rounds} rounds in turn, steps 3 to {arguments.steps} of each\n")
    print(f"{'program':<30}{'tokens/s':>10}{'lowest':>10}{'highest':>10}{'against PyTorch':>18}")
    peer = statistics.median(rates["transformers on PyTorch"])
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"{name:<30}{median:>10.0f}{min(values):>10.0f}{max(values):>10.0f}{median / peer:>17.2f}x")


if __name__ == "__main__":
    main()
