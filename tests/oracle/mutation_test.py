"""The comparison sees every part: each is dropped, swapped or bent once, only for Megalith, and the logits differ."""

import hf_models
import pytest
import torch
from compare import TOLERANCE, relative_difference
from parity_test import PROMPT, SEQUENCE, logits_of

LAYER = "model.layers.1."


def scale_weight(key, factor):
    def change(weights):
        weights[key] = weights[key] * factor

    return change


def set_weight(key, value):
    def change(weights):
        weights[key] = torch.full_like(weights[key], value)

    return change


def swap_weights(first, second):
    def change(weights):
        weights[first], weights[second] = weights[second], weights[first]

    return change


def swap_heads(key, heads):
    """Exchanges the first two heads of a projection's rows."""

    def change(weights):
        weight = weights[key]
        by_head = weight.view(heads, weight.shape[0] // heads, *weight.shape[1:])
        order = [1, 0, *range(2, heads)]
        weights[key] = by_head[order].reshape(weight.shape)

    return change


def interleave_channels(key, heads):
    """Rows of a projection in the order of the other rotary convention: pairs (2i, 2i+1) instead of (i, i+d/2)."""

    def change(weights):
        weight = weights[key]
        d = weight.shape[0] // heads
        by_head = weight.view(heads, 2, d // 2, *weight.shape[1:])
        weights[key] = by_head.transpose(1, 2).reshape(weight.shape)

    return change


def swap_layers(weights):
    for key in [key for key in weights if key.startswith("model.layers.0.")]:
        swap_weights(key, key.replace("layers.0.", "layers.1."))(weights)


def transpose(key):
    def change(weights):
        weights[key] = weights[key].t()

    return change


def turn_experts(key):
    # Another expert for each.
    def change(weights):
        weights[key] = weights[key].roll(1, 0)

    return change


def exchange_neighbours(key):
    def change(weights):
        weights[key] = weights[key].unflatten(-1, (-1, 2)).flip(-1).flatten(-2)

    return change


def exchange_halves(key):
    def change(weights):
        weights[key] = torch.cat(weights[key].chunk(2, -1)[::-1], -1)

    return change


def exchange_gates(key):
    def change(weights):
        before, behind, value = weights[key].chunk(3)
        weights[key] = torch.cat([behind, before, value])

    return change


def turn_kernel(key):
    def change(weights):
        weights[key] = weights[key].flip(-1)

    return change


def drop_row_pair(weights):
    # Two rows of the embedding exchanged: a vocabulary that is off by one would look like this.
    embedding = weights["model.embed_tokens.weight"].clone()
    embedding[[5, 17]] = embedding[[17, 5]]
    weights["model.embed_tokens.weight"] = embedding


def set_config(**values):
    def change(config):
        assert any(config.get(key) != value for key, value in values.items()), "nothing would change"
        config.update(values)

    return change


def set_rope_scaling(**values):
    def change(config):
        config["rope_scaling"] = {**config["rope_scaling"], **values}

    return change


CONFIG_CHANGES = [
    ("llama", "no rope scaling", set_config(rope_scaling=None)),
    ("llama", "rope scaling factor", set_rope_scaling(factor=4.0)),
    ("llama", "low frequency factor", set_rope_scaling(low_freq_factor=2.0)),
    ("llama", "high frequency factor", set_rope_scaling(high_freq_factor=2.0)),
    ("llama", "original positions", set_rope_scaling(original_max_position_embeddings=64)),
    ("llama", "rope base", set_config(rope_theta=20000.0)),
    ("llama", "norm epsilon", set_config(rms_norm_eps=1e-5)),
    ("mistral", "no window", set_config(sliding_window=None)),
    ("mistral", "a window of one token less", set_config(sliding_window=6)),
    ("qwen_window", "no window", set_config(use_sliding_window=False, layer_types=None)),
    ("qwen", "rope base", set_config(rope_theta=10000.0)),
    ("qwen", "norm epsilon", set_config(rms_norm_eps=1e-6)),
    ("qwen3_moe", "weights of the chosen not divided by their sum", set_config(norm_topk_prob=False)),
    ("qwen3_moe_window", "weights of the chosen divided by their sum", set_config(norm_topk_prob=True)),
    ("qwen3_moe_window", "no window", set_config(use_sliding_window=False)),
    ("olmo2", "norm epsilon", set_config(rms_norm_eps=1e-6)),
    ("olmo3", "no rope scaling", set_config(rope_scaling=None)),
    ("olmo3", "rope scaling factor", set_rope_scaling(factor=3.0)),
    ("olmo3", "an attention factor", set_rope_scaling(attention_factor=1.0)),
    ("olmo3", "fast frequencies", set_rope_scaling(beta_fast=0.8)),
    ("olmo3", "original positions", set_rope_scaling(original_max_position_embeddings=256)),
    ("olmo3", "windows in other layers", set_config(layer_types=["full_attention", *["sliding_attention"] * 2])),
    ("olmo3", "a window of one token less", set_config(sliding_window=6)),
    ("glm4_moe", "all channels rotated", set_config(partial_rotary_factor=1.0)),
    ("glm4_moe", "weights of experts not scaled", set_config(routed_scaling_factor=1.0)),
    ("glm4_moe", "an expert less", set_config(num_experts_per_tok=2)),
    ("gpt_oss", "an expert less", set_config(num_experts_per_tok=2)),
    ("gpt_oss", "windows in the other layer", set_config(layer_types=["full_attention", "sliding_attention", "full_attention"])),
    ("gpt_oss", "bounds of the blend that are whole numbers", set_rope_scaling(truncate=True)),
    ("gpt_oss", "an attention factor", set_rope_scaling(attention_factor=1.0)),
    ("llama4", "no norms of heads", set_config(use_qk_norm=False)),
    ("llama4", "queries as they are", set_config(attn_temperature_tuning=False)),
    ("llama4", "another scale of queries", set_config(attn_scale=0.4)),
    ("llama4", "queries scaled from another position", set_config(floor_scale=5)),
    ("llama4", "a chunk of one token less", set_config(attention_chunk_size=9)),
    ("llama4", "no chunks", set_config(layer_types=["full_attention"] * 3)),
    ("llama4", "no rope scaling", set_config(rope_scaling=None)),
    ("llama4", "wavelengths that are blended", set_rope_scaling(high_freq_factor=4.0)),
    ("smollm3", "all layers rotate", set_config(no_rope_layers=[1, 1, 1])),
    ("smollm3", "another layer that does not", set_config(no_rope_layers=[0, 1, 1])),
    ("smollm3", "rope base", set_config(rope_theta=20000.0)),
    ("lfm2", "norm epsilon", set_config(norm_eps=1e-5)),
    ("lfm2", "rope base", set_config(rope_theta=20000.0)),
    ("qwen3", "norm epsilon", set_config(rms_norm_eps=1e-6)),
    ("qwen3", "rope base", set_config(rope_theta=10000.0)),
    ("gemma2", "no cap of scores", set_config(attn_logit_softcapping=None)),
    ("gemma2", "no cap of logits", set_config(final_logit_softcapping=None)),
    ("gemma2", "another scale of scores", set_config(query_pre_attn_scalar=24)),
    ("gemma2", "windows in the other layers", set_config(layer_types=["full_attention", "sliding_attention", "full_attention"])),
    ("gemma3", "no rope scaling", set_config(rope_scaling=None)),
    ("gemma3", "one rope base", set_config(rope_local_base_freq=10000.0)),
    ("gemma3", "windows in all layers", set_config(layer_types=["sliding_attention"] * 3)),
]

WEIGHT_CHANGES = [
    ("llama", "gate and up swapped", swap_weights(LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight")),
    ("llama", "no MLP", set_weight(LAYER + "mlp.down_proj.weight", 0.0)),
    ("llama", "key heads swapped", swap_heads(LAYER + "self_attn.k_proj.weight", 2)),
    ("llama", "value heads swapped", swap_heads(LAYER + "self_attn.v_proj.weight", 2)),
    ("llama", "query heads swapped", swap_heads(LAYER + "self_attn.q_proj.weight", 4)),
    ("llama", "keys and values swapped", swap_weights(LAYER + "self_attn.k_proj.weight", LAYER + "self_attn.v_proj.weight")),
    ("llama", "query channels interleaved", interleave_channels(LAYER + "self_attn.q_proj.weight", 4)),
    ("llama", "key channels interleaved", interleave_channels(LAYER + "self_attn.k_proj.weight", 2)),
    ("llama", "output projection transposed", transpose(LAYER + "self_attn.o_proj.weight")),
    ("llama", "no weight in the norm before attention", set_weight(LAYER + "input_layernorm.weight", 1.0)),
    ("llama", "no weight in the norm before the MLP", set_weight(LAYER + "post_attention_layernorm.weight", 1.0)),
    ("llama", "no weight in the last norm", set_weight("model.norm.weight", 1.0)),
    ("llama", "head tied", lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"].clone()})),
    ("llama", "embedding rows swapped", drop_row_pair),
    ("llama", "layers swapped", swap_layers),
    ("llama", "queries scaled", scale_weight(LAYER + "self_attn.q_proj.weight", 24**-0.5 / 16**-0.5)),
    ("qwen", "no query bias", set_weight(LAYER + "self_attn.q_proj.bias", 0.0)),
    ("qwen", "no key bias", set_weight(LAYER + "self_attn.k_proj.bias", 0.0)),
    ("qwen", "no value bias", set_weight(LAYER + "self_attn.v_proj.bias", 0.0)),
    ("qwen", "key bias heads swapped", swap_heads(LAYER + "self_attn.k_proj.bias", 2)),
    ("qwen_tied", "embedding rows swapped", drop_row_pair),
    ("olmo2", "no weight in the norm behind attention", set_weight(LAYER + "post_attention_layernorm.weight", 1.0)),
    ("olmo2", "no weight in the norm behind the MLP", set_weight(LAYER + "post_feedforward_layernorm.weight", 1.0)),
    ("olmo2", "no weight in the norm of queries", set_weight(LAYER + "self_attn.q_norm.weight", 1.0)),
    ("olmo2", "weights of key heads' norm swapped", swap_heads(LAYER + "self_attn.k_norm.weight", 2)),
    ("qwen3_moe", "experts swapped", swap_weights(LAYER + "mlp.experts.0.up_proj.weight", LAYER + "mlp.experts.1.up_proj.weight")),
    ("qwen3_moe", "no weight in the norm of keys", set_weight(LAYER + "self_attn.k_norm.weight", 1.0)),
    ("gpt_oss", "no bias of the router", set_weight(LAYER + "mlp.router.bias", 0.0)),
    ("gpt_oss", "no bias of gates and ups", set_weight(LAYER + "mlp.experts.gate_up_proj_bias", 0.0)),
    ("gpt_oss", "no bias of the experts' results", set_weight(LAYER + "mlp.experts.down_proj_bias", 0.0)),
    ("gpt_oss", "experts turned", turn_experts(LAYER + "mlp.experts.down_proj")),
    ("gpt_oss", "gates and ups exchanged", exchange_neighbours(LAYER + "mlp.experts.gate_up_proj")),
    ("gpt_oss", "no sinks", set_weight(LAYER + "self_attn.sinks", -1e4)),
    ("gpt_oss", "no bias behind attention", set_weight(LAYER + "self_attn.o_proj.bias", 0.0)),
    ("llama4", "experts turned", turn_experts(LAYER + "feed_forward.experts.down_proj")),
    ("llama4", "gates and ups exchanged", exchange_halves(LAYER + "feed_forward.experts.gate_up_proj")),
    ("llama4", "no shared expert", set_weight(LAYER + "feed_forward.shared_expert.down_proj.weight", 0.0)),
    ("llama4", "a router that weighs all alike", set_weight(LAYER + "feed_forward.router.weight", 0.0)),
    ("glm4_moe", "no shared expert", set_weight(LAYER + "mlp.shared_experts.down_proj.weight", 0.0)),
    ("glm4_moe", "no bias of the choice", set_weight(LAYER + "mlp.gate.e_score_correction_bias", 0.0)),
    ("glm4_moe", "no key bias", set_weight(LAYER + "self_attn.k_proj.bias", 0.0)),
    ("glm4_moe", "no weight in the norm of queries", set_weight(LAYER + "self_attn.q_norm.weight", 1.0)),
    ("qwen3", "no weight in the norm of queries", set_weight(LAYER + "self_attn.q_norm.weight", 1.0)),
    ("qwen3", "no weight in the norm of keys", set_weight(LAYER + "self_attn.k_norm.weight", 1.0)),
    ("lfm2", "gates exchanged", exchange_gates("model.layers.2.conv.in_proj.weight")),
    ("lfm2", "a kernel turned round", turn_kernel("model.layers.2.conv.conv.weight")),
    ("lfm2", "no weight in the last norm", set_weight("model.embedding_norm.weight", 1.0)),
    ("gemma2", "no norm behind attention", set_weight(LAYER + "post_attention_layernorm.weight", 0.0)),
    ("gemma2", "no norm behind the MLP", set_weight(LAYER + "post_feedforward_layernorm.weight", 0.0)),
    ("gemma2", "no norm before the MLP", set_weight(LAYER + "pre_feedforward_layernorm.weight", 0.0)),
    ("qwen3", "norms exchanged", swap_weights(LAYER + "self_attn.q_norm.weight", LAYER + "self_attn.k_norm.weight")),
]


def names(changes):
    return [f"{model}: {what}" for model, what, _ in changes]


# A mistake must stand out from rounding by far, or a smaller one of its kind would pass.
VISIBLE = 10 * TOLERANCE


def difference_after(program, model, folder, tmp_path):
    ids = (PROMPT * 5)[:SEQUENCE]
    with torch.no_grad():
        expected = model.reference(torch.tensor([ids]), use_cache=False).logits[0]
    return relative_difference(logits_of(program, folder, tmp_path / "logits.safetensors", ids), expected)


@pytest.mark.parametrize("name, what, change", CONFIG_CHANGES, ids=names(CONFIG_CHANGES))
def test_wrong_configuration_is_seen(name, what, change, program, models, tmp_path):
    folder = hf_models.changed_copy(models[name].folder, tmp_path / "model", change_config=change)
    assert difference_after(program, models[name], folder, tmp_path) > VISIBLE


@pytest.mark.parametrize("name, what, change", WEIGHT_CHANGES, ids=names(WEIGHT_CHANGES))
def test_wrong_weights_are_seen(name, what, change, program, models, tmp_path):
    folder = hf_models.changed_copy(models[name].folder, tmp_path / "model", change_weights=change)
    assert difference_after(program, models[name], folder, tmp_path) > VISIBLE


@pytest.mark.parametrize("name", ["llama", "qwen", "qwen_tied"])
def test_unchanged_copy_agrees(name, program, models, tmp_path):
    folder = hf_models.changed_copy(models[name].folder, tmp_path / "model")
    assert difference_after(program, models[name], folder, tmp_path) <= TOLERANCE
