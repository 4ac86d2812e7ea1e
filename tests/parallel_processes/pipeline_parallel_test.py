"""Pipelines as processes over Gloo: training, evaluation, generation, samples, checkpoints and traces are one process's."""

import json

import pytest
from launch_test import alone, assert_same_curve, curve, train_words  # noqa: F401
from program import read_json_lines
from ranks import run_ranks
from tensor_parallel_test import MACHINE, exported, rank_environment  # noqa: F401

PP = ("--pipeline_model_parallel_size", 2)
LAYOUTS = {
    "1f1b": (2, PP),
    "gpipe": (2, (*PP, "--pp_algorithm", "gpipe")),
    "interleaved": (2, (*PP, "--num_virtual_stages_per_pipeline_rank", 2)),
    "zero_bubble": (2, (*PP, "--pp_algorithm", "zero-bubble")),
    "zbv": (2, (*PP, "--pp_algorithm", "zbv-formatted")),
    "tp2_dp1_zero": (4, (*PP, "--tensor_model_parallel_size", 2, "--sequence_parallel", "--use_distributed_optimizer")),
}
DEEP = ("--num_layers", 4)


@pytest.fixture(scope="module")
def deep(program, data, tmp_path_factory):
    """The curve of a model with layers enough for two stages on each of two ranks."""
    folder = tmp_path_factory.mktemp("deep")
    program.run(*train_words(data, folder, *DEEP))
    return curve(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pipeline_trains_as_one_process(layout, deep, program, data, tmp_path):
    num_ranks, options = LAYOUTS[layout]
    process = run_ranks(program, num_ranks, *train_words(data, tmp_path, *DEEP, *options))
    assert_same_curve(curve(tmp_path), deep)
    assert process.stderr.count(" parameters: embedding ") == 1, "one rank reports"
    assert "% idle by the simulator" in process.stderr


def test_checkpoints_go_from_pipeline_to_pipeline(deep, program, data, tmp_path):
    checkpoint = (*DEEP, "--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint")
    run_ranks(program, 2, *train_words(data, tmp_path, *checkpoint, *PP, "--exit_interval", 3))
    program.run(*train_words(data, tmp_path, *checkpoint, "--exit_interval", 5))
    run_ranks(program, 2, *train_words(data, tmp_path, *checkpoint, *LAYOUTS["zbv"][1]))
    assert_same_curve(curve(tmp_path), deep)


def test_export_is_byte_for_byte_the_same(exported, program, data, tmp_path):  # noqa: F811
    words = ("train", "--load_hf", exported, "--data_path", data.prefix, "--split", "100,0,0", "--skip_train", *MACHINE)
    words = (*words, "--data_cache_path", tmp_path / "cache", "--eval_iters", 0)
    run_ranks(program, 2, *words, *PP, "--save_hf", tmp_path / "hf")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (exported / name).read_bytes(), name


def test_generation_by_all_stages_is_printed_once(exported, program):  # noqa: F811
    words = ("generate", "--load_hf", exported, "--prompt_ids", "3,7,9", "--print_ids", "--ignore_eos", *MACHINE)
    words = (*words, "--max_new_tokens", 12, "--num_samples", 2)
    _, expected, _ = program.run(*words)
    assert run_ranks(program, 2, *words, *PP).stdout == expected


def test_evaluation_through_all_stages(exported, program, data, tmp_path):  # noqa: F811
    words = ("evaluate", "--load_hf", exported, "--data_path", data.prefix, "--split", "100,0,0", *MACHINE)
    words = (*words, "--data_cache_path", tmp_path / "cache", "--eval_iters", 3, "--global_batch_size", 4)
    _, output, _ = program.run(*words, "--losses_file", tmp_path / "one")
    expected = json.loads(output)
    found = json.loads(run_ranks(program, 2, *words, *PP).stdout)
    assert found["tokens"] == expected["tokens"] and found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    run_ranks(program, 2, *words, *PP, "--losses_file", tmp_path / "two")
    for ours, theirs in zip(*(read_json_lines(tmp_path / name) for name in ("two", "one")), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def test_the_trace_of_a_run_is_that_of_its_schedule(program, data, tmp_path):
    dump = ("--dump_pp_data", "--dump_pp_data_dir", tmp_path / "trace")
    options = (*DEEP, *LAYOUTS["interleaved"][1], *dump)
    run_ranks(program, 2, *train_words(data, tmp_path, *options, steps=3))
    trace = tmp_path / "trace" / "pipeline_trace.json"
    ranks = json.loads(trace.read_text())["ranks"]
    assert len(ranks) == 2 and all(ranks)
    svg = tmp_path / "pipeline.svg"
    words = ("plan", "--draw", "--pipeline_trace", trace, "--svg", svg, *DEEP, *LAYOUTS["interleaved"][1])
    _, output, _ = program.run(*words)
    assert "interleaved" in output and svg.read_text().startswith("<svg")


REFUSED = {
    "fsdp": (4, (*PP, "--use_torch_fsdp2"), "use_torch_fsdp2"),
    "layers": (2, (*PP, "--num_layers", 3), "num_layers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_pipelines_that_cannot_be_are_refused(case, program, data, tmp_path):
    world_size, options, what = REFUSED[case]
    words = train_words(data, tmp_path, *options)
    _, _, errors = program.run(*words, environment=rank_environment(0, world_size), expected=2, timeout=240)
    assert what in errors, errors
