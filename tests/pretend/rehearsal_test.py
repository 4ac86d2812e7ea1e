"""The first hour on a GPU (scripts/gpu/first_hour.sh), rehearsed: every stage on the pretend accelerator with tiny sizes."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu" / "first_hour.sh"
sys.path[:0] = [str(SCRIPT.with_suffix(""))]

from machine import REAL  # noqa: E402
from hour import TARGETS  # noqa: E402
from predictions import ATTENTION, ATTENTION_BACKWARD, page_with, predict  # noqa: E402

# As compute-sanitizer takes its options, which it must be given before the program.
SANITIZER = """#!/bin/sh
[ "$1" = --tool ] && [ "$3 $4" = "--error-exitcode 9" ] || { echo "unexpected: $*" >&2; exit 3; }
shift 4
exec "$@"
"""
# Its description, and its load: idle, then busy.
NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *clocks.sm*) printf '210, 70.5, 30\\n1980, 640.25, 61\\n1965, 650.75, 63\\n' ;;
  *) echo "Pretend GPU, 1.0, 80 GiB, 1 MHz, 1 W" ;;
esac
"""


def executable(path, text):
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    executable(folder / "compute-sanitizer", SANITIZER)
    executable(folder / "nvidia-smi", NVIDIA_SMI)
    return folder


def first_hour(stage, out, program, operator_tests, *words, tools=None):
    """stage: None for the hour, whose files are all stages'."""
    path = f"{tools}:{os.environ['PATH']}" if tools else os.environ["PATH"]
    environment = {**os.environ, "PATH": path, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    words = ("--out", out, "--program", program, "--operator_tests", operator_tests, "--peer_device", "cpu", "--tiny", *words)
    stages = [] if stage is None else [str(stage)]
    ran = subprocess.run([SCRIPT, *stages, *map(str, words)], env=environment, text=True, capture_output=True, check=False)
    path = out / f"stage_{stage}" / "stage.json"
    return ran, json.loads(path.read_text()) if path.exists() else None


@pytest.fixture(scope="module")
def results(program, tools, tmp_path_factory):
    """Stage -> its JSON; None -> what the hour printed, and its folder."""
    operator_tests = os.environ.get("MEGALITH_OPERATOR_TESTS", ROOT / "build/bin/test_ops_pretend")
    out = tmp_path_factory.mktemp("first_hour")
    # Other tests run at the same time, and may have the machine nearly for themselves.
    words = ("--patience", 10)
    ran, _ = first_hour(None, out, program.path, operator_tests, *words, tools=tools)
    told = {stage: json.loads((out / f"stage_{stage}" / "stage.json").read_text()) for stage in range(1, 7)}
    return told | {None: (ran, out)}


ROWS = {
    1: [
        *("version", "gpu", "doctor", "operators", "qwen3_fp32", "qwen3_bf16", "attention_cudnn", "attention_flash"),
        *("products_tuned", "products_as_tuned", "no_waits_qwen3", "graphs_gpt2", "deterministic", "resume"),
        *("sanitizer_memcheck", "sanitizer_racecheck", "sanitizer_synccheck", "sanitizer_initcheck"),
    ],
    2: ["copy", "square", "products_8b_1k", "attention_1k", "attention_8k", "operators"],
    3: ["bound_8b_1k", "8b_1k", "bound_8b_8k", "8b_8k", "trace"],
    4: ["fp8_8b_1k", "fp8_8b_8k", "loss"],
    5: ["8b_1k"],
    6: ["lora_8b", "lora_fp8_8b", "flux", "bert", "125m_1k", "graphs_125m_1k", "experts", "graphs_experts", "again_8b_1k", "again_8b_8k"],
}


@pytest.mark.parametrize("stage", ROWS)
def test_every_row_of_a_stage_passes(stage, results):
    (ran, _), told = results[None], results[stage]
    assert [row["name"] for row in told["rows"]] == ROWS[stage]
    assert {row["status"] for row in told["rows"]} == {"pass"}, ran.stdout
    assert told["passed"]
    for row in told["rows"]:
        assert row["name"] in ran.stdout
        assert all(figure["value"] >= 0 for figure in row["figures"].values())


def test_the_hour_ends_with_one_table_and_one_archive(results):
    ran, out = results[None]
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].endswith(f"send {out}.tar.gz")
    summary = (out / "summary.txt").read_text()
    assert summary in ran.stdout
    for key in predict():
        assert re.search(rf"^{re.escape(key)} +[-\d]", summary, re.MULTILINE), key
    for key in TARGETS:
        assert re.search(rf"^  {re.escape(key)} .*(open|met|missed)", summary, re.MULTILINE), key
    assert re.search(r"^8b_1k: \S+ times the better of eager and compiled PyTorch$", summary, re.MULTILINE)
    with tarfile.open(f"{out}.tar.gz") as packed:
        names = packed.getnames()
    assert {f"{out.name}/summary.txt", *(f"{out.name}/stage_{stage}/stage.json" for stage in range(1, 7))} <= set(names)
    assert not any("checkpoint" in name for name in names)


def test_an_hour_that_is_over_leaves_stages_out_and_still_packs(tmp_path):
    slow = executable(tmp_path / "slow", "#!/bin/sh\nexec sleep 600\n")
    ran, _ = first_hour(None, tmp_path / "out", slow, slow, "--budget_s", 33)
    assert ran.returncode == 1 and "the hour is over" in ran.stdout
    assert re.search(r"3\.8b_1k\.mfu_percent +at least 65 +open", ran.stdout)
    assert (tmp_path / "out.tar.gz").exists()


def test_an_archive_of_a_bundle_is_unpacked(tmp_path):
    """What is beside the script when only the two were copied to a machine."""
    inside = tmp_path / "there" / "megalith-gpu-bundle"
    inside.mkdir(parents=True)
    executable(inside / "first_hour.sh", '#!/bin/sh\necho "unpacked: $*"\n')
    with tarfile.open(tmp_path / "megalith-gpu-bundle.tar.gz", "w:gz") as packed:
        packed.add(inside, inside.name)
    shutil.copy(SCRIPT, tmp_path)
    ran = subprocess.run([tmp_path / SCRIPT.name, "--tiny"], text=True, capture_output=True, check=False)
    assert ran.stdout == "unpacked: --tiny\n", ran.stderr


def test_clocks_and_power_stand_beside_each_figure(results):
    """From the half of the samples with the most power: what comes before and after the work counts for nothing."""
    (ran, _), told = results[None], results[6]
    for row in told["rows"]:
        assert row["chip"] == {"sm_mhz": 1972.5, "watts": 645.5, "celsius": 62}
    assert ran.stdout.count("at 1972 MHz, 646 W") >= len(told["rows"])


def test_products_of_eight_bits_are_measured_beside_those_of_bf16(results):
    figures = next(row["figures"] for row in results[2]["rows"] if row["name"] == "products_8b_1k")
    assert {f"{kind}{step}_tflops" for kind in ("", "fp8_") for step in ("forward", "dgrad", "wgrad")} < set(figures)


def test_every_figure_has_a_prediction(results):
    """Numbers of tests and differences from the CPU are judged, and losses depend on the data: no time is predicted there."""
    judged = ("tests", "largest_difference", "bf16", "fp8")
    for stage in range(1, 7):
        for row in results[stage]["rows"]:
            for name, figure in row["figures"].items():
                is_judged = name in judged or row["name"] == "flux"
                assert is_judged or figure["predicted"], f"{stage}.{row['name']}.{name} has no prediction"


def test_the_page_has_the_figures_that_are_computed():
    page = (ROOT / "benchmarks" / "results" / "gpu.md").read_text(encoding="utf-8")
    assert page_with(page, predict()) == page, "run scripts/gpu/first_hour/predictions.py --write"
    planners = (ROOT / "src" / "planner" / "cluster.h").read_text(encoding="utf-8")
    assert f"attention_share = {ATTENTION}, attention_backward_share = {ATTENTION_BACKWARD};" in planners


def test_every_prediction_is_of_a_row():
    """With the sizes for a GPU: a model that was renamed would leave its predictions unused."""
    models = [shape.name for shape in REAL.models]
    rows = {
        *("2.copy", "2.square", "2.operators", "4.loss"),
        *(f"2.products_{name}" for name in models[::2]),
        *(f"2.attention_{name}" for name in REAL.attention),
        *(f"3.{kind}{name}" for name in models for kind in ("", "bound_")),
        *(f"4.fp8_{name}" for name in models),
        *(f"5.{name}" for name in models[: REAL.compared]),
        *(f"6.{kind}{shape.name}" for shape in REAL.small for kind in ("", "graphs_")),
        *(f"6.again_{name}" for name in models[:2]),
        *(f"6.{shape.name}" for shape in REAL.kinds if shape.name != "flux"),
    }
    assert {key.rpartition(".")[0] for key in predict()} == rows
    assert set(TARGETS) <= set(predict())
    for shape in (*REAL.models, *REAL.small, *REAL.kinds):
        assert (ROOT / "configs" / "models" / f"{shape.config}.yaml").exists()


def test_nothing_is_measured_before_stage_1_has_passed(program, tmp_path):
    ran, told = first_hour(2, tmp_path, program.path, "none")
    assert ran.returncode == 2 and told is None
    assert "stage 1 has not passed" in ran.stderr


def test_a_failure_is_told_and_the_other_rows_are_run(tmp_path):
    broken = executable(tmp_path / "broken", "#!/bin/sh\n[ $1 = --version ] && exec echo broken 1.0\necho 'error: no' >&2\nexit 7\n")
    ran, told = first_hour(1, tmp_path / "out", broken, broken)
    assert ran.returncode == 1 and not told["passed"]
    failed = {row["name"]: row["note"] for row in told["rows"] if row["status"] == "fail"}
    assert {"doctor", "operators", "deterministic", "resume"} <= set(failed)
    assert failed["doctor"] == "exit code 7: error: no"
    # A stage that did not pass does not open the next one.
    assert first_hour(2, tmp_path / "out", broken, broken)[0].returncode == 2


def test_a_bundle_starts_its_programs_by_its_launchers(tools, tmp_path):
    """With what scripts/gpu/bundle.sh puts into one, and launchers that only say how they were started."""
    shutil.copy(SCRIPT, tmp_path)
    shutil.copytree(SCRIPT.with_suffix(""), tmp_path / "first_hour")
    for folder in ("configs", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    executable(tmp_path / "megalith", '#!/bin/sh\necho "megalith $1"\n')
    executable(tmp_path / "run", '#!/bin/sh\necho "under <$RUN_UNDER> $*"\necho "[  PASSED  ] 3 tests."\n')
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": sys.executable}
    words = [tmp_path / "first_hour.sh", "1", "--out", tmp_path / "out", "--tiny"]
    subprocess.run([str(word) for word in words], env=environment, check=False, capture_output=True)
    rows = {row["name"]: row for row in json.loads((tmp_path / "out" / "stage_1" / "stage.json").read_text())["rows"]}
    assert rows["version"]["note"] == "megalith --version"
    assert rows["operators"]["status"] == rows["sanitizer_racecheck"]["status"] == "pass"
    assert rows["operators"]["figures"]["tests"]["value"] == 3
    said = (tmp_path / "out" / "stage_1" / "sanitizer_racecheck.log").read_text()
    assert f"under <{tools}/compute-sanitizer --tool racecheck --error-exitcode 9> test_ops" in said


def test_what_does_not_fit_the_budget_is_ended_or_left_out(tmp_path):
    slow = executable(tmp_path / "slow", "#!/bin/sh\nexec sleep 600\n")
    ran, told = first_hour(6, tmp_path / "out", slow, slow, "--untested", "--budget_s", 3)
    assert ran.returncode == 1
    assert told["rows"][0]["status"] == "fail" and "exit code -9" in told["rows"][0]["note"]
    assert {row["status"] for row in told["rows"][1:]} == {"left out"}
    assert told["seconds"] < 300
