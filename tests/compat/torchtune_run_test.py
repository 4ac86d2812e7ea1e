"""A recipe of torchtune trains: full and with adapters, and leaves its folders and lines."""

import json
import re

import pytest
import ranks
from run_files import TINY

ROWS = "".join(json.dumps({"instruction": f"Say {i}", "input": "", "output": f"It is {i}."}) + "\n" for i in range(24))
COMMON = """
output_dir: out
tokenizer:
  _component_: torchtune.models.llama2.llama2_tokenizer
  path: base/tokenizer.model
  max_seq_len: 256
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: base
  checkpoint_files: [model.safetensors]
  output_dir: ${output_dir}
  model_type: LLAMA2
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  source: json
  data_files: rows.jsonl
  packed: True
optimizer: {_component_: torch.optim.AdamW, lr: 2e-3}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
epochs: 1
max_steps_per_epoch: null
batch_size: 1
gradient_accumulation_steps: 2
clip_grad_norm: null
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
  log_dir: ${output_dir}/logs
device: cpu
dtype: fp32
"""
MODELS = {
    "full": "model:\n  _component_: torchtune.models.llama2.llama2_7b\n",
    "lora": "model:\n  _component_: torchtune.models.llama2.lora_llama2_7b\n  lora_attn_modules: [q_proj, v_proj, output_proj]\n  lora_rank: 4\n",
}


@pytest.fixture(scope="module")
def place(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    # One layer: its gradient of a microbatch is still being reduced when the next microbatch begins.
    program.run("train", *TINY, "--train_iters", 1, "--vocab_size", 257, "--max_position_embeddings", 256, "--save_hf", folder / "base")
    (folder / "rows.jsonl").write_text(ROWS)
    return folder


@pytest.mark.parametrize("kind", MODELS)
def test_a_recipe_trains(kind, program, place):
    (place / f"{kind}.yaml").write_text(MODELS[kind] + COMMON)
    words = ("--config", f"{kind}.yaml", f"output_dir={kind}", "--tokenizer_type", "ByteTokenizer", "--num_threads", 1)
    _, printed, said = program.run("train", *words, cwd=place)
    path = re.search(r"Writing logs to (\S+)", printed)[1]
    lines = re.findall(r"^Step (\d+) \| loss:(\S+) lr:(\S+) tokens_per_second_per_gpu:(\d+\.\d+) peak_memory_alloc:(\d+\.\d+)", printed, re.MULTILINE)
    # One pass, in whole steps of two sequences: rows of some 200 bytes, one a sequence.
    assert [int(line[0]) for line in lines] == list(range(1, 13)) and float(lines[-1][1]) < float(lines[0][1])
    log = (place / path).read_text()
    assert path.startswith(f"{kind}/logs/log_") and "Step 12 | loss:" in log
    written = {file.name for file in (place / kind / "epoch_0").iterdir()}
    assert ("config.json" if kind == "full" else "adapter_config.json") in written, written


def test_a_base_in_four_bits_is_divided_over_two_ranks(program, place, monkeypatch):
    model = MODELS["lora"].replace("lora_llama", "qlora_llama").replace(", output_proj", "")
    (place / "qlora.yaml").write_text(model + COMMON)
    words = ("--config", "qlora.yaml", "--tokenizer_type", "ByteTokenizer", "--num_threads", 1)
    single = program.run("train", *words, "output_dir=single", cwd=place)[1]
    monkeypatch.chdir(place)
    said = ranks.run_ranks(program, 2, "train", *words, "output_dir=shared", "gradient_accumulation_steps=1")
    assert "context parallel 1, FSDP" in said.stderr, said.stderr
    losses = [re.findall(r"^Step \d+ \| loss:(\S+)", text, re.MULTILINE) for text in (single, said.stdout)]
    assert len(losses[0]) == 12
    assert [float(loss) for loss in losses[1]] == pytest.approx([float(loss) for loss in losses[0]], rel=1e-4)


def test_words_and_faults(program, place):
    (place / "lora.yaml").write_text(MODELS["lora"] + COMMON)
    words = ("--config", "lora.yaml", "output_dir=other", "--tokenizer_type", "ByteTokenizer", "--dry_run")
    _, printed, said = program.run("train", *words, "max_steps_per_epoch=3", "model.lora_rank=2", "~clip_grad_norm", cwd=place)
    assert "train_iters: 3" in printed and "lora.dim: 2" in printed
    _, _, said = program.run("train", *words, "~clip_norm", "loss=torchtune.rlhf.loss.DPOLoss", "batch_sise=2", cwd=place, expected=2)
    for part in ("~clip_norm", "has no key 'clip_norm'", "batch_sise"):
        assert part in said, said
    _, _, said = program.run("train", *words, "loss=torchtune.rlhf.loss.DPOLoss", "dataset.columns=a", cwd=place, expected=2)
    assert "no key 'dataset.columns'" in said
    _, _, said = program.run("train", *words, "loss=torchtune.rlhf.loss.DPOLoss", cwd=place, expected=2)
    assert "DPOLoss, but this program takes: LinearCrossEntropyLoss" in said
