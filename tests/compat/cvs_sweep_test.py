"""`megalith verify` on today's files of CVS: a whole sweep, reports of other suites, and CVS itself as the judge.

With MEGALITH_CVS, a checkout of ROCm/cvs of August 2026, its own loaders, parsers and checks judge what verify says of each
of its files of training, and of reports of rccl and perftest; without it those tests are skipped.
"""

import importlib
import json
import os
import re
import sys
from pathlib import Path
from unittest import mock

import log_patterns
import pytest

CELL = {"training.tokens_per_gpu": {"kind": "min", "value": 6500}, "training.mem_usage": {"kind": "max", "value": 0.85}}
RUNS = {"fp8-run": ("128", "4", "FP8"), "bf16-run": ("64", "2", "BF16")}


def combination(name, batch, micro, precision):
    return {"name": name, "global_batch_size": batch, "micro_batch_size": micro, "precision": precision}


def write_sweep(folder):
    """A sweep of two runs as CVS's files for Megatron-LM are, and its thresholds."""
    sizes = {"sequence_length": "8192", "recompute": "0", "fsdp": "0", "tensor_parallelism": "1", "pipeline_parallelism": "1"}
    sweep = {
        "schema_version": 1,
        "framework": "megatron_single",
        "gpu_arch": "MI325X",
        "threshold_json": "thresholds.json",
        "config": {"log_dir": str(folder), "training_iterations": "10", "nnodes": "1"},
        "model_params": {"model_name": "llama3.1_8B", "tokenizer_model": "meta-llama/Llama-3.1-8B", "model_size": "8", **sizes},
        "container": {"name": "box", "image": "i", "runtime": {"name": "docker", "args": {}}},
        "sweep": {"combinations": {name: combination(name, *run) for name, run in RUNS.items()}, "runs": list(RUNS)},
    }
    cells = {f"MBS={micro},GBS={batch},PRECISION={precision}": CELL for batch, micro, precision in RUNS.values()}
    (folder / "sweep.json").write_text(json.dumps(sweep))
    (folder / "thresholds.json").write_text(json.dumps({"_comment": "made up", **cells}))
    return folder / "sweep.json"


def megatron_log(batch, tokens=6900.0, loss=lambda i: 12 - 0.1 * i, iterations=10):
    return "".join(
        f" iteration {i:8d}/{iterations:8d} | elapsed time per iteration (ms): 300.0 | mem usages: 0.8000 | throughput per GPU"
        f" (TFLOP/s/GPU): 400.0 | tokens/GPU/s: {tokens:.1f} | global batch size: {batch:>5} | lm loss: {loss(i):.6E} | grad norm: 1.2 |\n"
        for i in range(1, iterations + 1)
    )


def titan_log(tokens, loss):
    line = "[titan] 2026-08-01 10:00:00,000 - root - INFO - step: {:2}  loss: {:8.5f}  grad_norm:  1.2500  memory: 99.00GiB(50.00%)  tps: {:,}  tflops: 600.10  mfu: 24.00%\n"
    return line.format(1, loss + 0.5, 100) + line.format(10, loss, tokens)


def place_log(folder, run, text, trainer="megatron"):
    place = folder / f"{trainer}-logs" / (run if trainer == "megatron" else "") / "out-node0"
    place.mkdir(parents=True, exist_ok=True)
    (place / "training.log").write_text(text)


def errors_of(run):
    return [f"{one['topic']} {one['check']}" for one in run["findings"] if one["level"] == "error"]


def test_all_runs_of_a_sweep_are_judged_where_cvs_logs_them(program, tmp_path):
    file = write_sweep(tmp_path)
    place_log(tmp_path, "fp8-run", megatron_log(128))
    place_log(tmp_path, "bf16-run", megatron_log(64, tokens=6000.0))
    verdict = json.loads(program.run("verify", "--config", file, "--json", expected=1)[1])
    assert [errors_of(run) for run in verdict["runs"]] == [[], ["performance tokens_per_gpu"]]
    _, output, _ = program.run("verify", "--config", file, "--case", "fp8-run", "--log", tmp_path / "megatron-logs/fp8-run/out-node0/training.log")
    assert "enforce_thresholds" not in output and output.endswith("verdict: passed\n")
    program.run("verify", "--config", file, "--case", "fp8-run", "--set", "tokens_per_gpu=7000", "--json", expected=1)
    (tmp_path / "megatron-logs/bf16-run/out-node0/training.log").unlink()
    assert "none lies in" in program.run("verify", "--config", file, expected=2)[2]
    file.write_text(file.read_text().replace("megatron_single", "torchtitan_single"))
    assert "all their logs to one place" in program.run("verify", "--config", file, expected=2)[2]


def test_reports_of_other_suites_are_judged(program, tmp_path):
    (tmp_path / "health.json").write_text('{"agfhc": {"path": "/opt"}}')
    (tmp_path / "out.txt").write_text("return code AGFHC_SUCCESS\n")
    words = ("verify", "--config", tmp_path / "health.json", "--log", tmp_path / "out.txt")
    assert program.run(*words, "--page", tmp_path / "page.html")[1].endswith("verdict: passed\n")
    assert "--set is for training" in program.run(*words, "--set", "a=b", expected=2)[2]
    assert "no report is given" in program.run(*words[:3], expected=2)[2]
    (tmp_path / "out.txt").write_text("ABORTED\n")
    program.run(*words, expected=1)


# --- CVS itself ---


class Pretended(mock.MagicMock):
    """A module that CVS imports for clusters and that is not here."""

    __path__ = []


@pytest.fixture(scope="module")
def cvs():
    """Imports modules of CVS; what it fails a test with is appended to `cvs.failures`."""
    folder = os.environ.get("MEGALITH_CVS")
    if not folder:
        pytest.skip("MEGALITH_CVS names no checkout of ROCm/cvs")
    sys.path.insert(0, folder)
    wanted = ("nodescraper", "nodescraper.models", "pssh", "xlsxwriter", "paramiko", "parallel_ssh", "scp")

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] not in {one.split(".")[0] for one in wanted}:
                return None
            return importlib.machinery.ModuleSpec(name, self)

        def create_module(self, spec):
            return Pretended()

        def exec_module(self, module):
            pass

    sys.meta_path.append(Finder())
    failures = []

    def load(name):
        module = importlib.import_module(name)
        if hasattr(module, "fail_test"):
            module.fail_test = failures.append
        return module

    load.failures, load.folder = failures, Path(folder) / "cvs/input/config_file"
    return load


def filled(file, folder):
    """A copy of CVS's file, and of its thresholds, with what people fill in; logs lie in `folder`."""
    values = json.loads(re.sub(r"<changeme>", "2", file.read_text()))
    values["config"].update(log_dir=str(folder), nic_type="thor2")
    values["enforce_thresholds"] = True
    for run in values["sweep"]["combinations"].values():
        run.pop("result_dict", None)  # CVS's own loader refuses its one file that has it
    (folder / file.name).write_text(json.dumps(values))
    (folder / values["threshold_json"]).write_text((file.parent / values["threshold_json"]).read_text())
    return folder / file.name


def violations(cvs, actuals, limits):
    """What CVS's test_metric says of these numbers."""
    check = cvs("cvs.lib.utils.verdict")._check_one
    return sorted(
        metric.removeprefix("training.")
        for metric, spec in limits.items()
        if metric not in actuals or check(metric, actuals[metric], {**spec, "_actuals": actuals})
    )


# as logged -> tokens/s, the loss by iteration
LOGS = {"good": (6900.0, lambda i: 12 - 0.1 * i), "slow": (10.0, lambda i: 12 - 0.1 * i), "rising": (6900.0, lambda i: 9 + 0.1 * i)}


@pytest.mark.parametrize("said", LOGS)
def test_cvs_judges_its_files_for_megatron_as_verify_does(said, cvs, program, tmp_path):
    tokens, loss = LOGS[said]
    loader, curve = cvs("cvs.lib.training.megatron.utils.training_config_loader"), cvs("cvs.lib.training.megatron.utils.loss_curve")
    files = [one for one in sorted((cvs.folder / "training/megatron").glob("mi325x*.json")) if "threshold" not in one.name]
    assert len(files) == 4
    for file in files:
        copy = filled(file, tmp_path)
        variant = loader.load_training_variant(copy, {})
        for run in variant.sweep.runs:
            log = megatron_log(variant.sweep.combinations[run].global_batch_size, tokens, loss)
            place_log(tmp_path, run, log)
            figures = cvs("cvs.lib.training.megatron.megatron_lib")._parse_training_results("\n".join(log.splitlines()[-15:]), log)
            actuals = {f"training.{name}": float(values[-1]) for name, values in figures.items() if values}
            expected = [f"performance {one}" for one in violations(cvs, actuals, variant.thresholds[variant.cell_key(run)])]
            points = curve.sample_loss_curve(curve.parse_all_loss_points(log), variant.loss_curve.sample_every, variant.loss_curve.milestone_steps)
            if not curve.evaluate_loss_decreasing(points, variant.loss_curve.max_slope)[0]:
                expected.insert(0, "convergence loss curve")
            words = ("verify", "--config", copy, "--case", run, "--compare", "cvs", "--json")
            _, output, _ = program.run(*words, expected=1 if expected else 0)
            found = errors_of(json.loads(output)["runs"][0])
            assert sorted(found) == sorted(expected), (file.name, run)
            # Our own verdict has CVS's gates too, but for scaling, which its file disables by a baseline of 0.
            own = json.loads(program.run(*words[:-3], "--devices_per_node", 8, "--json", expected=1 if set(expected) - {"performance scaling_efficiency_pct"} else 0)[1])
            assert set(expected) - {"performance scaling_efficiency_pct"} == set(errors_of(own["runs"][0])), (file.name, run)


def test_cvs_parses_torchtitans_lines_as_verify_does(cvs, program, tmp_path):
    loader = cvs("cvs.lib.training.torchtitan.training_config_loader")
    files = [one for one in sorted((cvs.folder / "training/torchtitan").glob("mi355*_config.json"))]
    assert len(files) == 8
    for file in files:
        copy = filled(file, tmp_path)
        variant = loader.load_training_variant(copy, {})
        run = variant.sweep.runs[0]
        cell = variant.thresholds[variant.cell_key(run)]
        bound = cell["training.throughput_per_gpu"]["value"]
        for tokens, loss in ((bound, 9.0), (bound - 1, 9.0), (bound, 99.0)):
            log = titan_log(tokens, loss)
            place_log(tmp_path, run, log, "torchtitan")
            figures = cvs("cvs.lib.training.torchtitan.torchtitan_lib")._parse_training_results(log)
            assert (float(figures["tokens_per_sec"][-1]), float(figures["loss"][-1])) == (tokens, loss)
            assert log_patterns.cvs_torchtitan(log)["tps"][-1] == tokens
            # By the meaning that the files' own _calculation gives its names.
            expected = {"performance tokens_per_gpu"} if tokens < bound else set()
            expected |= {"performance loss"} if loss > cell["training.loss"]["value"] else set()
            batch = int(variant.sweep.combinations[run].global_batch_size)
            expected |= {"performance tokens_per_gpu_times_batch"} if tokens * batch < cell["training.tokens_per_gpu"]["value"] else set()
            words = ("verify", "--config", copy, "--case", run, "--json")
            assert set(errors_of(json.loads(program.run(*words, expected=1 if expected else 0)[1])["runs"][0])) == expected, file.name


def rccl_rows(sizes):
    shape = {"numCycle": 0, "type": "float", "redop": "sum", "wrong": 0, "nodes": 2, "ranks": 16, "ranksPerNode": 8, "gpusPerRank": 1}
    return [
        {**shape, "name": "AllReduce", "size": size, "inPlace": place, "time": time, "algBw": bus, "busBw": bus}
        for size, bus, time in sizes
        for place in (0, 1)
    ]


@pytest.mark.parametrize(
    "sizes",
    [
        ((8589934592, 330.0, 10.0), (17179869184, 350.0, 20.0)),
        ((8589934592, 313.0, 10.0), (17179869184, 332.0, 20.0)),
        ((8589934592, 400.0, 10.0), (17179869184, 379.0, 9.0)),
    ],
)
def test_cvs_judges_reports_of_rccl_as_verify_does(sizes, cvs, program, tmp_path):
    library, schema = cvs("cvs.lib.rccl_lib"), cvs("cvs.schema.rccl")
    config = json.loads((cvs.folder / "rccl/rccl_config.json").read_text())
    config["rccl"]["cvs_params"]["verify_bus_bw"] = "True"
    rows = rccl_rows(sizes)
    assert all(schema.RcclTestsMultinodeRaw.model_validate(row) for row in rows)
    expected = {size: {"bus_bw": bound} for size, bound in config["rccl"]["results"]["all_reduce_perf"]["bus_bw"].items()}
    cvs.failures.clear()
    for check in (library.check_bus_bw, library.check_bw_dip, library.check_lat_dip):
        check("all_reduce_perf", rows, expected)
    (tmp_path / "rccl.json").write_text(json.dumps(config))
    (tmp_path / "report.json").write_text(json.dumps(rows))
    words = ("verify", "--config", tmp_path / "rccl.json", "--log", tmp_path / "report.json", "--json")
    found = errors_of(json.loads(program.run(*words, expected=1 if cvs.failures else 0)[1])["runs"][0])
    assert len(found) == len(cvs.failures), (found, cvs.failures)


def test_cvs_reads_perftest_as_verify_does(cvs, program, tmp_path):
    library = cvs("cvs.lib.ibperf_lib")
    text = "65536 bytes of GPU buffer\n RDMA_Write BW Test\n Number of qps   : 8\n 8388608   5000   0.00    281.50     0.0041\n"
    handle = mock.Mock()
    handle.exec.return_value = {"node": text}
    cvs.failures.clear()
    read = library.get_ib_bw_pps(handle, 8388608, "cat log")["node"]
    assert read["bw"] == "281.50" and not cvs.failures
    (tmp_path / "log").write_text(text)
    words = ("verify", "--config", cvs.folder / "ibperf/ibperf_config.json", "--log", tmp_path / "log", "--json")
    findings = json.loads(program.run(*words)[1])["runs"][0]["findings"]
    (one,) = [finding for finding in findings if finding["check"] == "ib_write_bw of 8388608 bytes, 8 QPs"]
    assert one["found"].startswith("281.5 Gb/s") and one["expected"] == "above 280.0 Gb/s"


def test_every_file_of_cvs_is_read_or_refused_by_name(cvs, program):
    """None ends in a failure of the program, and each refusal names the suite."""
    refused = 0
    for file in sorted(cvs.folder.rglob("*.json")):
        if "threshold" in file.name:
            continue
        code, _, message = program.run("verify", "--config", file, "--log", os.devnull, expected=2)
        refused += "which verify does not judge" in message
        assert "error: " in message and "internal" not in message, (file, message)
    assert refused > 40
