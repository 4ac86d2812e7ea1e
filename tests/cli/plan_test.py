"""`megalith plan`: the bubble it states, the picture it draws, and what it refuses."""

import json
import re
import resource
import xml.etree.ElementTree as ElementTree

import pytest

PIPELINE = ("--pipeline_model_parallel_size", 4, "--num_layers", 8)


def plan(program, *words, expected=0, **options):
    _, output, _ = program.run("plan", *words, expected=expected, timeout=60, **options)
    return output


def bubble_of(output):
    return float(re.search(r"in all, bubble ([\d.]+) %", output)[1])


# (p - 1)(F + B) of (p - 1 + m)(F + B) with F 1 and B 2, and the published forms of the others.
BUBBLES = [
    ("gpipe", (), 8, 9 / 33),
    ("1f1b", (), 8, 9 / 33),
    ("1f1b-interleaved", ("--num_virtual_stages_per_pipeline_rank", 2), 8, 4.5 / 28.5),
    ("zero-bubble", (), 8, 3 / 27),
    ("zbv-formatted", (), 8, 1.5 / 25.5),
]


@pytest.mark.parametrize("algorithm, words, m, bubble", BUBBLES, ids=[row[0] for row in BUBBLES])
def test_bubbles_are_the_published_ones(algorithm, words, m, bubble, program):
    output = plan(program, *PIPELINE, "--pp_algorithm", algorithm, *words, "--num_microbatches", m, "--draw")
    assert bubble_of(output) == pytest.approx(100 * bubble, abs=0.06)
    for rank in range(4):
        assert re.search(rf"^rank {rank}  .*F", output, re.MULTILINE)
    assert max(map(len, output.splitlines())) <= 120


def test_the_picture_is_drawn_when_asked_for(program):
    assert "rank 0  F0" not in plan(program, *PIPELINE, "--num_microbatches", 8)
    drawn = plan(program, *PIPELINE, "--num_microbatches", 3, "--draw")
    assert "rank 3  .  .  .  F0 B0--- F1 B1--- F2 B2---" in drawn


def test_stages_of_two_stacks_are_named(program, tmp_path):
    t5 = ("--model_type", "t5", "--num_layers", 2, "--decoder_num_layers", 4, "--num_microbatches", 4)
    output = plan(program, *t5, "--pipeline_model_parallel_size", 3, "--pipeline_model_parallel_split_rank", 1, "--svg", tmp_path / "t5.svg")
    rows = [line.split("  ")[1].strip() for line in re.findall(r"^ {3}(\d  .*)", output, re.MULTILINE)]
    assert rows == ["E encoder 0-1", "decoder 0-1", "decoder 2-3 L"]
    assert "between stages, counted from 0: memory into 1, 2; hidden into 2;" in output
    drawn = [text.text for text in ElementTree.parse(tmp_path / "t5.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in drawn if text in rows] == rows
    # One stage may hold layers of both.
    layout = ("--pipeline_model_parallel_size", 2, "--pipeline_model_parallel_layout", "Ettt|tttL")
    output = plan(program, *t5, *layout)
    assert "E encoder 0-1 decoder 0 " in output and "decoder 1-3 L" in output
    assert "into" not in plan(program, *PIPELINE)


def test_microbatches_follow_from_the_batch(program):
    # 64 samples in microbatches of 2 on 16 ranks, 4 of them a pipeline: 4 copies take 8 microbatches each.
    words = ("--global_batch_size", 64, "--micro_batch_size", 2, "--dry_run_world_size", 16)
    assert " 8 microbatches" in plan(program, *PIPELINE, *words)
    assert " 8 microbatches" in plan(program, *PIPELINE)  # twice the ranks when nothing is said


def test_a_configuration_gives_the_pipeline(program, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("num_layers: 12\npipeline_model_parallel_size: 3\nglobal_batch_size: 6\n")
    output = plan(program, "--config", file)
    assert "1f1b: 3 ranks with 1 stage each, 6 microbatches" in output
    assert re.search(r"^ +0  E 0-3 ", output, re.MULTILINE) and re.search(r"^ +2  8-11 L ", output, re.MULTILINE)
    assert "prediction module" not in output


# A layout that training takes. A module is a layer's worth of work, so the ends are equally long.
def test_prediction_modules_are_in_the_plan(program):
    words = ("--pipeline_model_parallel_size", 2, "--num_layers", 3, "--mtp_num_layers", 1, "--num_microbatches", 4)
    output = plan(program, *words, "--pipeline_model_parallel_layout", "Ett|tmL")
    ranks = re.findall(r"^ +[01]  (\S.*?)  +([\d.]+) ", output, re.MULTILINE)
    assert ranks == [("E 0-1", "12"), ("2 m L", "12")]
    assert "m prediction module" in output


def test_the_drawing_is_sound_xml(program, tmp_path):
    file = tmp_path / "pipeline.svg"
    output = plan(program, *PIPELINE, "--num_microbatches", 6, "--svg", file)
    assert f"wrote {file}" in output
    root = ElementTree.parse(file).getroot()
    titles = [element.text for element in root.iter() if element.tag.endswith("title")]
    assert len(titles) == 4 * 6 * 2 and "F0.0: 0 to 1" in titles


def trace_of_two_ranks():
    """1F1B on two ranks, two microbatches, with F of 10 ms and B of 20 ms; rank 0 receives late."""
    rows = [
        ("F0.0 0 10 1", "F0.0>1 10 11 1", "F0.1 10 20 2", "F0.1>1 20 21 2", "B0.0<1 20 50 2", "B0.0 50 70 1",
         "B0.1<1 70 80 1", "B0.1 80 100 0"),
        ("F0.0<0 0 10 0", "F0.0 10 20 1", "F0.1<0 20 21 1", "B0.0 20 40 0", "B0.0>0 40 41 0", "F0.1 40 50 1",
         "B0.1 50 70 0", "B0.1>0 70 71 0"),
    ]  # fmt: skip
    ranks = []
    for row in rows:
        words = [text.split() for text in row]
        ranks.append(
            [
                {"action": action, "start_s": int(start) / 1e3, "end_s": int(end) / 1e3, "live": int(live)}
                for action, start, end, live in words
            ]
        )
    head = {"schedule": "1f1b", "num_ranks": 2, "num_chunks": 1, "num_microbatches": 2, "order": "loop"}
    return {**head, "ranks": ranks}


TWO = ("--pipeline_model_parallel_size", 2, "--num_layers", 2)


def test_a_run_is_drawn_below_its_plan(program, tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(trace_of_two_ranks()))
    output = plan(program, *TWO, "--pipeline_trace", file, "--draw", "--svg", tmp_path / "both.svg")
    assert "measured 1f1b" in output and output.count("rank 1  ") == 2
    # Simulated with the times of the run: (2 + 1)(10 + 20) ms.
    assert "measured 0.1 s, simulated 0.09 (-10.0 %)" in output
    assert "order and live activations are the schedule's" in output
    assert (tmp_path / "both.svg").read_text().count("<title>") == 2 * 8


def test_a_run_in_another_order_is_told(program, tmp_path):
    trace = trace_of_two_ranks()
    actions = trace["ranks"][1]
    actions[3]["action"], actions[5]["action"] = actions[5]["action"], actions[3]["action"]
    trace["ranks"][0][2]["live"] = 1
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(trace))
    output = plan(program, *TWO, "--pipeline_trace", file, expected=1)
    assert "rank 1: action 3 was F0.1, the schedule has B0.0" in output
    assert "rank 0: after action 2, F0.1, 1 were alive, the schedule says 2" in output


def test_a_trace_of_another_pipeline_is_refused(program, tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(trace_of_two_ranks()))
    _, _, errors = program.run("plan", *PIPELINE, "--pipeline_trace", file, expected=2)
    for part in (str(file), "2 ranks", "not 4", "options of that run"):
        assert part in errors


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schedule": 3}', '{"schedule": "x", "num_ranks": -1}', "[" * 9999])
def test_broken_traces_are_refused_by_name(text, program, tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(text)
    _, output, errors = program.run("plan", *TWO, "--pipeline_trace", file, expected=2)
    assert not output and "trace.json" in errors and "internal error" not in errors


REFUSED = [
    ("no layers", ("--pipeline_model_parallel_size", 4), ["num_layers"]),
    ("too few layers", ("--pipeline_model_parallel_size", 4, "--num_layers", 1), ["4 pipeline ranks", "cannot share the 3 parts"]),
    ("unknown schedule", (*PIPELINE, "--pp_algorithm", "dualpipe"), ["dualpipe"]),
    ("no microbatch", (*PIPELINE, "--num_microbatches", 0), ["num_microbatches"]),
    ("rest of a group", (*PIPELINE, "--num_virtual_stages_per_pipeline_rank", 2, "--num_microbatches", 9), ["9"]),
    ("too many", (*PIPELINE, "--num_microbatches", 10**12), ["1000000000000", "num_microbatches"]),
    ("batch does not divide", (*PIPELINE, "--global_batch_size", 7, "--micro_batch_size", 2), ["global_batch_size 7"]),
    ("no time at all", (*PIPELINE, "--forward_time", 0), ["forward_time"]),
    ("no such trace", (*PIPELINE, "--pipeline_trace", "nowhere.json"), ["nowhere.json"]),
    ("a folder that is a file", (*PIPELINE, "--svg", "/dev/null/picture.svg"), ["/dev/null"]),
    ("unknown option", (*PIPELINE, "--drow"), ["drow", "draw"]),
]


@pytest.mark.parametrize("what, words, parts", REFUSED, ids=[what for what, _, _ in REFUSED])
def test_what_cannot_be_planned_is_refused(what, words, parts, program, tmp_path):
    _, _, errors = program.run("plan", *words, expected=2, timeout=60, cwd=tmp_path)
    for part in parts:
        assert part in errors, f"{part!r} is not in:\n{errors}"
    assert "internal error" not in errors


def test_a_rule_of_the_batch_reads_as_in_training(program):
    batch = (*PIPELINE, "--global_batch_size", 7, "--micro_batch_size", 2)
    _, _, planned = program.run("plan", *batch, expected=2, timeout=60)
    sizes = ("--hidden_size", 16, "--num_attention_heads", 2, "--vocab_size", 64, "--seq_length", 8, "--mock_data")
    _, _, trained = program.run("train", *batch, *sizes, "--max_position_embeddings", 8, "--dry_run", "--dry_run_world_size", 4,
                                expected=2, timeout=60)
    rule = "global_batch_size 7 is not a multiple of micro_batch_size 2 times the data-parallel size 1"
    assert rule in planned and rule in trained, planned + trained


def test_help_lists_the_options(program):
    output = plan(program, "--help")
    for part in ("megalith plan", "--draw", "--svg", "--pipeline_trace", "--transfer_time", "--pp_algorithm"):
        assert part in output


LLAMA = ("--config", "llama3.1_8B", "--bf16", "--seq_length", 8192, "--global_batch_size", 128)


def test_a_step_on_a_cluster_is_the_sum_of_its_causes(program):
    words = ("--cluster", "h200:8x2", *LLAMA, "--use_distributed_optimizer", "--tensor_model_parallel_size", 2, "--sequence_parallel")
    found = json.loads(plan(program, *words, "--json", "--explain"))
    gains = {row["change"]: row["gain"] for row in found["changes"]}
    assert gains["memory a fifth larger"] == 0 and gains["attention at the products' rate"] > 0, gains
    assert 0 < gains["links within nodes twice as fast"] < 1 and gains["half the batch"] <= 0 <= gains["twice the batch"], gains
    assert sum(found["causes_s"].values()) == pytest.approx(found["step_s"], rel=1e-3)
    assert found["gpus"] == 16 and {"products", "attention", "memory-bound operators", "optimizer", "tp over the link"} <= set(found["causes_s"])
    assert 0.3 < found["mfu"] < 0.72
    assert found["memory_total_bytes"] < found["memory_at_most_bytes"]
    assert found["memory_by_units_bytes"] == pytest.approx(found["memory_total_bytes"], rel=0.03)
    text = plan(program, *words, "--budget_tokens", "15e12", "--dollars_per_gpu_hour", 2, "--explain")
    for part in ("would change the tokens", "16 h200 in 2 nodes of 8", "clusters.yaml", "tp 2, dp 8", "MFU", "GPU hours", "$", "of those that hold most", "at most"):
        assert part in text, text


def test_a_search_ranks_layouts_and_gives_their_commands(program, tmp_path):
    words = ("--cluster", "mi300x:8", *LLAMA, "--search", "--pareto_file", tmp_path / "front.svg")
    found = json.loads(plan(program, *words, "--json", "--explain"))
    rows = found["layouts"]
    assert all(row["gain"] >= -1e-9 for row in found["changes"] if "batch" not in row["change"]), found["changes"]
    assert len(found["changes"]) == 7 and all("tp" in row["layout"] for row in found["changes"] if row["is_possible"])
    seconds = [row["step_s"] for row in rows]
    assert len(rows) == 10 and seconds == sorted(seconds)
    assert rows[0]["behind"] == "" and all(" s " in row["behind"] or row["behind"] == "equal" for row in rows[1:])
    ElementTree.parse(tmp_path / "front.svg")
    # Its command is a run of this program, which takes as long by itself.
    command = rows[0]["command"].split()
    assert command[:2] == ["megalith", "train"] and "--search" not in command and "--cluster" not in command
    alone = json.loads(plan(program, "--cluster", "mi300x:8", *command[2:], "--json"))
    assert alone["step_s"] == pytest.approx(seconds[0], rel=1e-6) and alone["fits"]


def test_a_search_of_16384_gpus_takes_seconds(program):
    words = ("--cluster", "h200:8x2048", "--config", "mixtral_8x7B_v0.1", "--bf16", "--seq_length", 4096, "--global_batch_size", 16384, "--search", "--json")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    process = program.start("plan", *words)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0 and len(json.loads(output)["layouts"]) == 10, errors
    # 10 s on two idle cores; tests run beside others, and unoptimised.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 20


def test_months_with_failures(program):
    found = json.loads(plan(program, "--failures", "--days", 54, "--json"))
    assert 0.9 < found["effective"] < 1 and found["failures"] > 300
    assert "effective" in plan(program, "--failures", "--replicas", 8, "--slow_gpu_mtbf_hours", 1e6)
