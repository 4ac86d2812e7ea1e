"""Training speed and memory on this machine: Megalith beside what one would otherwise use, Hugging Face's Llama in PyTorch.

The programs run in turn, several rounds, so that what else the machine does falls on all of them. Each run is a process
of its own; its first two steps are left out. The peers:

  eager             transformers on PyTorch as they come: model.bfloat16(), torch.optim.AdamW on bf16 parameters and moments
  compile           the same under torch.compile
  …, malloc tuned   glibc told not to give memory back between steps, which is what costs PyTorch most on a CPU
  autocast          fp32 parameters and moments under torch.autocast(bf16): the one that keeps what Megalith keeps

Megalith keeps fp32 master weights, moments and gradients, and computes in bf16.

usage: training.py --program build/megalith [--config configs/models/llama_125M.yaml] [--rounds 3] [--steps 6]
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

import rounds

DEFAULT_PEERS = ("eager", "compile")
TUNED_PEERS = ("eager, malloc tuned", "compile, malloc tuned")


def read_preset(path):
    """The flat `name: value` lines of a model preset."""
    values = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, colon, value = line.split("#")[0].partition(":")
        if colon and value.strip():
            values[name.strip()] = value.strip()
    return values


def llama_of(arguments):
    """transformers' model of the preset's shape, which draws its weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    preset = read_preset(arguments.config)
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
    return LlamaForCausalLM(config).train()


def random_rows(arguments, vocab_size):
    """A function that makes the arguments of a forward pass."""
    import torch

    def rows():
        tokens = torch.randint(vocab_size, (arguments.batch, arguments.sequence))
        return {"input_ids": tokens, "labels": tokens}

    return rows


def run_peer(arguments):
    import torch

    model = llama_of(arguments)
    under_autocast = arguments.peer == "autocast" and arguments.bf16
    if arguments.bf16 and not under_autocast:
        model = model.bfloat16()
    context = (lambda: torch.autocast("cpu", dtype=torch.bfloat16)) if under_autocast else contextlib.nullcontext
    inputs = random_rows(arguments, model.config.vocab_size)
    rounds.train_peer(model, inputs, arguments.steps, weight_decay=0.1, is_compiled=arguments.peer == "compile", context=context)


def measure_peer(arguments, kind, environment, script=__file__):
    words = [script, "--peer", kind, "--config", arguments.config, "--steps", arguments.steps, "--batch", arguments.batch]
    words += ["--sequence", arguments.sequence, "--vocab-size", arguments.vocab_size, "--bf16" if arguments.bf16 else "--fp32"]
    return rounds.peer_seconds(words, environment)


def megalith_words(arguments, steps, kernels="fused"):
    words = [arguments.program, "train", "--config", arguments.config, "--mock_data", "--eval_iters", 0]
    words += ["--micro_batch_size", arguments.batch, "--seq_length", arguments.sequence, "--train_iters", steps]
    words += ["--lr", 1e-4, "--weight_decay", 0.1, "--device", "cpu", "--kernels", kernels]
    words += ["--vocab_size", arguments.vocab_size] if arguments.vocab_size else []
    return words + (["--bf16"] if arguments.bf16 else [])


def seconds_to_first_step(arguments):
    """From the start of the process to the end of its first step."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        rounds.run([*megalith_words(arguments, 1), "--metrics_file", Path(folder) / "metrics.jsonl"])
        return time.perf_counter() - start


def heading(arguments, script, what):
    """What a table of these programs begins with."""
    return [
        rounds.how_it_was_run(script),
        "",
        f"{Path(arguments.config).stem}{what}, {arguments.batch} x {arguments.sequence} tokens, "
        f"{'bf16' if arguments.bf16 else 'fp32'}, AdamW; {rounds.machine()}.",
        f"{arguments.rounds} rounds in turn, steps {rounds.LEFT_OUT + 1} to {arguments.steps} of each.",
        "",
    ]


def report(arguments, seconds, peaks):
    rows = heading(arguments, "training.py", "")
    rows += rounds.rate_table(seconds, peaks, arguments.batch * arguments.sequence)
    rows += ["", "Megalith's tokens/s over the better of eager and compile, each round apart, median (lowest to highest):", ""]
    rows.append(f"* as they come: {rounds.speed_ratio(seconds, 'megalith', DEFAULT_PEERS)}")
    rows.append(f"* with malloc tuned: {rounds.speed_ratio(seconds, 'megalith', TUNED_PEERS)}")
    return "\n".join(rows)


def add_arguments(parser):
    """What every comparison of training programs is told."""
    parser.add_argument("--program", default=str(rounds.ROOT / "build" / "megalith"))
    parser.add_argument("--config", default=str(rounds.ROOT / "configs" / "models" / "llama_125M.yaml"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of which the first two are left out")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--vocab-size", type=int, default=0, help="where the preset leaves it to the tokenizer")
    parser.add_argument("--output", help="append the table to this file (Markdown)")
    parser.add_argument("--bf16", action="store_true", default=None)
    parser.add_argument("--fp32", dest="bf16", action="store_false")


def parsed(parser):
    arguments = parser.parse_args()
    rounds.check_steps(parser, arguments)
    if arguments.bf16 is None:
        arguments.bf16 = "bf16" in Path("/proc/cpuinfo").read_text()
    return arguments


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--peer", choices=("eager", "compile", "autocast"), help=argparse.SUPPRESS)
    arguments = parsed(parser)
    if arguments.peer:
        run_peer(arguments)
        return

    programs = {
        "megalith": lambda: rounds.megalith_seconds(megalith_words(arguments, arguments.steps)),
        "eager": lambda: measure_peer(arguments, "eager", {}),
        "compile": lambda: measure_peer(arguments, "compile", {}),
        "eager, malloc tuned": lambda: measure_peer(arguments, "eager", rounds.TUNED_MALLOC),
        "compile, malloc tuned": lambda: measure_peer(arguments, "compile", rounds.TUNED_MALLOC),
        "autocast": lambda: measure_peer(arguments, "autocast", {}),
        "megalith, reference kernels": lambda: rounds.megalith_seconds(megalith_words(arguments, arguments.steps, "reference")),
    }
    table = report(arguments, *rounds.rounds_of(arguments.rounds, programs))
    starts = [seconds_to_first_step(arguments) for _ in range(arguments.rounds)]
    table += f"\n* process start to the end of Megalith's first step and exit: {statistics.median(starts):.1f} s"
    rounds.write(table, arguments.output)


if __name__ == "__main__":
    main()
