"""Damaged and unfit checkpoints of other trainers, and targets that cannot be written: each is refused with exit code 2 and a
message that names what is wrong, and nothing is written."""

import copy
import datetime
import json
import pickle
import resource
import shutil
import sys
import types
import unittest.mock
import zipfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from foreign_runs import BATCH, BEFORE, SEQUENCE, STEPS, as_torchtitan, plain_run, tune_states, zero_folder
from refusals import refused
from safetensors.torch import save_file
from ways_out_test import LLAMA, SIZES

TRAIN = ("--mock_data", "--seq_length", 24, "--train_iters", 1, "--eval_iters", 0, "--device", "cpu", "--global_batch_size", 2)


def legacy_folder(source, target):
    """As Megatron-LM saves a file a rank, without a distributed optimizer."""
    common = torch.load(source / "common.pt", weights_only=False)
    described = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
    wanted = {name: torch.empty(kept.size) for name, kept in described.items() if hasattr(kept, "size") and "optimizer" not in name}
    dcp.load(wanted, checkpoint_id=source, no_dist=True)
    # megatron-core's own modules have the norms before; a name is taken once.
    order = (
        *("input_layernorm.weight", "self_attention.linear_proj.weight", "self_attention.linear_qkv.weight"),
        *("pre_mlp_layernorm.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"),
    )
    model = {"embedding.word_embeddings.weight": wanted["embedding.word_embeddings.weight"]}
    for layer in range(2):
        model |= {f"decoder.layers.{layer}.{rest}": wanted[f"decoder.layers.{rest}"][layer].clone() for rest in order}
    model |= {name: wanted[name] for name in ("decoder.final_layernorm.weight", "output_layer.weight")}
    matrices = [name for name, value in model.items() if value.dim() > 1]
    names = matrices + [name for name in model if name not in matrices]
    states = {i: {key: torch.zeros_like(model[name]) for key in ("exp_avg", "exp_avg_sq")} for i, name in enumerate(names)}
    groups = [
        {"wd_mult": 1.0, "step": 1, "params": list(range(len(matrices)))},
        {"wd_mult": 0.0, "step": 1, "params": list(range(len(matrices), len(names)))},
    ]
    state = {"args": common["args"], "iteration": 1, "model": model, "optimizer": {"state": states, "param_groups": groups}}
    (target / "mp_rank_00").mkdir(parents=True)
    torch.save(state, target / "mp_rank_00" / "model_optim_rng.pt")


@pytest.fixture(scope="module")
def sources(program, models, data, tmp_path_factory):
    """A sound folder of each kind; the words that it needs."""
    root = tmp_path_factory.mktemp("sound")
    program.run("train", *SIZES, *LLAMA, *TRAIN, "--save", root / "ours")
    program.run("convert", "--load", root / "ours", "--to", "torch_dist", "--save", root / "megatron")
    legacy_folder(root / "megatron" / "iter_0000001", root / "legacy")
    model = copy.deepcopy(models["llama"].reference).train()
    described = ("--hf_config", models["llama"].folder)
    trainer = root / "trainer"
    shutil.copytree(models["llama"].folder, trainer, ignore=shutil.ignore_patterns("*.safetensors*"))
    (trainer / "trainer_state.json").write_text(json.dumps({"global_step": BEFORE}))

    tune, peft = root / "tune" / "epoch_0", root / "peft" / f"checkpoint-{BEFORE}"
    for folder in (tune, peft):
        folder.mkdir(parents=True)
    save_file({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.zeros(2, 64)}, peft / "adapter_model.safetensors")
    (peft / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}))
    (peft / "trainer_state.json").write_text(json.dumps({"global_step": BEFORE}))

    def save(optimizer):
        zero_folder(root / "zero", model, optimizer, 2, 2)
        states = tune_states(model, optimizer)
        torch.save({"optimizer": {"state": states, "param_groups": []}, "seed": 7, "epochs_run": 1}, tune / "recipe_state.pt")
        torch.save({name: value.detach().clone() for name, value in model.named_parameters()}, tune / "model-00001-of-00001.bin")
        torch.save(optimizer.state_dict(), trainer / "optimizer.pt")
        heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
        state = {"train_state": {"step": BEFORE}}
        for name, parameter in model.named_parameters():
            titan, value = as_torchtitan(name, parameter, heads)
            state[titan] = value
            for key, moment in optimizer.state[parameter].items():
                state[f"optimizer.state.{titan}.{key}"] = as_torchtitan(name, moment, heads)[1] if moment.dim() else moment.clone()
        dcp.save(state, checkpoint_id=root / "titan" / f"step-{BEFORE}")

    plain_run(model, data.samples(STEPS * BATCH, SEQUENCE), save)
    save_file({name: value.detach().clone() for name, value in model.named_parameters()}, trainer / "model.safetensors")
    batch = ("--global_batch_size", BATCH)
    return {
        "megatron": (root / "megatron", "iter_0000001", ()),
        "legacy": (root / "legacy", "mp_rank_00", ()),
        "titan": (root / "titan", f"step-{BEFORE}", (*described, *batch)),
        "zero": (root / "zero", f"global_step{BEFORE}", described),
        "trainer": (trainer, "", batch),
        "tune": (root / "tune", "epoch_0", (*described, *batch)),
        "peft": (root / "peft", f"checkpoint-{BEFORE}", batch),
        "ours": (root / "ours", "iter_0000001", ()),
    }


def test_the_sound_folders_are_read(sources, program, tmp_path):
    for name, (folder, _, words) in sources.items():
        if name == "peft":
            continue  # adapters have no form without their model
        program.run("convert", "--load", folder, "--save", tmp_path / name, *words)


# Changes of a folder's file.


def cut(name, share=0.5):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return change


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def remove(name):
    return lambda folder: (folder / name).unlink()


def metadata(edit):
    def change(folder):
        kept = pickle.loads((folder / ".metadata").read_bytes())
        edit(kept)
        (folder / ".metadata").write_bytes(pickle.dumps(kept))

    return change


def archive(name, edit):
    """Edits what torch.save wrote; what the edit returns, if anything, replaces it."""

    def change(folder):
        kept = torch.load(folder / name, weights_only=False)
        made = edit(kept)
        torch.save(kept if made is None else made, folder / name)

    return change


def arguments(**values):
    return archive("common.pt", lambda kept: [setattr(kept["args"], key, value) for key, value in values.items()] and None)


def entry(name, edit):
    """Edits an entry of the zip file: its content, or None to leave it out."""

    def change(folder):
        with zipfile.ZipFile(folder / name) as old:
            entries = [(info.filename, old.read(info)) for info in old.infolist()]
        with zipfile.ZipFile(folder / name, "w") as new:
            for path, content in entries:
                content = edit(path.split("/", 1)[1], content)
                if content is not None:
                    new.writestr(path, content)

    return change


def every_entry_compressed(folder):
    path = folder / "model_optim_rng.pt"
    with zipfile.ZipFile(path) as old:
        entries = [(info.filename, old.read(info)) for info in old.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in entries:
            new.writestr(name, content)


def set_item(*path, value):
    def edit(kept):
        for key in path[:-1]:
            kept = kept[key]
        kept[path[-1]] = value

    return edit


def drop(*path):
    def edit(kept):
        for key in path[:-1]:
            kept = kept[key]
        del kept[path[-1]]

    return edit


def drop_tensors(*parts):
    """Tensors whose names hold all of these, with their places."""

    def edit(kept):
        for name in [name for name in kept.state_dict_metadata if all(part in name for part in parts)]:
            del kept.state_dict_metadata[name]
            for index in [index for index in kept.storage_data if index.fqn == name]:
                del kept.storage_data[index]

    return edit


def place(**values):
    def edit(kept):
        for index, info in kept.storage_data.items():
            if index.fqn == "decoder.final_layernorm.weight":
                for key, value in values.items():
                    object.__setattr__(info, key, value)

    return edit


def larger(kept):
    kept.state_dict_metadata["decoder.final_layernorm.weight"].size = torch.Size([64])


def megatron_fsdp(kept):
    """The names of torch.distributed.checkpoint in its folders, as megatron-core's fsdp_dtensor_checkpoint.py has them."""
    name = "model.module.module.decoder.layers.0.mlp.linear_fc1.weight"
    kept.state_dict_metadata[name] = kept.state_dict_metadata["norm.weight"]
    for index in [index for index in kept.storage_data if index.fqn == "norm.weight"]:
        kept.storage_data[type(index)(name, index.offset, index.index)] = kept.storage_data[index]


def second_rank(edit):
    """Two tensor-parallel ranks, the second with what the edit makes of the first."""

    def change(folder):
        state = torch.load(folder / "model_optim_rng.pt", weights_only=False)
        state["args"].tensor_model_parallel_size = 2
        torch.save(state, folder / "model_optim_rng.pt")
        edit(state)
        (folder.parent / "mp_rank_01").mkdir()
        torch.save(state, folder.parent / "mp_rank_01" / "model_optim_rng.pt")

    return change


def other_cut(kept):
    kept["model"]["decoder.layers.0.mlp.linear_fc1.weight"] = torch.zeros(66, 32)
    del kept["optimizer"]


def as_before_groups(kept):
    """A projection by the older name, of version 0."""
    name = "decoder.layers.0.self_attention."
    kept["model"][f"{name}query_key_value.weight"] = kept["model"].pop(f"{name}linear_qkv.weight")
    del kept["optimizer"]


def eight_bits(kept):
    for state in kept["optimizer"]["state"].values():
        state["state1"] = state.pop("exp_avg").to(torch.uint8)


def tune_class(module):
    """An optimizer's state in a class of that module."""

    def change(folder):
        made = type("OptimState8bit", (), {"__module__": module})
        parts = module.split(".")
        modules = {".".join(parts[:count]): types.ModuleType(module) for count in range(1, len(parts) + 1)}
        modules[module].OptimState8bit = made
        with unittest.mock.patch.dict(sys.modules, modules):
            archive("recipe_state.pt", set_item("optimizer", "state", 0, "exp_avg", value=made()))(folder)

    return change


# A pickle of a million nested tuples.
DEEP = b"\x80\x02" + b")" + b"\x85" * 1_000_000 + b"."


def old_format(folder):
    state = torch.load(folder / "model_optim_rng.pt", weights_only=False)
    torch.save(state, folder / "model_optim_rng.pt", _use_new_zipfile_serialization=False)


def not_a_number(folder):
    state = torch.load(folder / "model_optim_rng.pt", weights_only=False)
    state["model"]["output_layer.weight"][3, 5] = float("nan")
    torch.save(state, folder / "model_optim_rng.pt")


def pickled(value):
    return pickle.dumps(value, protocol=2)


RANK, NORM = "model_optim_rng.pt", "decoder.final_layernorm.weight"
ZERO = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
STATE = ("optimizer_state_dict", "base_optimizer_state", "state", 0)

# (source, what, change of the checkpoint's folder, parts of the message, more words)
CASES = [
    ("megatron", "cut metadata", cut(".metadata"), [".metadata"]),
    ("megatron", "empty metadata", write(".metadata", b""), [".metadata"]),
    ("megatron", "metadata that runs a command", write(".metadata", b"cposix\nsystem\n(S'true'\ntR."), ["posix.system"]),
    ("megatron", "metadata of another class", write(".metadata", pickled(datetime.date(2026, 1, 2))), ["datetime.date"]),
    ("megatron", "metadata that is a number", write(".metadata", pickled(7)), ["holds no Metadata"]),
    ("megatron", "deep metadata", write(".metadata", DEEP), ["holds no Metadata"]),
    ("megatron", "a larger tensor", metadata(larger), [NORM]),
    ("megatron", "a box in no file", metadata(lambda kept: drop("storage_data")(vars(kept))), ["storage_data"]),
    ("megatron", "a file of another folder", metadata(place(relative_path="../iter_0000001/x")), ["not the name of a file"]),
    ("megatron", "an absolute path", metadata(place(relative_path="/etc/passwd")), ["not the name of a file"]),
    ("megatron", "a place beyond the file", metadata(place(offset=1 << 40)), [NORM]),
    ("megatron", "a negative place", metadata(place(offset=-5)), [NORM]),
    ("megatron", "stored transformed", metadata(place(transform_descriptors=["zstd"])), ["stored transformed (zstd)"]),
    ("megatron", "a missing file", remove("__0_0.distcp"), ["__0_0.distcp is missing"]),
    ("megatron", "a cut file", cut("__0_0.distcp", 0.1), ["__0_0.distcp"]),
    ("megatron", "a file of zeros", write("__0_0.distcp", bytes(200_000)), ["__0_0.distcp"]),
    ("megatron", "no weights of a norm", metadata(drop_tensors(NORM)), ["model.norm.weight"]),
    ("megatron", "no moments of a norm", metadata(drop_tensors("exp_avg_sq", NORM)), ["exp_avg_sq model.norm", "no_save_optim"]),
    ("megatron", "no moments", metadata(drop_tensors("exp_avg")), ["exp_avg", "no_save_optim"]),
    ("megatron", "common.pt that is missing", remove("common.pt"), ["does not record its architecture"]),
    ("megatron", "a cut common.pt", cut("common.pt"), ["common.pt"]),
    ("megatron", "another class in common.pt", archive("common.pt", set_item("date", value=datetime.date(2026, 1, 2))), ["datetime.date"]),
    ("megatron", "no args", archive("common.pt", drop("args")), ["does not record its architecture"]),
    ("megatron", "another depth", arguments(num_layers=3), ["[2, 32]", "[3, 32]"]),
    ("megatron", "another width", arguments(hidden_size=64), ["32", "64"]),
    ("megatron", "other groups of queries", arguments(num_query_groups=4), ["in the checkpoint, and"]),
    ("megatron", "experts that are not there", arguments(num_experts=4, moe_router_topk=2), ["model.layers.0"]),
    ("megatron", "no count of heads", arguments(num_attention_heads="many"), ["num_attention_heads"]),
    ("megatron", "a negative depth", arguments(num_layers=-2), ["num_layers"]),
    ("megatron", "no vocabulary", arguments(vocab_size=None, padded_vocab_size=None), ["vocab_size"]),
    ("megatron", "a negative iteration", archive("common.pt", set_item("iteration", value=-4)), ["common.pt"]),
    ("megatron", "an endless iteration", archive("common.pt", set_item("iteration", value=1e300)), ["common.pt"]),
    ("megatron", "a tracker of another iteration", write("../latest_checkpointed_iteration.txt", "7"), ["no checkpoint of iteration 7"]),
    ("megatron", "a tracker of words", write("../latest_checkpointed_iteration.txt", "three"), ['holds "three"']),
    ("megatron", "an empty tracker", write("../latest_checkpointed_iteration.txt", ""), ["not an iteration"]),
    ("megatron", "another iteration", None, ["iteration 9"], ("--ckpt_step", 9)),
    ("legacy", "a cut file", cut(RANK), [RANK]),
    ("legacy", "a file of text", write(RANK, "hello"), [RANK]),
    ("legacy", "an empty file", write(RANK, ""), [RANK]),
    ("legacy", "torch.save before 1.6", old_format, [RANK]),
    ("legacy", "compressed entries", every_entry_compressed, ["compressed"]),
    ("legacy", "a storage that is missing", entry(RANK, lambda name, data: None if name == "data/3" else data), ["storage 3 is missing"]),
    ("legacy", "a storage that is cut", entry(RANK, lambda name, data: data[:8] if name == "data/1" else data), ["does not fit storage 1"]),
    ("legacy", "no pickle", entry(RANK, lambda name, data: None if name == "data.pkl" else data), ["data.pkl"]),
    ("legacy", "a cut pickle", entry(RANK, lambda name, data: data[:50] if name == "data.pkl" else data), ["data.pkl"]),
    ("legacy", "a deep pickle", entry(RANK, lambda name, data: DEEP if name == "data.pkl" else data), ["does not record"]),
    ("legacy", "another class", archive(RANK, set_item("date", value=datetime.date(2026, 1, 2))), ["datetime.date"]),
    ("legacy", "no args", archive(RANK, drop("args")), ["does not record its architecture"]),
    ("legacy", "no model", archive(RANK, drop("model")), ["has no model"]),
    ("legacy", "a list", archive(RANK, lambda kept: [kept["model"]]), ["does not record"]),
    ("legacy", "a layer that is missing", archive(RANK, drop("model", "decoder.layers.1.mlp.linear_fc2.weight")), ["layers.1.mlp.down_proj"]),
    ("legacy", "another shape", archive(RANK, set_item("model", "output_layer.weight", value=torch.zeros(132, 16))), ["[132, 16]"]),
    ("legacy", "fewer rows than the vocabulary", archive(RANK, set_item("model", "output_layer.weight", value=torch.zeros(7, 32))), ["[7, 32]"]),
    ("legacy", "whole numbers", archive(RANK, set_item("model", "output_layer.weight", value=torch.zeros(132, 32).int())), ["lm_head.weight"]),
    ("legacy", "not a number", not_a_number, ["lm_head.weight", "allow_nonfinite_weights"]),
    ("legacy", "a rank that is missing", archive(RANK, lambda kept: setattr(kept["args"], "tensor_model_parallel_size", 2)), ["mp_rank_01", "missing"]),
    ("legacy", "a stage that is missing", archive(RANK, lambda kept: setattr(kept["args"], "pipeline_model_parallel_size", 2)), ["mp_rank_00_000", "missing"]),
    ("legacy", "ranks that do not cut alike", second_rank(other_cut), ["[66, 32]"]),
    ("legacy", "a rank of another model", second_rank(drop("model", "output_layer.weight")), ["the first rank's file"]),
    ("legacy", "whole tensors of two ranks", second_rank(lambda kept: None), ["in the checkpoint, and"]),
    ("legacy", "other groups of parameters", archive(RANK, set_item("optimizer", "param_groups", 0, "params", value=[0, 1])), ["no_save_optim"]),
    ("legacy", "states that are lost", archive(RANK, drop("optimizer", "state", 1)), ["exp_avg", "no_save_optim"]),
    ("legacy", "states of another shape", archive(RANK, set_item("optimizer", "state", 0, "exp_avg", value=torch.zeros(2, 2))), ["[2, 2]"]),
    ("legacy", "buffers of another length", lambda folder: torch.save({0: {"float": {"exp_avg": torch.zeros(9)}}}, folder / "distrib_optim.pt"), ["has [9] elements", "no_save_optim"]),
    ("legacy", "more buffers than chunks", lambda folder: torch.save({0: {"float": {}}, 1: {"float": {}}}, folder / "distrib_optim.pt"), ["more buffers", "no_save_optim"]),
    ("legacy", "a version of no trainer", archive(RANK, set_item("checkpoint_version", value=1.5)), ["checkpoint_version is neither"]),
    ("legacy", "rows of heads before groups", archive(RANK, as_before_groups), ["older than groups of queries", "num_query_groups 2"]),
    ("legacy", "a BERT's head", archive(RANK, set_item("model", "lm_head.dense.weight", value=torch.zeros(32, 32))), ["model_type bert"]),
    ("tune", "no weights", remove("model-00001-of-00001.bin"), ["model.safetensors"]),
    ("tune", "a cut state", cut("recipe_state.pt"), ["recipe_state.pt"]),
    ("tune", "a state of text", write("recipe_state.pt", "hello"), ["recipe_state.pt"]),
    ("tune", "a class of torchao", tune_class("torchao.optim.subclass_8bit"), ["torchao.optim.subclass_8bit"]),
    ("tune", "no optimizer", archive("recipe_state.pt", drop("optimizer")), ["it holds no optimizer's state", "no_save_optim"]),
    ("tune", "states of fewer parameters", archive("recipe_state.pt", drop("optimizer", "state", 3)), ["exp_avg", "no_save_optim"]),
    ("tune", "moments of 8 bits", archive("recipe_state.pt", eight_bits), ["moments of 8 bits (bitsandbytes)", "no_save_optim"]),
    ("tune", "a negative step", archive("recipe_state.pt", set_item("steps_run", value=-1)), ["steps_run"]),
    ("tune", "no count of samples", None, ["global_batch_size"], "--hf_config"),
    ("peft", "adapters without their model", None, ["holds adapters, not a model", "merge_adapter"]),
    ("titan", "no architecture", None, ["does not record its architecture", "hf_config"], None),
    ("titan", "a file that is missing", remove("__0_0.distcp"), ["__0_0.distcp is missing"]),
    ("titan", "no weights of a norm", metadata(drop_tensors("ffn_norm")), ["post_attention_layernorm"]),
    ("titan", "Megatron-FSDP's form", metadata(megatron_fsdp), ["fsdp_dtensor of Megatron-FSDP without Megatron-LM's args"]),
    ("titan", "no count of samples", None, ["global_batch_size"], "--hf_config"),
    ("zero", "a rank that is missing", remove(ZERO), ["rank 1 of 2 are missing"]),
    ("zero", "a cut rank", cut(ZERO), [ZERO]),
    ("zero", "a vector that is short", archive(ZERO, set_item(*STATE, "exp_avg", value=torch.zeros(9))), ["no_save_optim"]),
    ("zero", "a matrix for a vector", archive(ZERO, set_item(*STATE, "exp_avg", value=torch.zeros(3, 3))), ["is no vector"]),
    ("zero", "no shapes", archive("mp_rank_00_model_states.pt", drop("param_shapes")), ["param_shapes is missing"]),
    ("zero", "a file of another model-parallel rank", write("mp_rank_01_model_states.pt", ""), ["mp_rank_01_model_states.pt", "load_hf"]),
    ("zero", "latest names nothing", write("../latest", "global_step9"), ["names 'global_step9'"]),
    ("trainer", "no weights", remove("model.safetensors"), ["model.safetensors"]),
    ("trainer", "cut weights", cut("model.safetensors"), ["model.safetensors"]),
    ("trainer", "a state that is no JSON", write("trainer_state.json", "{"), ["trainer_state.json"]),
    ("trainer", "a negative step", write("trainer_state.json", '{"global_step": -1}'), ["global_step"]),
    ("trainer", "a class that is not known", write("config.json", '{"architectures": ["Unknown"], "model_type": "unknown"}'), ["nknown"]),
    ("trainer", "an optimizer of other parameters", archive("optimizer.pt", set_item("param_groups", 0, "params", value=[0])), ["no_save_optim"]),
    ("trainer", "another class in the optimizer", archive("optimizer.pt", set_item("date", value=datetime.date(2026, 1, 2))), ["datetime.date"]),
    ("trainer", "a step that differs", archive("optimizer.pt", set_item("state", 0, "step", value=torch.tensor(9.0))), ["updated", "no_save_optim"]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}: {case[1]}" for case in CASES])
def test_a_damaged_checkpoint_is_refused(case, sources, program, tmp_path):
    source, _, change, parts, *more = case
    folder, below, words = sources[source]
    if more and isinstance(more[0], str):  # without what follows this word's value
        words = words[: words.index(more[0]) + 2]
    elif more:
        words = more[0] or words[2:]
    damaged = tmp_path / "copy"
    shutil.copytree(folder, damaged)
    if change is not None:
        change(damaged / below)
    refused(program, ("convert", "--load", damaged, "--save", tmp_path / "out", *words), parts, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


TARGETS = ["checkpoint", "hf", "gguf", "torchtitan", "dcp", "dcp_fused", "torch_dist"]


@pytest.mark.parametrize("form", TARGETS)
def test_a_target_that_cannot_be_written_is_refused(form, sources, program, tmp_path):
    words = ("convert", "--load", sources["ours"][0], "--to", form, "--save")
    (tmp_path / "file").write_text("mine")
    refused(program, (*words, tmp_path / "file" / "below"), ["file"], tmp_path)
    assert (tmp_path / "file").read_text() == "mine"
    # A full disk.
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # noqa: E731
    code, _, errors = program.run(*words, tmp_path / "full", expected=None, preexec_fn=limit)
    assert code in (1, 2) and "error: " in errors and str(tmp_path) in errors, (code, errors)
    assert sorted(path.name for path in tmp_path.rglob("*") if "lock" not in path.name) in (["file"], ["file", "full"])
