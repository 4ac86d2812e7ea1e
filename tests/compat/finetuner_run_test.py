"""Files of axolotl and LLaMA-Factory and TRL's flags train: adapters on instructions, all weights on conversations, pairs of answers and rated ones."""

import json

import pytest
from run_files import TINY

INSTRUCTIONS = "".join(json.dumps({"instruction": f"Say {i}", "output": f"It is {i}."}) + "\n" for i in range(24))
PAIRS = "".join(json.dumps({"prompt": f"{i}?", "chosen": f" {i}.", "rejected": " No."}) + "\n" for i in range(8))
RATED = "".join(json.dumps({"prompt": f"{i}?", "completion": f" {i}.", "label": i % 2 == 0}) + "\n" for i in range(8))
AXOLOTL = """
base_model: base
datasets:
  - {path: rows.jsonl, type: alpaca, split: "train[:50%]"}
val_set_size: 0
adapter: lora
lora_r: 4
lora_alpha: 8
lora_target_linear: true
sequence_len: 256
micro_batch_size: 1
gradient_accumulation_steps: 2
num_epochs: 1
optimizer: adamw_torch
learning_rate: 2e-3
output_dir: lora
saves_per_epoch: 1
"""
FACTORY = """
model_name_or_path: base
stage: sft
finetuning_type: full
dataset: rows
dataset_dir: .
max_samples: 6
template: chatml
cutoff_len: 128
per_device_train_batch_size: 2
num_train_epochs: 1
learning_rate: 1e-3
output_dir: full
save_strategy: "no"
"""
OURS = ("--tokenizer_type", "ByteTokenizer", "--device", "cpu", "--num_threads", 1)


@pytest.fixture(scope="module")
def place(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetuners")
    program.run("train", *TINY, "--train_iters", 1, "--vocab_size", 257, "--max_position_embeddings", 256, "--save_hf", folder / "base")
    (folder / "rows.jsonl").write_text(INSTRUCTIONS)
    (folder / "pairs.jsonl").write_text(PAIRS)
    (folder / "rated.jsonl").write_text(RATED)
    (folder / "axolotl.yml").write_text(AXOLOTL)
    (folder / "factory.yaml").write_text(FACTORY)
    (folder / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.jsonl"}}))
    return folder


def steps_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if '"kind":"step"' in line]


@pytest.mark.parametrize(
    ("words", "steps", "written"),
    [
        (("train", "--config", "axolotl.yml"), 6, "lora/adapter_config.json"),  # half of 24 rows, two a step
        (("llamafactory-cli", "train", "factory.yaml"), 3, "full/config.json"),
        (("trl", "dpo", "--model_name_or_path", "base", "--dataset_name", "pairs.jsonl", "--max_steps", 2, "--max_length", 128, "--output_dir", "dpo"), 2, "dpo/config.json"),
        (("trl", "kto", "--model_name_or_path", "base", "--dataset_name", "rated.jsonl", "--max_steps", 2, "--max_length", 128, "--output_dir", "kto"), 2, "kto/config.json"),
    ],
    ids=["axolotl", "LLaMA-Factory", "TRL's DPO", "TRL's KTO"],
)
def test_their_words_train(words, steps, written, program, place):
    run = place / f"{written.split('/')[0]}-run"
    program.run(*words, *OURS, "--metrics_file", run / "metrics.jsonl", "--data_cache_path", run, cwd=place)
    assert len(steps_of(run)) == steps
    assert (place / written).exists()
