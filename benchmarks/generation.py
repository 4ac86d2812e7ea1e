"""Speed of generation on this machine: `megalith generate` beside transformers' generate(), greedy, from one folder.

Both read the same model, random weights of a preset's shape, and continue the same prompts by the same number of tokens.
The programs run in turn, several rounds. Megalith's rate is the one that it prints; transformers' is that of the second
of two calls, so that neither counts its start or the reading of the weights.

usage: generation.py --program build/megalith [--config configs/models/llama_125M.yaml] [--batches 1 8] [--rounds 3]
"""

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path

import rounds
import training

PEERS = ("transformers",)


def prompts_of(arguments, vocab_size):
    import torch

    torch.manual_seed(2)
    return torch.randint(vocab_size, (max(arguments.batches), arguments.prompt))


def write_model(arguments, folder):
    """The folder, and a file of prompts for each batch."""
    model = training.llama_of(arguments).eval()
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    (model.bfloat16() if arguments.bf16 else model).save_pretrained(folder)
    ids = prompts_of(arguments, model.config.vocab_size)
    for batch in arguments.batches:
        rows = [json.dumps({"prompt_ids": row.tolist()}) for row in ids[:batch]]
        (Path(folder) / f"prompts_{batch}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def run_peer(arguments):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(arguments.peer, dtype="auto").eval()
    ids = prompts_of(arguments, model.config.vocab_size)[: arguments.batches[0]]
    for _ in range(2):
        start = time.perf_counter()
        with torch.inference_mode():
            found = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=arguments.tokens, do_sample=False, use_cache=True,
                pad_token_id=0,
            )  # fmt: skip
        seconds = time.perf_counter() - start
    print(json.dumps(found[:, ids.shape[1]:].numel() / seconds))


def measure_peer(arguments, folder, batch):
    words = ["--peer", folder, "--batches", batch, "--prompt", arguments.prompt, "--tokens", arguments.tokens]
    out, peak_bytes = rounds.run([sys.executable, __file__, *words])
    return json.loads(out.splitlines()[-1]), peak_bytes


def measure_megalith(arguments, folder, batch):
    words = [arguments.program, "generate", "--load_hf", folder, "--input", f"{folder}/prompts_{batch}.jsonl"]
    words += ["--batch_rows", batch, "--max_new_tokens", arguments.tokens, "--temperature", 0, "--ignore_eos"]
    vocab_size = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))["vocab_size"]
    words += ["--tokenizer_type", "NullTokenizer", "--vocab_size", vocab_size - 1, "--device", "cpu", "--output", f"{folder}/answers.jsonl"]
    words += ["--bf16" if arguments.bf16 else "--fp32", "--overwrite"]
    log, peak_bytes = rounds.run(words, is_log=True)
    return float(re.search(r"([\d.]+) tokens/s", log)[1]), peak_bytes


def report(arguments, rates, peaks):
    rows = [
        rounds.how_it_was_run("generation.py"),
        "",
        f"{Path(arguments.config).stem}, prompts of {arguments.prompt} tokens, {arguments.tokens} new ones, "
        f"{'bf16' if arguments.bf16 else 'fp32'}, greedy; {rounds.machine()}. {arguments.rounds} rounds in turn, tokens/s, "
        "median (lowest to highest).",
        "",
        "| prompts together | megalith | transformers | ratio of a round | peak memory |",
        "| ----------------:| --------:| ------------:| ----------------:| -----------:|",
    ]
    for batch in arguments.batches:
        ours, theirs = rates[batch]["megalith"], rates[batch]["transformers"]
        ratios = [one / other for one, other in zip(ours, theirs)]
        memory = " / ".join(f"{max(peaks[batch][name]) / 2**30:.2f}" for name in ("megalith", *PEERS))
        rows.append(f"| {batch} | {rounds.spread(ours, 1)} | {rounds.spread(theirs, 1)} | {rounds.spread(ratios)} | {memory} GiB |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/megalith")
    parser.add_argument("--config", default=str(rounds.ROOT / "configs/models/llama_125M.yaml"))
    parser.add_argument("--vocab-size", type=int, default=0, dest="vocab_size", help="instead of the preset's")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fp32", action="store_false", dest="bf16")
    parser.add_argument("--output", help="file to which the table is appended")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        run_peer(arguments)
        return
    rates = {batch: {"megalith": [], **{name: [] for name in PEERS}} for batch in arguments.batches}
    peaks = {batch: {name: [] for name in rates[batch]} for batch in arguments.batches}
    measures = {"megalith": measure_megalith, "transformers": measure_peer}
    with tempfile.TemporaryDirectory() as folder:
        write_model(arguments, folder)
        for number in range(arguments.rounds):
            for batch in arguments.batches:
                for name, measure in measures.items():
                    print(f"round {number + 1} of {arguments.rounds}: {name}, {batch} together", file=sys.stderr, flush=True)
                    rate, peak_bytes = measure(arguments, folder, batch)
                    rates[batch][name].append(rate)
                    peaks[batch][name].append(peak_bytes)
    rounds.write(report(arguments, rates, peaks), arguments.output)


if __name__ == "__main__":
    main()
