"""megalith doctor --types, from outside: what it prints and how it ends. What it finds is for tests/layouts."""

import resource
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def seconds_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check(program, config, *words, **options):
    return program.run("doctor", "--types", "--config", ROOT / "configs" / config, "--mock_data", *words, **options)


@pytest.mark.parametrize(
    "config, sizes",
    [
        ("models/llama3.1_8B.yaml", ("--tensor_model_parallel_size", 8, "--pipeline_model_parallel_size", 4, "--sequence_parallel")),
        ("models/llama3.1_8B.yaml", ("--context_parallel_size", 4, "--use_distributed_optimizer")),
        ("models/llama3.1_8B.yaml", ("--tensor_model_parallel_size", 2, "--use_torch_fsdp2")),
    ],
)
def test_sixteen_thousand_ranks_are_checked_within_seconds(program, config, sizes):
    start = seconds_of_children()
    _, output, _ = check(program, config, *sizes, "--dry_run_world_size", 16384, "--global_batch_size", 16384)
    assert seconds_of_children() - start < 2
    lines = dict(line.split(maxsplit=1) for line in output.splitlines() if line)
    assert lines["layout"].endswith("16384 rank(s)")
    assert "parameters fit on every axis" in lines["ok"]
    assert int(lines["ok"].split()[0]) > 100


def test_sizes_that_do_not_nest_are_refused(program):
    sizes = ("--tensor_model_parallel_size", 2, "--expert_model_parallel_size", 3, "--expert_tensor_parallel_size", 1)
    words = ("--num_experts", 6, "--moe_router_topk", 2, "--dry_run_world_size", 6, "--global_batch_size", 12)
    _, _, errors = check(program, "models/llama3.1_8B.yaml", *sizes, *words, expected=2)
    assert "types of these sizes are not known: runs of 2 ranks" in errors
    train = ("train", "--config", ROOT / "configs/models/llama3.1_8B.yaml", "--mock_data", "--dry_run", *sizes, *words)
    _, _, errors = program.run(*train, "--check_types", expected=2)
    assert "types of these sizes are not known: runs of 2 ranks" in errors
    program.run(*train)
