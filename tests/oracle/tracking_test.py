"""Runs in the folders of Weights & Biases and MLflow, read by their own programs: 'wandb sync' uploads them to a server on
this machine, and mlflow's client reads its store. Nothing else can be reached meanwhile."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from program import read_metrics
from run_files import TINY
from wandb_server import WandbServer

RUN = ("train", *TINY, "--lr", 1e-3, "--train_iters", 6, "--log_validation_ppl_to_tensorboard")
TRACKED = ("--wandb_project", "books", "--wandb_entity", "team", "--mlflow_experiment_name", "my books")


@pytest.fixture(scope="module")
def run(program, tmp_path_factory):
    """In two starts, with a space in its path."""
    folder = tmp_path_factory.mktemp("tracked runs")
    program.run(*RUN, *TRACKED, "--output_dir", "first one", "--exit_interval", 3, cwd=folder)
    program.run(*RUN, *TRACKED, "--output_dir", "first one", cwd=folder)
    return folder / "first one"


def sync(server, home, *paths):
    pytest.importorskip("wandb.cli.cli", reason="wandb is not installed ('make tools' says why)")
    environment = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    # Whoever asks another address than this machine's waits for a proxy that is not there.
    environment |= {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    environment |= {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40, "WANDB_ERROR_REPORTING": "false"}
    environment |= {f"WANDB_{name}_DIR": str(home / name) for name in ("CONFIG", "CACHE", "DATA", "ARTIFACT")}
    command = [sys.executable, "-m", "wandb", "sync", *map(str, paths)]
    done = subprocess.run(command, env=environment | {"HOME": str(home)}, capture_output=True, text=True, timeout=120, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def wandb_files(folder):
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def check_rows(rows, run):
    """Every step once, with the numbers of metrics.jsonl to the last digit."""
    steps = read_metrics(run / "metrics.jsonl")
    assert [row["_step"] for row in rows] == [step["iteration"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [row["lm loss"] for row in rows] == [step["lm_loss"] for step in steps]
    assert [row["grad-norm"] for row in rows] == [step["grad_norm"] for step in steps]
    assert [row["samples vs steps"] for row in rows] == [step["consumed_samples"] for step in steps]
    evaluations = {line["iteration"]: line["evaluation_loss"] for line in read_metrics(run / "metrics.jsonl", "evaluation")
                   if line["set"] == "validation"}
    assert {row["_step"]: row["lm loss validation"] for row in rows if "lm loss validation" in row} == evaluations


def test_wandb_uploads_every_step_of_a_run_in_two_starts(program, run, tmp_path):
    files = wandb_files(run)
    assert len(files) == 2 and files[0].name == files[1].name, "one run, a folder for each start"
    shutil.copytree(run / "wandb", tmp_path / "wandb", symlinks=True)  # uploading leaves notes beside a run
    with WandbServer() as server:
        said = sync(server, tmp_path, tmp_path / "wandb")
        (name,) = server.runs
        assert f"run-{name}.wandb" == files[0].name and "error" not in said.lower(), said
        check_rows(server.rows(name), run)
        uploaded = server.runs[name]
        assert set(uploaded["exits"]) == {0}
        first = uploaded["upserts"][0]
        assert (first["project"], first["entity"], first["displayName"]) == ("books", "team", "first one")
        config = {key: entry["value"] for key, entry in json.loads(first["config"]).items()}
        assert config["lr"] == 1e-3 and config["num_layers"] == 1 and config["swiglu"] is True
        assert config["normalization"] == "RMSNorm" and config["wandb_project"] == "books"
        summary = json.loads(uploaded["files"]["wandb-summary.json"])
        last = read_metrics(run / "metrics.jsonl")[-1]
        assert summary["lm loss"] == last["lm_loss"] and summary["_step"] == 6 and "lm loss test" in summary
        about = json.loads(uploaded["files"]["wandb-metadata.json"])
        assert about["args"][0] == "train" and about["program"] == str(program.path) and about["startedAt"].startswith("20")
        assert b"lr: 0.001" in uploaded["files"]["megalith.yaml"]


def test_wandb_uploads_what_a_killed_run_had_written(run, tmp_path):
    (file, _) = wandb_files(run)
    copy = tmp_path / "offline-run-20260101_000000-killed00"
    shutil.copytree(file.parent, copy)
    whole = (copy / file.name).read_bytes()
    # Inside the row of its third step, which is followed by a summary and the end.
    (copy / file.name).write_bytes(whole[: whole.rindex(b"samples vs steps", 0, whole.rindex(b"samples vs steps"))])
    with WandbServer() as server:
        said = sync(server, tmp_path, copy)
        assert server.runs, said
        (name,) = server.runs
        rows = server.rows(name)
        assert [row["_step"] for row in rows] == [1, 2]
        assert [row["lm loss"] for row in rows] == [line["lm_loss"] for line in read_metrics(run / "metrics.jsonl")[:2]]


def test_a_run_that_fails_is_uploaded_as_one(program, tmp_path):
    program.run(*RUN, "--lr", 1e38, "--wandb_project", "books", "--output_dir", "run", expected=1, cwd=tmp_path)
    with WandbServer() as server:
        sync(server, tmp_path, tmp_path / "run" / "wandb")
        (uploaded,) = server.runs.values()
        assert uploaded["exits"] == [1] and len(uploaded["history"]) >= 1


@pytest.fixture(scope="module")
def mlflow_client():
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # newer versions ask for it
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    tracking = pytest.importorskip("mlflow.tracking", reason="mlflow is not installed ('make tools' says why)")
    return lambda store: tracking.MlflowClient(store.as_uri())


def only_run(client, experiment):
    (found,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return found


def test_mlflow_reads_every_step_of_a_run_in_two_starts(run, mlflow_client):
    client = mlflow_client(run / "mlruns")
    found = only_run(client, "my books")
    assert (found.info.run_name, found.info.status, found.info.lifecycle_stage) == ("first one", "FINISHED", "active")
    assert 0 < found.info.start_time < found.info.end_time
    steps = read_metrics(run / "metrics.jsonl")

    def history(name):
        return [(entry.step, entry.value) for entry in client.get_metric_history(found.info.run_id, name)]

    for name, key in (("lm loss", "lm_loss"), ("grad-norm", "grad_norm"), ("perf/iteration_time_ms", "elapsed_ms"),
                      ("perf/tps_tokens_per_sec_per_gpu", "tokens_per_s_per_device")):
        assert history(name) == [(step["iteration"], pytest.approx(step[key], rel=1e-15)) for step in steps], name
    assert [step for step, _ in history("lm loss validation")] == [2, 4, 6]
    assert found.data.metrics["lm loss"] == steps[-1]["lm_loss"]
    assert found.data.params["lr"] == "0.001" and found.data.params["num_layers"] == "1"
    assert found.data.tags["mlflow.source.name"] == "megalith" and "train" in found.data.tags["command"]
    names = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert "config.yaml" in names, names


def test_mlflow_goes_on_with_what_was_written(run, mlflow_client, tmp_path):
    """MLflow's own client adds to a run of ours, and a run of ours joins an experiment of MLflow's."""
    shutil.copytree(run / "mlruns", tmp_path / "mlruns")
    client = mlflow_client(tmp_path / "mlruns")
    found = only_run(client, "my books")
    client.log_metric(found.info.run_id, "score", 0.5)
    client.set_tag(found.info.run_id, "note", "good")
    client.rename_experiment(found.info.experiment_id, "old books")
    found = only_run(client, "old books")
    assert found.data.metrics["score"] == 0.5 and found.data.tags["note"] == "good"


def test_runs_share_a_store_with_mlflows_own(program, mlflow_client, tmp_path):
    client = mlflow_client(tmp_path / "store")
    experiment = client.create_experiment("their experiment")
    theirs = client.create_run(experiment, run_name="theirs")
    words = (*RUN, "--train_iters", 2, "--mlflow_dir", "store", "--mlflow_experiment_name", "their experiment")
    program.run(*words, "--mlflow_run_name", "ours", cwd=tmp_path)
    program.run(*words, "--lr", 1e38, expected=1, cwd=tmp_path)
    runs = client.search_runs([experiment], order_by=["attributes.start_time"])
    assert [one.info.status for one in runs] == ["RUNNING", "FINISHED", "FAILED"]
    assert [one.info.run_name for one in runs[:2]] == ["theirs", "ours"] and runs[0].info.run_id == theirs.info.run_id
    assert len(client.search_experiments()) == 2
