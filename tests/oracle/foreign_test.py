"""Runs of other trainers go on here: they train three steps and save, and our next five steps equal theirs."""

import collections
import copy
import json
import pathlib
import runpy
import shutil

import gguf
import pytest
import torch
from foreign_runs import (
    BATCH, BEFORE, LAST, LR, MOMENTS, SEQUENCE, STEPS, VOCABULARY, MegatronRun, as_torchtitan, assert_same_states, common, go_on,
    plain_run, zero_folder,
)  # fmt: skip
from program import read_metrics
from safetensors.torch import load_file, save_file

RUNS = {
    "llama": ({}, True, ["fully_reshardable", "legacy", "no_optimizer"]),
    "mixtral": ({}, True, ["fully_reshardable", "legacy"]),
    "gpt": (dict(tp=2), False, ["fully_reshardable", "legacy"]),
    "gpt_deep": ({}, True, ["fully_reshardable"]),
    "llama_tp2": (dict(tp=2), True, ["fully_reshardable", "legacy"]),
}
# The same runs in other layouts, as megatron-core saves them there.
EVERY_FORM = ["fully_reshardable", "legacy", "dp_reshardable", "dp_zero_gather_scatter"]
RESAVED = {
    # Interleaved stages, experts over ranks; two data-parallel ranks, which cut buckets anywhere.
    "mixtral_pp": ("mixtral", dict(pp=2, vp=2, ep=2, world=4)),
    # Tensor-parallel ranks that have whole experts.
    "mixtral_etp": ("mixtral", dict(tp=2, ep=2, etp=1, world=2)),
    # A table that two stages share, biases, and several buckets.
    "gpt_pp": ("gpt_deep", dict(tp=2, pp=2, vp=2, world=4, overlap_grad_reduce=True, ddp_bucket_size=3000)),
}


@pytest.fixture(scope="module")
def megatron(tmp_path_factory, data):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed ('make tools' says why)")
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            if name in RESAVED:
                source, layout = RESAVED[name]
                trained = make(source)
                load = trained.folder / "fully_reshardable" / f"iter_{BEFORE:07}"
                made[name] = MegatronRun(folder, source, layout, True, EVERY_FORM, data, load, resave=True)
                made[name].losses, made[name].later = trained.losses, trained.later
            else:
                layout, distributed, forms = RUNS[name]
                made[name] = MegatronRun(folder, name.removesuffix("_tp2"), layout, distributed, forms, data)
        return made[name]

    return make


@pytest.mark.parametrize(
    "name, form, ranks",
    [
        ("llama", "fully_reshardable", 1),
        ("llama", "legacy", 2),
        ("llama_tp2", "legacy", 1),
        ("llama_tp2", "fully_reshardable", 1),
        ("mixtral", "fully_reshardable", 1),
        ("mixtral", "legacy", 1),
        ("gpt", "fully_reshardable", 1),
        ("gpt", "legacy", 1),
    ],
)
def test_a_run_of_megatron_core_goes_on_here(name, form, ranks, program, megatron, data, tmp_path):
    run = megatron(name)
    losses, saved = go_on(program, run.folder / form, data, tmp_path, ranks, () if name == "mixtral" else None)
    assert losses == pytest.approx(run.losses[BEFORE:], abs=1e-5)
    program.run("convert", "--load", run.later, "--save", tmp_path / "theirs")
    if ranks == 1:
        assert_same_states(saved, tmp_path / "theirs" / LAST)


@pytest.mark.parametrize("name", RESAVED)
def test_every_layout_of_megatron_core_is_the_same_run(name, program, megatron, data, tmp_path):
    run, source = megatron(name), megatron(RESAVED[name][0])
    whole = source.folder / "fully_reshardable"
    program.run("convert", "--load", whole, "--save", tmp_path / "whole")
    expected = {key: load_file(tmp_path / "whole/iter_0000003" / f"{key}.safetensors") for key in ("model", "master", *MOMENTS)}
    # megatron-core 0.16 takes states from wrong places for fully_reshardable if a buffer has several buckets.
    for form in EVERY_FORM[int(name == "gpt_pp") :]:
        saved = tmp_path / form
        program.run("convert", "--load", run.folder / form, "--save", saved)
        for key, tensors in expected.items():
            found = load_file(saved / "iter_0000003" / f"{key}.safetensors")
            assert found.keys() == tensors.keys()
            different = [tensor for tensor, value in tensors.items() if not torch.equal(found[tensor], value)]
            assert not different, (form, key, different)
        state = json.loads((saved / "iter_0000003" / "checkpoint.json").read_text())["train"]
        assert (state["optimizer_step"], state["consumed_train_samples"]) == (BEFORE, BEFORE * BATCH)
    losses, saved = go_on(program, run.folder / "dp_reshardable", data, tmp_path)
    assert losses == pytest.approx(run.losses[BEFORE:], abs=1e-5)
    program.run("convert", "--load", run.later, "--save", tmp_path / "theirs")
    assert_same_states(saved, tmp_path / "theirs" / LAST)
    # On to Megatron's form that every layout reads, and back.
    program.run("convert", "--load", run.folder / "dp_reshardable", "--to", "torch_dist", "--save", tmp_path / "out")
    program.run("convert", "--load", tmp_path / "out", "--save", tmp_path / "back")
    for key, tensors in expected.items():
        found = load_file(tmp_path / "back" / "iter_0000003" / f"{key}.safetensors")
        assert all(torch.equal(found[tensor], value) for tensor, value in tensors.items()), key


def test_what_is_missing_is_refused_by_name(program, megatron, data, tmp_path):
    buckets, whole = (megatron("llama").folder / form for form in ("no_optimizer", "fully_reshardable"))
    _, _, errors = program.run("convert", "--load", buckets, "--save", tmp_path / "a", expected=2)
    assert "exp_avg" in errors and "no_save_optim" in errors
    program.run("convert", "--load", buckets, "--save", tmp_path / "a", "--no_save_optim")
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    (cut / "iter_0000003" / "__0_1.distcp").unlink()
    _, _, errors = program.run("convert", "--load", cut, "--save", tmp_path / "b", expected=2)
    assert "__0_1.distcp is missing" in errors and not (tmp_path / "b").exists()
    _, _, errors = program.run("convert", "--load", whole, "--ckpt_step", 7, "--save", tmp_path / "b", expected=2)
    assert "no checkpoint of iteration 7" in errors
    train = ("train", *common(data), "--dry_run", "--load")
    _, _, errors = program.run(*train, buckets, expected=2)
    assert "exp_avg" in errors and "no_load_optim" in errors
    _, shown, errors = program.run(*train, buckets, "--no_load_optim")
    assert "of its tensors are read" in shown + errors
    _, _, errors = program.run(*train, whole, "--num_layers", 3, expected=2)
    assert "num_layers is 2 in the checkpoint and 3 here" in errors
    _, _, errors = program.run(*train, whole, "--save", whole, expected=2)
    assert "auto_continue_train" in errors and "another trainer" in errors
    _, _, errors = program.run(*train, whole / "iter_0000003", "--ckpt_step", 7, expected=2)
    assert "is the checkpoint of iteration 3" in errors
    shutil.copytree(whole, tmp_path / "told")
    (tmp_path / "told" / "latest_checkpointed_iteration.txt").write_text("three")
    _, _, errors = program.run(*train, tmp_path / "told", expected=2)
    assert 'holds "three", not an iteration' in errors and "ckpt_step" in errors
    program.run(*train, tmp_path / "told", "--ckpt_step", 3)


def test_what_is_said_differently_is_printed(program, megatron, data, tmp_path):
    folder, exported = megatron("llama").folder / "legacy", tmp_path / "exported"
    _, shown, errors = program.run("train", "--load", folder, *(0.2 if word == 0.1 else word for word in common(data)))
    assert "weight_decay was 0.1 in the checkpoint and is 0.2 now" in shown + errors
    words = ("--mock_data", "--seq_length", SEQUENCE, "--eval_iters", 1, "--device", "cpu")
    _, shown, errors = program.run("evaluate", "--load", folder, *words)
    assert "of its tensors are read" in shown + errors
    # On the way to other programs.
    program.run("convert", "--load", folder, "--save_hf", exported)
    program.run("convert", "--load", folder, "--save", tmp_path / "ours")
    ours, theirs = (load_file(at / "model.safetensors") for at in (exported, tmp_path / "ours" / "iter_0000003"))
    assert ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())
    for source, name in ((("--load", folder), "a"), (("--load_hf", exported), "b")):
        program.run("convert", *source, "--to", "gguf", "--save", tmp_path / f"{name}.gguf")
    first, second = (gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors for name in "ab")
    assert len(first) == len(second) > 10
    assert all(a.name == b.name and (a.data == b.data).all() for a, b in zip(first, second))


def flattened_copy(source, target):
    """The folder as megatron-core before 0.15 wrote it on two tensor-parallel and two data-parallel ranks: optimizer states
    are cut into ranks' tensors, and these, flattened, into runs (fully_sharded_model_space)."""
    import pickle

    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import metadata as of_dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    described = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
    tensors = {name: torch.empty(kept.size) for name, kept in described.items() if hasattr(kept, "size")}
    dcp.load(tensors, checkpoint_id=source, no_dist=True)
    target.mkdir(parents=True)
    shutil.copy(source / "common.pt", target)
    listed, places, original = {}, {}, {}
    with open(target / "__0_0.distcp", "wb") as file:
        for name, tensor in tensors.items():
            pieces, shape = [((0,) * tensor.dim(), tensor)], tensor.shape
            if name.startswith("optimizer.state.") and tensor.dim() > 1:
                name = name.replace("state.param.", "state.fp32_param.")
                stacked = 1 if ".layers." in name else 0
                counts = [*tensor.shape[:stacked], 2 if tensor.dim() > stacked + 1 else 1] + [1] * (tensor.dim() - stacked - 1)
                blocks = tensor.view(*tensor.shape[:stacked], counts[stacked], -1)
                cut, shape = blocks.shape[-1] // 3, torch.Size([*counts, blocks.shape[-1]])
                original[name] = {"nd_reformulated_orig_global_shape": tuple(tensor.shape)}
                pieces = []
                for at in torch.cartesian_prod(*(torch.arange(n) for n in counts)).view(-1, len(counts)).tolist():
                    block = blocks[tuple(at[: stacked + 1])].reshape([1] * len(counts) + [-1])
                    pieces += [((*at, 0), block[..., :cut].clone()), ((*at, cut), block[..., cut:].clone())]
            chunks = [of_dcp.ChunkStorageMetadata(torch.Size(at), piece.shape) for at, piece in pieces]
            listed[name] = of_dcp.TensorStorageMetadata(of_dcp.TensorProperties(tensor.dtype), shape, chunks)
            for at, piece in pieces:
                begin = file.tell()
                torch.save(piece, file)
                places[of_dcp.MetadataIndex(name, at)] = _StorageInfo("__0_0.distcp", begin, file.tell() - begin)
    whole = of_dcp.Metadata(listed, storage_data=places)
    whole.mcore_data = original
    (target / ".metadata").write_bytes(pickle.dumps(whole))


def test_states_that_were_flattened_are_the_same(program, megatron, tmp_path):
    source = megatron("llama").folder / "fully_reshardable" / "iter_0000003"
    flattened_copy(source, tmp_path / "flat")
    for folder, name in ((source, "whole"), (tmp_path / "flat", "flattened")):
        program.run("convert", "--load", folder, "--save", tmp_path / name)
    for state in ("model", "master", "exp_avg", "exp_avg_sq"):
        whole, flat = (load_file(tmp_path / n / "iter_0000003" / f"{state}.safetensors") for n in ("whole", "flattened"))
        assert whole.keys() == flat.keys() and all(torch.equal(value, flat[key]) for key, value in whole.items())


def fsdp_dtensor_copy(source, target):
    """The same run as Megatron-FSDP saves it, by the names of megatron-core's fsdp_dtensor_checkpoint.py: it needs a GPU."""
    import torch.distributed.checkpoint as dcp

    described = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
    tensors = {name: torch.empty(kept.size) for name, kept in described.items() if hasattr(kept, "size")}
    dcp.load(tensors, checkpoint_id=source, no_dist=True)
    kept = torch.load(source / "common.pt", weights_only=False)
    state = {"args": kept["args"], "iteration": BEFORE, "opt_param_scheduler": {"num_steps": BEFORE * BATCH}}
    for name, tensor in tensors.items():
        of_state, _, parameter = name.rpartition("optimizer.state.")[2].partition("decoder.layers.")
        moment = name.startswith("optimizer.state.") and name.split(".")[2]
        if moment and moment not in MOMENTS:
            continue  # masters: the model's weights are them
        parameters = {parameter: tensor} if parameter else {name.removeprefix(f"optimizer.state.{moment}."): tensor}
        if parameter:
            layers = {f"decoder.layers.{i}.{parameter}": layer for i, layer in enumerate(tensor)}
            parameters = {}
            for own, layer in layers.items():
                one = own.replace("experts.experts.", "experts.")
                parameters |= {f"{one}{i}": expert for i, expert in enumerate(layer)} if one != own else {own: layer}
        for own, value in parameters.items():
            gate, up = value.chunk(2) if "linear_fc1.weight" in own else (value, None)
            halves = {own: gate} if up is None else {f"{own}_w": gate, f"{own}_v": up}
            for half, part in halves.items():
                wrapped = f"optimizer.state.module.module.{half}.{moment}" if moment else f"model.module.module.{half}"
                state[wrapped] = part.clone()
                state[f"optimizer.param_to_group_meta.module.module.{own}.step"] = BEFORE
    dcp.save(state, checkpoint_id=target)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_a_run_of_megatron_fsdp_is_the_same(name, program, megatron, tmp_path):
    source, target = megatron(name).folder / "fully_reshardable" / "iter_0000003", tmp_path / "fsdp" / "iter_0000003"
    fsdp_dtensor_copy(source, target)
    for folder, out in ((source, "whole"), (target, "wrapped")):
        program.run("convert", "--load", folder, "--save", tmp_path / out)
    for state in ("model", *MOMENTS):
        whole, own = (load_file(tmp_path / n / "iter_0000003" / f"{state}.safetensors") for n in ("whole", "wrapped"))
        assert whole.keys() == own.keys() and all(torch.equal(value, own[key]) for key, value in whole.items())
    whole, own = (json.loads((tmp_path / n / "iter_0000003/checkpoint.json").read_text())["train"] for n in ("whole", "wrapped"))
    assert all(whole[key] == own[key] for key in ("iteration", "optimizer_step", "consumed_train_samples", "numbers"))


def test_inspect_says_what_a_folder_is(program, megatron):
    _, shown, _ = program.run("inspect", "checkpoint", megatron("llama").folder / "fully_reshardable")
    assert "torch_dist of Megatron-core" in shown and "iteration 3, 3 updates, 12 samples consumed" in shown
    assert "exp_avg 21" in shown and "Transformer Engine's scales" in shown


def test_a_run_of_torchtitan_goes_on_here(program, models, data, tmp_path):
    import torch.distributed.checkpoint as dcp

    model = copy.deepcopy(models["llama"].reference).train()
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}

    def save(optimizer):
        state = {"train_state": {"step": torch.tensor(BEFORE, dtype=torch.int32)}, "lr_scheduler": {"last_epoch": BEFORE}}
        for name, parameter in model.named_parameters():
            titan, value = as_torchtitan(name, parameter, heads)
            state[titan] = value
            for key, moment in optimizer.state[parameter].items():
                kept = as_torchtitan(name, moment, heads)[1] if moment.dim() else moment
                state[f"optimizer.state.{titan}.{key}"] = kept
            state[f"optimizer.param_groups.{titan}.lr"] = LR
        dcp.save(state, checkpoint_id=tmp_path / "titan" / f"step-{BEFORE}")

    expected = plain_run(model, data.samples(STEPS * BATCH, SEQUENCE), save)
    more = ("--hf_config", models["llama"].folder, "--global_batch_size", BATCH)
    _, _, errors = program.run("convert", "--load", tmp_path / "titan", "--save", tmp_path / "x", expected=2)
    assert "does not record its architecture" in errors and "hf_config" in errors
    _, _, errors = program.run("convert", "--load", tmp_path / "titan", "--save", tmp_path / "x", *more[:2], expected=2)
    assert "global_batch_size" in errors
    other = ("--hf_config", models["llama_wide_heads"].folder, *more[2:])
    _, _, errors = program.run("convert", "--load", tmp_path / "titan", "--save", tmp_path / "x", *other, expected=2)
    assert "in the checkpoint, and [96, 64] in this model" in errors and not (tmp_path / "x").exists()
    losses, _ = go_on(program, tmp_path / "titan", data, tmp_path, convert=more)
    direct, saved = go_on(program, tmp_path / "titan", data, tmp_path, more=("--load_hf", models["llama"].folder))
    assert losses == pytest.approx(direct, abs=1e-6)
    assert losses == pytest.approx(expected[BEFORE:], abs=1e-5)
    weights = load_file(saved / "model.safetensors")
    for name, value in model.named_parameters():
        assert (weights[name] - value).abs().mean() < 2e-6, name


@pytest.mark.parametrize("stage", [2, 3])
def test_a_run_of_deepspeed_goes_on_here(stage, program, models, data, tmp_path):
    model = copy.deepcopy(models["llama"].reference).train()
    folder = tmp_path / "zero"
    expected = plain_run(model, data.samples(STEPS * BATCH, SEQUENCE), lambda o: zero_folder(folder, model, o, stage, 3))
    more = ("--load_hf", models["llama"].folder)
    losses, saved = go_on(program, folder, data, tmp_path, more=more)
    assert losses == pytest.approx(expected[BEFORE:], abs=1e-5)
    weights = load_file(saved / "model.safetensors")
    for name, value in model.named_parameters():
        assert (weights[name] - value).abs().mean() < 2e-6, name
    train = ("train", "--load", folder, *more, *common(data), "--dry_run")
    (folder / f"global_step{BEFORE}" / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()
    _, _, errors = program.run(*train, expected=2)
    assert "the optimizer states of rank 2 of 3 are missing" in errors
    (folder / "latest").write_text("global_step9")
    _, _, errors = program.run(*train, expected=2)
    assert "names 'global_step9'" in errors


def test_a_universal_checkpoint_of_deepspeed_goes_on_here(program, models, data, tmp_path):
    """By the documented layout (checkpoint/ds_to_universal.py): DeepSpeed is not installed here."""
    model = copy.deepcopy(models["llama"].reference).train()
    target = tmp_path / f"global_step{BEFORE}_universal"

    def save(optimizer):
        zero_folder(tmp_path / "zero", model, optimizer, 2, 1)
        target.mkdir()
        shutil.copy(tmp_path / "zero" / f"global_step{BEFORE}" / "mp_rank_00_model_states.pt", target)
        (tmp_path / "latest").write_text(target.name)
        for name, parameter in model.named_parameters():
            folder = target / "zero" / name
            folder.mkdir(parents=True)
            states = {"fp32": parameter.detach().clone(), **{key: optimizer.state[parameter][key] for key in MOMENTS}}
            for key, value in states.items():
                torch.save({"param": value, "cat_dim": 0}, folder / f"{key}.pt")
        torch.save({"param_groups": [{"step": BEFORE}]}, target / "zero" / "optimizer_state.pt")

    expected = plain_run(model, data.samples(STEPS * BATCH, SEQUENCE), save)
    shutil.rmtree(tmp_path / "zero")
    more = ("--hf_config", models["llama"].folder)
    program.run("convert", "--load", target, "--save", tmp_path / "again", *more)
    kept = load_file(tmp_path / "again" / "iter_0000003" / "master.safetensors")
    assert set(kept) == {name for name, _ in model.named_parameters()}
    losses, _ = go_on(program, target, data, tmp_path, more=("--load_hf", models["llama"].folder))
    assert losses == pytest.approx(expected[BEFORE:], abs=1e-5)


def test_frozen_parameters_of_zero_3_are_read(program, models, data, tmp_path):
    model = copy.deepcopy(models["llama"].reference).train()
    plain_run(model, data.samples(STEPS * BATCH, SEQUENCE), lambda o: zero_folder(tmp_path / "zero", model, o, 3, 3))
    name, states = "lm_head.weight", tmp_path / "zero" / f"global_step{BEFORE}"
    value = model.get_parameter(name).detach()
    padded = torch.cat([value.flatten(), value.new_zeros(-value.numel() % 3)]).chunk(3)
    for rank in range(3):
        path = states / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
        state = torch.load(path, weights_only=False)
        state["frozen_param_shapes"], state["frozen_param_fragments"] = {name: value.shape}, {name: padded[rank].clone()}
        place = [i for i, group in enumerate(state["param_shapes"]) if name in group][0]
        assert list(state["param_shapes"][place])[-1] == name  # what follows it in the vectors stays where it is
        del state["param_shapes"][place][name]
        torch.save(state, path)
    words = ("convert", "--load", tmp_path / "zero", "--save", tmp_path / "out", "--hf_config", models["llama"].folder)
    _, _, errors = program.run(*words, expected=2)
    assert f"exp_avg {name}" in errors and "no_save_optim" in errors
    program.run(*words, "--no_save_optim")
    found = load_file(tmp_path / "out" / "iter_0000003" / "model.safetensors")
    assert torch.equal(found[name], value)


def test_a_run_of_accelerates_fsdp_goes_on_here(program, models, data, tmp_path):
    import torch.distributed.checkpoint as dcp

    model = copy.deepcopy(models["llama"].reference).train()
    sharded, whole = tmp_path / "sharded" / f"checkpoint-{BEFORE}", tmp_path / "whole" / f"checkpoint-{BEFORE}"

    def save(optimizer):
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        weights = {name: value.detach().clone() for name, value in model.named_parameters()}
        moments = {names[id(p)]: copy.deepcopy(state) for p, state in optimizer.state.items()}
        groups = [{"lr": LR, "params": [names[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
        state = {"state": moments, "param_groups": groups}
        for folder in (sharded, whole):
            folder.mkdir(parents=True)
            (folder / "trainer_state.json").write_text(json.dumps({"global_step": BEFORE}))
        dcp.save({"model": weights}, checkpoint_id=sharded / "pytorch_model_fsdp_0")
        dcp.save({"optimizer": state}, checkpoint_id=sharded / "optimizer_0")
        half = len(weights) // 2
        for i, part in enumerate((list(weights.items())[:half], list(weights.items())[half:])):
            torch.save(dict(part), whole / f"pytorch_model-{i + 1:05}-of-00002.bin")
        torch.save(state, whole / "optimizer.bin")

    expected = plain_run(model, data.samples(STEPS * BATCH, SEQUENCE), save)
    for source in (sharded, whole):
        losses, _ = go_on(program, source, data, tmp_path, more=("--load_hf", models["llama"].folder))
        assert losses == pytest.approx(expected[BEFORE:], abs=1e-5)


def with_fused_experts(tensors):
    """Mixtral's tensors as transformers 5's classes have them: its WeightConverters for "mixtral", by hand."""
    renamed, experts = {}, collections.defaultdict(dict)
    for name, value in tensors.items():
        name = name.replace(".block_sparse_moe.", ".mlp.")
        if ".experts." in name:
            module, number, linear, _ = name.rsplit(".", 3)
            experts[module].setdefault(linear, {})[int(number)] = value
        else:
            renamed[name] = value
    for module, linears in experts.items():
        first, second, third = (torch.stack([by[i] for i in range(len(by))]) for by in (linears[w] for w in ("w1", "w2", "w3")))
        renamed[f"{module}.gate_up_proj"], renamed[f"{module}.down_proj"] = torch.cat([first, third], 1), second
    return renamed


def test_fused_experts_of_transformers_5_are_read_and_written(program, models, data, tmp_path):
    """In FSDP's folders and in the numbered states of its Trainer, whose order is that of its modules."""
    import torch.distributed.checkpoint as dcp

    model = copy.deepcopy(models["mixtral"].reference).train()
    named, numbered = (tmp_path / name / f"checkpoint-{BEFORE}" for name in ("named", "numbered"))

    def save(optimizer):
        parameters = dict(model.named_parameters())
        weights = with_fused_experts({name: value.detach().clone() for name, value in parameters.items()})
        states = {key: with_fused_experts({n: optimizer.state[p][key] for n, p in parameters.items()}) for key in MOMENTS}
        count = {"step": torch.tensor(float(BEFORE))}
        moments = {name: {**count, **{key: states[key][name] for key in MOMENTS}} for name in weights}
        for folder in (named, numbered):
            folder.mkdir(parents=True)
            (folder / "trainer_state.json").write_text(json.dumps({"global_step": BEFORE}))
        dcp.save({"model": weights}, checkpoint_id=named / "pytorch_model_fsdp_0")
        dcp.save({"optimizer": {"state": moments, "param_groups": [{"lr": LR}]}}, checkpoint_id=named / "optimizer_0")
        shutil.copy(models["mixtral"].folder / "config.json", numbered)
        save_file({name: value.contiguous() for name, value in weights.items()}, numbered / "model.safetensors")
        layers = sorted({name.split(".")[2] for name in weights if ".layers." in name}, key=int)
        of_layer = [f"self_attn.{x}_proj.weight" for x in "qkvo"] + ["mlp.gate.weight", "mlp.experts.gate_up_proj"]
        of_layer += ["mlp.experts.down_proj", "input_layernorm.weight", "post_attention_layernorm.weight"]
        order = ["model.embed_tokens.weight", *(f"model.layers.{i}.{x}" for i in layers for x in of_layer)]
        order += ["model.norm.weight", "lm_head.weight"]
        assert set(order) == set(weights)
        groups = [[n for n in order if weights[n].dim() > 1], [n for n in order if weights[n].dim() == 1]]
        number = {name: i for i, name in enumerate(groups[0] + groups[1])}
        state = {"state": {number[name]: moments[name] for name in order}}
        state["param_groups"] = [{"lr": LR, "params": [number[name] for name in group]} for group in groups]
        torch.save(state, numbered / "optimizer.pt")

    expected = plain_run(model, data.samples(STEPS * BATCH, SEQUENCE), save)
    losses, _ = go_on(program, named, data, tmp_path, more=("--load_hf", models["mixtral"].folder))
    assert losses == pytest.approx(expected[BEFORE:], abs=1e-5)
    losses, saved = go_on(program, numbered, data, tmp_path)
    assert losses == pytest.approx(expected[BEFORE:], abs=1e-5)
    # The way back, and back again.
    program.run("convert", "--load", saved, "--to", "dcp_fused", "--save", tmp_path / "out")
    ours = {key: with_fused_experts(load_file(saved / f"{key}.safetensors")) for key in ("model", *MOMENTS)}
    wanted = {f"model.{name}": torch.empty_like(value) for name, value in ours["model"].items()}
    wanted |= {f"optimizer.state.{n}.{key}": torch.empty_like(value) for key in MOMENTS for n, value in ours[key].items()}
    dcp.load(wanted, checkpoint_id=tmp_path / "out", no_dist=True)
    for key, tensors in ours.items():
        for name, value in tensors.items():
            assert torch.equal(wanted[f"model.{name}" if key == "model" else f"optimizer.state.{name}.{key}"], value), name
    words = ("--hf_config", models["mixtral"].folder, "--global_batch_size", BATCH)
    program.run("convert", "--load", tmp_path / "out", "--save", tmp_path / "back", *words)
    for key in ("model", *MOMENTS):
        found, kept = (load_file(folder / f"{key}.safetensors") for folder in (tmp_path / "back" / LAST, saved))
        assert found.keys() == kept.keys() and all(torch.equal(found[name], value) for name, value in kept.items())


def test_another_trainers_weights_begin_a_run(program, models, megatron, data, tmp_path):
    folder = megatron("llama").folder / "fully_reshardable"
    words = ("--pretrained_checkpoint", folder, "--save", tmp_path / "own", *common(data))
    shape = ("--load_hf", models["llama"].folder)
    _, _, errors = program.run("train", *words, *shape, expected=2)
    assert "load_hf and pretrained_checkpoint both give the weights" in errors
    model = (
        *("--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4, "--ffn_hidden_size", 48, "--vocab_size", VOCABULARY),
        *("--max_position_embeddings", SEQUENCE, "--group_query_attention", "--num_query_groups", 2, "--swiglu"),
        *("--normalization", "RMSNorm", "--position_embedding_type", "rope", "--disable_bias_linear"),
        "--untie_embeddings_and_output_weights",
    )
    _, _, errors = program.run("train", *words, *model, "--num_layers", 3, "--dry_run", expected=2)
    assert "num_layers is 2 in the checkpoint and 3 here" in errors
    _, shown, errors = program.run("train", *words, *model, "--metrics_file", tmp_path / "metrics.jsonl")
    assert "starting at iteration 0" in shown + errors and "of its tensors are read" in shown + errors
    own = read_metrics(tmp_path / "metrics.jsonl")
    assert own[0]["iteration"] == 1
    program.run("convert", "--load", folder, "--save_hf", tmp_path / "hf")
    program.run("train", "--load_hf", tmp_path / "hf", *common(data), "--metrics_file", tmp_path / "same.jsonl")
    assert [line["lm_loss"] for line in own] == [line["lm_loss"] for line in read_metrics(tmp_path / "same.jsonl")]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_a_run_of_transformers_trainer_goes_on_here(name, program, models, data, tmp_path):
    from transformers import Trainer, TrainingArguments

    model = copy.deepcopy(models[name].reference).train()
    samples = torch.as_tensor(data.samples(STEPS * BATCH, SEQUENCE)).tolist()

    # The first label has no prediction, but the Trainer would count it among what it divides by.
    rows = [{"input_ids": row, "labels": [-100, *row[1:]]} for row in samples]

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(samples)

    arguments = TrainingArguments(
        output_dir=tmp_path / "hf", use_cpu=True, per_device_train_batch_size=BATCH, max_steps=STEPS, save_steps=BEFORE,
        learning_rate=LR, lr_scheduler_type="constant", weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95,
        adam_epsilon=1e-8, max_grad_norm=1.0, logging_steps=1, report_to=[], seed=1,
    )  # fmt: skip
    trainer = InOrder(model, arguments, train_dataset=rows)
    trainer.train()
    expected = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    source = tmp_path / "hf" / f"checkpoint-{BEFORE}"
    losses, saved = go_on(program, source, data, tmp_path, convert=("--global_batch_size", BATCH) if name == "gpt2" else None)
    assert losses == pytest.approx(expected[BEFORE:], abs=2e-4)  # the log rounds to four digits
    weights = load_file(saved / "model.safetensors")
    for key, value in model.named_parameters():
        if not key.endswith("c_attn.bias"):
            assert (weights[key] - value).abs().mean() < 2e-6, key
    if name == "llama":  # what its optimizer's groups record
        changed = {LR: LR / 2, 0.1: 0.3, 0.95: 0.99}
        _, shown, errors = program.run("train", "--load", source, *(changed.get(word, word) for word in common(data)))
        for said in ("lr was 0.002 in the checkpoint and is 0.001 now", "weight_decay was 0.1", "adam_beta2 was 0.95"):
            assert said in shown + errors, shown + errors
    # An optimizer of other parameters: only the weights can be taken.
    torch.save({"state": {}, "param_groups": [{"params": [0]}]}, source / "optimizer.pt")
    words = ("convert", "--load", source, "--save", tmp_path / "weights")
    _, _, errors = program.run(*words, "--global_batch_size", BATCH, expected=2)
    assert "it has 1 parameters" in errors and "no_save_optim" in errors
    program.run(*words, "--no_save_optim")


def test_convert_holds_one_tensor_at_a_time(program, tmp_path):
    benchmark = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "benchmarks" / "foreign.py"))
    peaks = []
    for name, sizes in (("tiny", (1, 64, 128, 4, 256)), ("large", (6, 640, 1792, 10, 640))):
        largest = benchmark["make"](tmp_path / name, *sizes)
        peaks.append(benchmark["convert"](program.path, tmp_path / name, tmp_path / "out")[1])
        shutil.rmtree(tmp_path / name)
    # 97 MB in weights of 1.6 and 4.6 MB, and twice that in moments.
    assert peaks[1] - peaks[0] < largest + 40e6, peaks
