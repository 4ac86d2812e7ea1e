"""How often the host waits for the device in a training step: the table of docs/gpu.md, held to what is counted.

A step is what lies between the ends of two optimizer steps, in the middle of a run, of two microbatches. Waits for
"an old event" are not counted: so the numbers of a step are read when the next one has been issued.
"""

import re
from pathlib import Path

import pytest
from cases import CASES

ROOT = Path(__file__).resolve().parents[2]


def in_bf16(case):
    return (*(word for word in CASES[case] if word != "--fp32"), "--bf16")


# Runs, and the most waits of a step. A number may only fall; docs/gpu.md has it with its reason.
WAITS = {
    "dense": (CASES["bf16"], 0),
    "dense with dropout": (in_bf16("gpt2"), 0),
    "packed documents": (in_bf16("documents"), 0),
    "selective recomputation": (in_bf16("selective_recompute"), 0),
    "full recomputation": (in_bf16("full_recompute"), 0),
    "offloading": (in_bf16("offload"), 0),
    "distributed optimizer": (CASES["distributed_optimizer"], 0),
    "FSDP": (in_bf16("fsdp"), 0),
    "Muon": (in_bf16("muon"), 0),
    "Adafactor": ((*CASES["bf16"], "--optimizer", "adafactor"), 0),
    "8-bit Adam": ((*CASES["bf16"], "--optimizer", "adam8bit", "--min_8bit_size", 64), 0),
    "FP8": (CASES["fp8"], 0),
    "FP8, delayed": (CASES["fp8_delayed"], 0),
    "FP8, blockwise": (CASES["fp8_blockwise"], 0),
    "fp16": (CASES["fp16_with_a_loss_scale"], 1),
    "zeros counted": ((*CASES["bf16"], "--log_num_zeros_in_grad"), 0),
    "experts": (CASES["experts_in_bf16"], 0),
    "experts with capacity": (in_bf16("experts_with_capacity"), 0),
    "experts that drop tokens": (in_bf16("experts_that_drop"), 0),
    "experts with jitter": (in_bf16("experts_with_jitter"), 0),
    "sinkhorn": (in_bf16("sinkhorn"), 0),
    "DeepSeek-V3": (in_bf16("deepseek_v3"), 0),
    "states in host memory": ((*CASES["bf16"], "--optimizer_cpu_offload"), 3),
    "FSDP in host memory": ((*in_bf16("fsdp"), "--fsdp_cpu_offload"), 11),
    "CUDA graphs": ((*CASES["bf16"], "--cuda_graphs", "microbatch", "--cuda_graph_warmup_steps", 1), 0),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_step_waits_no_more_than_the_table_says(name, program, tmp_path):
    words, most = WAITS[name]
    run = program.train(tmp_path, *words, steps=4, saves=False)
    periods = max(period for period, *_ in run.waits)
    assert periods == 4, "each optimizer step is a range named 'optimizer' (train/step.cc), which ends a period"
    waits = [wait for wait in run.waits if wait[0] == 2 and wait[2] != "an old event"]
    count = sum(wait[1] for wait in waits)
    places = "".join(f"\n  {times} x {what}: {place}" for _, times, what, place in waits)
    print(f"{name}: {count} of {most}{places}")
    assert count <= most, f"{count} waits in a step, where {most} were known{places}"


NEVER_WAITS = [name for name, (_, most) in WAITS.items() if most == 0]


@pytest.mark.parametrize("name", ("dense", "packed documents", "offloading", "FSDP"))
def test_a_run_that_never_waits_passes_where_waits_are_errors(name, program, tmp_path):
    assert name in NEVER_WAITS
    run = program.train(tmp_path, *WAITS[name][0], "--fail_on_host_sync", steps=4)
    assert len(run.steps) == 4


def test_a_wait_in_a_step_ends_the_run_with_its_place(program, tmp_path):
    """The reference of the experts' products reads on the host where each expert's rows begin. The first step may wait."""
    words = (*CASES["mixtral"], "--kernels", "reference", "--fail_on_host_sync")
    run = program.train(tmp_path, *words, steps=4, saves=False, expected=1)
    assert len(run.steps) <= 1
    said = re.search(r"the host waits for the device within a training step: (.*), in (.*)\n", run.errors)
    assert said, run.errors
    assert "grouped_linear" in said[2]


def test_a_dynamic_loss_scale_is_named_as_what_waits(program, tmp_path):
    run = program.train(
        *(tmp_path, *CASES["fp16_with_a_loss_scale"], "--fail_on_host_sync"), steps=4, saves=False, expected=1
    )
    assert "read the step, on which the next one's loss scale depends" in run.errors, run.errors


def test_the_page_has_this_table():
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+?) \| (\d+) \|", page, re.MULTILINE)
    assert {name: int(count) for name, count in rows} == {name: most for name, (_, most) in WAITS.items()}
