"""Tiny Llama and Qwen2.5 models, made by transformers, with weights so large that no part can be wrong unseen."""

import copy
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

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

CONFIGS = {
    "llama": lambda: LlamaConfig(**COMMON, rope_scaling=ROPE_SCALING, rope_theta=10000.0, tie_word_embeddings=False),
    "llama_tied": lambda: LlamaConfig(**COMMON, rope_scaling=ROPE_SCALING, rope_theta=5000.0, tie_word_embeddings=True),
    # Heads whose width is not hidden_size / num_attention_heads, and each with keys and values of its own.
    "llama_wide_heads": lambda: LlamaConfig(
        **{**COMMON, "num_key_value_heads": 4}, head_dim=24, rope_theta=500000.0, tie_word_embeddings=False
    ),
    "qwen": lambda: Qwen2Config(**COMMON, rope_theta=1000000.0, tie_word_embeddings=False),
    "qwen_tied": lambda: Qwen2Config(**COMMON, rope_theta=10000.0, tie_word_embeddings=True),
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
    model = (LlamaForCausalLM if isinstance(config, LlamaConfig) else Qwen2ForCausalLM)(config).float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * WEIGHT_STD
            parameter.copy_(1 + noise if key.endswith("norm.weight") else noise)
    model.save_pretrained(folder, safe_serialization=True, max_shard_size="200KB")
    return Model(Path(folder), model)


def reload(folder):
    """The model of a folder, as transformers reads it, in fp32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


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
    rope = dict(config.pop("rope_scaling", None) or {"rope_type": "default"})
    rope["rope_theta"] = config.pop("rope_theta")
    config["rope_parameters"] = rope
    config["dtype"] = config.pop("torch_dtype", config.get("dtype", "float32"))
    config["transformers_version"] = "5.0.0"


def to_version_4(config):
    """config.json as earlier releases of transformers 4 wrote it: torch_dtype, and no head_dim where it follows."""
    config["torch_dtype"] = config.pop("dtype", config.get("torch_dtype", "float32"))
    if config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"]:
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
