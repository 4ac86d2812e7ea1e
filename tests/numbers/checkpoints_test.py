"""Checkpoints of earlier builds are read, and the runs go on as they did then.

`checkpoints/` holds two that an earlier build saved after three steps, a dense model in fp32 and one with experts in bf16,
and the numbers with which that build went on. They are written anew only when what a checkpoint means changes on purpose:

    python3 tests/numbers/checkpoints_test.py build/megalith
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from record import DOCUMENTS, checksums

FOLDER = Path(__file__).with_name("checkpoints")
SAVED_AT, LAST = 3, 5
RUN = (
    *("--mock_data", "--seq_length", 16, "--micro_batch_size", 2, "--global_batch_size", 4, "--lr", 3e-3, "--num_workers", 0),
    *("--lr_decay_style", "cosine", "--min_lr", 3e-4, "--eval_iters", 0, "--train_iters", LAST, "--device", "cpu"),
    *("--num_threads", 1, "--vocab_size", 61, "--max_position_embeddings", 32, "--num_layers", 2, "--hidden_size", 16),
    *("--num_attention_heads", 4, "--swiglu", "--ffn_hidden_size", 24, "--normalization", "RMSNorm", *DOCUMENTS),
    *("--position_embedding_type", "rope", "--disable_bias_linear", "--hidden_dropout", 0, "--attention_dropout", 0),
)
MODELS = {
    "dense": ("--fp32", "--group_query_attention", "--num_query_groups", 2, "--add_qkv_bias"),
    "experts": (
        *("--bf16", "--untie_embeddings_and_output_weights", "--multi_latent_attention", "--qk_layernorm"),
        *("--q_lora_rank", 8, "--kv_lora_rank", 8, "--qk_head_dim", 4, "--qk_pos_emb_head_dim", 2, "--v_head_dim", 4),
        *("--num_experts", 4, "--moe_router_topk", 2, "--moe_ffn_hidden_size", 8, "--moe_layer_freq", "[0,1]"),
        *("--moe_shared_expert_intermediate_size", 8, "--moe_router_score_function", "sigmoid", "--mtp_num_layers", 1),
        *("--moe_router_enable_expert_bias", "--moe_router_load_balancing_type", "seq_aux_loss"),
        *("--moe_aux_loss_coeff", 0.01),
    ),
}


def train(program, model, folder, *more):
    """(what the processor can do, the steps' numbers) of a run in the folder, whose paths are relative."""
    words = (str(program), "train", *RUN, *MODELS[model], "--metrics_file", "metrics.jsonl", *more)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run([str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-3000:]
    capability = re.search(r"^device:? +CPU .*cores, ([^,]*),", found.stderr + found.stdout, re.MULTILINE)
    steps = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record.get("kind", "step") != "step":
            continue
        steps[str(record["iteration"])] = {
            name: value for name, value in record.items() if name.endswith("loss") or name == "grad_norm"
        }
    return capability and capability[1], steps


def record(program):
    for model in MODELS:
        place = FOLDER / model
        shutil.rmtree(place, ignore_errors=True)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            train(program, model, folder, "--save", "saved", "--exit_interval", SAVED_AT)
            shutil.copytree(folder / "saved", place / "saved")
            capability, steps = train(program, model, folder, "--load", "saved", "--save", "after")
            numbers = {
                "capability": capability,
                "steps": {step: steps[step] for step in steps if int(step) > SAVED_AT},
                "files": checksums(folder / "after"),
            }
        (place / "numbers.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


@pytest.mark.parametrize("model", MODELS)
def test_a_run_goes_on_from_an_earlier_checkpoint(model, program, tmp_path):
    shutil.copytree(FOLDER / model / "saved", tmp_path / "saved")
    expected = json.loads((FOLDER / model / "numbers.json").read_text(encoding="utf-8"))
    capability, steps = train(program.path, model, tmp_path, "--load", "saved", "--save", "after")
    assert sorted(steps) == sorted(expected["steps"])
    for step, numbers in expected["steps"].items():
        # Sums in another order, in bf16 with roundings that then differ: products have 24 terms of 8 bits.
        assert steps[step] == pytest.approx(numbers, rel=1e-5 if model == "dense" else 2e-2), step
    if capability == expected["capability"]:
        assert steps == expected["steps"]
        assert checksums(tmp_path / "after") == expected["files"]


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve())
