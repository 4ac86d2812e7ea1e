"""megalith doctor --parallel, from outside: what it prints and how it ends. What it finds is for tests/layouts."""

import socket
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "configs/experiments"
BATCH = ("--micro_batch_size", 4, "--global_batch_size", 64)


def check(program, experiment, *words, **options):
    return program.run("doctor", "--parallel", "--config", EXPERIMENTS / experiment, *words, **options)


def test_an_experiment_agrees_with_one_rank(program):
    _, output, _ = check(
        program,
        "demo.yaml",
        *("--tensor_model_parallel_size", 2, "--pipeline_model_parallel_size", 2, "--sequence_parallel"),
        *("--dry_run_world_size", 16, *BATCH),
    )
    lines = dict(line.split(maxsplit=1) for line in output.splitlines() if line)
    assert lines["layout"].startswith("tp 2, pp 2, dp 2, sequence_parallel: 8 rank(s) as threads")
    assert lines["schedule"].startswith("1f1b")
    assert lines["toy"].startswith("llama, 2 layers")
    assert lines["cut"] == "data-parallel ranks 4 -> 2"
    assert lines["left"] == "out      bf16"
    assert "agree with one rank" in lines["ok"]
    # The largest difference is a rounding in float64, and there is one: something was compared.
    worst = float(lines["ok"].split("difference ")[1].split()[0])
    assert 0 < worst < 1e-9


@pytest.mark.parametrize("experiment", ["demo_mixtral.yaml", "demo_deepseek.yaml"])
def test_experts_agree_with_one_rank(program, experiment):
    _, output, _ = check(program, experiment, "--expert_model_parallel_size", 2, "--use_distributed_optimizer", *BATCH)
    assert "ep 2" in output and "experts of which a token meets" in output
    assert "agree with one rank" in output


def start_ranks(program, num_ranks, *words):
    """As a launcher would; (exit code, standard output, standard error) of every rank."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    processes = []
    for rank in range(num_ranks):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": str(rank)}
        environment |= {"LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(program.start("doctor", "--parallel", *words, environment=environment | {"OMP_NUM_THREADS": "1"}))
    ends = [process.communicate(timeout=240) for process in processes]
    return [(process.returncode, *end) for process, end in zip(processes, ends)]


def test_launched_ranks_compare_their_own_groups(program):
    words = ("--config", EXPERIMENTS / "demo_deepseek.yaml", "--tensor_model_parallel_size", 2, "--sequence_parallel")
    experts = ("--expert_model_parallel_size", 2, "--expert_tensor_parallel_size", 1)
    ends = start_ranks(program, 4, *words, *experts, *BATCH)
    for code, _, errors in ends:
        assert code == 0, errors
    outputs = [output for _, output, _ in ends]
    assert "tp 2, dp 2, ep 2, etp 1, sequence_parallel: 4 rank(s) as processes" in outputs[0]
    assert "agree with one rank" in outputs[0]
    assert outputs[1:] == ["", "", ""]


def test_errors_of_the_configuration_are_those_of_training(program):
    _, output, errors = check(program, "demo.yaml", "--tensor_model_parallel_size", 4, expected=2)
    assert "tensor_model_parallel_size 4 does not divide num_attention_heads 6" in errors
    assert "ok" not in output


def test_help_says_what_it_takes(program):
    _, output, _ = program.run("doctor", "--parallel", "--help")
    assert "megalith doctor --parallel --config FILE" in output
    assert "--tensor_model_parallel_size" in output
