"""Low-rank adapters against PEFT: its files are read, twenty steps are the same, and what is written loads there."""

import copy
import json
import math

import hf_models
import pytest
import torch
from program import read_metrics

peft = pytest.importorskip("peft")

SEQUENCE, STEPS, BATCH, LR = 48, 20, 4, 2e-3
# Weight decay acts on adapters as on any matrix. Model, targets, the other keys of LoraConfig.
CASES = {
    "queries and values": ("llama", ["q_proj", "v_proj"], {}),
    "all, by the root": ("qwen_tied", "all-linear", {"use_rslora": True}),
    "one canonical tensor of three parts": ("gpt2", ["c_attn", "attn.c_proj"], {"fan_in_fan_out": True}),
    "latent attention": ("deepseek_v2", ["kv_b_proj", "kv_a_proj_with_mqa", "o_proj"], {}),
    "some layers": ("llama_tied", r".*layers\.0\..*(q_proj|down_proj)", {}),
    "lengths of rows": ("llama", ["q_proj", "v_proj", "down_proj"], {"use_dora": True}),
    "lengths of rows with biases": ("gpt2", ["c_attn", "c_fc"], {"fan_in_fan_out": True, "use_dora": True}),
    "experts": ("mixtral", ["q_proj", "w1", "w2", "w3"], {}),
    "some linears of experts": ("qwen3_moe", ["up_proj", "down_proj"], {}),
    "ranks of their own": (
        *("llama", ["q_proj", "k_proj", "down_proj"]),
        {"rank_pattern": {r"layers\.0\..*q_proj": 6, "q_proj": 2, "mlp.down_proj": 5}, "alpha_pattern": {"k_proj": 3}},
    ),
    "ranks of experts": ("mixtral", ["w1", "w2"], {"rank_pattern": {"w2": 2}, "use_rslora": True}),
    "the head": ("llama", ["v_proj", "lm_head"], {"rank_pattern": {"lm_head": 3}}),
    "whole modules": ("llama", ["q_proj", "v_proj"], {"modules_to_save": ["embed_tokens", "lm_head", "layers.1.mlp"]}),
}


def with_adapters(model, targets, more):
    config = peft.LoraConfig(
        r=4, lora_alpha=12, lora_dropout=0.0, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM", **more
    )
    torch.manual_seed(5)
    adapted = peft.get_peft_model(copy.deepcopy(model), config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".lora_A." in name or ".lora_B." in name:
                parameter.normal_(0, 0.05)
    return adapted.train()


def is_trained(key):
    return "lora_" in key or "modules_to_save" in key


def plain_loop(model, samples, optimizer=None):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer or torch.optim.AdamW(parameters, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    history = []
    for step in range(STEPS):
        loss = hf_models.token_losses(model, samples[step * BATCH : (step + 1) * BATCH]).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        history.append((loss.item(), norm.item()))
    return history


def words(models, name, data, metrics):
    return (
        *("train", "--load_hf", models[name].folder, "--data_path", data.prefix, "--split", "100,0,0", "--fp32"),
        *("--seq_length", SEQUENCE, "--micro_batch_size", 2, "--global_batch_size", BATCH, "--train_iters", STEPS),
        *("--lr", LR, "--lr_decay_style", "constant", "--weight_decay", 0.1, "--clip_grad", 1.0, "--adam_beta2", 0.95),
        *("--eval_iters", 0, "--metrics_file", metrics, "--device", "cpu"),
    )


@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_are_those_of_peft_and_go_back_to_it(case, program, models, data, tmp_path):
    name, targets, more = CASES[case]
    theirs = with_adapters(models[name].reference, targets, more)
    theirs.save_pretrained(tmp_path / "theirs")
    metrics = tmp_path / "metrics.jsonl"
    ours = tmp_path / "ours"
    program.run(*words(models, name, data, metrics), "--adapter", tmp_path / "theirs", "--save_adapter", ours)
    expected = plain_loop(theirs, data.samples(STEPS * BATCH, SEQUENCE))
    first = dict(with_adapters(models[name].reference, targets, more).named_parameters())
    moved = max((value - first[key]).abs().max() for key, value in theirs.named_parameters())
    assert moved > 0.01, "the reference moves nothing, so an optimizer that does nothing would pass"
    for line, (loss, norm) in zip(read_metrics(metrics), expected, strict=True):
        where = f"iteration {line['iteration']}"
        assert line["lm_loss"] == pytest.approx(loss, abs=1e-4), where
        assert line["grad_norm"] == pytest.approx(norm, rel=1e-3), where

    # Keys that only PEFT knows stay as they were.
    before, after = (json.loads((place / "adapter_config.json").read_text()) for place in (tmp_path / "theirs", ours))
    assert set(before) <= set(after) and after["task_type"] == "CAUSAL_LM"
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(models[name].reference), ours)
    trained = dict(theirs.named_parameters())
    found = {key: value for key, value in loaded.named_parameters() if is_trained(key)}
    assert len(found) == sum(is_trained(key) for key in trained)
    for key, value in found.items():
        # Adam makes steps of roundings; all that a weight moved is at most STEPS * LR = 0.04.
        assert (value - trained[key]).abs().max() < 4e-4, key


def test_the_learning_rate_of_b_is_that_of_lora_plus_in_peft(program, models, data, tmp_path):
    from peft.optimizers import create_loraplus_optimizer

    targets = ["q_proj", "down_proj"]
    theirs = with_adapters(models["llama"].reference, targets, {})
    theirs.save_pretrained(tmp_path / "theirs")
    more = {"betas": (0.9, 0.95), "eps": 1e-8, "loraplus_weight_decay": 0.1}
    optimizer = create_loraplus_optimizer(theirs, torch.optim.AdamW, lr=LR, loraplus_lr_ratio=8, **more)
    expected = plain_loop(theirs, data.samples(STEPS * BATCH, SEQUENCE), optimizer)
    metrics = tmp_path / "metrics.jsonl"
    line = (*words(models, "llama", data, metrics), "--adapter", tmp_path / "theirs", "--loraplus_lr_ratio", 8)
    program.run(*line)
    for line, (loss, norm) in zip(read_metrics(metrics), expected, strict=True):
        assert line["lm_loss"] == pytest.approx(loss, abs=1e-4), line["iteration"]
        assert line["grad_norm"] == pytest.approx(norm, rel=1e-3), line["iteration"]
    without = plain_loop(with_adapters(models["llama"].reference, targets, {}), data.samples(STEPS * BATCH, SEQUENCE))
    assert abs(without[-1][0] - expected[-1][0]) > 1e-3, "the ratio changes nothing"


def test_one_a_of_a_fused_layer_means_the_same_in_peft(program, models, data, tmp_path):
    metrics, ours = tmp_path / "metrics.jsonl", tmp_path / "ours"
    adapters = ("--lora.enabled", "true", "--lora.dim", 4, "--lora.lora_B_init_method", "normal")
    fused = ("--lora.target_modules", "linear_qkv,linear_fc1,linear_fc2")
    program.run(*words(models, "llama", data, metrics), *adapters, *fused, "--save_adapter", ours, "--train_iters", 3)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(models["llama"].reference), ours).eval()
    parameters = dict(loaded.named_parameters())
    first = "base_model.model.model.layers.0.self_attn.{}_proj.lora_A.default.weight"
    assert torch.equal(parameters[first.format("q")], parameters[first.format("v")])
    line = (
        *("evaluate", "--load_hf", models["llama"].folder, "--adapter", ours, "--data_path", data.prefix),
        *("--split", "100,0,0", "--eval_split", "train", "--seq_length", SEQUENCE, "--micro_batch_size", 4, "--eval_iters", 1),
    )
    _, output, _ = program.run(*line, "--device", "cpu", "--fp32")
    with torch.no_grad():
        expected = hf_models.token_losses(loaded, data.samples(4, SEQUENCE)).mean().item()
        without = hf_models.token_losses(models["llama"].reference, data.samples(4, SEQUENCE)).mean().item()
    assert json.loads(output)["loss"] == pytest.approx(expected, abs=1e-5)
    assert math.fabs(without - expected) > 1e-3, "the adapters change nothing"


@pytest.mark.parametrize("case", CASES)
def test_merged_weights_are_those_of_peft(case, program, models, tmp_path):
    name, targets, more = CASES[case]
    theirs = with_adapters(models[name].reference, targets, more).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    files = ("--load_hf", models[name].folder, "--merge_adapter", tmp_path / "theirs", "--save_hf", tmp_path / "merged")
    _, output, _ = program.run("convert", *files, "--dtype", "fp32", "--check")
    assert "with the adapters taken out again agree" in output
    reference = models[name].reference
    merged = type(reference).from_pretrained(tmp_path / "merged", dtype=torch.float32).state_dict()
    before = reference.state_dict()
    after = theirs.merge_and_unload().state_dict()
    moved = [key for key in after if not torch.equal(after[key], before[key])]
    assert moved
    for key, value in after.items():
        # Sums of products in float32, in another order.
        assert (merged[key] - value).abs().max() < 1e-6, key


def test_lengths_begin_as_the_rows_of_the_model(program, models, data, tmp_path):
    adapters = ("--lora.enabled", "true", "--lora.dim", 4, "--lora.use_dora", "true", "--lora.target_modules", "q_proj,o_proj")
    line = (*words(models, "llama", data, tmp_path / "metrics.jsonl"), *adapters, "--train_iters", 1, "--lr", 0)
    program.run(*line, "--save_adapter", tmp_path / "ours")
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(models["llama"].reference), tmp_path / "ours")
    lengths = {key: value for key, value in loaded.named_parameters() if "lora_magnitude_vector" in key}
    weights = dict(loaded.named_parameters())
    assert lengths
    for key, value in lengths.items():
        weight = weights[key.replace("lora_magnitude_vector.default.weight", "base_layer.weight")]
        assert torch.allclose(value, weight.norm(dim=1), rtol=1e-6), key


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is IA3"),
        ({"use_dora": True}, "lora_magnitude_vector"),
        ({"rank_pattern": {"q_proj": 8}}, "q_proj.lora_A.weight is [4, "),
        ({"rank_pattern": {"o_proj": 8}}, "lora.rank_pattern: no layer with an adapter"),
        ({"modules_to_save": ["lm_head"]}, "lm_head.weight"),
        ({"modules_to_save": ["score"]}, "no module of the model has a name that ends with 'score'"),
        ({"bias": "all"}, "bias"),
        ({"r": 8}, "lora_A.weight is [4, "),
        ({"target_modules": ["q_proj"]}, "v_proj.lora_A.weight"),
        ({"target_modules": ["q_proj", "v_proj", "nope"]}, "no linear layer of the model is 'nope'"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(change, message, program, models, data, tmp_path):
    with_adapters(models["llama"].reference, ["q_proj", "v_proj"], {}).save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    line = words(models, "llama", data, tmp_path / "metrics.jsonl")
    _, _, errors = program.run(*line, "--adapter", tmp_path / "theirs", expected=2)
    assert message in errors


@pytest.mark.parametrize("more", [{}, {"use_rslora": True}, {"use_dora": True}], ids=str)
@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_a_start_from_the_weights_learns_as_in_peft_and_is_saved_beside_the_same_model(start, more, program, models, data, tmp_path):
    ranks = {"rank_pattern": {"v_proj": 6}} if not more else {}
    model = models["llama"].reference
    config = peft.LoraConfig(
        r=4, lora_alpha=12, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=start, task_type="CAUSAL_LM",
        **ranks, **more,
    )  # fmt: skip
    theirs = peft.get_peft_model(copy.deepcopy(model), config).train()
    samples = data.samples(STEPS * BATCH, SEQUENCE)
    expected = plain_loop(theirs, samples)
    metrics, ours = tmp_path / "metrics.jsonl", tmp_path / "ours"
    words_of_start = ("--lora.enabled", "true", "--lora.dim", 4, "--lora.alpha", 12, "--lora.target_modules", "q_proj,v_proj,down_proj")
    words_of_start += ("--lora.init_lora_weights", start, *(f"--lora.{key}" for key in more))
    words_of_start += ("--lora.rank_pattern", "v_proj=6") if ranks else ()
    program.run(*words(models, "llama", data, metrics), *words_of_start, "--save_adapter", ours)
    for line, (loss, norm) in zip(read_metrics(metrics), expected, strict=True):
        assert line["lm_loss"] == pytest.approx(loss, abs=1e-4), line["iteration"]
        # Singular vectors have roundings of their gaps.
        assert line["grad_norm"] == pytest.approx(norm, rel=5e-3), line["iteration"]

    written = json.loads((ours / "adapter_config.json").read_text())
    assert written["r"] == 8 and written["init_lora_weights"] is True
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(model), ours).eval()
    with torch.no_grad():
        after = hf_models.token_losses(loaded, samples[:BATCH]).mean().item()
        assert after == pytest.approx(hf_models.token_losses(theirs.eval(), samples[:BATCH]).mean().item(), abs=2e-4)
        assert abs(after - expected[0][0]) > 1e-2, "nothing was learned"
    files = ("--load_hf", models["llama"].folder, "--merge_adapter", ours, "--save_hf", tmp_path / "merged")
    program.run("convert", *files, "--dtype", "fp32", "--check")


def test_a_tied_table_is_saved_under_both_its_names(program, models, data, tmp_path):
    model, ours = models["llama_tied"], tmp_path / "ours"
    adapters = ("--lora.enabled", "true", "--lora.dim", 4, "--lora.target_modules", "q_proj")
    line = (*words(models, "llama_tied", data, tmp_path / "metrics.jsonl"), *adapters, "--train_iters", 3)
    saved = ("--lora.modules_to_save", "embed_tokens,lm_head")
    program.run(*line, *saved, "--save_adapter", ours)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(model.reference), ours).eval()
    tables = [value for key, value in loaded.named_parameters() if "modules_to_save" in key]
    assert len(tables) == 2 and torch.equal(*tables)
    assert (tables[0] - model.reference.get_input_embeddings().weight).abs().max() > 1e-3
    # Trained on, and read here as PEFT reads it.
    evaluated = ("--data_path", data.prefix, "--split", "100,0,0", "--eval_split", "train", "--seq_length", SEQUENCE)
    evaluated += ("--micro_batch_size", 4, "--eval_iters", 1, "--device", "cpu", "--fp32")
    _, output, _ = program.run("evaluate", "--load_hf", model.folder, "--adapter", ours, *evaluated)
    with torch.no_grad():
        expected = hf_models.token_losses(loaded, data.samples(4, SEQUENCE)).mean().item()
    assert json.loads(output)["loss"] == pytest.approx(expected, abs=1e-5)
    errors = program.run(*line, "--lora.modules_to_save", "embed_tokens", expected=2)[2]
    assert "only a part of" in errors and "lm_head" in errors, errors
    # Two tables that PEFT trained apart are not one.
    from safetensors.torch import load_file, save_file

    file = ours / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors["base_model.model.lm_head.weight"] *= 2
    save_file(tensors, file, metadata={"format": "pt"})
    errors = program.run("evaluate", "--load_hf", model.folder, "--adapter", ours, *evaluated, expected=2)[2]
    assert "differs from the embedding" in errors, errors


def test_noise_in_the_embeddings_is_that_of_transformers(program, models, data, tmp_path):
    """Draws differ, so their sizes are compared: the deviation of 160 samples' losses from those without noise."""
    from transformers.trainer_utils import neftune_post_forward_hook

    alpha, count, draws = 10.0, 160, 8
    model = copy.deepcopy(models["llama"].reference).train()
    samples = data.samples(count, SEQUENCE)
    embedding = model.get_input_embeddings()
    with torch.no_grad():
        quiet = hf_models.token_losses(model, samples).mean(1)
        embedding.neftune_noise_alpha = alpha
        embedding.register_forward_hook(neftune_post_forward_hook)
        torch.manual_seed(2)
        drawn = torch.stack([hf_models.token_losses(model, samples).mean(1) for _ in range(draws)])
    metrics = tmp_path / "metrics.jsonl"
    one_by_one = ("--train_iters", count, "--micro_batch_size", 1, "--global_batch_size", 1, "--lr", 0)
    program.run(*words(models, "llama", data, metrics), *one_by_one, "--neftune_noise_alpha", alpha)
    ours = torch.tensor([record["lm_loss"] for record in read_metrics(metrics)])
    sizes = [(losses - quiet).square().mean().sqrt().item() for losses in (ours, drawn)]
    # 160 squares know their mean to 11 %, its root to 6 %.
    assert sizes[0] == pytest.approx(sizes[1], rel=0.2), sizes
    assert sizes[1] > 1e-3, "no noise would pass"
