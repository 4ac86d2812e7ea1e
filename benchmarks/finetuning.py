"""Speed and memory of fine-tuning on this machine: Megalith beside TRL, with PEFT and transformers below it.

Both read the same model, random weights of a preset's shape, and the same rows, all of one length: a question and an
answer (sft), or two answers (dpo). Both keep the model in bf16 and train with AdamW, without recomputation; TRL's weights
and moments are then bf16 too, Megalith's have fp32 masters and moments. Each run is a process of its own, in turn, several
rounds; its first two steps are left out.

  full    all weights        SFTTrainer
  lora    adapters           SFTTrainer with PEFT
  qlora   adapters beside weights of four bits (NF4)    the same with bitsandbytes
  dpo     all weights, on pairs, the reference computed before    DPOTrainer

usage: finetuning.py --program build/megalith [--config configs/models/llama_125M.yaml] [--methods full lora qlora dpo]
       [--rounds 3] [--steps 5]
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import rounds
import training

METHODS = ("full", "lora", "qlora", "dpo")
RANK, ALPHA = 16, 32
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_model(arguments, folder):
    """A model, a tokenizer whose tokens are words, and rows of both forms."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = training.llama_of(arguments)
    size = model.config.vocab_size
    model.config.eos_token_id = model.config.pad_token_id = model.generation_config.eos_token_id = size - 1
    (model.bfloat16() if arguments.bf16 else model).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({**{f"w{i}": i for i in range(size - 1)}, "</s>": size - 1}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(Path(folder) / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "</s>"}
    (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(2)

    def words(count):
        return "".join(f" w{i}" for i in torch.randint(size - 1, (count,)).tolist())

    half, quarter = arguments.sequence // 2, arguments.sequence // 4
    rows = {"sft": [], "dpo": []}
    for _ in range(arguments.batch * arguments.steps):
        rows["sft"].append({"prompt": words(half), "completion": words(half - 1)})
        rows["dpo"].append({"prompt": words(quarter), "chosen": words(quarter - 1), "rejected": words(quarter - 1)})
    for name, made in rows.items():
        Path(folder, f"{name}.jsonl").write_text("\n".join(map(json.dumps, made)) + "\n", encoding="utf-8")


def rows_of(method):
    return "dpo.jsonl" if method == "dpo" else "sft.jsonl"


def run_peer(arguments):
    import torch
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TrainerCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    seconds = []

    class Watch(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.start = time.perf_counter()

        def on_step_end(self, *_, **__):
            seconds.append(time.perf_counter() - self.start)

    method, folder = arguments.peer, arguments.folder
    dtype = torch.bfloat16 if arguments.bf16 else torch.float32
    quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, quantization_config=quantized if method == "qlora" else None)
    shared = dict(
        output_dir=f"{folder}/trl", max_steps=arguments.steps, per_device_train_batch_size=arguments.batch, use_cpu=True, bf16=False,
        gradient_checkpointing=False, learning_rate=1e-4, weight_decay=0.1, lr_scheduler_type="constant", save_strategy="no",
        logging_strategy="no", report_to="none", max_length=arguments.sequence, dataloader_pin_memory=False, disable_tqdm=True,
    )  # fmt: skip
    adapters = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS), task_type="CAUSAL_LM")
    trainer, config = (
        (DPOTrainer, DPOConfig(**shared, precompute_ref_log_probs=True)) if method == "dpo" else (SFTTrainer, SFTConfig(**shared))
    )
    rows = load_dataset("json", data_files=f"{folder}/{rows_of(method)}", split="train", cache_dir=f"{folder}/datasets")
    trainer(
        model=model, args=config, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(folder), callbacks=[Watch()],
        peft_config=adapters if method in ("lora", "qlora") else None,
    ).train()  # fmt: skip
    print(json.dumps(seconds))


def measure_peer(arguments, method, folder):
    words = [__file__, "--peer", method, "--folder", folder, "--steps", arguments.steps, "--batch", arguments.batch]
    return rounds.peer_seconds([*words, "--sequence", arguments.sequence, "--bf16" if arguments.bf16 else "--fp32"])


def measure_megalith(arguments, method, folder):
    words = [arguments.program, "train", "--load_hf", folder, "--sft_data_path", f"{folder}/{rows_of(method)}", "--split", "1,0,0"]
    words += ["--data_cache_path", f"{folder}/cache", "--seq_length", arguments.sequence, "--micro_batch_size", arguments.batch]
    words += ["--global_batch_size", arguments.batch, "--train_iters", arguments.steps, "--eval_iters", 0, "--lr", 1e-4]
    words += ["--lr_decay_style", "constant", "--weight_decay", 0.1, "--device", "cpu", "--bf16" if arguments.bf16 else "--fp32"]
    if method in ("lora", "qlora"):
        words += ["--lora.enabled", "true", "--lora.dim", RANK, "--lora.alpha", ALPHA, "--lora.target_modules", ",".join(TARGETS)]
    words += {"qlora": ["--lora.quantization", "nf4"], "dpo": ["--loss", "dpo"]}.get(method, [])
    return rounds.megalith_seconds(words)


def report(arguments, seconds, peaks):
    tokens = arguments.batch * arguments.sequence
    rows = [
        rounds.how_it_was_run("finetuning.py"),
        "",
        f"{Path(arguments.config).stem}, {arguments.batch} x {arguments.sequence} tokens, {'bf16' if arguments.bf16 else 'fp32'}, AdamW, "
        f"adapters of rank {RANK} on all linear layers; {rounds.machine()}. {arguments.rounds} rounds in turn, steps "
        f"{rounds.LEFT_OUT + 1} to {arguments.steps} of each; tokens/s of a round's median step, median (lowest to highest).",
        "",
        "| method | megalith | TRL | ratio of a round | peak memory |",
        "| ------ | --------:| ---:| ----------------:| -----------:|",
    ]
    for method in arguments.methods:
        rates = {name: [tokens / one for one in medians] for name, medians in rounds.medians_of(seconds[method]).items()}
        ratios = [one / other for one, other in zip(rates["megalith"], rates["trl"])]
        memory = " / ".join(f"{max(peaks[method][name]) / 2**30:.2f}" for name in ("megalith", "trl"))
        shown = " | ".join((rounds.spread(rates["megalith"], 0), rounds.spread(rates["trl"], 0), rounds.spread(ratios)))
        rows.append(f"| {method} | {shown} | {memory} GiB |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/megalith")
    parser.add_argument("--config", default=str(rounds.ROOT / "configs/models/llama_125M.yaml"))
    parser.add_argument("--vocab-size", type=int, default=0, dest="vocab_size", help="instead of the preset's")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=256, help="tokens of a row; a pair's answers, each with the question, share them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--bf16", action="store_true", default=True)
    parser.add_argument("--fp32", action="store_false", dest="bf16")
    parser.add_argument("--output", help="file to which the table is appended")
    parser.add_argument("--peer", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rounds.check_steps(parser, arguments)
    if arguments.peer:
        run_peer(arguments)
        return
    seconds = {method: {"megalith": [], "trl": []} for method in arguments.methods}
    peaks = {method: {"megalith": [], "trl": []} for method in arguments.methods}
    with tempfile.TemporaryDirectory() as folder:
        write_model(arguments, folder)
        for number in range(arguments.rounds):
            for method in arguments.methods:
                for name, measure in (("megalith", measure_megalith), ("trl", measure_peer)):
                    print(f"round {number + 1} of {arguments.rounds}: {name}, {method}", file=sys.stderr, flush=True)
                    taken, peak_bytes = measure(arguments, method, folder)
                    seconds[method][name].append(taken[rounds.LEFT_OUT :])
                    peaks[method][name].append(peak_bytes)
    rounds.write(report(arguments, seconds, peaks), arguments.output)


if __name__ == "__main__":
    main()
