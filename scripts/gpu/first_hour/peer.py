"""Tokens per second of transformers' Llama or Qwen2 on PyTorch, as one line of JSON. Everything is in bf16.

usage: peer.py eager|compile CONFIG.yaml --device cuda --batch 8 --sequence 1024 --microbatches 4 --steps 8
"""

import argparse
import json
import statistics
import time
from pathlib import Path


def read_preset(path):
    """The flat `name: value` lines of a model preset."""
    values = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, colon, value = line.split("#")[0].partition(":")
        if colon and value.strip():
            values[name.strip()] = value.strip()
    return values


def make_model(arguments, preset):
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    with_bias = preset.get("add_qkv_bias") == "true"
    config = (Qwen2Config if with_bias else LlamaConfig)(
        vocab_size=arguments.vocab_size or int(preset["vocab_size"]),
        hidden_size=int(preset["hidden_size"]),
        intermediate_size=int(preset["ffn_hidden_size"]),
        num_hidden_layers=arguments.layers or int(preset["num_layers"]),
        num_attention_heads=int(preset["num_attention_heads"]),
        num_key_value_heads=int(preset["num_query_groups"]),
        max_position_embeddings=max(int(preset["max_position_embeddings"]), arguments.sequence),
        tie_word_embeddings=preset.get("untie_embeddings_and_output_weights") == "false",
        use_cache=False,
    )
    return (Qwen2ForCausalLM if with_bias else LlamaForCausalLM)(config), config


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("eager", "compile"))
    parser.add_argument("config")
    parser.add_argument("--device", required=True)
    parser.add_argument("--backend", default="inductor")
    for name in ("batch", "sequence", "microbatches", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("vocab_size", "layers"):
        parser.add_argument(f"--{name}", type=int, default=0)
    arguments = parser.parse_args()

    import torch

    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(arguments.device):
        model, config = make_model(arguments, read_preset(arguments.config))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    if arguments.kind == "compile":
        model = torch.compile(model, backend=arguments.backend)
    wait = torch.cuda.synchronize if arguments.device.startswith("cuda") else lambda: None
    seconds = []
    for _ in range(arguments.steps):
        tokens = torch.randint(config.vocab_size, (arguments.microbatches, arguments.batch, arguments.sequence),
                               device=arguments.device)
        wait()
        start = time.perf_counter()
        for part in tokens:
            (model(part, labels=part).loss / arguments.microbatches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wait()
        seconds.append(time.perf_counter() - start)
    # The first steps compile and fill caches.
    count = arguments.microbatches * arguments.batch * arguments.sequence
    print(json.dumps({"tokens_per_s": count / statistics.median(seconds[2:])}))


if __name__ == "__main__":
    main()
