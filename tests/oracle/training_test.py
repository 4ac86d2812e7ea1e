"""Twenty fp32 steps against a plain PyTorch loop: torch's AdamW and clipping, Megatron's learning-rate formula."""

import copy
import math

import hf_models
import pytest
import torch
from program import read_metrics

SEQUENCE = 48
STEPS, BATCH, MICRO_BATCH = 20, 4, 2
PEAK, LOWEST, WARMUP_STEPS = 2e-3, 2e-4, 5
BETAS, EPS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0


def learning_rate(style, consumed):
    """Megatron's: x is what was consumed before the step, in samples, as all lengths are."""
    warmup, decay = WARMUP_STEPS * BATCH, STEPS * BATCH
    if consumed <= warmup:
        return PEAK * consumed / warmup
    if style == "constant":
        return PEAK
    ratio = (consumed - warmup) / (decay - warmup)
    coefficient = 0.5 * (1 + math.cos(math.pi * ratio)) if style == "cosine" else 1 - ratio
    return LOWEST + coefficient * (PEAK - LOWEST)


def plain_loop(model, samples, style):
    """Loss, norm of the gradient before clipping and learning rate of every step."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}], betas=BETAS, eps=EPS
    )
    history = []
    for step in range(STEPS):
        rate = learning_rate(style, step * BATCH)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = hf_models.token_losses(model, samples[step * BATCH : (step + 1) * BATCH]).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        history.append((loss.item(), norm.item(), rate))
    return history


@pytest.mark.parametrize(
    "name, style, kernels",
    [
        ("llama", "cosine", "fused"),
        ("llama_tied", "cosine", "fused"),
        ("qwen", "linear", "fused"),
        ("qwen_tied", "constant", "fused"),
        ("qwen_tied", "cosine", "reference"),
        ("mixtral", "cosine", "fused"),
        ("deepseek_v2", "cosine", "fused"),
        ("gpt2", "linear", "fused"),
    ],
)
def test_twenty_steps_match_a_plain_pytorch_loop(name, style, kernels, program, models, data, tmp_path):
    metrics, exported = tmp_path / "metrics.jsonl", tmp_path / "exported"
    program.run(
        *("train", "--load_hf", models[name].folder, "--data_path", data.prefix, "--split", "100,0,0", "--fp32"),
        *("--seq_length", SEQUENCE, "--micro_batch_size", MICRO_BATCH, "--global_batch_size", BATCH),
        *("--train_iters", STEPS, "--lr", PEAK, "--min_lr", LOWEST, "--lr_decay_style", style),
        *("--lr_warmup_iters", WARMUP_STEPS, "--weight_decay", WEIGHT_DECAY, "--clip_grad", CLIP),
        *("--adam_beta1", BETAS[0], "--adam_beta2", BETAS[1], "--adam_eps", EPS, "--eval_iters", 0),
        *("--metrics_file", metrics, "--save_hf", exported, "--kernels", kernels, "--device", "cpu"),
    )
    model = copy.deepcopy(models[name].reference).train()
    expected = plain_loop(model, data.samples(STEPS * BATCH, SEQUENCE), style)
    assert expected[-1][0] < expected[0][0] - 0.1, "the reference learns nothing, so an optimizer that does nothing would pass"
    assert max(norm for _, norm, _ in expected) > CLIP, "no gradient is clipped"
    lines = read_metrics(metrics)
    assert [line["iteration"] for line in lines] == list(range(1, STEPS + 1))
    for line, (loss, norm, rate) in zip(lines, expected):
        where = f"iteration {line['iteration']}"
        assert line["learning_rate"] == pytest.approx(rate, rel=1e-9, abs=1e-15), where
        assert line["lm_loss"] == pytest.approx(loss, abs=1e-4), where
        assert line["grad_norm"] == pytest.approx(norm, rel=1e-3), where
    # Adam divides by the root of a mean square, which turns a rounding of a small gradient into a visible part of a
    # step. All that the weights moved is at most STEPS * PEAK = 0.04; they agree to a hundredth of it.
    for key, value in hf_models.reload(exported).named_parameters():
        difference = (value - dict(model.named_parameters())[key]).abs()
        if key.endswith("c_attn.bias"):
            # A bias of keys moves all scores of a query alike: its gradient is rounding, which Adam makes steps of.
            difference = torch.stack(difference.chunk(3))[[0, 2]]
        assert difference.max() < 4e-4, key
