"""Runs of other trainers go on here: they train three steps and save, and our next two steps equal theirs."""

import copy
import json
import pathlib
import shutil
import subprocess
import sys

import hf_models
import pytest
import torch
from program import read_metrics
from ranks import run_ranks
from safetensors.torch import load_file

RUNNER = pathlib.Path(__file__).with_name("megatron_core_run.py")
VOCABULARY, SEQUENCE, BATCH, BEFORE, STEPS, LR = 132, 24, 4, 3, 5, 2e-3


def common(data, steps=STEPS):
    return (
        *("--data_path", data.prefix, "--split", "100,0,0", "--fp32", "--seq_length", SEQUENCE, "--micro_batch_size", 2),
        *("--global_batch_size", BATCH, "--train_iters", steps, "--lr", LR, "--min_lr", 0, "--lr_decay_style", "constant"),
        *("--weight_decay", 0.1, "--clip_grad", 1.0, "--adam_beta1", 0.9, "--adam_beta2", 0.95, "--adam_eps", 1e-8),
        *("--eval_iters", 0, "--hidden_dropout", 0, "--attention_dropout", 0, "--device", "cpu"),
    )


class MegatronRun:
    """A model that megatron-core trained on `world` tensor-parallel ranks, saved in several forms."""

    def __init__(self, folder, name, world, distributed, forms, data, load=None):
        self.folder, self.later = folder, folder / "later"
        samples = data.samples(STEPS * BATCH, SEQUENCE)
        spec = dict(
            model=name, world=world, distributed=distributed, store=str(folder / "store"), losses=str(folder / "losses.json"),
            samples=torch.as_tensor(samples).tolist(), saves={str(folder / form): form for form in forms},
            later=str(self.later), later_form=forms[0],
        )  # fmt: skip
        if load is not None:
            spec.update(load=str(load), saves={})
        ranks = []
        for rank in range(world):
            (folder / f"spec{rank}.json").write_text(json.dumps({**spec, "rank": rank}))
            with open(folder / f"log{rank}", "wb") as log:
                words = [sys.executable, str(RUNNER), str(folder / f"spec{rank}.json")]
                ranks.append(subprocess.Popen(words, stdout=log, stderr=log))
        codes = [rank.wait(timeout=240) for rank in ranks]
        assert codes == [0] * world, (folder / "log0").read_text()[-4000:]
        self.losses = json.loads((folder / "losses.json").read_text())


RUNS = {
    "llama": (1, True, ["fully_reshardable", "legacy", "dp_zero_gather_scatter"]),
    "mixtral": (1, True, ["fully_reshardable", "legacy"]),
    "gpt": (2, False, ["fully_reshardable", "legacy"]),
    "llama_tp2": (2, True, ["fully_reshardable", "legacy"]),
}


@pytest.fixture(scope="module")
def megatron(tmp_path_factory, data):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed ('make tools' says why)")
    made = {}

    def make(name):
        if name not in made:
            world, distributed, forms = RUNS[name]
            folder = tmp_path_factory.mktemp(name)
            made[name] = MegatronRun(folder, name.split("_")[0], world, distributed, forms, data)
        return made[name]

    return make


def assert_same_states(ours, theirs, names=("model", "exp_avg", "exp_avg_sq")):
    for name in names:
        found, expected = load_file(ours / f"{name}.safetensors"), load_file(theirs / f"{name}.safetensors")
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            if key.endswith(("k_proj.bias", "c_attn.bias")):
                continue  # a bias of keys moves all scores of a query alike: its gradient is rounding
            # Two steps of Adam move a weight by at most 2 LR = 4e-3.
            difference = (found[key] - value).abs()
            assert difference.mean() < 1e-6 and difference.max() < 4e-5, (name, key, difference.max(), difference.mean())


def go_on(program, folder, data, tmp_path, ranks=1, convert=()):
    """Converts another trainer's checkpoint, trains the last two steps, and gives the losses and the checkpoint."""
    converted, saved, metrics = (tmp_path / name for name in ("converted", "saved", "metrics.jsonl"))
    _, output, errors = program.run("convert", "--load", folder, "--save", converted, *convert)
    assert "of its tensors are read" in output + errors
    words = ("train", "--load", converted, *common(data), "--metrics_file", metrics, "--save", saved)
    if ranks == 1:
        program.run(*words)
    else:
        run_ranks(program, ranks, *words, "--use_distributed_optimizer", "--pipeline_model_parallel_size", 2)
    lines = read_metrics(metrics)
    assert [line["iteration"] for line in lines] == [BEFORE + 1, BEFORE + 2]
    return [line["lm_loss"] for line in lines], saved / "iter_0000005"


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
    losses, saved = go_on(program, run.folder / form, data, tmp_path, ranks)
    assert losses == pytest.approx(run.losses[BEFORE:], abs=1e-5)
    program.run("convert", "--load", run.later, "--save", tmp_path / "theirs")
    if ranks == 1:
        assert_same_states(saved, tmp_path / "theirs" / "iter_0000005")


def test_what_is_missing_is_refused_by_name(program, megatron, data, tmp_path):
    buckets, whole = (megatron("llama").folder / form for form in ("dp_zero_gather_scatter", "fully_reshardable"))
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
    _, _, errors = program.run("train", "--load", whole, *common(data), expected=2)
    assert f"convert --load {whole} --save DIR" in errors


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


def test_inspect_says_what_a_folder_is(program, megatron):
    _, shown, _ = program.run("inspect", "checkpoint", megatron("llama").folder / "fully_reshardable")
    assert "torch_dist of Megatron-core" in shown and "iteration 3, 3 updates, 12 samples consumed" in shown
    assert "exp_avg 21" in shown and "Transformer Engine's scales" in shown


def plain_run(model, samples, save):
    """Five steps of a plain PyTorch loop; save(optimizer) after the third. The losses."""
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
    losses, saved = go_on(program, tmp_path / "titan", data, tmp_path, convert=more)
    assert losses == pytest.approx(expected[BEFORE:], abs=1e-5)
    weights = load_file(saved / "model.safetensors")
    for name, value in model.named_parameters():
        assert (weights[name] - value).abs().mean() < 2e-6, name


@pytest.mark.parametrize("name", ["llama", "gpt2"])
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
    losses, saved = go_on(program, source, data, tmp_path, convert=("--global_batch_size", BATCH))
    assert losses == pytest.approx(expected[BEFORE:], abs=2e-4)  # the log rounds to four digits
    weights = load_file(saved / "model.safetensors")
    for key, value in model.named_parameters():
        if not key.endswith("c_attn.bias"):
            assert (weights[key] - value).abs().mean() < 2e-6, key
    # An optimizer of other parameters: only the weights can be taken.
    torch.save({"state": {}, "param_groups": [{"params": [0]}]}, source / "optimizer.pt")
    words = ("convert", "--load", source, "--save", tmp_path / "weights")
    _, _, errors = program.run(*words, "--global_batch_size", BATCH, expected=2)
    assert "it has 1 parameters" in errors and "no_save_optim" in errors
    program.run(*words, "--no_save_optim")
