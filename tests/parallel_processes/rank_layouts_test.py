"""Layouts as processes over Gloo: training, checkpoints, export, generation, evaluation and samples are one process's."""

import json
import re
from pathlib import Path

import pytest
from launch_test import assert_same_curve, curve, train_words
from program import read_json_lines
from ranks import rank_environment, run_ranks
from rows import read_rows

HERE = Path(__file__).parent
LAYOUTS = {name: row for name, *row in read_rows(HERE / "layouts.txt", 4, splits=(2, 3))}
REFUSED = {name: row for name, *row in read_rows(HERE / "refused.txt", 5, splits=(2,))}
# What the commands need beside a model and a layout.
MACHINE = ("--device", "cpu", "--num_threads", 1, "--fp32")


def ranks_of(program, layout, *words):
    num_ranks, _, options = LAYOUTS[layout]
    return run_ranks(program, int(num_ranks), *words, *options)


@pytest.fixture(scope="module")
def alone(program, data, tmp_path_factory):
    """The curve of one process with these options."""
    known = {}

    def find(*options):
        if options not in known:
            folder = tmp_path_factory.mktemp("alone")
            program.run(*train_words(data, folder, *options))
            known[options] = curve(folder)
        return known[options]

    return find


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_trains_as_one_process(layout, alone, program, data, tmp_path):
    shared = LAYOUTS[layout][1]
    process = ranks_of(program, layout, *train_words(data, tmp_path, *shared))
    assert_same_curve(curve(tmp_path), alone(*shared))
    assert process.stderr.count(" parameters: embedding ") == 1, "one rank reports"
    assert ("% idle by the simulator" in process.stderr) == ("pp" in layout)


@pytest.mark.parametrize("first, last", [("tp", "tp_sp"), ("pp", "pp_zbv"), ("cp", "tp_dp2")])
def test_checkpoints_go_from_layout_to_layout(first, last, alone, program, data, tmp_path):
    shared = LAYOUTS[first][1]
    words = (*shared, "--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint")
    ranks_of(program, first, *train_words(data, tmp_path, *words, "--exit_interval", 3))
    program.run(*train_words(data, tmp_path, *words, "--exit_interval", 5))
    ranks_of(program, last, *train_words(data, tmp_path, *words))
    assert_same_curve(curve(tmp_path), alone(*shared))


def test_counts_are_of_the_whole_model(program, data, tmp_path):
    def counts(*options):
        _, output, _ = program.run(*train_words(data, tmp_path, "--dry_run", *options))
        return re.search(r"[\d,]+ parameters: embedding", output)[0], re.search(r"[\d.]+ \w?FLOP a step", output)[0]

    assert counts("--dry_run_world_size", 2, *LAYOUTS["tp_sp"][2]) == counts()


@pytest.fixture(scope="module")
def exported(program, data, tmp_path_factory):
    """A trained model in Hugging Face's form."""
    folder = tmp_path_factory.mktemp("exported")
    program.run(*train_words(data, folder, "--save_hf", folder / "hf"))
    return folder / "hf"


@pytest.mark.parametrize("layout", ["tp", "pp"])
def test_export_is_byte_for_byte_the_same(layout, exported, program, data, tmp_path):
    words = ("train", "--load_hf", exported, "--data_path", data.prefix, "--split", "100,0,0", "--skip_train", *MACHINE)
    words = (*words, "--data_cache_path", tmp_path / "cache", "--eval_iters", 0)
    ranks_of(program, layout, *words, "--save_hf", tmp_path / "hf")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (exported / name).read_bytes(), name


def test_generation_by_all_ranks_is_printed_once(exported, program):
    words = ("generate", "--load_hf", exported, "--prompt_ids", "3,7,9", "--print_ids", "--ignore_eos", *MACHINE)
    words = (*words, "--max_new_tokens", 12, "--num_samples", 2)
    _, expected, _ = program.run(*words)
    assert [len(line.split()) for line in expected.splitlines()] == [12, 12]
    # A single token cannot be split over ranks: here sequence_parallel has nothing to do.
    for layout in ("tp_sp", "pp"):
        assert ranks_of(program, layout, *words).stdout == expected, layout


def test_generation_refuses_ranks_without_work(exported, program):
    words = ("generate", "--load_hf", exported, "--prompt_ids", "3", "--print_ids", *MACHINE, *LAYOUTS["tp"][2])
    _, _, errors = program.run(*words, environment=rank_environment(1, 4), expected=2, timeout=240)
    assert "4 ranks were started, and the model to generate with lies on 2" in errors and "start 2 ranks" in errors


def test_evaluation_and_samples_are_one_process_s(program, data, tmp_path):
    options = ("--sample_interval", 2, "--sample_prompt_ids", "1,2,3", "--sample_max_new_tokens", 5, "--temperature", 0)

    def samples(process_output):
        lines = process_output.splitlines()
        return [lines[i : i + 2] for i, line in enumerate(lines) if line.startswith("text written after step")]

    words = train_words(data, tmp_path / "one", *options, "--save", tmp_path / "saved", steps=4)
    wanted = samples(program.run(*words)[1])
    assert len(wanted) == 2
    for layout in ("tp_sp", "cp"):
        words = train_words(data, tmp_path / layout, *options, "--save", tmp_path / layout / "saved", steps=4)
        assert samples(ranks_of(program, layout, *words).stdout) == wanted, layout

    words = ("evaluate", "--load", tmp_path / "saved", "--data_path", data.prefix, "--split", "100,0,0", *MACHINE)
    words = (*words, "--data_cache_path", tmp_path / "cache", "--eval_iters", 3, "--global_batch_size", 4, "--seq_length", 32)
    expected = json.loads(program.run(*words, "--losses_file", tmp_path / "losses")[1])
    losses = read_json_lines(tmp_path / "losses")
    assert len(losses) == 12
    for layout in ("tp_sp_dp2", "pp", "cp_dp2"):
        found = json.loads(ranks_of(program, layout, *words, "--losses_file", tmp_path / f"{layout}_losses").stdout)
        assert found["tokens"] == expected["tokens"] and found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        for ours, theirs in zip(read_json_lines(tmp_path / f"{layout}_losses"), losses, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6), layout


def test_the_trace_of_a_run_is_that_of_its_schedule(program, data, tmp_path):
    _, deep, interleaved = LAYOUTS["pp_interleaved"]
    dump = ("--dump_pp_data", "--dump_pp_data_dir", tmp_path / "trace")
    ranks_of(program, "pp_interleaved", *train_words(data, tmp_path, *deep, *dump, steps=3))
    trace = tmp_path / "trace" / "pipeline_trace.json"
    ranks = json.loads(trace.read_text())["ranks"]
    assert len(ranks) == 2 and all(ranks)
    svg = tmp_path / "pipeline.svg"
    words = ("plan", "--draw", "--pipeline_trace", trace, "--svg", svg, *deep, *interleaved)
    assert "interleaved" in program.run(*words)[1] and svg.read_text().startswith("<svg")


@pytest.mark.parametrize("case", REFUSED)
def test_layouts_that_cannot_be_are_refused(case, program, data, tmp_path):
    num_ranks, options, *parts = REFUSED[case]
    words = train_words(data, tmp_path, *options)
    _, _, errors = program.run(*words, environment=rank_environment(0, num_ranks), expected=2, timeout=240)
    for part in parts:
        assert part in errors, errors


def test_sequence_parallel_alone_is_off_and_says_so(program, data, tmp_path):
    _, _, errors = program.run(*train_words(data, tmp_path, "--sequence_parallel", steps=3))
    assert errors.count("sequence_parallel is off: tensor_model_parallel_size is 1") == 1, errors


@pytest.mark.parametrize("text", ["a | 2 | --lr 1", "a | 2 | | x\na | 4 | | y", " | 2 | | x", "a | 2 | | $X", "# nothing"])
def test_rows_that_are_malformed_are_errors(text, tmp_path):
    (tmp_path / "rows.txt").write_text(text)
    with pytest.raises(ValueError, match="rows"):
        read_rows(tmp_path / "rows.txt", 4, splits=(3,))
