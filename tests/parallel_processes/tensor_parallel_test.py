"""Tensor and sequence parallelism as processes over Gloo: training, checkpoints, export, generation and evaluation are one
process's."""

import json
import re

import pytest
from launch_test import alone, assert_same_curve, curve, train_words  # noqa: F401
from program import read_json_lines
from ranks import run_ranks

TP = ("--tensor_model_parallel_size", 2)
SP = (*TP, "--sequence_parallel")
LAYOUTS = {"tp2": (2, TP), "tp2_sp": (2, SP), "tp2_dp2": (4, TP), "tp2_sp_dp2": (4, SP)}


def rank_environment(rank, world_size):
    """For a rank whose peers never start: it reports its error without them."""
    environment = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    return environment | {"LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_trains_as_one_process(layout, alone, program, data, tmp_path):  # noqa: F811
    num_ranks, options = LAYOUTS[layout]
    process = run_ranks(program, num_ranks, *train_words(data, tmp_path, *options))
    assert_same_curve(curve(tmp_path), alone)
    assert process.stderr.count(" parameters: embedding ") == 1, "one rank reports"


def test_counts_are_of_the_whole_model(program, data, tmp_path):
    def counts(*options):
        _, output, _ = program.run(*train_words(data, tmp_path, "--dry_run", *options))
        return re.search(r"[\d,]+ parameters: embedding", output)[0], re.search(r"[\d.]+ \w?FLOP a step", output)[0]

    assert counts("--dry_run_world_size", 2, *SP) == counts()


def test_checkpoints_go_from_layout_to_layout(alone, program, data, tmp_path):  # noqa: F811
    checkpoint = ("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint")
    run_ranks(program, 2, *train_words(data, tmp_path, *checkpoint, *TP, "--exit_interval", 3))
    program.run(*train_words(data, tmp_path, *checkpoint, "--exit_interval", 5))
    run_ranks(program, 2, *train_words(data, tmp_path, *checkpoint, *SP))
    assert_same_curve(curve(tmp_path), alone)


@pytest.fixture(scope="module")
def exported(program, data, tmp_path_factory):
    """A trained model in Hugging Face's form."""
    folder = tmp_path_factory.mktemp("exported")
    program.run(*train_words(data, folder, "--save_hf", folder / "hf"))
    return folder / "hf"


# What the commands need beside a model and a layout.
MACHINE = ("--device", "cpu", "--num_threads", 1, "--fp32")


def test_export_is_byte_for_byte_the_same(exported, program, data, tmp_path):
    words = ("train", "--load_hf", exported, "--data_path", data.prefix, "--split", "100,0,0", "--skip_train", *MACHINE)
    words = (*words, "--data_cache_path", tmp_path / "cache", "--eval_iters", 0)
    run_ranks(program, 2, *words, *TP, "--save_hf", tmp_path / "hf")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (exported / name).read_bytes(), name


def test_generation_by_all_ranks_is_printed_once(exported, program):
    words = ("generate", "--load_hf", exported, "--prompt_ids", "3,7,9", "--print_ids", "--ignore_eos", *MACHINE)
    words = (*words, "--max_new_tokens", 12, "--num_samples", 2)
    _, expected, _ = program.run(*words)
    assert [len(line.split()) for line in expected.splitlines()] == [12, 12]
    # A single token cannot be split over ranks: here sequence_parallel has nothing to do.
    assert run_ranks(program, 2, *words, *SP).stdout == expected


def test_generation_refuses_ranks_without_work(exported, program):
    words = ("generate", "--load_hf", exported, "--prompt_ids", "3", "--print_ids", *MACHINE, *TP)
    _, _, errors = program.run(*words, environment=rank_environment(1, 4), expected=2, timeout=240)
    assert "4 ranks were started, and the model to generate with lies on 2" in errors and "start 2 ranks" in errors


def test_evaluation_spreads_over_all_ranks(exported, program, data, tmp_path):
    words = ("evaluate", "--load_hf", exported, "--data_path", data.prefix, "--split", "100,0,0", *MACHINE)
    words = (*words, "--data_cache_path", tmp_path / "cache", "--eval_iters", 3, "--global_batch_size", 4)
    _, output, _ = program.run(*words, "--losses_file", tmp_path / "one")
    expected = json.loads(output)
    process = run_ranks(program, 4, *words, *SP, "--losses_file", tmp_path / "four")
    found = json.loads(process.stdout)
    assert found["tokens"] == expected["tokens"] and found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    one, four = (read_json_lines(tmp_path / name) for name in ("one", "four"))
    assert len(one) == 12
    for ours, theirs in zip(four, one, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def test_samples_during_training_are_the_same(program, data, tmp_path):
    options = ("--sample_interval", 2, "--sample_prompt_ids", "1,2,3", "--sample_max_new_tokens", 5, "--temperature", 0)

    def samples(process_output):
        lines = process_output.splitlines()
        return [lines[i : i + 2] for i, line in enumerate(lines) if line.startswith("text written after step")]

    _, output, _ = program.run(*train_words(data, tmp_path / "one", *options, steps=4))
    process = run_ranks(program, 2, *train_words(data, tmp_path / "two", *options, *SP, steps=4))
    assert len(samples(output)) == 2 and samples(process.stdout) == samples(output)


REFUSED = {
    "query_groups": (4, ("--tensor_model_parallel_size", 4), "4 does not divide num_query_groups 2", "a divisor of 2"),
    "tokens": (2, (*SP, "--seq_length", 31), "splits the 31 tokens of a microbatch", "multiple of 2"),
    "ranks": (3, TP, "does not divide the 3 rank(s) started", "start 2 ranks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_layouts_that_do_not_divide_are_refused(case, program, data, tmp_path):
    world_size, options, what, remedy = REFUSED[case]
    words = train_words(data, tmp_path, *options)
    _, _, errors = program.run(*words, environment=rank_environment(0, world_size), expected=2, timeout=240)
    assert what in errors and remedy in errors, errors


def test_sequence_parallel_alone_is_off_and_says_so(program, data, tmp_path):
    words = train_words(data, tmp_path, "--sequence_parallel", steps=3)
    _, _, errors = program.run(*words)
    assert errors.count("sequence_parallel is off: tensor_model_parallel_size is 1") == 1, errors
