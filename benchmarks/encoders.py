"""Training steps of BERT-base and T5-base on this machine: Megalith beside Hugging Face's classes in PyTorch.

The programs run in turn, several rounds, so that what else the machine does falls on all of them; each run is a process of
its own. Ratios are of rounds: Megalith's seconds over the peer's of the same round, their median and range. The first
steps are left out: torch.compile translates in them. The peers are those of training.py:

  eager     transformers on PyTorch as they come: the model in the dtype, torch.optim.AdamW on its parameters
  compile   the same under torch.compile

Every row is full, with 15 % of a BERT's tokens masked and its sentences labelled; a T5 reads and writes both lengths.

usage: encoders.py --program build/megalith [--models bert_base t5_base] [--dtypes fp32 bf16] [--rounds 3] [--steps 6]
       [--batch 8] [--sequence 128] [--decoder_sequence 64] [--tiny]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from training import commit, instructions, processor, run

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("eager", "compile")
# transformers' names, and ours, of a shape that shows in a second that everything runs.
TINY = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128, "vocab_size": 512}


def make_model(arguments):
    """The published shape in transformers, and a function that makes the arguments of its forward pass."""
    import torch
    import transformers

    def tokens(length, size):
        return torch.randint(size, (arguments.batch, length))

    if arguments.model.startswith("bert"):
        sizes = {}
        if arguments.tiny:
            sizes = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=512)
        config = transformers.BertConfig(**sizes)

        def bert_inputs():
            ids, length = tokens(arguments.sequence, config.vocab_size), arguments.sequence
            is_masked = torch.rand(ids.shape) < 0.15
            is_masked[:, 0] = True
            return {
                "input_ids": ids,
                "token_type_ids": (torch.arange(length) >= length // 2).long().expand(ids.shape),
                "labels": torch.where(is_masked, ids, -100),
                "next_sentence_label": torch.randint(2, (arguments.batch,)),
            }

        return transformers.BertForPreTraining(config), bert_inputs
    sizes = dict(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, vocab_size=32128)
    if arguments.tiny:
        sizes = dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=512)
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, use_cache=False)
    return transformers.T5ForConditionalGeneration(config), lambda: {
        "input_ids": tokens(arguments.sequence, config.vocab_size),
        "labels": tokens(arguments.decoder_sequence, config.vocab_size),
    }


def run_peer(arguments):
    """In a process of its own. Prints the seconds of each step as JSON."""
    import torch

    torch.manual_seed(1)
    model, make_inputs = make_model(arguments)
    model = model.train()
    if arguments.dtype == "bf16":
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    if arguments.peer == "compile":
        model = torch.compile(model)
    seconds = []
    for _ in range(arguments.steps):
        inputs = make_inputs()
        start = time.perf_counter()
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


def measure_peer(arguments, model, dtype, peer):
    words = [sys.executable, __file__, "--peer", peer, "--model", model, "--dtype", dtype, "--steps", arguments.steps]
    words += ["--batch", arguments.batch, "--sequence", arguments.sequence]
    words += ["--decoder_sequence", arguments.decoder_sequence] + (["--tiny"] if arguments.tiny else [])
    return json.loads(run(words, {})[0].splitlines()[-1])


def measure_megalith(arguments, model, dtype):
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        words = [arguments.program, "train", "--config", ROOT / f"configs/models/{model}.yaml", "--mock_data"]
        words += ["--eval_iters", 0, "--micro_batch_size", arguments.batch, "--seq_length", arguments.sequence]
        words += ["--train_iters", arguments.steps, "--lr", 1e-4, "--weight_decay", 0.01, "--device", "cpu"]
        # Full rows, as the peers' are.
        words += ["--short_seq_prob", 0, "--metrics_file", metrics]
        words += ["--bf16"] if dtype == "bf16" else []
        words += ["--decoder_seq_length", arguments.decoder_sequence] if model.startswith("t5") else []
        for name, value in TINY.items() if arguments.tiny else ():
            words += [f"--{name}", value]
        words += ["--decoder_num_layers", 2, "--kv_channels", 16] if arguments.tiny and model.startswith("t5") else []
        run(words, {})
        lines = map(json.loads, metrics.read_text().splitlines())
        return [line["elapsed_ms"] / 1e3 for line in lines if line["kind"] == "step"]


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=ROOT / "build/megalith")
    parser.add_argument("--models", nargs="+", default=["bert_base", "t5_base"])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--peers", nargs="+", default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--left_out", type=int, default=2, help="first steps that are not measured")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--decoder_sequence", type=int, default=64)
    parser.add_argument("--tiny", action="store_true", help="a shape that only shows that everything runs")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        return run_peer(arguments)
    if arguments.left_out >= arguments.steps:
        sys.exit(f"error: {arguments.steps} steps of which {arguments.left_out} are left out; raise --steps")
    print(f"{processor()} ({instructions()}), commit {commit()}; {' '.join(sys.argv)}\n")
    print(f"batch {arguments.batch}, {arguments.sequence} tokens, {arguments.rounds} rounds of {arguments.steps} steps, ", end="")
    print(f"the first {arguments.left_out} left out\n")
    print("| model | dtype | Megalith, s a step | " + " | ".join(f"{peer}, s a step | time over {peer}'s" for peer in arguments.peers) + " |")
    print("| --- " * (3 + 2 * len(arguments.peers)) + "|")
    for model in arguments.models:
        for dtype in arguments.dtypes:
            ours, theirs = [], {peer: [] for peer in arguments.peers}
            for _ in range(arguments.rounds):
                ours.append(statistics.median(measure_megalith(arguments, model, dtype)[arguments.left_out :]))
                for peer in arguments.peers:
                    theirs[peer].append(statistics.median(measure_peer(arguments, model, dtype, peer)[arguments.left_out :]))
            cells = [model, dtype, spread(ours)]
            for peer in arguments.peers:
                cells += [spread(theirs[peer]), spread([a / b for a, b in zip(ours, theirs[peer])])]
            print("| " + " | ".join(cells) + " |", flush=True)
    return None


if __name__ == "__main__":
    main()
