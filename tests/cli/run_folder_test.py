"""--output_dir: a run is a folder that runs again, resumes by itself, and tells its story."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest
from program import read_metrics
from ranks import run_ranks
from run_files import TINY, iterations, plotted, points, refused

FILES = {"config.yaml", "run.json", "log.txt", "metrics.jsonl", "page.html", "loss.svg", "tensorboard", "checkpoints"}
RUN = ("train", *TINY, "--lr", 1e-3, "--train_iters", 6, "--save_interval", 2)


@pytest.fixture(scope="module")
def finished(program, tmp_path_factory):
    """A run in two starts, and the same in one go."""
    folder = tmp_path_factory.mktemp("runs")
    program.run(*RUN, "--output_dir", "pieces", "--exit_interval", 3, cwd=folder)
    program.run(*RUN, "--output_dir", "pieces", cwd=folder)
    program.run(*RUN, "--output_dir", "straight", "--lr", 2e-3, cwd=folder)
    return folder


def starts(folder):
    return json.loads((folder / "run.json").read_text())["starts"]


def test_everything_lies_in_the_folder(finished):
    assert {path.name for path in (finished / "straight").iterdir()} == FILES
    assert {path.name for path in finished.iterdir()} == {"pieces", "straight"}
    assert iterations(finished / "straight" / "checkpoints") == [2, 4, 6]
    assert len(list((finished / "straight" / "tensorboard").glob("events.out.tfevents.*"))) == 1


def test_the_report_and_the_end_name_the_folder(program, tmp_path):
    _, output, errors = program.run(*RUN, "--output_dir", "run", "--export_hf", "--bf16", cwd=tmp_path)
    [row] = re.findall(r"^output +((?:.|\n {11})+)$", errors, re.MULTILINE)
    told = re.sub(r"\n +", " ", row)
    # A path in the folder is told by its name there.
    assert told.startswith("the run in run, checkpoints in checkpoints every 2 steps, Hugging Face export in hf, "), told
    assert "metrics in metrics.jsonl" in told and "page in page.html" in told
    table = output[output.index("\ndone ") :]
    assert re.search(r"^run folder +run$", table, re.MULTILINE)
    assert re.search(r"^next +megalith inspect run run$", table, re.MULTILINE), table
    _, story, _ = program.run("inspect", "run", "run", cwd=tmp_path)
    assert "finished" in story
    # As people write the dtype.
    assert re.search(r"<p>global batch \d+ × \d+ tokens · bf16 · 1 process</p>", (tmp_path / "run" / "page.html").read_text())


def test_started_again_it_goes_on(finished):
    run = finished / "pieces"
    assert [line["iteration"] for line in read_metrics(run / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert sorted(points(run / "page.html", "loss", "train")) == sorted(plotted(run / "loss.svg")["train"]) == [1, 2, 3, 4, 5, 6]
    first, second = starts(run)
    assert (first["first_iteration"], first["last_iteration"], first["status"]) == (0, 3, "stopped as configured")
    assert first["exit_code"] == second["exit_code"] == 0 and first["back_end"] == ""  # one rank talks to no other
    assert (second["first_iteration"], second["last_iteration"], second["status"]) == (3, 6, "finished")
    assert len(re.findall(r"^== .* train ", (run / "log.txt").read_text(), re.MULTILINE)) == 2


def test_the_next_command_says_only_what_must_be_said(program, tmp_path):
    """The checkpoint names its tokenizer, for this run and for one that goes on."""
    words = (*RUN, "--vocab_size", 257, "--tokenizer_type", "ByteTokenizer", "--output_dir", "run", "--eval_iters", 0)
    for more in (("--exit_interval", 3), ()):
        _, output, _ = program.run(*words, *more, cwd=tmp_path)
        assert re.search(r'megalith generate --load run/checkpoints --prompt "…"$', output, re.MULTILINE), output
    _, output, _ = program.run("generate", "--load", "run/checkpoints", "--prompt", "one", "--max_new_tokens", 1, cwd=tmp_path)
    assert output.startswith("one")


def test_the_record_says_who_where_and_with_what(finished):
    (start,) = starts(finished / "straight")
    assert start["command"][1:3] == ["train", "--num_layers"] and start["directory"] == str(finished)
    assert start["world_size"] == len(start["hosts"]) == 1 and start["hosts"][0]
    assert re.fullmatch(r"[0-9a-f]{12}|unknown", start["commit"]) and start["version"]
    assert start["options"]["lr"] == "0.002" and "save" not in start["options"]
    ids = {line["run_id"] for line in read_metrics(finished / "straight" / "metrics.jsonl")}
    assert ids == {start["run_id"]}


def test_a_run_is_named_by_its_folder_where_a_checkpoint_is_asked_for(program, finished, tmp_path):
    """--load RUN takes RUN/checkpoints: its weights, its tokenizer, its counters."""
    run = finished / "straight"
    texts = []
    for folder in (run, run / "checkpoints"):
        _, text, _ = program.run("generate", "--load", folder, "--prompt_ids", "5,6", "--max_new_tokens", 4, "--temperature", 0,
                                 "--ignore_eos", "--print_ids")
        texts.append(text)
    assert texts[0] == texts[1]
    _, text, _ = program.run("inspect", "checkpoint", run)
    assert text.count(": intact") == 3 and "iteration 6" in text
    program.run("convert", "--load", run, "--save_hf", tmp_path / "hf")
    assert (tmp_path / "hf" / "config.json").exists()
    _, _, errors = program.run("convert", "--load", run, "--save", run / "checkpoints", expected=2)
    assert "what is read would be written over" in errors
    _, _, errors = program.run("convert", "--load_hf", tmp_path / "hf", "--save", tmp_path / "hf", expected=2)
    assert "what is read would be written over" in errors
    _, output, _ = program.run(*RUN, "--load", run, "--train_iters", 7, "--save", tmp_path / "more", "--log_format", "megatron")
    assert "iteration        7/       7" in output and "iteration        6/" not in output


def test_its_configuration_runs_again(program, finished, tmp_path):
    """The same numbers from the file, in another folder; and from the folder itself the run goes on."""
    config = finished / "straight" / "config.yaml"
    program.run("train", "--config", config, "--output_dir", "again", cwd=tmp_path)
    (start,) = starts(tmp_path / "again")
    assert start["status"] == "finished"
    losses = [[line["lm_loss"] for line in read_metrics(run / "metrics.jsonl")] for run in (tmp_path / "again", finished / "straight")]
    assert losses[0] == losses[1] and len(losses[0]) == 6
    program.run("train", "--config", "again/config.yaml", "--train_iters", 8, cwd=tmp_path)
    assert [line["iteration"] for line in read_metrics(tmp_path / "again" / "metrics.jsonl")] == list(range(1, 9))


def test_two_ranks_leave_one_folder(program, tmp_path):
    """The first rank writes the record, the last one the metrics; both say the same start, and both write to the log."""
    words = (*RUN, "--output_dir", tmp_path / "run")
    run_ranks(program, 2, *words, "--exit_interval", 4)
    ran = run_ranks(program, 2, *words)
    run = tmp_path / "run"
    first, second = starts(run)
    assert first["world_size"] == len(first["hosts"]) == 2 and second["first_iteration"] == 4
    assert first["axes"] == {"tp": 1, "cp": 1, "dp": 2, "pp": 1, "etp": 1, "ep": 1, "edp": 2}
    assert (first["back_end"], first["interface"]) == ("gloo", "lo") and first["meeting_ms"] > 0
    lines = read_metrics(run / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["run_id"] for line in lines] == [first["run_id"]] * 4 + [second["run_id"]] * 2
    log = (run / "log.txt").read_text().splitlines()
    assert sum(line.startswith("== ") for line in log) == 2
    # The report of the first rank, and the numbers of the last.
    assert len(set((ran.stderr + ran.stdout).splitlines()) & set(log)) > 10


def test_an_option_of_its_own_has_another_place_or_none(program, tmp_path):
    program.run(*RUN, "--output_dir", "run", "--page_file=null", "--save", "elsewhere", "--export_hf", cwd=tmp_path)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == (FILES - {"page.html", "checkpoints"}) | {"hf"}
    assert iterations(tmp_path / "elsewhere") == [2, 4, 6]


def test_overwrite_begins_anew(program, tmp_path):
    words = (*RUN, "--output_dir", "run", "--eval_iters", 0)
    program.run(*words, "--train_iters", 4, cwd=tmp_path)
    program.run(*words, "--train_iters", 3, "--overwrite", cwd=tmp_path)
    run = tmp_path / "run"
    assert [line["iteration"] for line in read_metrics(run / "metrics.jsonl")] == [1, 2, 3]
    assert len(starts(run)) == 1 and iterations(run / "checkpoints") == [2, 3]
    assert "overwrite:" not in (run / "config.yaml").read_text()
    assert len(list((run / "tensorboard").iterdir())) == 1


def tracked_runs(folder):
    """The ids of the starts for W&B, and the runs in MLflow's store with their steps."""
    ids = [path.name.split("-")[-1] for path in sorted((folder / "wandb").glob("offline-run-*"))]
    losses = [path.read_text().splitlines() for path in folder.glob("mlruns/*/*/metrics/lm loss")]
    return ids, [[int(line.split()[2]) for line in lines] for lines in losses]


def test_wandb_and_mlflow_lie_in_the_folder_where_they_are_asked_for(program, tmp_path):
    run = tmp_path / "run"
    words = (*RUN, "--output_dir", run, "--eval_iters", 0, "--wandb_project", "books", "--mlflow_run_name", "one")
    run_ranks(program, 2, *words, "--exit_interval", 3)
    assert {path.name for path in run.iterdir()} == FILES | {"wandb", "mlruns"}
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    # From the checkpoint of iteration 2: what came after it was lost.
    shutil.rmtree(run / "checkpoints" / "iter_0000003")
    (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2\n")
    _, output, _ = program.run(*words, cwd=tmp_path)
    assert "wandb sync" in output and str(run / "mlruns") in output, output
    ids, steps = tracked_runs(run)
    assert len(ids) == 2 and ids[0] == ids[1], "one run in two starts"
    assert steps == [[1, 2, 3, 4, 5, 6]]
    _, output, _ = program.run("inspect", "run", "run", cwd=tmp_path)
    assert " run/wandb\n" in output and " run/mlruns\n" in output, output
    program.run(*words, "--train_iters", 2, "--overwrite", cwd=tmp_path)
    (id,), steps = tracked_runs(run)
    assert id != ids[0] and steps == [[1, 2]]


def test_a_run_without_a_checkpoint_to_go_on_from_is_a_new_one(program, tmp_path):
    words = (*RUN, "--train_iters", 2, "--eval_iters", 0, "--wandb_project", "books", "--wandb_save_dir", ".", "--mlflow_dir", "mlruns")
    for more in (("--save", "a"), ("--load", "a", "--save", "b", "--train_iters", 4), ("--save", "a", "--overwrite")):
        program.run(*words, *more, cwd=tmp_path)
    ids, steps = tracked_runs(tmp_path)
    assert len(set(ids)) == 3 and sorted(steps) == [[1, 2], [1, 2], [3, 4]]
    # What is switched off leaves nothing, and says so; without a name, disable_wandb false is Primus's way to ask for it.
    _, _, errors = program.run(*words, "--disable_wandb", "--disable_mlflow", cwd=tmp_path)
    assert "disable_wandb is on" in errors and "disable_mlflow is on" in errors, errors
    assert tracked_runs(tmp_path) == (ids, steps)
    program.run(*words[:-4], "--wandb_project=null", "--disable_wandb=false", "--wandb_save_dir", "own", cwd=tmp_path)
    assert len(tracked_runs(tmp_path / "own")[0]) == 1


def test_what_a_fine_tuning_began_from_is_read_once(program, tmp_path):
    program.run(*RUN, "--train_iters", 2, "--save", "base", cwd=tmp_path)
    words = (*RUN, "--output_dir", "run", "--load", "base", "--finetune")
    program.run(*words, "--exit_interval", 3, cwd=tmp_path)
    program.run(*words, cwd=tmp_path)
    assert [line["iteration"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_a_folder_of_something_else_is_refused(program, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    errors = refused(program, tmp_path, *RUN, "--output_dir", "home")
    assert "output_dir home" in errors and "not the folder of a run" in errors, errors
    errors = refused(program, tmp_path, *RUN, "--export_hf")
    assert "export_hf" in errors and "--save_hf" in errors, errors


def test_a_failure_is_recorded(program, tmp_path):
    program.run(*RUN, "--output_dir", "run", "--lr", 1e38, expected=1, cwd=tmp_path)
    (start,) = starts(tmp_path / "run")
    assert start["status"].startswith("failed: iteration ") and start["end"] and start["exit_code"] == 1
    assert "error: " in (tmp_path / "run" / "log.txt").read_text()
    _, output, _ = program.run("inspect", "run", "run", cwd=tmp_path)
    assert "failed: iteration" in output


def test_a_run_tells_its_story(program, finished):
    _, output, _ = program.run("inspect", "run", "pieces", cwd=finished)
    for part in ("finished", "stopped as configured", "iteration 6 of 6", "tokens/s", "pieces/checkpoints: iterations 2, 3, 4, 6"):
        assert part in output, output
    for part in ("validation: ", "test: ", "pieces/page.html", "megalith 0.", "(1 rank)"):
        assert part in output, output
    _, output, _ = program.run("inspect", "run", "pieces/metrics.jsonl", cwd=finished)
    assert "iteration 6 of 6" in output and "starts" not in output


def test_runs_are_compared_on_one_page(program, finished, tmp_path):
    page = tmp_path / "runs.html"
    _, output, _ = program.run("inspect", "runs", "pieces", "straight", "--page_file", page, cwd=finished)
    assert re.findall(r"^(\w+): ", output, re.MULTILINE) == ["lr"] and "lr: 0.001, 0.002" in output, output
    html = page.read_text()
    assert "Options that differ" in html and "<td>0.001</td><td>0.002</td>" in html
    for name in ("pieces", "straight"):
        assert sorted(points(page, "loss", name)) == [1, 2, 3, 4, 5, 6]
        assert sorted(points(page, "evaluation", name)) == [2, 4, 6]
    assert "http://" not in html.replace("http://www.w3.org/", "") and "https://" not in html
    # It replaces a page of its own, and nothing else.
    program.run("inspect", "runs", "pieces", "straight", "--page_file", page, cwd=finished)
    (tmp_path / "mine.html").write_text("mine")
    _, _, errors = program.run("inspect", "runs", "pieces", "straight", "--page_file", tmp_path / "mine.html", cwd=finished, expected=2)
    assert "mine.html" in errors and (tmp_path / "mine.html").read_text() == "mine"


def test_what_is_no_run_is_refused(program, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text('{"format": 1, "starts": [{"run_id": 5}]}')
    for words, part in ((("run", "nowhere"), "does not exist"), (("run", "folder"), "neither run.json nor metrics.jsonl"),
                        (("run", "broken"), "run_id is 5"), (("runs", "folder", "nowhere"), "folder")):
        _, _, errors = program.run("inspect", *words, cwd=tmp_path, expected=2)
        assert part in errors, errors


LONG = ("train", *TINY, "--lr", 1e-3, "--train_iters", 1_000_000, "--log_interval", 1000, "--eval_iters", 0)


class Started:
    """A run that goes on until it is stopped; as a context manager it is gone at the end. Its words go to a file."""

    def __init__(self, program, place, *words):
        self.errors_file = place / "errors.txt"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        with open(self.errors_file, "w") as file:
            self.process = subprocess.Popen(program.command(*words), cwd=place, env=environment, stdout=file, stderr=file)

    def errors(self):
        return self.errors_file.read_text()

    def wait_for(self, condition):
        for _ in range(6000):
            if condition() or self.process.poll() is not None:
                break
            time.sleep(0.01)
        assert self.process.poll() is None and condition(), self.errors()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def has_steps(metrics):
    return metrics.exists() and metrics.read_bytes().count(b"\n") >= 2


@pytest.mark.parametrize("option, own", [("--output_dir", ()), ("--save", ("--load", "run", "--metrics_file", "metrics.jsonl"))])
def test_a_folder_has_one_run_at_a_time(option, own, program, tmp_path):
    words = (*LONG, option, "run", *own)
    metrics = tmp_path / (own[-1] if own else "run/metrics.jsonl")
    with Started(program, tmp_path, *words) as first:
        first.wait_for(lambda: has_steps(metrics))
        holder = json.loads((tmp_path / "run" / "lock.json").read_text())
        _, _, errors = program.run(*words, expected=2, cwd=tmp_path)
        for part in (f"error: {option[2:]} run: another run writes there: run {holder['run_id']} of host {holder['host']}",
                     f"(process {first.process.pid})", "--wait_for_folder"):  # fmt: skip
            assert part in errors, errors
        assert json.loads((tmp_path / "run" / "lock.json").read_text())["run_id"] == holder["run_id"]
        # A dry run writes nothing, and another folder is another run's.
        program.run(*words, "--dry_run", cwd=tmp_path)
        program.run("train", *TINY, "--train_iters", 1, "--save", "other", cwd=tmp_path)
        checkpoints = "run" if option == "--save" else "run/checkpoints"
        conversion = ("convert", "--load", "other", "--save", checkpoints, "--overwrite")
        assert "another run writes there" in program.run(*conversion, expected=2, cwd=tmp_path)[2]
        (tmp_path / "second").mkdir()
        with Started(program, tmp_path / "second", *LONG, option, "../run", *own, "--load", "../run", "--wait_for_folder",
                     "--exit_interval", 1) as second:  # fmt: skip
            second.wait_for(lambda: "waiting for the end of run" in second.errors())
            first.process.send_signal(signal.SIGTERM)
            assert first.process.wait(60) == 3, first.errors()
            assert second.process.wait(60) == 0, second.errors()
    assert not list((tmp_path / "run").rglob("lock*"))


def test_a_killed_run_is_taken_over_at_once_and_its_remains_go(program, tmp_path):
    words = (*LONG, "--output_dir", "run", "--save_interval", 1)
    with Started(program, tmp_path, *words) as first:
        first.wait_for(lambda: has_steps(tmp_path / "run" / "metrics.jsonl"))
    run = tmp_path / "run"
    holder = json.loads((run / "lock.json").read_text())
    remains = (run / ".megalith_probe_7_1", run / ".page.html.tmp-7-1a-2b", run / "checkpoints" / ".seen_by_all_7_1")
    remains += (run / "checkpoints" / ".latest_checkpointed_iteration.txt.tmp-7-1a-2b", tmp_path / ".megalith_probe_7_1")
    mine = (run / "checkpoints" / ".page.html.tmp-mine", run / "checkpoints" / ".hidden")
    for path in (*remains, *mine):
        path.write_text("")
    _, _, errors = program.run(*words, "--exit_interval", 1, cwd=tmp_path)
    assert f"output_dir run: taken over from run {holder['run_id']}" in errors and "which has ended" in errors, errors
    assert not any(path.exists() for path in remains) and all(path.exists() for path in mine)
    assert not list(run.rglob("lock*"))
    assert starts(run)[0]["status"] == "ended without a word"


def test_a_disk_that_fills_up_in_the_middle_is_no_wrong_input(program, tmp_path):
    """2 says that nothing was begun."""

    def no_large_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    words = ("--output_dir", "run", "--train_iters", 4, "--save_interval", 2, "--tensorboard_dir=null", "--page_file=null")
    _, _, errors = program.run("train", *TINY, *words, expected=1, cwd=tmp_path, preexec_fn=no_large_files)
    assert "File too large" in errors, errors
    (start,) = starts(tmp_path / "run")
    assert start["exit_code"] == 1 and start["status"].startswith("failed: "), start
    assert not list((tmp_path / "run").rglob("lock*"))


def test_what_a_terminal_would_obey_is_written_out(program, tmp_path):
    name = "run\x1b[8m\u202e\u009b2J"
    _, output, errors = program.run(*RUN, "--output_dir", name, "--page_file=null", cwd=tmp_path)
    run = tmp_path / name
    for text in (output, errors, (run / "log.txt").read_text(), (run / "run.json").read_text()):
        assert not set(text) & set("\x1b\u202e\u009b"), text
        assert "run\\x1b[8m" in text or "run\\\\x1b[8m" in text, text
    program.run(*RUN, "--output_dir", name, "--train_iters", 7, "--page_file=null", cwd=tmp_path)
    assert len(starts(run)) == 2
