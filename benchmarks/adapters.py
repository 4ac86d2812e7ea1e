"""Speed and memory of LoRA training on this machine: Megalith beside PEFT with Hugging Face's Llama in PyTorch.

The programs run in turn, several rounds, as in training.py. Both train rank 16 on q,
v, o and the MLP's three layers beside the same frozen bf16 model, with AdamW. PEFT keeps adapters in fp32, and so does
Megalith, as master weights of a bf16 copy.

  peft              PEFT on PyTorch as they come: get_peft_model() of model.bfloat16()
  peft, compile     the same under torch.compile
  …, malloc tuned   glibc told not to give memory back between steps
  full              Megalith trains all weights: what adapters save

usage: adapters.py --program build/megalith [--config configs/models/llama_125M.yaml] [--rounds 3] [--steps 6]
       [--peers "peft, compile" …]
"""

import argparse

import rounds
import training

RANK, ALPHA = 16, 32
COMPARED = {
    "as they come": ("peft", "peft, compile"),
    "with malloc tuned": ("peft, malloc tuned", "peft, compile, malloc tuned"),
}
PEERS = tuple(name for names in COMPARED.values() for name in names)
TARGETS = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def run_peer(arguments):
    from peft import LoraConfig, get_peft_model

    model = training.llama_of(arguments)
    inputs = training.random_rows(arguments, model.config.vocab_size)
    if arguments.bf16:
        model = model.bfloat16()
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS)))
    rounds.train_peer(model, inputs, arguments.steps, weight_decay=0.1, is_compiled=arguments.peer == "compile")


def measure_megalith(arguments, has_adapters):
    words = ["--lora.enabled", "true", "--lora.dim", RANK, "--lora.alpha", ALPHA, "--lora.target_modules", ",".join(TARGETS)]
    return rounds.megalith_seconds(training.megalith_words(arguments, arguments.steps) + (words if has_adapters else []))


def report(arguments, seconds, peaks):
    rows = training.heading(arguments, "adapters.py", f", LoRA of rank {RANK} on {', '.join(TARGETS)}")
    rows += rounds.rate_table(seconds, peaks, arguments.batch * arguments.sequence)
    rows += ["", "Megalith's tokens/s over the better of peft and peft, compile, each round apart, median (lowest to highest):", ""]
    for what, peers in COMPARED.items():
        if any(name in seconds for name in peers):
            rows.append(f"* {what}: {rounds.speed_ratio(seconds, 'megalith', peers)}")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    training.add_arguments(parser)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--peer", choices=("eager", "compile"), help=argparse.SUPPRESS)
    arguments = training.parsed(parser)
    if arguments.peer:
        run_peer(arguments)
        return
    tuned = rounds.TUNED_MALLOC
    programs = {
        "megalith": lambda: measure_megalith(arguments, has_adapters=True),
        "peft": lambda: training.measure_peer(arguments, "eager", {}, __file__),
        "peft, compile": lambda: training.measure_peer(arguments, "compile", {}, __file__),
        "peft, malloc tuned": lambda: training.measure_peer(arguments, "eager", tuned, __file__),
        "peft, compile, malloc tuned": lambda: training.measure_peer(arguments, "compile", tuned, __file__),
        "megalith, full": lambda: measure_megalith(arguments, has_adapters=False),
    }
    programs = {name: measure for name, measure in programs.items() if name not in PEERS or name in arguments.peers}
    rounds.write(report(arguments, *rounds.rounds_of(arguments.rounds, programs)), arguments.output)


if __name__ == "__main__":
    main()
