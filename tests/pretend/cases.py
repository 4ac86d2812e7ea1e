"""What is trained on the pretend accelerator: models and options by name. Small, and each with what is special of it."""

from record import DOCUMENTS, FULL, MODELS, SELECTIVE

LLAMA, GPT2, MIXTRAL = (MODELS[name] for name in ("llama", "gpt2", "mixtral"))
FP8 = ("--fp8_format", "hybrid", "--fp8_recipe", "tensorwise")
OFFLOAD = (*FULL, "--cpu_offloading_num_layers", 2)

CASES = {
    **{name: (*words, "--fp32") for name, words in MODELS.items()},
    "bf16": (*LLAMA, "--bf16"),
    "fp16_with_a_loss_scale": (*LLAMA, "--fp16", "--initial_loss_scale", 1024),
    "fp8": (*LLAMA, "--bf16", *FP8),
    "fp8_delayed": (*LLAMA, "--bf16", "--fp8_format", "hybrid", "--fp8_amax_history_len", 2),
    "fp8_blockwise": (*LLAMA, "--bf16", "--fp8_format", "hybrid", "--fp8_recipe", "blockwise"),
    "experts_in_bf16": (*MIXTRAL, "--bf16"),
    "experts_in_fp8": (*MIXTRAL, "--bf16", *FP8),
    "documents": (*LLAMA, "--fp32", *DOCUMENTS),
    "documents_in_bf16": (*LLAMA, "--bf16", *DOCUMENTS),
    "window_in_bf16": (*LLAMA, "--bf16", "--window_size", "6,0"),
    "full_recompute": (*LLAMA, "--fp32", *FULL),
    "selective_recompute": (*GPT2, "--fp32", *SELECTIVE),
    "offload": (*LLAMA, "--fp32", *OFFLOAD),
    "distributed_optimizer": (*LLAMA, "--bf16", "--use_distributed_optimizer"),
    "moments_in_bf16": (
        *(*LLAMA, "--bf16", "--use_distributed_optimizer", "--use_precision_aware_optimizer"),
        *("--exp_avg_dtype", "bf16", "--exp_avg_sq_dtype", "bf16"),
    ),
    "masters_as_remainders": (*LLAMA, "--bf16", "--use_distributed_optimizer", "--master_weights", "remainder"),
    "all_in_bf16": (
        *(*LLAMA, "--bf16", "--use_precision_aware_optimizer", "--exp_avg_dtype", "bf16", "--exp_avg_sq_dtype", "bf16"),
        *("--master_weights", "none", "--stochastic_rounding"),
    ),
    "fsdp": (*LLAMA, "--fp32", "--use_torch_fsdp2"),
    "muon": (*LLAMA, "--fp32", "--optimizer", "muon"),
    "deterministic": (*LLAMA, "--fp32", "--deterministic_mode"),
    "experts_with_capacity": (
        *(*MIXTRAL, "--fp32", "--moe_expert_capacity_factor", 1.0, "--moe_pad_expert_input_to_capacity"),
    ),
    "experts_that_drop": (*MIXTRAL, "--fp32", "--moe_expert_capacity_factor", 0.75),
    "experts_with_jitter": (*MIXTRAL, "--fp32", "--moe_input_jitter_eps", 0.01),
    "sinkhorn": (*MIXTRAL, "--fp32", "--moe_router_load_balancing_type", "sinkhorn", "--moe_router_topk", 1),
}

# A run on token files that evaluates.
RUN_OF_DATA = (
    *("--seq_length", 32, "--lr", 3e-3, "--lr_decay_style", "constant", "--num_workers", 0, "--num_threads", 1),
    *("--max_position_embeddings", 64, "--vocab_size", 131, "--micro_batch_size", 2, "--global_batch_size", 4),
    *("--split", "80,20,0", "--train_iters", 2, "--eval_interval", 1, "--eval_iters", 1),
)
