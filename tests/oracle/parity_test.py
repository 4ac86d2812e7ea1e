"""Logits, per-token losses, gradients and greedy tokens against Hugging Face transformers, in fp32."""

import json

import hf_models
import pytest
import torch
from compare import assert_close
from safetensors.torch import load_file

SEQUENCE = 48  # beyond the 32 positions that the rope scaling starts from
PROMPT = [5, 17, 130, 0, 42, 99, 2, 64, 7, 7, 88, 31, 120, 3, 55, 18, 76, 101, 9, 23]


def logits_of(program, folder, output, ids=PROMPT):
    program.run(
        *("inspect", "logits", "--load_hf", folder, "--prompt_ids", ",".join(map(str, ids)), "--output", output),
        *("--overwrite", "--device", "cpu"),
    )
    return load_file(output)["logits"]


def losses_of(program, folder, data, output, num_samples):
    _, text, _ = program.run(
        *("evaluate", "--load_hf", folder, "--data_path", data.prefix, "--split", "100,0,0", "--seq_length", SEQUENCE),
        *("--micro_batch_size", 2, "--global_batch_size", num_samples, "--eval_iters", 1, "--losses_file", output),
        *("--overwrite", "--device", "cpu"),
    )
    with open(output, encoding="utf-8") as file:
        return torch.tensor([json.loads(line) for line in file]), json.loads(text)


@pytest.mark.parametrize("name", hf_models.CONFIGS)
def test_logits_match_transformers(name, program, models, tmp_path):
    model = models[name]
    ids = (PROMPT * 5)[:SEQUENCE]
    with torch.no_grad():
        expected = model.reference(torch.tensor([ids]), use_cache=False).logits[0]
    assert_close(logits_of(program, model.folder, tmp_path / "logits.safetensors", ids), expected, f"{name}: logits")


@pytest.mark.parametrize("name", hf_models.CONFIGS)
def test_token_losses_match_transformers(name, program, models, data, tmp_path):
    model = models[name]
    ours, summary = losses_of(program, model.folder, data, tmp_path / "losses.jsonl", num_samples=6)
    with torch.no_grad():
        theirs = hf_models.token_losses(model.reference, data.samples(6, SEQUENCE))
    assert_close(ours, theirs, f"{name}: losses")
    assert summary["tokens"] == theirs.numel()
    assert summary["loss"] == pytest.approx(theirs.mean().item(), rel=1e-5)
    assert summary["perplexity"] == pytest.approx(theirs.mean().exp().item(), rel=1e-4)


@pytest.mark.parametrize("kernels", ["fused", "reference"])
@pytest.mark.parametrize("name", hf_models.CONFIGS)
def test_every_gradient_matches_torch(name, kernels, program, models, data, tmp_path):
    model = models[name]
    output = tmp_path / "gradients.safetensors"
    # Two microbatches, so that accumulation and the division by the tokens of the whole batch are seen too.
    _, text, _ = program.run(
        *("inspect", "gradients", "--load_hf", model.folder, "--data_path", data.prefix, "--split", "100,0,0"),
        *("--seq_length", SEQUENCE, "--micro_batch_size", 2, "--global_batch_size", 4, "--output", output),
        *("--kernels", kernels, "--device", "cpu"),
    )
    samples = data.samples(4, SEQUENCE)
    ours, theirs = load_file(output), hf_models.gradients(model.reference, samples)
    assert set(ours) == set(theirs)
    for key, expected in theirs.items():
        assert expected.abs().max() > 0, f"{key}: the reference has no gradient, so nothing would be compared"
        assert_close(ours[key], expected, f"{name}: gradient of {key}")
    with torch.no_grad():
        loss = hf_models.token_losses(model.reference, samples).mean().item()
    assert json.loads(text)["lm loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("name", hf_models.CONFIGS)
def test_greedy_tokens_match_transformers(name, program, models):
    model = models[name]
    expected, lead = hf_models.greedy(model.reference, PROMPT, 24)
    assert lead > 1e-3, "two tokens are nearly equal: rounding would decide"
    _, text, _ = program.run(
        *("generate", "--load_hf", model.folder, "--prompt_ids", ",".join(map(str, PROMPT)), "--max_new_tokens", 24),
        *("--temperature", 0, "--ignore_eos", "--print_ids", "--device", "cpu"),
    )
    assert [int(word) for word in text.replace(",", " ").split()] == expected


@pytest.mark.parametrize("form", [hf_models.to_version_4, hf_models.to_version_5])
@pytest.mark.parametrize("name", hf_models.CONFIGS)
def test_configurations_of_transformers_4_and_5_are_read(name, form, program, models, tmp_path):
    model = models[name]
    folder = hf_models.changed_copy(model.folder, tmp_path / "model", change_config=form)
    ids = (PROMPT * 5)[:SEQUENCE]
    with torch.no_grad():
        expected = model.reference(torch.tensor([ids]), use_cache=False).logits[0]
    assert_close(logits_of(program, folder, tmp_path / "logits.safetensors", ids), expected, f"{name}: logits")


@pytest.mark.parametrize("name", hf_models.CONFIGS)
def test_exported_model_is_the_one_that_was_loaded(name, program, models, tmp_path):
    model = models[name]
    exported = tmp_path / "exported"
    program.run(
        *("train", "--load_hf", model.folder, "--train_iters", 0, "--mock_data", "--eval_iters", 0),
        *("--save_hf", exported, "--device", "cpu"),
    )
    again = hf_models.reload(exported)
    theirs = dict(model.reference.named_parameters())
    ours = dict(again.named_parameters())
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), key
    ids = torch.tensor([(PROMPT * 5)[:SEQUENCE]])
    with torch.no_grad():
        expected = model.reference(ids, use_cache=False).logits
        assert torch.equal(again(ids, use_cache=False).logits, expected)


@pytest.mark.parametrize("name", ["llama", "qwen_tied"])
def test_exported_trained_model_has_equal_logits_in_transformers(name, program, models, data, tmp_path):
    exported = tmp_path / "exported"
    program.run(
        *("train", "--load_hf", models[name].folder, "--data_path", data.prefix, "--split", "100,0,0"),
        *("--seq_length", SEQUENCE, "--train_iters", 3, "--lr", 1e-3, "--eval_iters", 0, "--save_hf", exported),
        *("--device", "cpu"),
    )
    ids = (PROMPT * 5)[:SEQUENCE]
    again = hf_models.reload(exported)
    before = dict(models[name].reference.named_parameters())
    assert all(not torch.equal(value, before[key]) for key, value in again.named_parameters())
    with torch.no_grad():
        expected = again(torch.tensor([ids]), use_cache=False).logits[0]
    assert_close(logits_of(program, exported, tmp_path / "logits.safetensors", ids), expected, f"{name}: logits")


def test_the_language_model_of_one_that_sees_images_is_loaded(program, tmp_path):
    model = hf_models.make_with_images(tmp_path)
    weights, config = hf_models.read_weights(model.folder), hf_models.read_config(model.folder)
    assert config["model_type"] == "llama4" and any(key.startswith("vision_model.") for key in weights)
    ids = (PROMPT * 5)[:SEQUENCE]
    with torch.no_grad():
        expected = model.reference(torch.tensor([ids]), use_cache=False).logits[0]
    assert_close(logits_of(program, model.folder, tmp_path / "logits.safetensors", ids), expected, "logits")
    # An export is the language model by itself.
    exported = tmp_path / "exported"
    program.run("convert", "--load_hf", model.folder, "--save_hf", exported, "--dtype", "fp32")
    assert hf_models.read_config(exported)["architectures"] == ["Llama4ForCausalLM"]
    again = dict(hf_models.reload(exported).named_parameters())
    theirs = dict(model.reference.named_parameters())
    assert set(again) == set(theirs)
    assert all(torch.equal(again[key], value) for key, value in theirs.items())
