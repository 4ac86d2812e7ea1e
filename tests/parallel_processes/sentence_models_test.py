"""BERT, T5 and two encoders as processes over Gloo learn as one process does."""

import pytest
from launch_test import assert_same_curve
from program import read_metrics
from ranks import run_ranks

STEPS = 4
COMMON = (
    *("--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4, "--vocab_size", 96, "--seq_length", 24),
    *("--max_position_embeddings", 24, "--micro_batch_size", 2, "--global_batch_size", 8, "--train_iters", STEPS),
    *("--lr", 1e-2, "--eval_iters", 0, "--mock_data", "--device", "cpu"),
)
EXPERTS = ("--num_experts", 4, "--moe_router_topk", 2, "--expert_model_parallel_size", 2)
T5 = ("--model_type", "t5", "--decoder_seq_length", 12)
MODELS = {
    "bert": ("--model_type", "bert"),
    "t5": T5,
    "t5_relative": (*T5, "--position_embedding_type", "relative", "--normalization", "RMSNorm", "--disable_bias_linear"),
}
TP2, PP2, ZERO1 = ("--tensor_model_parallel_size", 2), ("--pipeline_model_parallel_size", 2), ("--use_distributed_optimizer",)
LAYOUTS = [
    ("bert", 2, (*TP2, "--sequence_parallel")),
    ("bert", 4, (*PP2, *ZERO1, "--recompute_activations")),
    ("t5", 2, (*PP2, "--pipeline_model_parallel_split_rank", 1)),
    ("t5", 4, (*TP2, "--sequence_parallel", *ZERO1)),
    ("t5_relative", 4, (*TP2, *PP2)),
]


def train_words(folder, *more):
    return ("train", *COMMON, *more, "--data_cache_path", folder / "cache", "--metrics_file", folder / "metrics.jsonl")


def curve(folder):
    """Every loss and the norm of the gradient, by step."""
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if "grad_norm" in line]
    names = [name for name in lines[0] if name.endswith("loss") or name == "grad_norm"]
    return {line["iteration"]: tuple(line[name] for name in names) for line in lines}


@pytest.fixture(scope="module")
def alone(program, tmp_path_factory):
    curves = {}
    for model, options in MODELS.items():
        folder = tmp_path_factory.mktemp(model)
        program.run(*train_words(folder, *options))
        curves[model] = curve(folder)
        assert sorted(curves[model]) == list(range(1, STEPS + 1))
    return curves


@pytest.mark.parametrize("model, num_ranks, layout", LAYOUTS)
def test_processes_train_as_one(model, num_ranks, layout, alone, program, tmp_path):
    run_ranks(program, num_ranks, *train_words(tmp_path, *MODELS[model], *layout))
    assert_same_curve(curve(tmp_path), alone[model])


def test_processes_with_experts_train_as_one(program, tmp_path):
    """Experts are balanced within a microbatch, so that of one process has to be as large."""
    words = (*T5, *EXPERTS, "--moe_aux_loss_coeff", 0.02)
    one, several = tmp_path / "one", tmp_path / "several"
    program.run(*train_words(one, *words, "--expert_model_parallel_size", 1))
    run_ranks(program, 2, *train_words(several, *words))
    assert_same_curve(curve(several), curve(one))


@pytest.mark.parametrize("sharding", ["--use_distributed_optimizer", "--use_torch_fsdp2"])
def test_two_encoders_learn_from_the_texts_of_all_processes(sharding, program, tmp_path):
    """The loss is of a set of samples: those of one process are as many as those of all."""
    words = ("--model_type", "biencoder", "--task", "ict", "--biencoder_projection_dim", 16)
    one, several = tmp_path / "one", tmp_path / "several"
    program.run(*train_words(one, *words, "--micro_batch_size", 4))
    run_ranks(program, 2, *train_words(several, *words, sharding))
    assert_same_curve(curve(several), curve(one))
