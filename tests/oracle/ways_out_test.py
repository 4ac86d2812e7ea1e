"""Our runs go on elsewhere: what convert writes is loaded by its trainers with the optimizer's state, and comes back."""

import copy
import json

import hf_models
import pytest
import torch
from foreign_runs import BATCH, BEFORE, LAST, LR, SEQUENCE, STEPS, MegatronRun, as_torchtitan, assert_same_states, common
from program import read_metrics
from safetensors.torch import load_file

LLAMA = (
    *("--group_query_attention", "--num_query_groups", 2, "--swiglu", "--normalization", "RMSNorm"),
    *("--position_embedding_type", "rope", "--disable_bias_linear", "--untie_embeddings_and_output_weights"),
)
EXPERTS = ("--num_experts", 4, "--moe_router_topk", 2, "--moe_router_load_balancing_type", "none", "--moe_ffn_hidden_size", 48)
SIZES = (
    *("--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4, "--ffn_hidden_size", 48, "--vocab_size", 132),
    *("--max_position_embeddings", 24, "--init_method_std", 0.1),
)


class Run:
    """Eight steps of ours, saved after three, six and eight."""

    def __init__(self, program, folder, data, *model):
        self.saved, metrics = folder / "ours", folder / "metrics.jsonl"
        words = ("--metrics_file", metrics, "--save", self.saved, "--save_interval", BEFORE)
        program.run("train", *model, *common(data), *words)
        self.losses = [line["lm_loss"] for line in read_metrics(metrics)]
        assert len(self.losses) == STEPS


def assert_comes_back(program, run, out, tmp_path, *more):
    """Bit for bit: weights, moments, masters if there are any, counters."""
    program.run("convert", "--load", out, "--save", tmp_path / "back", *more)
    ours, back = (folder / f"iter_{BEFORE:07d}" for folder in (run.saved, tmp_path / "back"))
    for name in ("model", "exp_avg", "exp_avg_sq", "master"):
        if (ours / f"{name}.safetensors").exists():
            found, expected = load_file(back / f"{name}.safetensors"), load_file(ours / f"{name}.safetensors")
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[key], value) and found[key].dtype == value.dtype for key, value in expected.items())
    counters = [json.loads((folder / "checkpoint.json").read_text())["train"] for folder in (ours, back)]
    for name in ("iteration", "optimizer_step", "consumed_train_samples"):
        assert counters[0][name] == counters[1][name], name


@pytest.mark.parametrize(
    "name, model, world, distributed",
    [
        ("llama", LLAMA, 2, True),
        ("gpt", ("--position_embedding_type", "learned_absolute"), 1, False),
        ("mixtral", (*LLAMA, *EXPERTS, "--num_layers", 4), 1, True),
    ],
)
def test_megatron_core_goes_on(name, model, world, distributed, program, data, tmp_path):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed ('make tools' says why)")
    run = Run(program, tmp_path, data, *SIZES, *model)
    words = ("convert", "--load", run.saved, "--ckpt_step", BEFORE, "--to", "torch_dist", "--save", tmp_path / "out")
    _, output, errors = program.run(*words)
    assert "left behind are random states" in output + errors
    theirs = MegatronRun(tmp_path, name, dict(tp=world), distributed, ["fully_reshardable"], data, load=tmp_path / "out/iter_0000003")
    assert theirs.losses[BEFORE:] == pytest.approx(run.losses[BEFORE:], abs=1e-5)
    program.run("convert", "--load", theirs.later, "--save", tmp_path / "theirs")
    assert_same_states(run.saved / LAST, tmp_path / "theirs" / LAST)
    assert_comes_back(program, run, tmp_path / "out", tmp_path)
    _, _, errors = program.run(*words, expected=2)
    assert "is there already" in errors and "--overwrite" in errors
    program.run(*words, "--overwrite")


def module_of(parameters):
    """A module whose parameters have these dotted names."""
    root = torch.nn.Module()
    for name, value in parameters.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]
        module.register_parameter(last, value)
    return root


@pytest.mark.parametrize("name, form", [("llama", "torchtitan"), ("llama_tied", "dcp")])
def test_pytorch_goes_on(name, form, program, models, data, tmp_path):
    """As torchtitan and loops of PyTorch's own load: torch.distributed.checkpoint into the states of a model and AdamW."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as states

    run = Run(program, tmp_path, data, "--load_hf", models[name].folder)
    words = ("convert", "--load", run.saved, "--ckpt_step", BEFORE, "--to", form, "--save", tmp_path / "out")
    program.run(*words)
    model = copy.deepcopy(models[name].reference).train()
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    trained, loss_of = model, hf_models.token_losses
    if form == "torchtitan":
        heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
        named = {key: as_torchtitan(key, value, heads)[0] for key, value in model.named_parameters()}
        trained = module_of({named[key]: torch.nn.Parameter(value.detach().clone()) for key, value in model.named_parameters()})

        def to_ours(key, value):
            if key.endswith(("q_proj.weight", "k_proj.weight")):
                count = heads["q_proj" if "q_proj" in key else "k_proj"]
                value = value.view(count, -1, 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
            return value

        class Renamed(torch.nn.Module):
            """The model of transformers, computed from torchtitan's parameters."""

            def forward(self, *given, **options):
                own = dict(trained.named_parameters())
                return torch.func.functional_call(model, {k: to_ours(k, own[t]) for k, t in named.items()}, given, options)

        renamed = Renamed()
        loss_of = lambda _, rows: hf_models.token_losses(renamed, rows)  # noqa: E731
    groups = [[p for p in trained.parameters() if p.dim() > 1], [p for p in trained.parameters() if p.dim() == 1]]
    optimizer = torch.optim.AdamW([{"params": group, "weight_decay": 0.0} for group in groups], lr=1.0)
    flat = states.StateDictOptions(flatten_optimizer_state_dict=True)
    weights, moments = states.get_model_state_dict(trained), states.get_optimizer_state_dict(trained, optimizer, options=flat)
    counters = {"train_state": {"step": 0, "ntokens_seen": 0}} if form == "torchtitan" else {"step": 0}
    state = {**counters, "optimizer": moments}
    if form == "torchtitan":
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        state.update(weights, lr_scheduler=scheduler.state_dict())
        moments.update(states.get_optimizer_state_dict(trained, optimizer, options=flat))  # with initial_lr
    else:
        state["model"] = weights
    dcp.load(state, checkpoint_id=tmp_path / "out" / (f"step-{BEFORE}" if form == "torchtitan" else ""), no_dist=True)
    states.set_model_state_dict(trained, weights if form == "dcp" else {key: state[key] for key in weights})
    states.set_optimizer_state_dict(trained, optimizer, state["optimizer"], options=flat)
    if form == "torchtitan":
        scheduler.load_state_dict(state["lr_scheduler"])
        assert state["train_state"]["step"] == scheduler.last_epoch == BEFORE
        optimizer.param_groups[1]["weight_decay"] = 0.0  # torchtitan decays norms too
    assert [(g["lr"], g["weight_decay"], g["betas"]) for g in optimizer.param_groups] == [
        (LR, 0.1, (0.9, 0.95)), (LR, 0.0, (0.9, 0.95))
    ]  # fmt: skip
    samples = data.samples(STEPS * BATCH, SEQUENCE)
    for step in range(BEFORE, STEPS):
        loss = loss_of(trained, samples[step * BATCH : (step + 1) * BATCH]).mean()
        assert loss.item() == pytest.approx(run.losses[step], abs=1e-5)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
    assert_comes_back(program, run, tmp_path / "out", tmp_path, "--hf_config", models[name].folder, "--global_batch_size", BATCH)


def test_what_has_no_place_is_refused_by_name(program, models, tmp_path):
    out = ("--save", tmp_path / "out")
    _, _, errors = program.run("convert", "--load_hf", models["qwen"].folder, "--to", "torchtitan", *out, expected=2)
    assert "torchtitan's form has no place for" in errors and "self_attn.k_proj.bias" in errors
    program.run("convert", "--load_hf", models["qwen"].folder, "--to", "dcp", *out)
    tiny = (*SIZES, *LLAMA, "--mock_data", "--seq_length", 24, "--train_iters", 1, "--eval_iters", 0, "--device", "cpu")
    program.run("train", *tiny, "--optimizer", "muon", "--save", tmp_path / "muon")
    words = ("convert", "--load", tmp_path / "muon", "--to", "torch_dist", "--save", tmp_path / "other")
    _, _, errors = program.run(*words, expected=2)
    assert "the checkpoint's optimizer muon has" in errors and "momentum" in errors and "--no_save_optim" in errors
    assert not (tmp_path / "other").exists()
    program.run(*words, "--no_save_optim")
    _, _, errors = program.run(*words[:4], "dcp", *words[5:], "--check", expected=2)
    assert "cannot be loaded here" in errors
