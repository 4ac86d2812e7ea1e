"""Steps of every optimizer against its reference: the same gradients to the bit, the program's own.

Every sample is the same text, so the gradient of a step is that of the weights before it, which `inspect gradients`
writes; what is left to compare is the update.
"""

import bitsandbytes
import bitsandbytes.backends.cpu.ops
import hf_models
import indexed_data
import pytest
import torch
import transformers
from safetensors.torch import load_file

SEQUENCE, BATCH, STEPS = 32, 2, 3
LR, WEIGHT_DECAY, MOMENTUM = 5e-3, 0.1, 0.9


@pytest.fixture(scope="module")
def periodic(tmp_path_factory):
    """Tokens that repeat with the length of a sample."""
    prefix = tmp_path_factory.mktemp("periodic") / "tokens"
    period = [(7 * i * i + 3 * i) % 131 for i in range(SEQUENCE)]
    indexed_data.write(prefix, [period * (4 * BATCH * STEPS)])
    return prefix


def arguments(periodic):
    return (
        *("--data_path", periodic, "--split", "100,0,0", "--fp32", "--seq_length", SEQUENCE, "--device", "cpu"),
        *("--micro_batch_size", BATCH, "--global_batch_size", BATCH, "--kernels", "reference"),
    )


def weights_and_gradients(program, folder, periodic, tmp_path, options, num_steps=STEPS):
    """(weights before, gradient) of every step, and the weights after the last."""
    steps = []
    for step in range(num_steps + 1):
        if step > 0:
            exported = tmp_path / f"after_{step}"
            program.run(
                *("train", "--load_hf", folder, *arguments(periodic), "--train_iters", step, "--eval_iters", 0),
                *("--lr", LR, "--lr_decay_style", "constant", "--weight_decay", WEIGHT_DECAY, "--clip_grad", 0),
                *("--save_hf", exported, *options),
            )
        weights = hf_models.read_weights(exported if step > 0 else folder)
        gradients = tmp_path / f"gradients_{step}.safetensors"
        program.run(
            *("inspect", "gradients", "--load_hf", exported if step > 0 else folder, *arguments(periodic)),
            *("--output", gradients),
        )
        steps.append((weights, load_file(gradients)))
    return steps


def is_matrix(name, tensor):
    return tensor.dim() == 2 and not any(part in name for part in ("embed", "lm_head", "wte", "wpe"))


def parts_of(name, tensor):
    """The matrices of a tensor with outputs as rows, as views: GPT-2 keeps (in, out), and q, k and v in one."""
    if "c_attn.weight" in name:
        return [part.t() for part in tensor.chunk(3, dim=1)]
    return [tensor.t() if name.startswith(("transformer.h", "h.")) else tensor]


def rows_of(view):
    """A copy with its rows in order: on some processors a product in bf16 rounds otherwise where columns are."""
    return view.clone(memory_format=torch.contiguous_format)


def expected_weights(steps, make_optimizers, parts_of=parts_of):
    """torch.optim over the gradients of every step."""
    names = sorted(steps[0][1])
    weights = {name: steps[0][0][name].clone().float() for name in names}
    parts = {}
    for name in names:
        views = parts_of(name, weights[name]) if is_matrix(name, weights[name]) else [weights[name]]
        parts[name] = [torch.nn.Parameter(rows_of(view)) for view in views]
    optimizers = make_optimizers(parts)
    for _, gradients in steps[:-1]:
        for name in names:
            views = parts_of(name, gradients[name]) if is_matrix(name, weights[name]) else [gradients[name]]
            for part, view in zip(parts[name], views):
                part.grad = rows_of(view)
        for optimizer in optimizers:
            optimizer.step()
    for name in names:
        views = parts_of(name, weights[name]) if is_matrix(name, weights[name]) else [weights[name]]
        for part, view in zip(parts[name], views):
            view.copy_(part.detach())
    return weights


def assert_equal_to_1e_6(steps, expected, least=1e-4):
    after, before = steps[-1][0], steps[0][0]
    for name, value in expected.items():
        moved = (value - before[name]).abs().max().item()
        assert moved > least, f"{name}: the reference hardly moves it, so nothing would be compared"
        difference = (after[name] - value).abs().max().item()
        assert difference <= 1e-6 * max(1.0, value.abs().max().item()), f"{name}: off by {difference}, moved by {moved}"


def groups_by_decay(parts, chosen):
    decayed = [p for name, views in parts.items() if chosen(name, views) for p in views if p.dim() == 2]
    others = [p for name, views in parts.items() if chosen(name, views) for p in views if p.dim() == 1]
    return [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]


@pytest.mark.parametrize(
    "name, nesterov",
    [("llama", False), ("llama", True), ("qwen_tied", True), ("mixtral", False), ("deepseek_v3", True), ("gpt2", False)],
)
def test_muon_is_torchs(name, nesterov, program, models, periodic, tmp_path):
    """torch computes its steps in bf16, with one set of coefficients; the rest is AdamW's."""
    steps = weights_and_gradients(
        *(program, models[name].folder, periodic, tmp_path),
        *[["--optimizer", "muon", "--muon_momentum", MOMENTUM, "--muon_coefficient_type", "simple"]
          + ["--muon_scale_mode", "shape_scaling", "--muon_fp32_matmul_prec", "medium"]
          + (["--muon_nesterov"] if nesterov else [])],
    )

    def optimizers(parts):
        matrices = [p for key, views in parts.items() if is_matrix(key, steps[0][0][key]) for p in views]
        rest = groups_by_decay(parts, lambda key, views: not is_matrix(key, steps[0][0][key]))
        return [
            torch.optim.Muon(matrices, lr=LR, weight_decay=WEIGHT_DECAY, momentum=MOMENTUM, nesterov=nesterov),
            torch.optim.AdamW(rest, lr=LR, betas=(0.9, 0.999), eps=1e-8, foreach=False),
        ]

    assert_equal_to_1e_6(steps, expected_weights(steps, optimizers))


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023 (arXiv:2302.06675), word for word: torch.optim has none."""

    def __init__(self, params, lr, betas):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = beta1 * m + (1 - beta1) * p.grad
                p.sub_(group["lr"] * (torch.sign(c) + group["weight_decay"] * p))
                self.state[p]["m"] = beta2 * m + (1 - beta2) * p.grad


@pytest.mark.parametrize("name, betas", [("llama", (0.9, 0.99)), ("gpt2", (0.8, 0.95))])
def test_lion_is_the_papers(name, betas, program, models, periodic, tmp_path):
    steps = weights_and_gradients(
        *(program, models[name].folder, periodic, tmp_path),
        ["--optimizer", "lion", "--lion_beta1", betas[0], "--lion_beta2", betas[1]],
    )
    everything = lambda parts: groups_by_decay(parts, lambda key, views: True)
    assert_equal_to_1e_6(steps, expected_weights(steps, lambda parts: [Lion(everything(parts), LR, betas)]))


@pytest.mark.parametrize("name", ["llama", "qwen_tied", "mixtral", "gpt2"])
def test_adafactor_is_transformers(name, program, models, periodic, tmp_path):
    steps = weights_and_gradients(
        *(program, models[name].folder, periodic, tmp_path, ["--optimizer", "adafactor", "--adafactor_decay_rate", -0.7]),
    )

    def optimizers(parts):
        groups = groups_by_decay(parts, lambda key, views: True)
        return [transformers.Adafactor(groups, lr=LR, decay_rate=-0.7, relative_step=False)]

    assert_equal_to_1e_6(steps, expected_weights(steps, optimizers, lambda name, tensor: [tensor]), least=1e-5)


def test_eight_bit_adam_is_bitsandbytes(program, models, periodic, tmp_path, monkeypatch):
    """Its CPU kernel takes codes from a coarse table; here they are the nearest, as in its default kernel."""

    def quantise(moments, code, absmax, codes, blocksize):
        for i, block in enumerate(moments.flatten().split(blocksize)):
            absmax[i] = block.abs().max()
            nearest = torch.bucketize(block / absmax[i].clamp(min=1e-38), (code[:-1] + code[1:]) / 2)
            codes.view(-1)[i * blocksize : (i + 1) * blocksize] = nearest.to(torch.uint8)

    monkeypatch.setattr(bitsandbytes.backends.cpu.ops, "_quant_blockwise_fp32_direct", quantise)
    options = ["--optimizer", "adam8bit", "--min_8bit_size", 1024]
    steps = weights_and_gradients(program, models["llama"].folder, periodic, tmp_path, options, num_steps=10)
    made = []

    def optimizers(parts):
        groups = groups_by_decay(parts, lambda key, views: True)
        made.append(bitsandbytes.optim.AdamW8bit(groups, lr=LR, min_8bit_size=1024))
        return made

    expected = expected_weights(steps, optimizers, lambda name, tensor: [tensor])
    states = [state["state1"] for state in made[0].state.values()]
    assert {state.dtype for state in states} == {torch.uint8, torch.float32}
    # A moment halfway between two codes, and rounding, take one or the other: a few elements then differ by a part of
    # a step of about lr.
    off = torch.cat([(steps[-1][0][name] - value).abs().flatten() for name, value in expected.items()])
    moved = torch.cat([(steps[0][0][name] - value).abs().flatten() for name, value in expected.items()])
    print(f"{(off > 1e-6).sum()} of {off.numel()} elements differ, by at most {off.max()}; moved {moved.mean()}")
    assert moved.mean() > LR and off.max() < LR and (off > 1e-6).sum() < 1e-3 * off.numel()


@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
def test_sgd_is_torchs(momentum, program, models, periodic, tmp_path):
    steps = weights_and_gradients(
        *(program, models["llama"].folder, periodic, tmp_path, ["--optimizer", "sgd", "--sgd_momentum", momentum]),
    )

    def optimizers(parts):
        return [torch.optim.SGD(groups_by_decay(parts, lambda key, views: True), lr=LR, momentum=momentum, foreach=False)]

    assert_equal_to_1e_6(steps, expected_weights(steps, optimizers))
