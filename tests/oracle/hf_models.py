"""Tiny models of every family, made by transformers, with weights so large that no part can be wrong unseen."""

import copy
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4MoeConfig,
    GPT2Config,
    GptOssConfig,
    Lfm2Config,
    Llama4Config,
    Llama4ForConditionalGeneration,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

VOCAB = 131  # a prime, so the vocabulary is padded
WEIGHT_STD = 0.2

ROPE_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    # With heads of 16 channels and base 10000, wavelengths of all three kinds occur: kept, blended, stretched.
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=WEIGHT_STD,
    # Large enough to be seen: the usual 1e-5 disappears in the rounding.
    rms_norm_eps=3e-3,
    bos_token_id=1,
    eos_token_id=2,
)

YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}

# As Scout, wavelengths are kept or stretched, and none is blended.
LLAMA4 = dict(
    **COMMON,
    head_dim=24,
    intermediate_size_mlp=80,
    num_local_experts=4,
    moe_layers=[1],
    no_rope_layers=[1, 0, 1],
    attention_chunk_size=10,
    attn_scale=0.5,
    floor_scale=4,
    rope_theta=10000.0,
    rope_scaling={**ROPE_SCALING, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
    tie_word_embeddings=False,
)

# Eight experts in four groups, of which two are open to a token: some experts are beyond its reach.
DEEPSEEK = dict(
    **{**COMMON, "num_key_value_heads": 4},
    moe_intermediate_size=40,
    n_routed_experts=8,
    n_group=4,
    topk_group=2,
    first_k_dense_replace=1,
    kv_lora_rank=16,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    tie_word_embeddings=False,
)

# Without a padding token, whose embedding would get no gradient.
OLMO = dict(**COMMON, rope_theta=10000.0, pad_token_id=None, tie_word_embeddings=False)

GLM = dict(
    **COMMON,
    moe_intermediate_size=40,
    n_routed_experts=8,
    num_experts_per_tok=3,
    first_k_dense_replace=1,
    rope_theta=10000.0,
    tie_word_embeddings=False,
)

CONFIGS = {
    "llama": lambda: LlamaConfig(**COMMON, rope_scaling=ROPE_SCALING, rope_theta=10000.0, tie_word_embeddings=False),
    "llama_tied": lambda: LlamaConfig(**COMMON, rope_scaling=ROPE_SCALING, rope_theta=5000.0, tie_word_embeddings=True),
    # Heads whose width is not hidden_size / num_attention_heads, and each with keys and values of its own.
    "llama_wide_heads": lambda: LlamaConfig(
        **{**COMMON, "num_key_value_heads": 4}, head_dim=24, rope_theta=500000.0, tie_word_embeddings=False
    ),
    "qwen": lambda: Qwen2Config(**COMMON, rope_theta=1000000.0, tie_word_embeddings=False),
    "qwen_tied": lambda: Qwen2Config(**COMMON, rope_theta=10000.0, tie_word_embeddings=True),
    # Heads that are normed, and wider together than hidden_size.
    "qwen3": lambda: Qwen3Config(**COMMON, head_dim=24, rope_theta=1000000.0, tie_word_embeddings=False),
    "qwen3_tied": lambda: Qwen3Config(
        **{**COMMON, "num_key_value_heads": 4}, head_dim=20, rope_theta=10000.0, tie_word_embeddings=True
    ),
    # Windows shorter than the samples.
    "mistral": lambda: MistralConfig(**COMMON, sliding_window=7, rope_theta=10000.0, tie_word_embeddings=False),
    "qwen_window": lambda: Qwen2Config(
        **COMMON, use_sliding_window=True, sliding_window=5, max_window_layers=0, tie_word_embeddings=False
    ),
    # Caps near the scores and logits that there are; no padding token, whose row transformers gives no gradient.
    "gemma2": lambda: Gemma2Config(
        **COMMON,
        head_dim=24,
        query_pre_attn_scalar=20,
        sliding_window=7,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=20.0,
        pad_token_id=None,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **COMMON,
        head_dim=20,
        query_pre_attn_scalar=24,
        sliding_window=7,
        sliding_window_pattern=2,
        rope_theta=10000.0,
        rope_local_base_freq=500.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        pad_token_id=None,
    ),
    "mixtral": lambda: MixtralConfig(
        **COMMON, num_local_experts=6, num_experts_per_tok=2, rope_theta=1000000.0, tie_word_embeddings=False
    ),
    # A layer without experts in front; the weights of the chosen add up to one.
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **COMMON,
        head_dim=24,
        moe_intermediate_size=40,
        num_experts=6,
        num_experts_per_tok=2,
        mlp_only_layers=[0],
        norm_topk_prob=True,
        rope_theta=1000000.0,
        tie_word_embeddings=False,
    ),
    # Every second layer has experts; the weights are what a softmax over all gives.
    "qwen3_moe_window": lambda: Qwen3MoeConfig(
        **COMMON,
        moe_intermediate_size=40,
        num_experts=6,
        num_experts_per_tok=3,
        decoder_sparse_step=2,
        norm_topk_prob=False,
        use_sliding_window=True,
        sliding_window=7,
        tie_word_embeddings=True,
    ),
    "olmo2": lambda: Olmo2Config(**OLMO),
    # Windows in two of three layers; wavelengths of all kinds: kept, blended, stretched.
    "olmo3": lambda: Olmo3Config(
        **OLMO,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
            "original_max_position_embeddings": 32,
        },
    ),
    "glm4_moe": lambda: Glm4MoeConfig(
        **GLM, head_dim=24, n_shared_experts=1, attention_bias=True, use_qk_norm=True, routed_scaling_factor=2.5
    ),
    "glm4_moe_air": lambda: Glm4MoeConfig(
        **GLM, n_shared_experts=2, partial_rotary_factor=0.25, attention_bias=True, use_qk_norm=False
    ),
    # Windows in two of three layers; wavelengths of all kinds, blended between bounds that are no whole numbers.
    "gpt_oss": lambda: GptOssConfig(
        **COMMON,
        head_dim=24,
        num_local_experts=6,
        num_experts_per_tok=3,
        sliding_window=7,
        rope_theta=10000.0,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
        pad_token_id=None,
    ),
    # Chunks shorter than the samples; experts in the middle layer, which does not rotate and scales its queries.
    "llama4": lambda: Llama4TextConfig(**LLAMA4),
    # As Maverick: heads without norms; experts in two of three layers, and rotation in the last two.
    "llama4_plain_heads": lambda: Llama4TextConfig(
        **{**LLAMA4, "rope_scaling": None, "use_qk_norm": False, "no_rope_layers": [0, 1, 1], "moe_layers": [0, 1]},
    ),
    "smollm3": lambda: SmolLM3Config(
        **COMMON, no_rope_layers=[1, 0, 1], rope_theta=10000.0, tie_word_embeddings=False, pad_token_id=None
    ),
    # A width that the class rounds up from two thirds of 112, times 1.25.
    "lfm2": lambda: Lfm2Config(
        **COMMON,
        norm_eps=3e-3,
        layer_types=["conv", "full_attention", "conv"],
        block_multiple_of=16,
        block_ffn_dim_multiplier=1.25,
        rope_theta=10000.0,
        pad_token_id=None,
    ),
    # Named as in published files; a kernel of five tokens.
    "lfm2_biased": lambda: Lfm2Config(
        **{**COMMON, "num_key_value_heads": 4},
        norm_eps=1e-5,
        full_attn_idxs=[2],
        conv_L_cache=5,
        conv_bias=True,
        block_auto_adjust_ff_dim=False,
        theta=500000.0,
        tie_embedding=False,
        pad_token_id=None,
    ),
    "deepseek_v2": lambda: DeepseekV2Config(
        **DEEPSEEK,
        rope_scaling=YARN,
        q_lora_rank=24,
        n_shared_experts=2,
        num_experts_per_tok=3,
        topk_method="group_limited_greedy",
        routed_scaling_factor=4.0,
        norm_topk_prob=False,
    ),
    "deepseek_v2_lite": lambda: DeepseekV2Config(
        **{**DEEPSEEK, "n_group": 1, "topk_group": 1},
        rope_scaling=YARN,
        q_lora_rank=None,
        n_shared_experts=2,
        num_experts_per_tok=3,
        topk_method="greedy",
        routed_scaling_factor=1.0,
        norm_topk_prob=False,
    ),
    "deepseek_v3": lambda: DeepseekV3Config(
        **{**DEEPSEEK, "n_routed_experts": 12},
        rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        q_lora_rank=24,
        n_shared_experts=1,
        num_experts_per_tok=4,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
    ),
    # As many chosen as groups are open: each group is still judged by its two best. Random weights choose all experts.
    "deepseek_v3_few": lambda: DeepseekV3Config(
        **{**DEEPSEEK, "n_routed_experts": 12},
        rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        q_lora_rank=24,
        n_shared_experts=1,
        num_experts_per_tok=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=128,
        layer_norm_epsilon=3e-3,
        initializer_range=WEIGHT_STD,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
    ),
}


@dataclass
class Model:
    folder: Path
    reference: torch.nn.Module  # fp32, attention in its plain form


def make(name, folder):
    """Saves the model in `folder` as transformers does, in several shards."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    config = CONFIGS[name]()
    config._attn_implementation = "eager"
    model = repaired(AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval())
    with torch.no_grad():
        for key, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if not key.endswith(("weight", "bias", "experts.gate_up_proj", "experts.down_proj", "sinks")):
                continue  # a buffer that is computed
            noise = torch.randn(parameter.shape, generator=generator) * WEIGHT_STD
            is_norm = key.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight"))
            if key.endswith("gate_up_proj_bias"):
                noise *= 20  # some gates and ups beyond gpt-oss's limits
            parameter.copy_(1 + noise if is_norm else noise)
    model.save_pretrained(folder, safe_serialization=True, max_shard_size="200KB")
    return Model(Path(folder), model)


def make_with_images(folder):
    """Saves a model that also sees images as transformers does; returns its language model by itself."""
    vision = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"image_size": 28, "patch_size": 14, "vision_output_dim": 32, "projector_input_dim": 32}
    vision |= {"projector_output_dim": 32}
    config = Llama4Config(text_config=CONFIGS["llama4"]().to_dict(), vision_config=vision)
    whole = Llama4ForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    text = make("llama4", Path(folder) / "text")
    whole.language_model.load_state_dict(text.reference.state_dict())
    whole.save_pretrained(Path(folder) / "whole", safe_serialization=True, max_shard_size="200KB")
    return Model(Path(folder) / "whole", text.reference)


def repaired(model):
    """transformers 4 leaves the squared scale of YaRN out of DeepSeek-V2's softmax; version 5 and the original have it."""
    import transformers

    if model.config.model_type == "deepseek_v2" and transformers.__version__.startswith("4."):
        scaling = model.config.rope_scaling
        mscale = 0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1
        for layer in model.model.layers:
            layer.self_attn.scaling *= mscale * mscale
    return model


def reload(folder):
    """The model of a folder, as transformers reads it, in fp32."""
    return repaired(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    )


def read_config(folder):
    return json.loads((Path(folder) / "config.json").read_text())


def write_config(folder, config):
    (Path(folder) / "config.json").write_text(json.dumps(config, indent=2))


def read_weights(folder):
    weights = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        weights.update(load_file(file))
    return weights


def changed_copy(source, target, change_config=None, change_weights=None):
    """A copy of a model's folder, in one file, with its configuration or weights changed by the given functions."""
    target = Path(target)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    config = read_config(source)
    weights = read_weights(source)
    if change_config is not None:
        change_config(config)
    if change_weights is not None:
        change_weights(weights)
    write_config(target, config)
    save_file({key: value.contiguous() for key, value in weights.items()}, target / "model.safetensors", {"format": "pt"})
    return target


def to_version_5(config):
    """config.json as transformers 5 writes it: rotary keys in rope_parameters, dtype instead of torch_dtype."""
    if "rope_theta" in config:
        rope = dict(config.pop("rope_scaling", None) or {"rope_type": "default"})
        rope["rope_theta"] = config.pop("rope_theta")
        if "partial_rotary_factor" in config:
            rope["partial_rotary_factor"] = config.pop("partial_rotary_factor")
        if "rope_local_base_freq" in config:
            local = {"rope_type": "default", "rope_theta": config.pop("rope_local_base_freq")}
            rope = {"full_attention": rope, "sliding_attention": local}
        config["rope_parameters"] = rope
    config["dtype"] = config.pop("torch_dtype", config.get("dtype", "float32"))
    config["transformers_version"] = "5.0.0"


def to_version_4(config):
    """config.json as earlier releases of transformers 4 wrote it: torch_dtype, and no head_dim where it follows."""
    config["torch_dtype"] = config.pop("dtype", config.get("torch_dtype", "float32"))
    if "num_attention_heads" in config and config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"]:
        del config["head_dim"]
    config["transformers_version"] = "4.41.0"


def token_losses(model, samples):
    """Cross-entropy of every next token, (samples, sequence), in fp32."""
    tokens = torch.as_tensor(samples[:, :-1])
    labels = torch.as_tensor(samples[:, 1:])
    logits = model(tokens, use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


def gradients(model, samples):
    """Gradient of the mean loss for every parameter, by name."""
    model = copy.deepcopy(model)
    token_losses(model, samples).mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@torch.no_grad()
def greedy(model, prompt, num_tokens):
    """New ids, each the likeliest after all before, without a cache; and the smallest lead over the second."""
    ids, lead = list(prompt), float("inf")
    for _ in range(num_tokens):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = logits.topk(2)
        lead = min(lead, (best.values[0] - best.values[1]).item())
        ids.append(best.indices[0].item())
    return ids[len(prompt) :], lead
