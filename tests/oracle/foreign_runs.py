"""Runs by other trainers, and how they go on here: what the judges of foreign checkpoints share."""

import collections
import json
import pathlib
import shutil
import subprocess
import sys

import hf_models
import torch
from program import read_metrics
from ranks import run_ranks
from safetensors.torch import load_file

RUNNER = pathlib.Path(__file__).with_name("megatron_core_run.py")
VOCABULARY, SEQUENCE, BATCH, BEFORE, STEPS, LR = 132, 24, 4, 3, 8, 2e-3
LAST = f"iter_{STEPS:07}"  # the folder of the last checkpoint
MOMENTS = ("exp_avg", "exp_avg_sq")


def common(data, steps=STEPS):
    return (
        *("--data_path", data.prefix, "--split", "100,0,0", "--fp32", "--seq_length", SEQUENCE, "--micro_batch_size", 2),
        *("--global_batch_size", BATCH, "--train_iters", steps, "--lr", LR, "--min_lr", 0, "--lr_decay_style", "constant"),
        *("--weight_decay", 0.1, "--clip_grad", 1.0, "--adam_beta1", 0.9, "--adam_beta2", 0.95, "--adam_eps", 1e-8),
        *("--eval_iters", 0, "--hidden_dropout", 0, "--attention_dropout", 0, "--device", "cpu"),
    )


class MegatronRun:
    """A model that megatron-core trained in one layout, saved in several forms."""

    def __init__(self, folder, name, layout, distributed, forms, data, load=None, resave=False):
        self.folder, self.later = folder, folder / "later"
        samples = data.samples(STEPS * BATCH, SEQUENCE)
        spec = dict(
            model=name, layout=layout, distributed=distributed, store=str(folder / "store"), losses=str(folder / "losses.json"),
            samples=torch.as_tensor(samples).tolist(), saves={str(folder / form): form for form in forms},
            later=str(self.later), later_form=forms[0],
        )  # fmt: skip
        if load is not None:
            spec.update(load=str(load), resave=resave, saves=spec["saves"] if resave else {})
        (folder / "spec.json").write_text(json.dumps(spec))
        with open(folder / "log", "wb") as log:
            code = subprocess.run([sys.executable, RUNNER, folder / "spec.json"], stdout=log, stderr=log, timeout=240).returncode
        assert code == 0, (folder / "log").read_text()[-4000:]
        if not resave:
            self.losses = json.loads((folder / "losses.json").read_text())


def assert_same_states(ours, theirs, names=("model", "exp_avg", "exp_avg_sq")):
    for name in names:
        found, expected = load_file(ours / f"{name}.safetensors"), load_file(theirs / f"{name}.safetensors")
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            if key.endswith(("k_proj.bias", "c_attn.bias")):
                continue  # a bias of keys moves all scores of a query alike: its gradient is rounding
            # Five steps of Adam move a weight by at most 5 LR = 1e-2.
            difference = (found[key] - value).abs()
            assert difference.mean() < 1e-6 and difference.max() < 4e-5, (name, key, difference.max(), difference.mean())


def go_on(program, folder, data, tmp_path, ranks=1, convert=None, more=()):
    """Trains the last five steps from another trainer's checkpoint, with convert's words from ours made of it, and gives the
    losses and the checkpoint."""
    converted, saved, metrics = (tmp_path / name for name in ("converted", "saved", "metrics.jsonl"))
    metrics.unlink(missing_ok=True)
    shutil.rmtree(saved, ignore_errors=True)
    said = ""
    if convert is not None:
        said = "".join(program.run("convert", "--load", folder, "--save", converted, *convert)[1:])
    source = folder if convert is None else converted
    words = ("train", "--load", source, *common(data), "--metrics_file", metrics, "--save", saved, *more)
    if ranks == 1:
        said += "".join(program.run(*words)[1:])
        assert "of its tensors are read" in said
    else:
        run_ranks(program, ranks, *words, "--use_distributed_optimizer", "--pipeline_model_parallel_size", 2)
    lines = read_metrics(metrics)
    assert [line["iteration"] for line in lines] == list(range(BEFORE + 1, STEPS + 1))
    return [line["lm_loss"] for line in lines], saved / LAST


def plain_run(model, samples, save):
    """Eight steps of a plain PyTorch loop; save(optimizer) after the third. The losses."""
    groups = [[p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() == 1]]
    optimizer = torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": 0.1}, {"params": groups[1], "weight_decay": 0.0}],
        lr=LR, betas=(0.9, 0.95), eps=1e-8,
    )  # fmt: skip
    losses = []
    for step in range(STEPS):
        if step == BEFORE:
            save(optimizer)
        loss = hf_models.token_losses(model, samples[step * BATCH : (step + 1) * BATCH]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


TITAN = {
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    "embed_tokens": "tok_embeddings", "lm_head": "output", "model.": "",
}  # fmt: skip


def as_torchtitan(name, value, heads):
    """torchtitan's name and its order of a rotated pair's channels."""
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        count = heads["q_proj" if "q_proj" in name else "k_proj"]
        value = value.view(count, 2, -1, value.shape[1]).transpose(1, 2).reshape(value.shape)
    for ours, theirs in TITAN.items():
        name = name.replace(ours, theirs)
    return name, value.detach().clone()


TUNE = {
    "attention.wq": "attn.q_proj", "attention.wk": "attn.k_proj", "attention.wv": "attn.v_proj", "attention.wo": "attn.output_proj",
    "feed_forward.": "mlp.", "attention_norm.weight": "sa_norm.scale", "ffn_norm.weight": "mlp_norm.scale",
}  # fmt: skip
TUNE_LAYER = (
    *("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.output_proj.weight", "mlp.w1.weight"),
    *("mlp.w2.weight", "mlp.w3.weight", "sa_norm.scale", "mlp_norm.scale"),
)


def as_torchtune(tensors, heads):
    """By torchtune's names, in its order of a rotated pair's channels."""
    renamed = {}
    for name, value in tensors.items():
        name, value = as_torchtitan(name, value, heads)
        for theirs, ours in TUNE.items():
            name = name.replace(theirs, ours)
        renamed["norm.scale" if name == "norm.weight" else name] = value
    return renamed


def tune_states(model, optimizer):
    """A Llama's as torchtune's optimizer numbers them: one group, in the order of its modules."""
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    layers = [f"layers.{i}.{rest}" for i in range(model.config.num_hidden_layers) for rest in TUNE_LAYER]
    moments = {key: as_torchtune({n: optimizer.state[p][key] for n, p in model.named_parameters()}, heads) for key in MOMENTS}
    order = ["tok_embeddings.weight", *layers, "norm.scale", "output.weight"]
    assert set(order) == set(moments["exp_avg"])
    step = torch.tensor(float(BEFORE))
    return {i: {"step": step, **{key: moments[key][name] for key in MOMENTS}} for i, name in enumerate(order)}


def zero_folder(folder, model, optimizer, stage, world):
    """What DeepSpeed 0.19's engine.save_checkpoint() leaves of `world` data-parallel ranks."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups, target = [group["params"] for group in optimizer.param_groups], folder / f"global_step{BEFORE}"
    target.mkdir(parents=True)
    (folder / "latest").write_text(target.name)
    module = {name: value.detach().bfloat16() for name, value in model.state_dict().items()}
    root = dict(
        module=module, buffer_names=[], optimizer=None, frozen_param_shapes=None, shared_params={}, lr_scheduler=None,
        param_shapes=[collections.OrderedDict((names[id(p)], p.shape) for p in group) for group in groups],
        skipped_steps=0, global_steps=BEFORE, global_samples=BEFORE * BATCH, dp_world_size=world, mp_world_size=1,
        ds_config={"zero_optimization": {"stage": stage}}, ds_version="0.19.8",
    )  # fmt: skip

    def cut(values, rank, drops_padding=False):
        if stage == 3:
            parts = [torch.cat([v.flatten(), v.new_zeros(-v.numel() % world)]).chunk(world)[rank] for v in values]
            return torch.cat(parts)
        whole = torch.cat([value.flatten() for value in values])
        padding = -whole.numel() % (2 * world)
        part = torch.cat([whole, whole.new_zeros(padding)]).chunk(world)[rank]
        return part[: part.numel() - padding].clone() if drops_padding and rank == world - 1 else part.clone()

    for rank in range(world):
        number = f"zero_pp_rank_{rank}_mp_rank_00"
        if stage == 3:
            empty = {name: torch.empty(0, dtype=torch.bfloat16) for name in module}
            torch.save({**root, "module": empty}, target / f"{number}_model_states.pt")
        state = {
            i: {"step": torch.tensor(float(BEFORE)), **{key: cut([optimizer.state[p][key] for p in group], rank) for key in MOMENTS}}
            for i, group in enumerate(groups)
        }
        masters = [cut([p.detach() for p in group], rank, drops_padding=True) for group in groups]
        torch_state = {"state": state, "param_groups": [{"lr": LR, "params": [i]} for i in range(len(groups))]}
        if stage == 3:
            own = {"zero_stage": 3, "optimizer_state_dict": torch_state, "fp32_flat_groups": masters}
        else:
            own = {"zero_stage": stage, "base_optimizer_state": torch_state, "single_partition_of_fp32_groups": masters}
        own["partition_count"] = world
        torch.save({"optimizer_state_dict": own, "ds_version": "0.19.8"}, target / f"bf16_{number}_optim_states.pt")
    if stage < 3:
        torch.save(root, target / "mp_rank_00_model_states.pt")
