"""Speed and memory of LoRA training on this machine: Megalith beside PEFT with Hugging Face's Llama in PyTorch.

The programs run in turn, several rounds, as in training.py, whose measures and tables these are. Both train rank 16 on q,
v, o and the MLP's three layers beside the same frozen bf16 model, with AdamW. PEFT keeps adapters in fp32, and so does
Megalith, as master weights of a bf16 copy.

  peft              PEFT on PyTorch as they come: get_peft_model() of model.bfloat16()
  peft, compile     the same under torch.compile
  …, malloc tuned   glibc told not to give memory back between steps
  full              Megalith trains all weights: what adapters save

usage: adapters.py --program build/megalith [--config configs/models/llama_125M.yaml] [--rounds 3] [--steps 6]
"""

import argparse
import datetime
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

import training

RANK, ALPHA = 16, 32
TARGETS = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def run_peer(arguments):
    """In a process of its own. Prints the seconds of each step as JSON."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    preset = training.read_preset(arguments.config)
    heads = int(preset["num_attention_heads"])
    config = LlamaConfig(
        vocab_size=arguments.vocab_size or int(preset["vocab_size"]),
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
    if arguments.bf16:
        model = model.bfloat16()
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.1, fused=True)
    if arguments.peer == "compile":
        model = torch.compile(model)
    seconds = []
    for _ in range(arguments.steps):
        tokens = torch.randint(config.vocab_size, (arguments.batch, arguments.sequence + 1))
        start = time.perf_counter()
        loss = model(input_ids=tokens[:, :-1], labels=tokens[:, :-1]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


def measure_peer(arguments, kind, environment):
    words = [sys.executable, __file__, "--peer", kind, "--config", arguments.config, "--steps", arguments.steps]
    words += ["--batch", arguments.batch, "--sequence", arguments.sequence, "--vocab-size", arguments.vocab_size]
    out, peak_bytes = training.run(words + (["--bf16"] if arguments.bf16 else ["--fp32"]), environment)
    return json.loads(out.splitlines()[-1]), peak_bytes


def measure_megalith(arguments, has_adapters):
    words = ["--lora.enabled", "true", "--lora.dim", RANK, "--lora.alpha", ALPHA, "--lora.target_modules", ",".join(TARGETS)]
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        command = training.megalith_words(arguments, metrics, arguments.steps) + (words if has_adapters else [])
        _, peak_bytes = training.run(command, {})
        lines = map(json.loads, metrics.read_text().splitlines())
        return [line["elapsed_ms"] / 1e3 for line in lines if line["kind"] == "step"], peak_bytes


def report(arguments, rates, peaks):
    rows = [
        f"`{shlex.join(['benchmarks/adapters.py', *sys.argv[1:]])}`, commit {training.commit()}, {datetime.date.today()}",
        "",
        f"{Path(arguments.config).stem}, LoRA of rank {RANK} on {', '.join(TARGETS)}; {arguments.batch} x {arguments.sequence} tokens, "
        f"{'bf16' if arguments.bf16 else 'fp32'}, AdamW;",
        f"{os.cpu_count()} threads of {training.processor()} ({training.instructions()}). {arguments.rounds} rounds in turn, "
        f"steps 3 to {arguments.steps} of each.",
        "",
        f"| {'program':<28} | tokens/s | lowest | highest | peak memory |",
        f"| {'-' * 28} | --------:| ------:| -------:| -----------:|",
    ]
    for name, rounds in rates.items():
        values = [rate for one in rounds for rate in one]
        rows.append(
            f"| {name:<28} | {statistics.median(values):8.0f} | {min(values):6.0f} | {max(values):7.0f} "
            f"| {max(peaks[name]) / 2**30:7.2f} GiB |"
        )
    rows += ["", "Megalith's tokens/s over the better of peft and peft, compile, each round apart, median (lowest to highest):", ""]
    rows.append(f"* as they come: {training.ratio_line(rates, 'megalith', ('peft', 'peft, compile'))}")
    tuned = ("peft, malloc tuned", "peft, compile, malloc tuned")
    rows.append(f"* with malloc tuned: {training.ratio_line(rates, 'megalith', tuned)}")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    training.add_arguments(parser)
    parser.add_argument("--peer", choices=("eager", "compile"), help=argparse.SUPPRESS)
    arguments = training.parsed(parser)
    if arguments.peer:
        run_peer(arguments)
        return
    tuned = training.TUNED_MALLOC
    programs = {
        "megalith": lambda: measure_megalith(arguments, has_adapters=True),
        "peft": lambda: measure_peer(arguments, "eager", {}),
        "peft, compile": lambda: measure_peer(arguments, "compile", {}),
        "peft, malloc tuned": lambda: measure_peer(arguments, "eager", tuned),
        "peft, compile, malloc tuned": lambda: measure_peer(arguments, "compile", tuned),
        "megalith, full": lambda: measure_megalith(arguments, has_adapters=False),
    }
    training.write(report(arguments, *training.rounds_of(arguments, programs)), arguments.output)


if __name__ == "__main__":
    main()
