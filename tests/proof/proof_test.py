"""The attack of `make proof`: its own parts, on programs that are known to fail, and a fixed piece of it."""

import itertools
import stat
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import damaged  # noqa: E402
import interrupted  # noqa: E402
import layouts  # noqa: E402
import long_run  # noqa: E402
import runs  # noqa: E402
from covering import CoveringArray  # noqa: E402

ROWS = 6  # of the fixed piece: layouts/rows.txt has more
ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "family": {"a": (), "b": ("--b",)},
    "tp": {"1": (), "2": ("--tensor_model_parallel_size", 2)},
    "sp": {"-": (), "sp": ("--sequence_parallel",)},
    "cp": {"1": (), "2": ("--context_parallel_size", 2)},
    "mode": {"-": (), "x": ("--x",), "y": ("--y",)},
}


def rows_of(array):
    rows = []
    while (row := array.next_row()) is not None:
        assert array.is_allowed(row)
        array.cover(row)
        rows.append(row)
    return rows


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_occurs_that_is_not_forbidden(strength):
    features = {f"f{i}": [str(value) for value in range(2 + i % 3)] for i in range(7)}
    array = CoveringArray(features, strength, seed=3)
    clause = {("f0", "1"), ("f1", "2")}
    array.forbid(clause)
    rows = rows_of(array)
    for names in itertools.combinations(features, strength):
        for values in itertools.product(*(features[name] for name in names)):
            wanted = set(zip(names, values))
            assert any(wanted <= set(row.items()) for row in rows) != (clause <= wanted)
    everything = 2 * 3 * 4 * 2 * 3 * 4 * 2
    assert len(rows) < everything / 8


def test_rows_are_those_of_the_seed():
    features = layouts.values_of(SMALL)
    assert rows_of(CoveringArray(features, 3, 5)) == rows_of(CoveringArray(features, 3, 5))


def test_what_no_rule_forbids_but_cannot_be_is_given_up():
    array = CoveringArray({"a": ["0", "1"], "b": ["0", "1"], "c": ["0", "1"]}, 2, 1)
    for c in "01":  # a 1 with b 1 goes with no c
        array.forbid({("a", "1"), ("b", "1"), ("c", c)})
    rows = rows_of(array)
    assert not any(row["a"] == row["b"] == "1" for row in rows) and not array.left


def fake(folder, body):
    path = folder / "program"
    path.write_text(f"#!/bin/bash\nw=\" $* \"\nhas() {{ [[ $w == *\" $1 \"* ]]; }}\n{body}\necho layout\necho ok\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_failure_is_made_small(tmp_path):
    program = fake(tmp_path, "if has --sequence_parallel && has --y; then echo differs; exit 1; fi")
    said = []
    result = layouts.prove(layouts.Layouts(program, tmp_path, SMALL), 60, say=said.append)
    assert result["failures"] and all(one["values"] == {"sp": "sp", "mode": "y"} for one in result["failures"])
    assert "--sequence_parallel" in result["failures"][0]["smallest"] and "--b" not in result["failures"][0]["smallest"]
    assert any("FAILED" in line for line in said)


@pytest.mark.parametrize("body", ["echo 'internal error: x' >&2; exit 2", "echo 'error: no words on what to do' >&2; exit 2", "kill -SEGV $$"])
def test_only_a_rule_may_refuse(tmp_path, body):
    program = fake(tmp_path, f"if has --x; then {body}; fi")
    result = layouts.prove(layouts.Layouts(program, tmp_path, SMALL), 60, say=lambda _: None)
    assert {tuple(one["values"].items()) for one in result["failures"]} == {(("mode", "x"),)}


def test_rules_are_learnt_from_what_is_refused(tmp_path):
    rule = "echo \"error: no $1 with 2\" >&2; echo '  take another' >&2; exit 2"
    program = fake(tmp_path, f"if has --b && has --context_parallel_size; then set -- b; {rule}; fi; if ! has --b && has --y; then set -- y; {rule}; fi")
    result = layouts.prove(layouts.Layouts(program, tmp_path, SMALL), 120, say=lambda _: None)
    assert not result["failures"] and result["covered"] == result["triples"]
    clauses = {frozenset(entry["values"].items()) for entry in result["refusals"]}
    assert clauses == {frozenset({("family", "b"), ("cp", "2")}), frozenset({("family", "a"), ("mode", "y")})}


def test_growth_is_seen():
    flat = [(100 << 20, 20, 5)] * 100
    assert long_run.judge(flat) == []
    assert "resident" in long_run.judge([(100 * 2**20 + i * 2**17, 20, 5) for i in range(100)])[0]
    assert "descriptors" in long_run.judge([(1, 20 + i // 10, 5) for i in range(100)])[0]
    assert "threads" in long_run.judge([(1, 20, 5 + i // 50) for i in range(100)])[0]
    assert "too short" in long_run.judge(flat[:5])[0]


def test_a_fixed_piece_of_the_layouts_agrees(program):
    prover = layouts.Layouts(Path(program.path), ROOT)
    array = CoveringArray(layouts.values_of(layouts.FEATURES), 2, seed=11)
    for clause in layouts.known_clauses():
        array.forbid(clause)
    outcomes = {"good": 0, "refused": 0}
    for _ in range(ROWS):
        row = array.next_row()
        outcome, said = prover.try_row(row)
        assert outcome in outcomes, f"{prover.line(row)}\n{said[-3000:]}"
        outcomes[outcome] += 1
        array.cover(row)
    assert outcomes["good"] >= ROWS // 2, outcomes


def test_what_is_kept_as_refused_is_refused(program):
    """A sample: `make proof` asks for all."""
    prover = layouts.Layouts(Path(program.path), ROOT)
    refusals = layouts.known_refusals()
    assert len(refusals) > 40
    assert prover.check_known(refusals[:: max(1, len(refusals) // 12)]) == []


def test_a_run_as_processes_is_that_of_one_rank(program, tmp_path):
    said = []
    result = runs.prove(program.path, ROOT, 60, seed=4, folder=tmp_path / "runs", say=said.append, most_rows=1)
    assert result["rows"] == 1 and not result["failures"], said


def test_differences_of_runs_are_seen():
    def tensor(*values):
        return {"w": ("F32", [len(values)], runs.struct.pack(f"<{len(values)}f", *values))}

    runs.compare_tensors("x", tensor(1, 2), tensor(1, 2.001))
    for found in (tensor(1, 2.1), tensor(1, 2, 3), tensor(1, float("nan")), {}):
        with pytest.raises(runs.Differs):
            runs.compare_tensors("x", found, tensor(1, 2))
    right = {1: {"step lm_loss": 2.0}}
    runs.compare_curves("x", right, right, 0)
    for found in ({1: {"step lm_loss": 2.0001}}, {1: {}}, {}, {1: {"step lm_loss": float("nan")}}):
        with pytest.raises(runs.Differs):
            runs.compare_curves("x", found, right, 1e-6)


def test_a_file_that_is_taken_with_other_results_is_a_failure(tmp_path):
    kind_folder = tmp_path / "source"
    kind_folder.mkdir()
    (kind_folder / "a").write_bytes(b"0123456789" * 10)
    tried = damaged.Damaged.__new__(damaged.Damaged)
    tried.folder, tried.root, tried.rng = tmp_path, ROOT, damaged.random.Random(1)
    kind = damaged.Kind("kind", kind_folder, ["a"], lambda copy, _: (copy / "a",), lambda _: "other")
    outcomes = {}
    for name, body in {"takes": "exit 0", "refuses": "echo 'error: no' >&2; exit 2", "dies": "kill -SEGV $$", "mute": "exit 2"}.items():
        tried.program = fake(tmp_path, body)
        outcomes[name] = tried.try_one(kind, "right")[0]
    assert outcomes == {"takes": "failed", "refuses": "refused", "dies": "failed", "mute": "failed"}


def test_a_command_that_forgets_after_a_kill_is_a_failure(tmp_path):
    tried = interrupted.Interrupted.__new__(interrupted.Interrupted)
    tried.folder, tried.random = tmp_path, interrupted.random.Random(1)
    # Leaves a mark, and does nothing where it finds one: what was killed is never finished.
    tried.program = fake(tmp_path, 'if [ -e "$1/mark" ]; then exit 0; fi; touch "$1/mark"; sleep 1; touch "$1/result"; exit 0')
    operation = interrupted.Operation("forgets", lambda target, _: (target,), interrupted.digest)
    right, seconds = tried.undisturbed(operation)
    assert sorted(right) == ["mark", "result"] and seconds > 1
    was_running, found, _ = tried.disturb(operation, 0.4)
    assert was_running and found != right
