"""Wrong configuration, data and checkpoints: each is refused with exit code 2 and a message that names what is wrong."""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import hf_models
import indexed_data
import numpy as np
import pytest
import torch

# A model that could be trained; what is added to it is wrong.
SHAPE = (
    *("--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4, "--vocab_size", 131),
    *("--max_position_embeddings", 64, "--swiglu", "--normalization", "RMSNorm", "--position_embedding_type", "rope"),
    *("--disable_bias_linear", "--device", "cpu"),
)
MODEL = (*SHAPE, "--seq_length", 32)
MOCK = (*MODEL, "--mock_data")
T5 = (*MOCK, "--model_type", "t5", "--position_embedding_type", "relative")
PP2 = ("--dry_run", "--dry_run_world_size", 2, "--pipeline_model_parallel_size", 2)
TP2 = ("--dry_run", "--dry_run_world_size", 2, "--tensor_model_parallel_size", 2)

# what is wrong, command, parts of the message in any order
CONFIGURATION = [
    ("unknown command", ("trian",), ["trian", "Did you mean 'train'"]),
    ("unknown option", ("train", *MOCK, "--num-layer", 2), ["--num-layer", "num_layers"]),
    ("not a number", ("train", *MOCK, "--train_iters", "many"), ["train_iters", "many"]),
    ("out of range", ("train", *MOCK, "--micro_batch_size", 0), ["micro_batch_size", "0"]),
    ("not a switch", ("train", *MOCK, "--bf16=perhaps"), ["bf16", "perhaps"]),
    ("stray word", ("train", *MOCK, "--bf16", "perhaps"), ["perhaps"]),
    ("no value", ("train", *MOCK, "--lr"), ["--lr", "needs a value"]),
    ("unknown choice", ("train", *MOCK, "--lr_decay_style", "cosin"), ["lr_decay_style", "cosin", "cosine"]),
    ("quiet and verbose", ("train", *MOCK, "--quiet", "--verbose"), ["quiet and verbose are both set"]),
    ("unknown log format", ("train", *MOCK, "--log_format", "megatrn"), ["log_format", "megatrn", "megatron"]),
    ("no shape", ("train", "--mock_data", "--vocab_size", 131), ["num_layers"]),
    ("heads do not divide", ("train", *MOCK, "--num_attention_heads", 5), ["hidden_size", "5"]),
    (
        "groups do not divide",
        ("train", *MOCK, "--group_query_attention", "--num_query_groups", 3),
        ["num_query_groups", "3", "num_attention_heads", "4"],
    ),
    (
        "windowed layers without a window",
        ("train", *MOCK, "--window_attn_skip_freq", 2),
        ["window_attn_skip_freq", "window_size gives no layer a window"],
    ),
    (
        "windowed layers of another model",
        ("train", *MOCK, "--window_size=7,0", "--window_attn_skip_freq=[1,0,1]"),
        ["window_attn_skip_freq", "3 layers", "num_layers is 2"],
    ),
    ("two kinds of gates", ("train", *MOCK, "--geglu"), ["swiglu", "geglu", "keep one"]),
    (
        "limits of gates that have none",
        ("train", *MOCK, "--activation_func_clamp_value", 7),
        ["activation_func_clamp_value is given", "quick_geglu"],
    ),
    ("a cap below zero", ("train", *MOCK, "--attn_logit_softcapping=-5"), ["attn_logit_softcapping", "-5"]),
    (
        "relative positions of a decoder",
        ("train", *MOCK, "--position_embedding_type", "relative"),
        ["position_embedding_type relative is for model_type t5", "set model_type to t5"],
    ),
    (
        "layers of a second stack that is not there",
        ("train", *MOCK, "--decoder_num_layers", 2),
        ["decoder_num_layers is for model_type t5", "leave decoder_num_layers out"],
    ),
    (
        "an encoder that rotates",
        ("train", *MOCK, "--model_type", "t5"),
        ["model_type t5 with position_embedding_type rope", "set position_embedding_type to relative"],
    ),
    (
        "an encoder's sequences cut",
        ("train", *T5, "--context_parallel_size", 2, "--dry_run_world_size", 2),
        ["context_parallel_size is 2", "two sequences", "set context_parallel_size to 1"],
    ),
    (
        "an encoder on every rank of a pipeline",
        ("train", *T5, *PP2, "--decoder_seq_length", 16, "--pipeline_model_parallel_split_rank", 2),
        ["pipeline_model_parallel_split_rank 2 leaves the decoder no rank", "pipeline_model_parallel_size is 2", "1 to 1"],
    ),
    (
        "stages of an encoder that is not there",
        ("train", *MOCK, *PP2, "--encoder_pipeline_model_parallel_size", 1),
        ["encoder_pipeline_model_parallel_size 1 is for a model with an encoder", "leave it out"],
    ),
    (
        "an encoder's layers on ranks of their own",
        ("train", *T5, "--decoder_seq_length", 16, "--encoder_tensor_model_parallel_size", 2),
        ["encoder_tensor_model_parallel_size 2 is not tensor_model_parallel_size 1", "leave it out"],
    ),
    (
        "a decoder's tokens that ranks cannot share",
        ("train", *T5, "--decoder_seq_length", 15, *TP2, "--sequence_parallel"),
        ["decoder_seq_length 15", "tensor_model_parallel_size 2", "multiple of 2"],
    ),
    (
        "an encoder's sequence beyond the positions",
        ("train", *MOCK, "--model_type", "t5", "--position_embedding_type", "learned_absolute", "--encoder_seq_length", 65),
        ["seq_length 65", "max_position_embeddings 64"],
    ),
    (
        "more buckets than distances",
        ("train", *T5, "--relative_attention_max_distance", 8),
        ["relative_attention_num_buckets 32", "relative_attention_max_distance 8"],
    ),
    (
        "wavelengths stretched twice",
        ("train", *MOCK, "--use_rope_scaling", "--rotary_seq_len_interpolation_factor", 4),
        ["rotary_seq_len_interpolation_factor 4", "use_rope_scaling"],
    ),
    ("an unknown kind of model", ("train", *MOCK, "--model_type", "mamba"), ["model_type", "mamba", "gpt", "bert"]),
    ("a causal BERT", ("train", *MOCK, "--model_type", "bert", "--is_causal"), ["is_causal is true", "model_type bert", "leave is_causal out"]),
    (
        "a BERT that sees more on one side",
        ("train", *MOCK, "--model_type", "bert", "--window_size=7,0"),
        ["window_size is 7,0", "set window_size to 7,7"],
    ),
    ("a BERT that learns the next token", ("train", *MOCK, "--model_type", "bert", "--task", "causal_lm"), ["causal_lm", "model_type bert", "masked_lm"]),
    ("prediction modules of a BERT", ("train", *MOCK, "--model_type", "bert", "--mtp_num_layers", 1), ["mtp_num_layers", "is_causal false"]),
    ("types of tokens in a decoder", ("train", *MOCK, "--num_token_types", 2), ["num_token_types is for model_type bert or biencoder, which is gpt"]),
    (
        "prediction modules without a final norm",
        ("train", *MOCK, "--norm_placement", "post_ln", "--mtp_num_layers", 1),
        ["mtp_num_layers with norm_placement post_ln", "norm_placement to pre"],
    ),
    (
        "types of fewer tokens than a prompt has",
        ("inspect", "logits", *SHAPE, "--prompt_ids", "1,2,3", "--prompt_token_types", "0,1", "--output", "out"),
        ["prompt_token_types has 2 numbers, and prompt_ids 3"],
    ),
    ("sequence too long", ("train", *MOCK, "--seq_length", 65), ["seq_length 65", "max_position_embeddings 64"]),
    (
        "batch does not divide",
        ("train", *MOCK, "--micro_batch_size", 4, "--global_batch_size", 6),
        ["global_batch_size 6", "micro_batch_size 4"],
    ),
    ("more ranks than there are", ("train", *MOCK, "--tensor_model_parallel_size", 2), ["tensor_model_parallel_size"]),
    ("a width beyond all bounds", ("train", *MOCK, "--hidden_size", 2**62), ["hidden_size", "at most 1048576"]),
    ("as many layers", ("train", *MOCK, "--num_layers", 2**31), ["num_layers", "at most 4096"]),
    (
        "sizes whose product is beyond all bounds",
        ("train", *MOCK, "--num_layers", 4000, "--hidden_size", 2**20, "--ffn_hidden_size", 2**22),
        ["parameters", "at most 1e+15", "hidden_size 1048576"],
    ),
    (
        "a model larger than any machine",
        ("train", *MOCK, "--num_layers", 1000, "--hidden_size", 2**16, "--ffn_hidden_size", 2**20),
        ["rank 0 needs about", "TiB", "it holds parameters", "gradients", "tensor_model_parallel_size", "--allow_oversubscription"],
    ),
    ("two precisions", ("train", *MOCK, "--bf16", "--fp32"), ["bf16", "fp32"]),
    ("verify without a file of CVS", ("verify", "--log", "training.log"), ["takes one file of CVS, and 0 are given"]),
    ("verify by a file that is not there", ("verify", "--config", "mi4.json"), ["mi4.json", "mi3xx_megatron_llama_single.json"]),
    ("two lengths", ("train", *MOCK, "--train_iters", 3, "--train_samples", 9), ["train_iters", "train_samples"]),
    ("lowest above highest rate", ("train", *MOCK, "--lr", "1e-4", "--min_lr", "1e-3"), ["min_lr", "lr"]),
    ("warm-up longer than the run", ("train", *MOCK, "--train_iters", 5, "--lr_warmup_iters", 9), ["warm-up", "lr_warmup_iters"]),
    ("no such configuration", ("train", "--config", "nowhere.yaml"), ["nowhere.yaml"]),
    ("no such data", ("train", *MODEL, "--data_path", "nowhere/data"), ["nowhere/data"]),
    ("two sources of data", ("train", *MOCK, "--data_path", "nowhere/data"), ["mock_data", "data path"]),
    ("bad split", ("train", *MODEL, "--data_path", "x", "--split", "most,rest"), ["split", "most,rest"]),
    ("no checkpoint", ("train", *MOCK, "--load", "nowhere", "--exit_on_missing_checkpoint"), ["nowhere", "exit_on_missing_checkpoint"]),
    ("step of no checkpoint", ("train", *MOCK, "--ckpt_step", 5), ["ckpt_step", "--load"]),
    ("tuned products on the CPU", ("train", *MOCK, "--gemm_tuning", "use"), ["gemm_tuning", "cuBLASLt or hipBLASLt", "off"]),
    (
        "choices by time where results must repeat",
        ("train", *MOCK, "--gemm_tuning", "tune", "--deterministic_mode"),
        ["gemm_tuning tune", "deterministic_mode", "--gemm_tuning use"],
    ),
    ("negative workers", ("train", *MOCK, "--num_workers", -1), ["num_workers", "-1"]),
    ("sample without a prompt", ("train", *MOCK, "--sample_interval", 5), ["sample_interval", "--sample_prompt"]),
    ("prompt without an interval", ("train", *MOCK, "--sample_prompt", "hello"), ["sample_prompt", "--sample_interval"]),
    (
        "two prompts to sample from",
        ("train", *MOCK, "--sample_interval", 5, "--sample_prompt", "hello", "--sample_prompt_ids", "1,2"),
        ["sample_prompt", "sample_prompt_ids"],
    ),
    ("sample at every zeroth step", ("train", *MOCK, "--sample_interval", 0, "--sample_prompt_ids", 1), ["sample_interval", "0"]),
    (
        "text to sample from without a tokenizer",
        ("train", *MOCK, "--sample_interval", 5, "--sample_prompt", "hello"),
        ["tokenizer", "--sample_prompt_ids"],
    ),
    (
        "foreign id to sample from",
        ("train", *MOCK, "--sample_interval", 5, "--sample_prompt_ids", "1,131"),
        ["131"],
    ),
    (
        "sample longer than the model reads",
        ("train", *MOCK, "--sample_interval", 5, "--sample_prompt_ids", "1,2", "--sample_max_new_tokens", 63),
        ["max_position_embeddings 64", "sample_max_new_tokens to 62"],
    ),
    (
        "retained checkpoints that are never written",
        ("train", *MOCK, "--save", "out", "--save_interval", 4, "--save_retain_interval", 6),
        ["save_retain_interval 6", "save_interval 4"],
    ),
    (
        "full recomputation of what, and how",
        ("train", *MOCK, "--recompute_granularity", "full"),
        ["recompute_method", "recompute_num_layers", "uniform"],
    ),
    (
        "selective recomputation of layers",
        ("train", *MOCK, "--recompute_activations", "--recompute_method", "block", "--recompute_num_layers", 1),
        ["recompute_method block", "recompute_num_layers 1", "selective"],
    ),
    (
        "FSDP beside the distributed optimizer",
        ("train", *MOCK, "--use_torch_fsdp2", "--use_distributed_optimizer"),
        ["use_torch_fsdp2 (command line) and use_distributed_optimizer (command line)", "leave use_distributed_optimizer out"],
    ),
    (
        "an FP8 recipe that is not there",
        ("train", *MOCK, "--fp8", "hybrid", "--fp8_recipe", "mxfp8"),
        ["fp8_format hybrid with fp8_recipe mxfp8", "set fp8_recipe to blockwise"],
    ),
    (
        "delayed scaling of some layers",
        ("train", *MOCK, "--fp8", "hybrid", "--first_last_layers_bf16"),
        ["first_last_layers_bf16 does not work with fp8_recipe delayed", "tensorwise or blockwise"],
    ),
    ("FSDP in fp16", ("train", *MOCK, "--use_torch_fsdp2", "--fp16"), ["use_torch_fsdp2 does not work with fp16"]),
    (
        "FSDP in a pipeline",
        ("train", *MOCK, "--dry_run", "--dry_run_world_size", 2, "--use_torch_fsdp2", "--pipeline_model_parallel_size", 2),
        ["use_torch_fsdp2 does not work with pipeline_model_parallel_size 2"],
    ),
    ("runs in host memory without FSDP", ("train", *MOCK, "--fsdp_cpu_offload"), ["fsdp_cpu_offload needs use_torch_fsdp2"]),
    (
        "states in host memory, and none of them",
        ("train", *MOCK, "--optimizer_offload_fraction", 0.5, "--overlap_cpu_optimizer_d2h_h2d"),
        ["optimizer_offload_fraction 0.5 needs optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d needs optimizer_cpu_offload"],
    ),
    (
        "Muon in host memory",
        ("train", *MOCK, "--optimizer", "muon", "--optimizer_cpu_offload", "--fail_on_host_sync"),
        ["optimizer_cpu_offload with optimizer muon", "use optimizer adam or sgd", "fail_on_host_sync with optimizer_cpu_offload"],
    ),
    ("resharding of nothing", ("train", *MOCK, "--torch_fsdp2_no_reshard_after_forward"), ["needs use_torch_fsdp2"]),
    ("replicas compared never", ("train", *MOCK, "--check_sync", 0), ["check_sync", "1"]),
    ("recomputed layers of nothing", ("train", *MOCK, "--recompute_num_layers", 1), ["recompute_num_layers 1", "recompute_granularity full"]),
    (
        "recomputation of a part that is not there",
        ("train", *MOCK, "--recompute_granularity", "selective", "--recompute_modules", "core_attn,moe_act,rope"),
        ["no experts", "no 'rope'", "layernorm, mlp, mlp_act"],
    ),
    ("unknown granularity", ("train", *MOCK, "--recompute_granularity", "some"), ["recompute_granularity", "some", "selective"]),
    (
        "recomputed layer beyond the model",
        ("train", *MOCK, "--recompute_granularity", "full", "--recompute_layer_ids", "0,9"),
        ["recompute_layer_ids has 9"],
    ),
    ("offloads what is not recomputed", ("train", *MOCK, "--cpu_offloading_num_layers", 1), ["cpu_offloading_num_layers 1", "full"]),
    ("keeps no checkpoint", ("train", *MOCK, "--save", "out", "--keep_last", 0), ["keep_last", "0"]),
    ("a folder of checkpoints that cannot be made", ("train", *MOCK, "--save", "/proc/zz/run"), ["save /proc/zz/run", "/proc"]),
    ("a folder for the model that cannot be made", ("train", *MOCK, "--save_hf", "/proc/zz"), ["save_hf /proc/zz"]),
    ("metrics where nothing is written", ("train", *MOCK, "--metrics_file", "/proc/m.jsonl"), ["metrics_file /proc/m.jsonl"]),
    ("a page where nothing is written", ("train", *MOCK, "--page_file", "/proc/zz/p.html"), ["page_file /proc/zz/p.html"]),
    ("a picture where nothing is written", ("train", *MOCK, "--loss_plot_file", "/proc/p.svg"), ["loss_plot_file /proc/p.svg"]),
    ("a log where nothing is written", ("train", *MOCK, "--log_file", "/proc/log.txt"), ["log_file /proc/log.txt"]),
    ("events where nothing is written", ("train", *MOCK, "--tensorboard_dir", "/proc/zz"), ["tensorboard_dir /proc/zz"]),
    ("a W&B run where nothing is written", ("train", *MOCK, "--wandb_project", "p", "--wandb_save_dir", "/proc/zz"), ["wandb_save_dir /proc/zz"]),
    ("an MLflow store where nothing is written", ("train", *MOCK, "--mlflow_dir", "/proc/zz"), ["mlflow_dir /proc/zz"]),
    ("traces where nothing is written", ("train", *MOCK, "--profile", "--profile_dir", "/proc/zz"), ["profile_dir /proc/zz"]),
    ("a run's folder that cannot be made", ("train", *MOCK, "--output_dir", "/proc/zz/run"), ["output_dir /proc/zz/run"]),
    ("two outputs in one file", ("train", *MOCK, "--page_file", "out", "--log_file", "./out"), ["log_file and page_file are both"]),
    ("a model exported into a folder of checkpoints", ("train", *MOCK, "--save", "out", "--save_hf", "out"), ["save_hf out", "save out"]),
    ("an export without a folder", ("train", *MOCK, "--export_hf"), ["export_hf", "--save_hf"]),
    ("no run to inspect", ("inspect", "run", "nowhere"), ["nowhere does not exist", "--output_dir"]),
    ("no name of a run", ("inspect", "run"), ["takes one folder, and got 0"]),
    ("two names of runs", ("inspect", "run", "a", "b"), ["got 2", "'megalith inspect runs a b' compares them"]),
    ("one name of runs", ("inspect", "runs", "a"), ["got 1", "'megalith inspect run DIR' tells of one"]),
    ("two tokenizers", ("inspect", "tokenizer", "a", "b"), ["several tokenizers are given: a, b", "inspect tokenizer DIR"]),
    ("a tokenizer twice", ("inspect", "tokenizer", "a", "--tokenizer_model", "c"), ["several tokenizers are given: a, c"]),
    ("no runs to compare", ("inspect", "runs", "nowhere", "there"), ["nowhere does not exist"]),
    ("no weights", ("generate", *SHAPE, "--prompt_ids", "1,2", "--print_ids"), ["--load"]),
    ("no prompt", ("generate", *MODEL, "--load_hf", "nowhere"), ["nowhere"]),
    ("no input", ("prepare", "--output_prefix", "out"), ["--input"]),
    ("input is missing", ("prepare", "--input", "nowhere.jsonl", "--output_prefix", "out"), ["nowhere.jsonl"]),
    ("unknown tokenizer", ("prepare", "--input", "a.txt", "--output_prefix", "out", "--tokenizer_type", "Nonesuch"), ["Nonesuch"]),
    ("no such folder", ("evaluate", "--load_hf", "nowhere", "--mock_data"), ["nowhere"]),
    ("no such topic", ("inspect", "engine"), ["engine"]),
    ("no data to train on", ("train", *MODEL), ["no data is given", "--data_path", "--mock_data"]),
    ("no weights to evaluate", ("evaluate", *MOCK), ["no weights given", "--load"]),
    ("no folder to load from", ("train", *MOCK, "--load", "nowhere"), ["load nowhere holds no checkpoint", "no such folder"]),
    ("no folder to generate from", ("generate", "--load", "nowhere", "--prompt_ids", "1"), ["load nowhere holds no checkpoint"]),
    ("no checkpoint to begin with", ("train", *MOCK, "--pretrained_checkpoint", "nowhere"), ["pretrained_checkpoint nowhere"]),
    ("no checkpoint to inspect", ("inspect", "checkpoint", "nowhere"), ["nowhere holds no checkpoint", "no such folder"]),
    ("a dry run with data that are not there", ("train", *MODEL, "--dry_run", "--data_path", "/nowhere/data"), ["/nowhere/data.idx"]),
    ("a dry run from a folder that is not there", ("train", *MOCK, "--dry_run", "--load", "nowhere"), ["load nowhere"]),
    ("an option of training in generate", ("generate", "--load", "x", "--lr", 1), ["--lr is an option of", "generate has no use"]),
    ("an option of training in evaluate", ("evaluate", "--load", "x", "--save", "y"), ["--save is an option of", "evaluate"]),
    ("one dash", ("train", *MOCK, "-lr", 1), ["'-lr'", "two dashes"]),
    ("a name without dashes", ("train", *MOCK, "bf16"), ["unexpected argument 'bf16'", "--bf16"]),
    ("an unknown name without dashes", ("train", *MOCK, "lrr=1"), ["--lrr", "Did you mean '--lr'"]),
    ("a rate that is no number", ("train", *MOCK, "--lr", "nan"), ["lr is 'nan'", "number"]),
    ("a rate without end", ("train", *MOCK, "--lr", "inf"), ["lr is 'inf'", "number"]),
    ("a rate below zero", ("train", *MOCK, "--lr", "-1"), ["lr is '-1'", "at least 0"]),
    ("a vocabulary of nothing", ("train", *MOCK, "--vocab_size", 0), ["vocab_size is '0'", "at least 1"]),
    ("a length with a unit", ("train", *MOCK, "--seq_length", "4k"), ["seq_length is '4k'", "integer"]),
    ("a part of a token", ("train", *MOCK, "--seq_length", 31.5), ["seq_length is '31.5'", "integer"]),
    ("a mean that never moves", ("train", *MOCK, "--adam_beta1", 1), ["adam_beta1 is '1'", "below 1"]),
    ("all activations dropped", ("train", *MOCK, "--hidden_dropout", 1), ["hidden_dropout is '1'", "below 1"]),
    ("a seed of zero", ("train", *MOCK, "--seed", 0), ["seed is '0'", "above 0"]),
    ("a checkpoint at every zeroth step", ("train", *MOCK, "--save", "out", "--save_interval", 0), ["save_interval is '0'"]),
    ("a line at every zeroth step", ("train", *MOCK, "--log_interval", 0), ["log_interval is '0'"]),
    ("an evaluation at every zeroth step", ("train", *MOCK, "--eval_interval", 0), ["eval_interval is '0'"]),
    ("fewer than no evaluations", ("train", *MOCK, "--eval_iters", -2), ["eval_iters is '-2'"]),
    ("a norm below zero", ("train", *MOCK, "--clip_grad", -1), ["clip_grad is '-1'"]),
    ("a warm-up longer than all", ("train", *MOCK, "--lr_warmup_fraction", 2), ["lr_warmup_fraction is '2'", "at most 1"]),
    ("a device of nobody", ("train", *MOCK, "--device", "tpu"), ["device is 'tpu'", "gpu"]),
    ("no threads", ("train", *MOCK, "--num_threads", 0), ["num_threads is '0'"]),
    ("an unknown rule of the update", ("train", *MOCK, "--optimizer", "lamb"), ["optimizer is 'lamb'", "muon"]),
    ("an unknown norm", ("train", *MOCK, "--normalization", "BatchNorm"), ["BatchNorm", "RMSNorm"]),
    ("an unknown encoding", ("train", *MOCK, "--position_embedding_type", "alibi"), ["alibi", "rope"]),
    ("a list without its end", ("train", *MODEL, "--data_path", "[a, b"), ["[a, b", "close the bracket"]),
    ("a rank before the first", ("train", *MOCK, "--profile_ranks", -1), ["profile_ranks", "-1"]),
    ("a folder for a configuration", ("train", "--config", "."), ["."]),
    ("no configuration behind its name", ("train", "--config"), ["--config needs a value"]),
    ("more than all probability", ("generate", "--load", "x", "--top_p", 1.5), ["top_p is '1.5'", "at most 1"]),
    ("a temperature below zero", ("generate", "--load", "x", "--temperature", -1), ["temperature is '-1'"]),
    ("help on nothing", ("train", "--help", "lernrate"), ["'lernrate'"]),
    ("a plan without layers", ("plan", "--pipeline_model_parallel_size", 4), ["num_layers"]),
    ("nothing to convert", ("convert", "--save_hf", "out"), ["nothing to read", "--load_hf"]),
    ("nowhere to convert to", ("convert", "--load_hf", "x"), ["nowhere to write", "--save_hf"]),
    ("nothing to fetch", ("fetch",), ["nothing to fetch"]),
    ("a link to fetch", ("fetch", "https://host/org/name"), ["https://host/org/name"]),
    ("nothing to merge", ("prepare", "merge", "--output_prefix", "out"), ["--data_path"]),
    ("nothing to inspect", ("inspect", "checkpoint"), ["no checkpoint given"]),
    ("no checkpoint behind --load", ("inspect", "checkpoint", "--load", "nowhere"), ["nowhere", "holds no checkpoint"]),
    ("no file for logits", ("inspect", "logits", *SHAPE, "--prompt_ids", "1"), ["output_file"]),
]


def refused(program, words, parts, cwd):
    _, output, errors = program.run(*words, expected=2, timeout=60, cwd=cwd)
    # Names are shown as they were written, with dashes or underscores.
    for part in parts:
        assert part in errors or part.replace("_", "-") in errors, f"{program.line(words)}\n{part!r} is not in:\n{errors}"
    assert errors.startswith("error: ") or "\nerror: " in errors, errors
    for forbidden in ("internal error", "terminate called", "Exception raised from", "what():"):
        assert forbidden not in errors, errors
    return errors


@pytest.mark.parametrize("what, words, parts", CONFIGURATION, ids=[what for what, _, _ in CONFIGURATION])
def test_wrong_options_are_refused(what, words, parts, program, tmp_path):
    refused(program, words, parts, tmp_path)
    assert not list(tmp_path.iterdir()), "something was written"


def test_all_that_is_wrong_is_told_at_once(program, tmp_path):
    errors = refused(
        *(program, ("train", *MOCK, "--seq_length", 65, "--micro_batch_size", 4, "--global_batch_size", 6, "--min_lr", 1)),
        *(["seq_length 65", "global_batch_size 6", "min_lr"], tmp_path),
    )
    assert errors.count("error: ") >= 3


FILES = [
    ("unknown key", "num_layers: 2\nmicro_batchsize: 4\n", [":2", "micro_batchsize", "micro_batch_size"]),
    ("not YAML", "num_layers: [2\nhidden_size: }\n", ["not valid YAML"]),
    ("a list", "- num_layers\n- 2\n", ["map"]),
    ("a map for a value", "num_layers:\n  deep: 2\n", ["num_layers"]),
    ("extends what is not there", "extends: base.yaml\nnum_layers: 2\n", [":1", "base.yaml"]),
    ("extends itself", "extends: [wrong.yaml]\nnum_layers: 2\n", ["wrong.yaml"]),
    ("unset variable", "num_layers: ${MEGALITH_TEST_UNSET}\n", ["MEGALITH_TEST_UNSET"]),
    ("not a number", "num_layers: 2\nhidden_size: wide\n", [":2", "hidden_size", "wide"]),
]


def test_memory_that_cannot_be_had_is_told_without_a_stack(program, tmp_path):
    # An embedding of 8.2 GB in an address space of 8 GB: refused by the allocator, or before it where the machine has less.
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (8 * 10**9, 8 * 10**9))
    words = ("train", *MOCK, "--hidden_size", 1024, "--vocab_size", 2_000_000, "--train_iters", 1)
    code, _, errors = program.run(*words, expected=None, timeout=120, cwd=tmp_path, preexec_fn=limit)
    assert code in (1, 2) and "error: " in errors and "frame #" not in errors, errors


@pytest.mark.parametrize("what, text, parts", FILES, ids=[what for what, _, _ in FILES])
def test_wrong_configuration_files_are_refused(what, text, parts, program, tmp_path):
    (tmp_path / "wrong.yaml").write_text(text)
    refused(program, ("train", "--config", "wrong.yaml", "--mock_data"), ["wrong.yaml", *parts], tmp_path)


def cut(path, num_bytes):
    path.write_bytes(path.read_bytes()[:-num_bytes])


def overwrite(path, offset, raw):
    content = bytearray(path.read_bytes())
    content[offset : offset + len(raw)] = raw
    path.write_bytes(content)


def become_pipe(path):
    """Whoever opens it waits for a writer, who never comes."""
    path.unlink()
    os.mkfifo(path)


def wrong_length(prefix):
    overwrite(prefix.with_suffix(".idx"), 34, np.int32(-5).tobytes())


def huge_count(prefix):
    overwrite(prefix.with_suffix(".idx"), 18, np.uint64(2**62).tobytes())


def foreign_ids(prefix):
    indexed_data.write(prefix, [np.array([1, 2, 3, 4000] * 30)])


DATA = [
    (".bin is cut", lambda prefix: cut(prefix.with_suffix(".bin"), 10), ["data.bin", "10 bytes shorter"]),
    (".idx is cut", lambda prefix: cut(prefix.with_suffix(".idx"), 9), ["data.idx"]),
    (".idx is something else", lambda prefix: prefix.with_suffix(".idx").write_bytes(b"x" * 100), ["data.idx", "MMIDIDX"]),
    (".idx is empty", lambda prefix: prefix.with_suffix(".idx").write_bytes(b""), ["data.idx"]),
    (".bin is missing", lambda prefix: prefix.with_suffix(".bin").unlink(), ["data.bin"]),
    (".bin is a pipe", lambda prefix: become_pipe(prefix.with_suffix(".bin")), ["data.bin", "pipe"]),
    (".idx is a pipe", lambda prefix: become_pipe(prefix.with_suffix(".idx")), ["data.idx", "pipe"]),
    ("unknown token type", lambda prefix: overwrite(prefix.with_suffix(".idx"), 17, b"\x2a"), ["data.idx", "42"]),
    ("newer version", lambda prefix: overwrite(prefix.with_suffix(".idx"), 9, b"\x07"), ["data.idx", "version 7"]),
    ("negative length", wrong_length, ["data.idx", "-5"]),
    ("impossible count", huge_count, ["data.idx"]),
    ("ids beyond the vocabulary", foreign_ids, ["4000", "131"]),
]


@pytest.mark.parametrize("what, spoil, parts", DATA, ids=[what for what, _, _ in DATA])
def test_wrong_data_is_refused(what, spoil, parts, program, tmp_path):
    prefix = tmp_path / "data"
    indexed_data.write(prefix, indexed_data.random_documents(20, 131, seed=1))
    spoil(prefix)
    refused(program, ("train", *MODEL, "--data_path", prefix, "--split", "100,0,0", "--train_iters", 3), parts, tmp_path)


def test_empty_split_is_refused_at_once(program, tmp_path):
    # 20 documents at 999 to 1: the validation split gets none of them.
    indexed_data.write(tmp_path / "data", indexed_data.random_documents(20, 131, seed=1))
    words = ("train", *MODEL, "--data_path", "data", "--split", "999,1,0", "--train_iters", 3)
    refused(program, words, ["valid", "empty"], tmp_path)


def drop(key):
    return lambda weights: weights.pop(key)


def reshape(key):
    def change(weights):
        weights[key] = weights[key][:, :-1]

    return change


def keep_config(**values):
    return lambda config: config.update(values)


def without(key):
    return lambda config: config.pop(key)


KEY = "model.layers.1.self_attn.k_proj.weight"
HF_FOLDERS = [
    ("missing tensor", None, drop(KEY), [KEY]),
    ("unexpected tensor", None, lambda weights: weights.update({"model.layers.9.odd": torch.ones(2)}), ["model.layers.9.odd"]),
    ("wrong shape", None, reshape(KEY), [KEY, "63"]),
    ("other architecture", keep_config(model_type="rwkv", architectures=["RwkvForCausalLM"]), None, ["config.json", "rwkv"]),
    ("other rope scaling", keep_config(rope_scaling={"rope_type": "yarn", "factor": 4.0}), None, ["config.json", "yarn"]),
    ("other activation", keep_config(hidden_act="gelu"), None, ["config.json", "hidden_act", "gelu"]),
    ("missing size", without("hidden_size"), None, ["config.json", "hidden_size"]),
    ("size that is a word", keep_config(hidden_size="wide"), None, ["config.json", "hidden_size"]),
    ("size near 2^63", keep_config(hidden_size=2**63 - 1), None, ["config.json", "hidden_size is 9223372036854775807", "1048576"]),
    ("size beyond 2^63", keep_config(vocab_size=2**64 - 1), None, ["config.json", "vocab_size", "18446744073709551615"]),
    ("as many layers", keep_config(num_hidden_layers=2**31), None, ["config.json", "num_hidden_layers is 2147483648", "4096"]),
    ("sizes that do not divide", keep_config(num_key_value_heads=3), None, ["3"]),
]


@pytest.mark.parametrize("what, config, weights, parts", HF_FOLDERS, ids=[row[0] for row in HF_FOLDERS])
def test_wrong_hugging_face_folders_are_refused(what, config, weights, parts, program, models, tmp_path):
    hf_models.changed_copy(models["llama"].folder, tmp_path / "model", config, weights)
    refused(program, ("evaluate", "--load_hf", "model", "--mock_data", "--seq_length", 16), parts, tmp_path)


HF_FILES = [
    ("config.json is cut", lambda folder: cut(folder / "config.json", 40), ["config.json", "JSON"]),
    ("config.json is missing", lambda folder: (folder / "config.json").unlink(), ["config.json"]),
    ("weights are cut", lambda folder: cut(folder / "model.safetensors", 100), ["model.safetensors"]),
    ("weights are missing", lambda folder: (folder / "model.safetensors").unlink(), ["safetensors"]),
    ("config.json is a pipe", lambda folder: become_pipe(folder / "config.json"), ["config.json", "pipe"]),
    ("weights are a pipe", lambda folder: become_pipe(folder / "model.safetensors"), ["model.safetensors", "pipe"]),
    ("header is not JSON", lambda folder: overwrite(folder / "model.safetensors", 9, b"}}}}"), ["model.safetensors"]),
    ("header is endless", lambda folder: overwrite(folder / "model.safetensors", 0, b"\xff" * 7), ["model.safetensors", "header"]),
]


@pytest.mark.parametrize("what, spoil, parts", HF_FILES, ids=[row[0] for row in HF_FILES])
def test_spoilt_hugging_face_files_are_refused(what, spoil, parts, program, models, tmp_path):
    spoil(hf_models.changed_copy(models["llama"].folder, tmp_path / "model"))
    refused(program, ("evaluate", "--load_hf", "model", "--mock_data", "--seq_length", 16), parts, tmp_path)


PROMPTS = [
    ("id beyond the vocabulary", ("--prompt_ids", "1,131"), ["131"]),
    ("negative id", ("--prompt_ids", "1,-4"), ["-4"]),
    ("too many tokens", ("--prompt_ids", "1,2,3", "--max_new_tokens", 126), ["max_position_embeddings 128", "125"]),
    ("no prompt at all", (), ["prompt"]),
    ("text without a tokenizer", ("--prompt", "hello"), ["tokenizer"]),
]


@pytest.mark.parametrize("what, words, parts", PROMPTS, ids=[row[0] for row in PROMPTS])
def test_wrong_prompts_are_refused(what, words, parts, program, models, tmp_path):
    refused(program, ("generate", "--load_hf", models["llama"].folder, "--print_ids", *words), parts, tmp_path)


@pytest.fixture(scope="module")
def checkpoint(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    program.run("train", *MOCK, "--train_iters", 2, "--eval_iters", 0, "--save", folder / "checkpoint", "--save_interval", 1)
    return folder / "checkpoint"


def copies(checkpoint, target):
    shutil.copytree(checkpoint, target)
    return sorted(path for path in target.iterdir() if path.is_dir())


def resume(*more):
    return ("train", *MOCK, "--train_iters", 3, "--eval_iters", 0, "--load", "checkpoint", *more)


def biggest_file(folder):
    return max(folder.rglob("*.safetensors"), key=lambda path: path.stat().st_size)


def test_damaged_checkpoints_are_refused_when_none_is_intact(checkpoint, program, tmp_path):
    for folder in copies(checkpoint, tmp_path / "checkpoint"):
        file = biggest_file(folder)
        overwrite(file, file.stat().st_size - 8, b"\x55\xaa\x55\xaa")
    refused(program, resume(), ["no intact checkpoint"], tmp_path)


@pytest.mark.parametrize("pattern", ["checkpoint.json", "*model*.safetensors", "*exp_avg*.safetensors"])
def test_checkpoints_with_a_pipe_for_a_file_are_passed_over_or_refused(pattern, checkpoint, program, tmp_path):
    *older, newest = copies(checkpoint, tmp_path / "checkpoint")
    become_pipe(next(newest.rglob(pattern)))
    _, output, errors = program.run("inspect", "checkpoint", newest, expected=1, timeout=60, cwd=tmp_path)
    assert "pipe" in output + errors
    _, output, errors = program.run(*resume(), cwd=tmp_path, timeout=60)
    assert newest.name in errors + output
    for folder in older:
        become_pipe(next(folder.rglob(pattern)))
    refused(program, resume(), ["pipe"], tmp_path)


def test_configuration_may_come_through_a_pipe(program, tmp_path):
    (tmp_path / "run.yaml").write_text("num_layers: 2\nhidden_size: 0\n")
    script = f"{program.path} train --config <(cat run.yaml) --mock_data --dry_run"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "hidden_size is 0" in done.stderr, done.stderr


def test_damaged_newest_checkpoint_is_passed_over_aloud(checkpoint, program, tmp_path):
    newest = copies(checkpoint, tmp_path / "checkpoint")[-1]
    cut(biggest_file(newest), 4)
    _, output, errors = program.run(*resume(), cwd=tmp_path)
    assert newest.name in errors + output


def test_checkpoint_of_a_missing_iteration_is_refused(checkpoint, program, tmp_path):
    copies(checkpoint, tmp_path / "checkpoint")
    refused(program, resume("--ckpt_step", 7), ["7", "ckpt_step"], tmp_path)


def test_checkpoint_of_another_architecture_is_refused(checkpoint, program, tmp_path):
    copies(checkpoint, tmp_path / "checkpoint")
    refused(program, resume("--hidden_size", 32), ["hidden_size"], tmp_path)


def test_broken_json_lines_are_refused_when_nothing_is_left(program, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": \n{"other": "x"}\n' + json.dumps({"text": 5}) + "\n")
    refused(program, ("prepare", "--input", "texts.jsonl", "--output_prefix", "out"), ["texts.jsonl"], tmp_path)
    assert not list(Path(tmp_path).glob("out*"))
