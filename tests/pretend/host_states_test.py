"""Optimizer states, or parameters and gradients too, in host memory beside the pretend accelerator, against the same run
without: losses, gradient norms and every saved tensor to the bit.
"""

import pytest
from cases import CASES, LLAMA

REFERENCE = ("--kernels", "reference")
STATES = ("--optimizer_cpu_offload",)
OVERLAPPED = (*STATES, "--overlap_cpu_optimizer_d2h_h2d")
PARTLY = (*OVERLAPPED, "--optimizer_offload_fraction", 0.6)
FSDP = (*LLAMA, "--bf16", "--use_torch_fsdp2")
RUNS = ("--fsdp_cpu_offload",)

# Runs, and the options that keep parts of their state on the host.
OFFLOADED = {
    "states": (CASES["bf16"], STATES),
    "states, copied beside the updates": (CASES["bf16"], OVERLAPPED),
    "states of an fp32 model": (CASES["llama"], OVERLAPPED),
    "a part of them": (CASES["bf16"], PARTLY),
    "states of a distributed optimizer": (CASES["distributed_optimizer"], PARTLY),
    "narrow moments": (CASES["moments_in_bf16"], OVERLAPPED),
    "remainders": (CASES["masters_as_remainders"], PARTLY),
    "all in bf16, rounded at random": (CASES["all_in_bf16"], PARTLY),
    "fp16": (CASES["fp16_with_a_loss_scale"], OVERLAPPED),
    "SGD": ((*LLAMA, "--bf16", "--optimizer", "sgd"), OVERLAPPED),
    "Lion": ((*LLAMA, "--bf16", "--optimizer", "lion"), OVERLAPPED),
    "experts": (CASES["experts_in_bf16"], OVERLAPPED),
    "FSDP": (FSDP, RUNS),
    "FSDP of an fp32 model": (CASES["fsdp"], RUNS),
    "FSDP that keeps layers whole": ((*FSDP, "--torch_fsdp2_no_reshard_after_forward"), RUNS),
    "FSDP with gradients in bf16": ((*FSDP, "--grad_reduce_in_bf16"), RUNS),
    "FSDP with narrow moments": (
        (*FSDP, "--use_precision_aware_optimizer", "--exp_avg_dtype", "bf16", "--exp_avg_sq_dtype", "bf16"),
        (*RUNS, *STATES),
    ),
    "FSDP with adapters": ((*FSDP, "--lora.enabled", "true", "--lora.dim", 4, "--lora.target_modules", "all-linear"), RUNS),
}


@pytest.mark.parametrize("name", OFFLOADED)
def test_a_run_equals_the_one_on_the_device(name, program, tmp_path):
    words, offload = OFFLOADED[name]
    plain = program.train(tmp_path / "plain", *words, *REFERENCE)
    offloaded = program.train(tmp_path / "offloaded", *words, *offload, *REFERENCE)
    assert len(plain.steps) == 3 and offloaded.steps == plain.steps
    assert offloaded.files == plain.files and plain.files


@pytest.mark.parametrize("name", ("states, copied beside the updates", "a part of them"))
def test_a_skipped_step_leaves_all_as_it_was(name, program, tmp_path):
    """A loss scale beyond all numbers: no step is made until it has come down."""
    words, offload = OFFLOADED[name]
    words = (*(word for word in words if word != "--bf16"), "--fp16", "--initial_loss_scale", 2**127, "--hysteresis", 1)
    plain = program.train(tmp_path / "plain", *words, *REFERENCE)
    offloaded = program.train(tmp_path / "offloaded", *words, *offload, *REFERENCE)
    assert offloaded.steps == plain.steps and offloaded.files == plain.files


@pytest.mark.parametrize("name", ("a part of them", "remainders", "states of an fp32 model", "FSDP"))
def test_checkpoints_cross_over(name, program, tmp_path):
    words, offload = OFFLOADED[name]
    straight = program.train(tmp_path / "straight", *words, *REFERENCE, steps=4)
    last = {path: digest for path, digest in straight.files.items() if "iter_0000004" in path}
    assert last
    for first, second in (((), offload), (offload, ())):
        folder = tmp_path / ("there" if second else "back")
        load = ("--load", folder / "checkpoint")
        begun = program.train(folder, *words, *REFERENCE, *load, *first, "--exit_interval", 2, steps=4)
        ended = program.train(folder, *words, *REFERENCE, *load, *second, steps=4)
        assert begun.steps + ended.steps == straight.steps
        assert {path: digest for path, digest in ended.files.items() if "iter_0000004" in path} == last


# The host has waited for the gradient's norm, and so for the main stream, when states are updated: only FSDP's copies
# must be told of what the main stream does.
MISTAKES = {
    "states": ("event_waits",),
    "states, copied beside the updates": ("event_waits",),
    "states of an fp32 model": ("event_waits",),
    "FSDP": ("event_waits", "event_waits_of_side_streams"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_order_of_the_streams_is_needed(name, program, tmp_path):
    words, offload = OFFLOADED[name]
    right = program.train(tmp_path / "right", *words, *offload, saves=False)
    for mistake in MISTAKES[name]:
        wrong = program.train(tmp_path / mistake, *words, *offload, saves=False, expected=None, PRETEND_IGNORE=mistake)
        assert wrong.code == 1 or (wrong.code == 0 and wrong.steps != right.steps), (mistake, wrong.errors)


def test_the_report_says_what_lies_on_the_host(program, tmp_path):
    words, offload = OFFLOADED["states"]
    run = program.train(tmp_path / "states", *words, *offload, saves=False, steps=1)
    assert "; in host memory " in " ".join(run.errors.split()), run.errors
    on_cpu = program.train(tmp_path / "cpu", *words, *offload, saves=False, steps=1, device="cpu")
    assert "optimizer_cpu_offload saves nothing on the CPU" in " ".join(on_cpu.errors.split())
    assert "in host memory" not in on_cpu.errors
