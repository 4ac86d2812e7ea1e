"""Fine-tuning runs of torchtune and of PEFT with transformers' Trainer go on here."""

import copy
import json
import shutil

import pytest
import torch
from foreign_runs import (
    BATCH, BEFORE, LAST, LR, MOMENTS, SEQUENCE, STEPS, as_torchtitan, as_torchtune, common, go_on, plain_run, tune_states,
)  # fmt: skip
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module")
def tuned(models, data, tmp_path_factory):
    """A run's losses, and its folders as torchtune 0.7's FullModelHFCheckpointer, FullModelMetaCheckpointer,
    FullModelTorchTuneCheckpointer and asynchronous saves write them after the first epoch: by its source, as it is not
    installed here."""
    import torch.distributed.checkpoint as dcp

    model = copy.deepcopy(models["llama"].reference).train()
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    root = tmp_path_factory.mktemp("tuned")

    def save(optimizer):
        weights = {name: value.detach().clone() for name, value in model.named_parameters()}
        meta = dict(as_torchtitan(name, value, heads) for name, value in weights.items())
        tune, states = as_torchtune(weights, heads), tune_states(model, optimizer)
        group = {"lr": LR, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": list(states)}
        progress = {"seed": 7, "epochs_run": 1, "total_epochs": 3, "max_steps_per_epoch": BEFORE, "steps_run": None}
        progress |= {"total_training_steps": None, "dataloader": None, "val_dataloader": None}
        recipe = {"optimizer": {"state": states, "param_groups": [group]}, **progress}

        def folder(*path):
            (root.joinpath(*path)).mkdir(parents=True)
            return root.joinpath(*path)

        hf = folder("hf", "epoch_0")
        shutil.copy(models["llama"].folder / "config.json", hf)
        save_file(weights, hf / "model-00001-of-00001.safetensors")
        index = {"metadata": {}, "weight_map": {name: "model-00001-of-00001.safetensors" for name in weights}}
        (hf / "model.safetensors.index.json").write_text(json.dumps(index))
        torch.save(recipe, hf / "recipe_state.pt")
        for form, state in (("meta", meta), ("tune", tune)):
            torch.save(state, folder(form, "epoch_0") / "model-00001-of-00001.bin")
            torch.save(recipe, folder(form, "recipe_state") / "recipe_state.pt")
        whole = {**progress, "model": tune, "optimizer": {"state": states, "param_groups": [group]}}
        dcp.save({key: value for key, value in whole.items() if value is not None}, checkpoint_id=folder("async", f"step_{BEFORE}"))
        torch.save(progress, root / "async" / f"step_{BEFORE}" / "recipe_state.pt")

    return plain_run(model, data.samples(STEPS * BATCH, SEQUENCE), save), root


def test_a_run_of_torchtune_goes_on_here(program, models, tuned, data, tmp_path):
    expected, root = tuned
    losses, saved = go_on(program, root / "hf", data, tmp_path)
    assert losses == pytest.approx(expected[BEFORE:], abs=1e-5)
    states = {}
    for form in ("hf", "meta", "tune", "async"):
        words = ("--global_batch_size", BATCH, *(() if form == "hf" else ("--hf_config", models["llama"].folder)))
        _, shown, errors = program.run("convert", "--load", root / form, "--save", tmp_path / form, *words)
        assert "1 of 3 epochs are run" in shown + errors
        folder = tmp_path / form / f"iter_{BEFORE:07}"
        train = json.loads((folder / "checkpoint.json").read_text())["train"]
        assert (train["seed"], train["consumed_train_samples"]) == (7, BEFORE * BATCH)
        states[form] = {key: load_file(folder / f"{key}.safetensors") for key in ("model", *MOMENTS)}
        for key, tensors in states["hf"].items():
            found = states[form][key]
            assert found.keys() == tensors.keys() and all(torch.equal(found[n], v) for n, v in tensors.items()), (form, key)


def test_what_torchtune_left_and_cannot_be_read_is_refused(program, models, tuned, tmp_path):
    _, root = tuned
    words = ("--save", tmp_path / "out", "--global_batch_size", BATCH, "--hf_config", models["llama"].folder)
    # Moments of 8 bits, as bitsandbytes' AdamW8bit keeps them.
    eight = tmp_path / "eight"
    shutil.copytree(root / "hf", eight)
    state = torch.load(eight / "epoch_0" / "recipe_state.pt", weights_only=False)
    for one in state["optimizer"]["state"].values():
        one["state1"], one["absmax1"] = one.pop("exp_avg").to(torch.uint8), torch.zeros(1)
    torch.save(state, eight / "epoch_0" / "recipe_state.pt")
    _, _, errors = program.run("convert", "--load", eight, *words, expected=2)
    assert "exp_avg" in errors and "moments of 8 bits (bitsandbytes)" in errors and "no_save_optim" in errors
    # The last epoch, which has no state.
    shutil.copytree(root / "meta", tmp_path / "last")
    (tmp_path / "last" / "epoch_0").rename(tmp_path / "last" / "epoch_1")
    _, _, errors = program.run("convert", "--load", tmp_path / "last", *words, expected=2)
    assert "of epoch_0, and" in errors and "load_hf" in errors
    # Adapters' states, of another size.
    state["optimizer"]["state"] = {0: {"exp_avg": torch.zeros(2, 2), "exp_avg_sq": torch.zeros(2, 2)}}
    torch.save(state, eight / "epoch_0" / "recipe_state.pt")
    _, _, errors = program.run("convert", "--load", eight, *words, expected=2)
    assert "[2, 2] in the checkpoint" in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name, targets", [("llama", ["q_proj", "down_proj"]), ("gpt2", ["c_attn", "c_fc"])])
def test_a_run_of_peft_and_transformers_trainer_goes_on_here(name, targets, program, models, data, tmp_path):
    peft = pytest.importorskip("peft")
    from transformers import Trainer, TrainingArguments

    more = {"fan_in_fan_out": True} if name == "gpt2" else {}
    config = peft.LoraConfig(r=4, lora_alpha=12, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM", **more)
    torch.manual_seed(5)
    model = peft.get_peft_model(copy.deepcopy(models[name].reference).train(), config)
    samples = torch.as_tensor(data.samples(STEPS * BATCH, SEQUENCE)).tolist()
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
    source, base = tmp_path / "hf" / f"checkpoint-{BEFORE}", ("--load_hf", models[name].folder)
    losses, _ = go_on(program, source, data, tmp_path, more=(*base, "--save_adapter", tmp_path / "adapters"))
    assert losses == pytest.approx(expected[BEFORE:], abs=2e-4)  # the log rounds to four digits
    ours = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    theirs = load_file(tmp_path / "hf" / f"checkpoint-{STEPS}" / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert (ours[key] - value).abs().mean() < 1e-5, key
    train = ("train", "--load", source, *common(data), "--dry_run")
    _, _, errors = program.run(*train, expected=2)
    assert "load_hf" in errors
    _, _, errors = program.run("convert", "--load", source, "--save", tmp_path / "out", expected=2)
    assert "holds adapters, not a model" in errors and "merge_adapter" in errors
    torch.save({"state": {}, "param_groups": [{"params": [0]}]}, source / "optimizer.pt")
    _, _, errors = program.run(*train, *base, expected=2)
    assert "it has 1 parameters, and these adapters" in errors and "no_load_optim" in errors
    assert (tmp_path / "saved" / LAST).exists()
