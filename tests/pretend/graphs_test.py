"""`--cuda_graphs microbatch` on the pretend accelerator, against the same run without: equal to the bit."""

import pytest
from cases import CASES
from conftest import RUN
from record import FULL, MODELS

STEPS = 5
# Three microbatches a step, a learning rate that moves, clipping; graphs from step 3 on.
STEADY = (
    *("--global_batch_size", 6, "--lr_decay_style", "cosine", "--min_lr", 1e-4, "--lr_warmup_iters", 2),
    *("--clip_grad", 0.5, "--weight_decay", 0.1),
)
GRAPHS = ("--cuda_graphs", "microbatch", "--cuda_graph_warmup_steps", 2)


def in_bf16(case):
    return (*(word for word in CASES[case] if word != "--fp32"), "--bf16")


# The kernels of a GPU where the words do not ask for the references.
TRAINED = {
    "llama": CASES["llama"],
    "llama, in bf16 by the libraries": CASES["bf16"],
    "a window, in bf16 by the libraries": CASES["window_in_bf16"],
    "gpt2, with dropout": CASES["gpt2"],
    "gpt2, by the references": (*CASES["gpt2"], "--kernels", "reference"),
    "mixtral": (*CASES["mixtral"], "--moe_aux_loss_coeff", 0.01, "--moe_router_load_balancing_type", "aux_loss"),
    "deepseek_v3, in bf16": in_bf16("deepseek_v3"),
    "experts with jitter": CASES["experts_with_jitter"],
    "full recomputation": (*MODELS["gpt2"], "--fp32", *FULL),
    "distributed optimizer": CASES["distributed_optimizer"],
    "fp16 with a loss scale that moves": (*CASES["fp16_with_a_loss_scale"], "--loss_scale_window", 2),
}


def train(program, folder, words, steps=STEPS, **more):
    return program.train(folder, *words, *STEADY, steps=steps, **more)


@pytest.mark.parametrize("name", TRAINED)
def test_graphs_change_no_bit(name, program, tmp_path):
    plain = train(program, tmp_path / "plain", TRAINED[name])
    graphs = train(program, tmp_path / "graphs", (*TRAINED[name], *GRAPHS))
    assert "forward and backward of a microbatch, from the program's step 3 on" in graphs.errors
    assert "graphs:" not in plain.errors
    assert len(plain.steps) == STEPS and graphs.steps == plain.steps
    assert graphs.files == plain.files and graphs.files


def test_a_resumed_run_with_graphs_equals_one_without(program, tmp_path):
    words = (*CASES["gpt2"], "--seed", 7)
    straight = train(program, tmp_path / "straight", words, steps=7)
    load = ("--load", tmp_path / "parts" / "checkpoint")
    first = train(program, tmp_path / "parts", (*words, *GRAPHS, *load, "--exit_interval", 4), steps=7)
    then = train(program, tmp_path / "parts", (*words, *GRAPHS, *load), steps=7)
    assert first.steps + then.steps == straight.steps


def test_evaluating_and_sampling_between_replays_changes_nothing(program, tmp_path):
    between = ("--eval_iters", 1, "--eval_interval", 2)
    words = (*CASES["gpt2"], *between)
    plain = train(program, tmp_path / "plain", words)
    graphs = train(program, tmp_path / "graphs", (*words, *GRAPHS))
    assert graphs.steps == plain.steps and graphs.files == plain.files


def test_replays_do_not_wait(program, tmp_path):
    words = (*CASES["bf16"], *GRAPHS, "--fail_on_host_sync")
    assert len(train(program, tmp_path, words, saves=False).steps) == STEPS


REFUSED = {
    "offloading": ((*FULL, "--cpu_offloading_num_layers", 2), "cpu_offloading_num_layers"),
    "FSDP": (("--use_torch_fsdp2",), "use_torch_fsdp2"),
    "FP8": (("--bf16", "--fp8_format", "hybrid"), "fp8_format"),
    "documents": (("--reset_attention_mask",), "reset_attention_mask"),
    "experts by the references": (("--num_experts", 4, "--kernels", "reference"), "kernels reference and experts"),
    "padding": (("--task", "masked_lm", "--mask_token_id", 3), "task masked_lm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_graph_holds_is_refused_with_the_reason(name, program, tmp_path):
    words, said = REFUSED[name]
    precision = () if "--bf16" in words else ("--fp32",)
    run = program.train(tmp_path, *MODELS["llama"], *precision, *words, *GRAPHS, saves=False, expected=2)
    assert f"cuda_graphs microbatch does not work with {said}" in run.errors


def test_megatrons_words_are_taken(program, tmp_path):
    words = ("--cuda_graph_impl", "local", "--cuda_graph_warmup_steps", 1)
    run = program.train(tmp_path, *CASES["llama"], *words, steps=2, saves=False)
    assert "cuda_graphs local is microbatch here" in run.errors
    assert "from the program's step 2 on" in run.errors


def test_a_cpu_has_none_and_says_so(program, tmp_path):
    run = program.train(tmp_path, *CASES["llama"], *GRAPHS, device="cpu", steps=1, saves=False)
    assert "cuda_graphs does nothing on the CPU" in run.errors


assert "--global_batch_size" in RUN, "STEADY overrides it"
