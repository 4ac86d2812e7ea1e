#!/usr/bin/env python3
"""Writes down the numbers of a build, and compares two such records to the bit.

    record.py record PROGRAM RECORD.json [--only WORD] [--folder DIR]
    record.py compare BEFORE.json AFTER.json

For whoever changes how the program is made and not what it computes: record before the first change, again after every
step, on one machine, and compare. Every configuration trains five steps; written down are all losses and the gradient
norm of each step, and a checksum of every file of weights and optimizer state, native and exported. Equal means equal to
the bit. Another processor, another number of threads or another LibTorch may round differently, so a record is no
reference for other machines.
"""

import argparse
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 5

RUN = (
    *("--mock_data", "--lr", 3e-3, "--lr_decay_style", "constant", "--num_workers", 0, "--eval_iters", 0),
    *("--train_iters", STEPS, "--device", "cpu", "--num_threads", 1, "--distributed_timeout_minutes", 2),
)
TEXT = ("--seq_length", 32, "--vocab_size", 131, "--max_position_embeddings", 64)
NO_DROPOUT = ("--hidden_dropout", 0, "--attention_dropout", 0)
BATCH = ("--micro_batch_size", 2, "--global_batch_size", 8)
SMALL = ("--num_layers", 4, "--hidden_size", 64, "--num_attention_heads", 4)
LLAMA_LIKE = (
    *(*SMALL, "--swiglu", "--ffn_hidden_size", 96, "--normalization", "RMSNorm", "--position_embedding_type", "rope"),
    *("--disable_bias_linear", *NO_DROPOUT),
)
GROUPED = ("--group_query_attention", "--num_query_groups", 2)
UNTIED = ("--untie_embeddings_and_output_weights",)
EXPERTS = (
    *(*LLAMA_LIKE, *GROUPED, *UNTIED, "--num_experts", 8, "--moe_router_topk", 2),
    *("--moe_router_load_balancing_type", "aux_loss", "--moe_aux_loss_coeff", 0.02, "--moe_z_loss_coeff", 0.01),
)
LATENT = (
    *(*LLAMA_LIKE, *UNTIED, "--multi_latent_attention", "--qk_layernorm", "--kv_lora_rank", 16, "--qk_head_dim", 8),
    *("--qk_pos_emb_head_dim", 4, "--v_head_dim", 8, "--num_experts", 8, "--moe_router_topk", 2),
    *("--moe_ffn_hidden_size", 32, "--moe_shared_expert_intermediate_size", 32, "--moe_layer_freq", "[0,1,1,1]"),
)

MODELS = {
    "llama": (*LLAMA_LIKE, *GROUPED, *UNTIED),
    "llama_tied": (*LLAMA_LIKE, *GROUPED),
    "qwen2": (*LLAMA_LIKE, *GROUPED, "--add_qkv_bias"),
    "qwen3": (*LLAMA_LIKE, *GROUPED, *UNTIED, "--qk_layernorm", "--kv_channels", 24),
    "gpt2": (*SMALL, "--openai_gelu", "--hidden_dropout", 0.1, "--attention_dropout", 0.1),
    "gpt": (*SMALL, "--apply_layernorm_1p", "--position_embedding_type", "rope", "--rotary_percent", 0.5, *NO_DROPOUT),
    "squared_relu": (*SMALL, "--squared_relu", "--position_embedding_type", "rope", *NO_DROPOUT, *UNTIED),
    "mixtral": EXPERTS,
    "deepseek_v2": (
        *(*LATENT, "--moe_router_pre_softmax", "--rope_type", "yarn", "--rotary_scaling_factor", 4),
        *("--original_max_position_embeddings", 16, "--mscale", 0.707, "--mscale_all_dim", 0.707),
        *("--moe_aux_loss_coeff", 0.01, "--moe_router_load_balancing_type", "seq_aux_loss"),
    ),
    "deepseek_v3": (
        *(*LATENT, "--q_lora_rank", 24, "--moe_router_score_function", "sigmoid", "--moe_router_num_groups", 4),
        *("--moe_router_group_topk", 1, "--moe_router_topk_scaling_factor", 2.5, "--moe_router_enable_expert_bias"),
        *("--moe_router_bias_update_rate", 0.001, "--mtp_num_layers", 1, "--moe_router_dtype", "fp32"),
        *("--moe_router_load_balancing_type", "seq_aux_loss", "--moe_aux_loss_coeff", 0.01),
    ),
}

TWO_STACKS = ("--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4)
T5 = (*TWO_STACKS, "--model_type", "t5", "--task", "t5", "--decoder_seq_length", 16)
RETRIEVER = (*TWO_STACKS, "--model_type", "biencoder", "--task", "ict")
KINDS = {
    "bert": (*SMALL, "--model_type", "bert", "--task", "bert"),
    "t5": T5,
    "t5_relative": (
        *(*T5, *UNTIED, "--position_embedding_type", "relative", "--normalization", "RMSNorm"),
        *("--disable_bias_linear", "--geglu"),
    ),
    "retriever": (*RETRIEVER, "--biencoder_projection_dim", 8),
    "shared_retriever": (*RETRIEVER, "--biencoder_shared_query_context_model", "--retriever_report_topk_accuracies", 1),
    "flux": (
        *("--model_type", "diffusion_model", "--num_joint_layers", 2, "--num_single_layers", 2, "--hidden_size", 64),
        *("--num_attention_heads", 4, "--in_channels", 16, "--context_dim", 32, "--vec_in_dim", 32),
        *("--model_channels", 32, "--axes_dim", "4,6,6", "--image_size", 64, "--text_length", 16),
    ),
}
WITHOUT_HF_CLASS = ("gpt", "squared_relu", *KINDS)
MODELS |= KINDS
MODELS = {name: options if name == "flux" else (*TEXT, *options) for name, options in MODELS.items()}

TP2, PP2, CP2 = (
    (f"--{name}_model_parallel_size", 2) if name != "context" else ("--context_parallel_size", 2)
    for name in ("tensor", "pipeline", "context")
)
EP2 = ("--expert_model_parallel_size", 2)
DOCUMENTS = ("--reset_position_ids", "--reset_attention_mask", "--eod_mask_loss")
FULL = ("--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", 1)
SELECTIVE = ("--recompute_granularity", "selective", "--recompute_modules", "core_attn", "layernorm", "mlp_act")

# name: (model, ranks, options)
LAYOUTS = {
    "clipped": ("llama", 1, ("--clip_grad", 0.1, "--weight_decay", 0.1, "--adam_beta2", 0.95)),
    "documents": ("llama", 1, DOCUMENTS),
    "full_recompute": ("llama", 1, FULL),
    "selective_recompute": ("gpt2", 1, SELECTIVE),
    "reference_kernels": ("llama", 1, ("--kernels", "reference")),
    "tp2": ("llama", 2, TP2),
    "tp2_sp": ("gpt2", 2, (*TP2, "--sequence_parallel")),
    "tp2_sp_selective": ("qwen2", 2, (*TP2, "--sequence_parallel", *SELECTIVE)),
    "dp2": ("llama_tied", 2, ()),
    "dp2_bf16_reduce": ("llama_tied", 2, ("--grad_reduce_in_bf16",)),
    "zero1": ("gpt", 2, ("--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather")),
    "tp2_sp_head_norms": ("qwen3", 2, (*TP2, "--sequence_parallel")),
    "fsdp": ("qwen2", 2, ("--use_torch_fsdp2",)),
    "pp2": ("llama_tied", 2, PP2),
    "pp2_interleaved": ("gpt2", 2, (*PP2, "--num_layers_per_virtual_pipeline_stage", 1)),
    "pp2_zero_bubble": ("llama", 2, (*PP2, "--pp_algorithm", "zero-bubble")),
    "cp2_p2p": ("llama", 2, (*CP2, *DOCUMENTS)),
    "cp2_a2a": ("qwen2", 2, (*CP2, "--cp_comm_type", "a2a")),
    "cp2_all_gather": ("gpt", 2, (*CP2, "--cp_comm_type", "all_gather")),
    "ep2": ("mixtral", 2, EP2),
    "tp2_ep2": ("mixtral", 2, (*TP2, *EP2, "--expert_tensor_parallel_size", 1, "--sequence_parallel")),
    "capacity": ("mixtral", 1, ("--moe_expert_capacity_factor", 1.0)),
    "sinkhorn": ("mixtral", 1, ("--moe_router_load_balancing_type", "sinkhorn", "--moe_router_topk", 1)),
    "latent_tp2": ("deepseek_v3", 2, TP2),
    "latent_pp2": ("deepseek_v3", 2, PP2),
    "latent_cp2": ("deepseek_v2", 2, CP2),
    "latent_ep2_zero1": ("deepseek_v3", 2, (*EP2, "--use_distributed_optimizer")),
    **{f"{name}_tp2_sp": (name, 2, (*TP2, "--sequence_parallel")) for name in ("bert", "t5", "t5_relative", "flux")},
    **{f"{name}_pp2": (name, 2, PP2) for name in ("bert", "t5", "t5_relative", "flux")},
    **{f"{name}_full": (name, 1, FULL) for name in ("bert", "t5", "t5_relative", "retriever", "flux")},
    "bert_cp2": ("bert", 2, CP2),
    "flux_tp2": ("flux", 2, TP2),
    "retriever_dp2": ("retriever", 2, ("--use_distributed_optimizer",)),
}


def configurations():
    """name: (ranks, whether it is exported, words of the command line)."""
    found = {}

    def add(name, model, dtype, ranks=1, options=BATCH):
        found[f"{name}_{dtype}"] = (ranks, model not in WITHOUT_HF_CLASS, (*MODELS[model], *options, f"--{dtype}"))

    for dtype in ("fp32", "bf16"):
        for model in MODELS:
            add(model, model, dtype)
        for layout, (model, ranks, options) in LAYOUTS.items():
            if dtype == "bf16" and layout == "reference_kernels":
                continue
            add(layout if layout.startswith(model) else f"{layout}_{model}", model, dtype, ranks, (*BATCH, *options))
    add("llama", "llama", "fp16")
    return found


def run_ranks(command, num_ranks, log):
    """Starts the ranks as a launcher would; ends the run with its log where one fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = []
    for rank in range(num_ranks):
        environment = os.environ | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
        if num_ranks > 1:
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
        with open(f"{log}.{rank}", "wb") as output:
            processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))
    codes = [process.wait() for process in processes]
    if any(codes):
        text = "\n".join(Path(f"{log}.{rank}").read_text(errors="replace")[-3000:] for rank in range(num_ranks))
        raise RuntimeError(f"exit codes {codes} of {' '.join(command)}\n{text}")


def checksums(folder):
    """The checksum of every file of tensors below the folder, by its path."""
    files = sorted(folder.rglob("*.safetensors"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}


def numbers_of(program, num_ranks, is_exported, words, folder):
    outputs = ("--metrics_file", folder / "metrics.jsonl", "--save", folder / "checkpoint")
    if is_exported:
        outputs = (*outputs, "--save_hf", folder / "hf")
    command = [program, "train", *RUN, *words, *outputs, "--data_cache_path", folder / "cache"]
    run_ranks([str(word) for word in command], num_ranks, folder / "log")
    steps = []
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record.get("kind", "step") != "step":  # programs of before have no kinds
            continue
        steps.append({name: value for name, value in record.items() if name.endswith("loss") or name == "grad_norm"})
    assert len(steps) == STEPS, f"{len(steps)} steps in {folder}"
    found = checksums(folder)
    for part in ("checkpoint", "hf")[: 1 + is_exported]:
        assert any(name.startswith(part) for name in found), f"no {part} in {folder}"
    return {"steps": steps, "files": found}


def record(arguments):
    chosen = {name: what for name, what in configurations().items() if arguments.only in name}
    if not chosen:
        sys.exit(f"record.py: no configuration's name contains '{arguments.only}'")
    program = Path(arguments.program).resolve()
    place = Path(arguments.folder or tempfile.mkdtemp(prefix="numbers."))
    result, begin = {}, time.monotonic()
    for done, (name, what) in enumerate(chosen.items()):
        folder = place / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        result[name] = numbers_of(program, *what, folder)
        elapsed = time.monotonic() - begin
        left = elapsed / (done + 1) * (len(chosen) - done - 1)
        print(f"{done + 1}/{len(chosen)} {name}: {result[name]['steps'][-1]}, {left:.0f} s left", flush=True)
    Path(arguments.record).write_text(json.dumps(result, indent=1), encoding="utf-8")
    if not arguments.folder:
        shutil.rmtree(place)
    print(f"{len(result)} configurations written to {arguments.record} in {time.monotonic() - begin:.0f} s")


def differences(before, after):
    """A line for each configuration whose numbers differ: where first, and by how much."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            yield f"{name}: only in the {'second' if name in after else 'first'} record"
            continue
        for step, (old, new) in enumerate(zip(before[name]["steps"], after[name]["steps"], strict=True), 1):
            moved = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
            if moved:
                texts = ", ".join(f"{key} {old.get(key)} became {new.get(key)}" for key in moved)
                yield f"{name}: step {step}: {texts}"
                break
        else:
            old, new = before[name]["files"], after[name]["files"]
            moved = [path for path in sorted(old.keys() | new.keys()) if old.get(path) != new.get(path)]
            if moved:
                yield f"{name}: the same losses, other bytes in {', '.join(moved)}"


def compare(arguments):
    before, after = (json.loads(Path(path).read_text(encoding="utf-8")) for path in (arguments.before, arguments.after))
    found = list(differences(before, after))
    for line in found:
        print(line)
    print(f"{len(before.keys() | after.keys())} configurations, {len(found)} differ")
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.add_argument("program")
    recording.add_argument("record")
    recording.add_argument("--only", default="", help="only configurations whose name contains this")
    recording.add_argument("--folder", help="where to run; kept afterwards")
    recording.set_defaults(run=record)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before")
    comparing.add_argument("after")
    comparing.set_defaults(run=compare)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
