"""Weights in four bits against bitsandbytes: twenty steps beside them are PEFT's beside what bitsandbytes makes of the model."""

import copy

import adapter_test
import pytest
import torch
from program import read_metrics

pytest.importorskip("peft")
bitsandbytes = pytest.importorskip("bitsandbytes.functional")

ROWS = adapter_test.STEPS * adapter_test.BATCH
# Model, targets; rows of 112 columns end with a part of a block.
CASES = {
    "dense": ("llama", ["q_proj", "v_proj", "o_proj", "down_proj"]),
    "biases and a tied head": ("qwen_tied", ["q_proj", "gate_proj"]),
    "experts": ("mixtral", ["q_proj", "w1", "w2", "w3"]),
}


def through_four_bits(weight):
    """As bitsandbytes keeps it, block after block of each row."""
    width = weight.shape[1]
    padded = torch.nn.functional.pad(weight.float(), (0, -width % 64)).contiguous()
    codes, state = bitsandbytes.quantize_4bit(padded, blocksize=64, compress_statistics=True, quant_type="nf4")
    # Its kernels for the CPU look levels up by sixteen bits: near the middle of two they take the wrong one, rarely.
    levels, scales = state.state2.code.double(), padded.view(-1, 64).abs().amax(1).double()
    factors = state.state2.absmax.double().repeat_interleave(256)[: len(scales)]
    wanted = (scales - state.offset.double()) / factors
    away = (levels - wanted[:, None]).abs()
    found = state.absmax.long().view(-1)
    nearest = away.argmin(1)
    at_found = away.gather(1, found[:, None])[:, 0]
    differs = at_found > away.amin(1) + 1e-7
    assert differs.sum() <= 2 + len(scales) // 200 and (at_found - away.amin(1))[differs].le(2**-15).all()
    state.absmax[differs.view(state.absmax.shape)] = nearest[differs].to(torch.uint8)
    return bitsandbytes.dequantize_4bit(codes, state)[:, :width].to(weight.dtype)


def quantised(model):
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for name, module in changed.named_modules():
            if isinstance(module, torch.nn.Linear) and not name.endswith(("lm_head", ".gate")):
                module.weight.copy_(through_four_bits(module.weight))
    return changed


@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_are_those_of_peft_beside_what_bitsandbytes_keeps(case, program, models, data, tmp_path):
    name, targets = CASES[case]
    theirs = adapter_test.with_adapters(quantised(models[name].reference), targets, {})
    theirs.save_pretrained(tmp_path / "theirs")
    metrics, plain = tmp_path / "metrics.jsonl", tmp_path / "plain.jsonl"
    adapter = ("--adapter", tmp_path / "theirs")
    program.run(*adapter_test.words(models, name, data, metrics), *adapter, "--lora.quantization", "nf4")
    program.run(*adapter_test.words(models, name, data, plain), *adapter, "--train_iters", 1)
    expected = adapter_test.plain_loop(theirs, data.samples(ROWS, adapter_test.SEQUENCE))
    lines = read_metrics(metrics)
    for line, (loss, norm) in zip(lines, expected, strict=True):
        where = f"iteration {line['iteration']}"
        assert line["lm_loss"] == pytest.approx(loss, abs=1e-4), where
        assert line["grad_norm"] == pytest.approx(norm, rel=1e-3), where
    assert abs(lines[0]["lm_loss"] - read_metrics(plain)[0]["lm_loss"]) > 1e-3, "four bits change nothing"


def test_training_beside_four_bits_is_training_beside_their_values(program, models, data, tmp_path):
    model = quantised(models["llama"].reference)
    model.save_pretrained(tmp_path / "model")
    adapters = ("--lora.enabled", "true", "--lora.dim", 4, "--lora.target_modules", "all-linear")
    packed, whole = tmp_path / "packed.jsonl", tmp_path / "whole.jsonl"
    program.run(*adapter_test.words(models, "llama", data, packed), *adapters, "--lora.quantization", "nf4")
    line = adapter_test.words(models, "llama", data, whole)
    at = line.index("--load_hf") + 1
    program.run(*line[:at], tmp_path / "model", *line[at + 1 :], *adapters)
    for ours, theirs in zip(read_metrics(packed), read_metrics(whole), strict=True):
        assert ours["lm_loss"] == pytest.approx(theirs["lm_loss"], abs=2e-6), ours["iteration"]
