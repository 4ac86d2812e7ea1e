"""What a run writes: everything is checked before anything is allocated, nothing that an earlier run left is lost or
mixed, and a resumed run's files show the whole run."""

import base64
import json
import re
import resource
import subprocess

import hf_models
import pytest
from program import read_metrics
from run_files import TINY, contents, iterations, plotted, points, refused

RUN = ("train", *TINY, "--lr", 1e-3, "--train_iters", 6)

# option, the path below the folder of the test, what is wrong with it
UNWRITABLE = [
    ("save", "file/checkpoints", "file is a file"),
    ("save", "file", "it is a file"),
    ("save_hf", "file/hf", "file is a file"),
    ("save_hf", "/proc/zz", "/proc"),
    ("save", "/proc/zz/deep", "/proc"),
    ("metrics_file", "file/metrics.jsonl", "file is a file"),
    ("metrics_file", "folder", "it is a folder"),
    ("page_file", "/proc/page.html", "/proc"),
    ("page_file", "folder", "it is a folder"),
    ("loss_plot_file", "file/deeper/loss.svg", "file is a file"),
    ("log_file", "/proc/zz/log.txt", "/proc"),
    ("tensorboard_dir", "file/events", "file is a file"),
    ("mlflow_dir", "file/mlruns", "file is a file"),
    ("mlflow_dir", "/proc/zz", "/proc"),
    ("data_cache_path", "file/cache", "file is a file"),
    ("output_dir", "file/run", "file is a file"),
    ("save", "x" * 300, "too long"),
]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    return tmp_path


@pytest.mark.parametrize("option, path, reason", UNWRITABLE)
def test_an_output_that_cannot_be_written_is_refused_at_once(option, path, reason, program, place):
    for more in ((), ("--dry_run",)):
        errors = refused(program, place, *RUN, f"--{option}", path, *more)
        assert f"error: {option} " in errors and reason in errors, errors


def test_a_file_that_the_run_reads_is_not_written(program, place):
    (place / "recipe.yaml").write_text("seed: 3\nlog_throughput: true\n")
    (place / "text").with_suffix(".idx").write_text("none")
    for option, path, reader in (
        ("log_file", "recipe.yaml", "recipe.yaml:1"),
        ("log_file", "text.idx", "data_path"),
        ("page_file", "recipe.yaml", "recipe.yaml:1"),
    ):
        words = (*RUN, "--config", "recipe.yaml", "--data_path", "text", "--overwrite", f"--{option}", path)
        errors = refused(program, place, *words)
        assert f"{option} {path}: the run reads this file ({reader})" in errors, errors


def test_traces_are_checked_too(program, place):
    errors = refused(program, place, *RUN, "--profile", "--profile_dir", "file/traces")
    assert "error: profile_dir file/traces" in errors, errors


def test_a_folder_for_weights_and_biases_is_checked_too(program, place):
    for folder, reason in (("file", "file is a file"), ("/proc/zz", "/proc")):
        errors = refused(program, place, *RUN, "--wandb_project", "books", "--wandb_save_dir", folder)
        assert f"error: wandb_save_dir {folder}/wandb" in errors and reason in errors, errors
    # Nothing is written there, so it may be what it likes.
    program.run(*RUN, "--wandb_save_dir", "file", "--dry_run", cwd=place)


def test_all_outputs_are_told_at_once_with_everything_else(program, place):
    errors = refused(
        *(program, place, *RUN, "--save", "file/a", "--save_hf", "/proc/zz", "--metrics_file", "folder"),
        *("--micro_batch_size", 4, "--global_batch_size", 6),
    )
    for part in ("save file/a", "save_hf /proc/zz", "metrics_file folder", "global_batch_size 6"):
        assert f"error: {part}" in errors, errors


def test_a_rank_of_many_refuses_before_it_meets_the_others(program, place):
    # Nobody listens at the port.
    rank = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    errors = refused(program, place, *RUN, "--save", "file/a", ranks={**rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
    assert "error: save file/a" in errors, errors


def test_a_dry_run_leaves_nothing_behind(program, place):
    before = contents(place)
    names = ("save", "save_hf", "metrics_file", "page_file", "loss_plot_file", "tensorboard_dir", "log_file", "data_cache_path")
    outputs = [word for name in names for word in (f"--{name}", f"new/{name}")]
    tracked = ("--wandb_project", "books", "--mlflow_dir", "new/mlruns")
    program.run(*RUN, *outputs, *tracked, "--dry_run", cwd=place)
    program.run(*RUN, *tracked, "--output_dir", "run", "--dry_run", cwd=place)
    assert contents(place) == before


def test_outputs_in_one_file_are_refused(program, place):
    errors = refused(program, place, *RUN, "--metrics_file", "x", "--page_file", "./x")
    assert "metrics_file and page_file are both" in errors, errors


def test_a_second_run_into_a_folder_of_checkpoints_is_refused(program, tmp_path):
    words = (*RUN, "--save", "run", "--save_interval", 2)
    program.run(*words, "--train_iters", 4, cwd=tmp_path)
    errors = refused(program, tmp_path, *words)
    for part in ("save run", "iteration 4", "--load run", "--overwrite"):
        assert part in errors, errors
    errors = refused(program, tmp_path, *words, "--dry_run")
    assert "save run" in errors, errors
    # Both ways out.
    program.run(*words, "--load", "run", cwd=tmp_path)
    assert iterations(tmp_path / "run") == [2, 4, 6]
    program.run(*words, "--load", "run", "--train_iters", 8, "--overwrite", cwd=tmp_path)
    assert iterations(tmp_path / "run") == [2, 4, 6, 8], "a run that goes on overwrites nothing"
    _, _, errors = program.run(*words, "--train_iters", 3, "--overwrite", cwd=tmp_path)
    assert iterations(tmp_path / "run") == [2, 3] and "removed" in errors
    assert (tmp_path / "run" / "latest_checkpointed_iteration.txt").read_text() == "3\n"


def test_checkpoints_are_overwritten_once_there_is_a_new_one(program, tmp_path):
    words = (*RUN, "--save", "run", "--train_iters", 4)
    program.run(*words, cwd=tmp_path)
    # It fails before its first save: what was there stays.
    program.run(*words, "--overwrite", "--lr", 1e38, "--save_interval", 4, expected=1, cwd=tmp_path)
    assert iterations(tmp_path / "run") == [4]


def test_an_export_replaces_only_what_it_may(program, models, tmp_path):
    model = hf_models.changed_copy(models["llama"].folder, tmp_path / "model", None, None)
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    words = ("train", "--load_hf", "model", "--mock_data", "--seq_length", 16, "--train_iters", 1, "--eval_iters", 0)
    errors = refused(program, tmp_path, *words, "--save_hf", "./model/", "--overwrite")
    assert "the model is read from there" in errors, errors
    program.run(*words, "--save_hf", "trained", cwd=tmp_path)
    first = (tmp_path / "trained" / "model.safetensors").read_bytes()
    errors = refused(program, tmp_path, *words, "--save_hf", "trained")
    assert "save_hf trained" in errors and "--overwrite" in errors, errors
    program.run(*words, "--save_hf", "trained", "--overwrite", "--lr", 1e-2, cwd=tmp_path)
    assert (tmp_path / "trained" / "model.safetensors").read_bytes() != first
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    errors = refused(program, tmp_path, *words, "--save_hf", "out", "--save", "out/checkpoints")
    assert "save_hf out" in errors and "lies in it" in errors, errors


def test_a_run_that_goes_on_replaces_its_own_export(program, tmp_path):
    words = (*RUN, "--save", "run", "--load", "run", "--save_hf", "hf")
    program.run(*words, "--exit_interval", 3, cwd=tmp_path)
    program.run(*words, cwd=tmp_path)


def test_picture_and_page_of_a_resumed_run_show_the_whole_run(program, tmp_path):
    def run(name, *more):
        words = ("--save", f"{name}/save", "--load", f"{name}/save", "--page_file", f"{name}/page.html", "--loss_plot_file")
        samples = ("--sample_interval", 2, "--sample_prompt_ids", "1,2", "--sample_max_new_tokens", 2)
        program.run(*RUN, *words, f"{name}/loss.svg", *samples, "--train_iters", 8, *more, cwd=tmp_path)
        page = tmp_path / name / "page.html"
        return plotted(tmp_path / name / "loss.svg"), points(page, "loss", "train"), points(page, "loss", "validation"), page

    straight = run("straight")
    run("pieces", "--exit_interval", 3)
    # What comes after the checkpoint, in a run that is killed, is done again.
    pieces = run("pieces")
    assert pieces[:3] == straight[:3]
    assert sorted(straight[1]) == list(range(1, 9)) and sorted(straight[2]) == [2, 4, 6, 8]
    html = pieces[3].read_text()
    assert html.count("<tr><td>validation</td>") == 4
    assert [int(i) for i in re.findall(r"<h3>iteration (\d+)</h3>", html)] == [8, 6, 4, 2]
    norms = points(pieces[3], "grad_norm", "norm")
    assert sorted(norms) == list(range(1, 9)) and norms == points(straight[3], "grad_norm", "norm")


def test_a_run_that_begins_takes_no_curves_of_an_earlier_one(program, tmp_path):
    words = (*RUN, "--page_file", "page.html", "--loss_plot_file", "loss.svg")
    program.run(*words, "--train_iters", 5, cwd=tmp_path)
    program.run(*words, "--train_iters", 2, cwd=tmp_path)
    assert sorted(points(tmp_path / "page.html", "loss", "train")) == [1, 2] == sorted(plotted(tmp_path / "loss.svg")["train"])


def test_metrics_have_evaluations_times_and_the_start_that_wrote_them(program, tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    words = (*RUN, "--metrics_file", metrics, "--save", tmp_path / "save", "--load", tmp_path / "save")
    program.run(*words, "--exit_interval", 3)
    program.run(*words)
    steps, evaluations = read_metrics(metrics), read_metrics(metrics, "evaluation")
    assert [line["iteration"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert [(line["iteration"], line["set"]) for line in evaluations] == [
        *((2, "validation"), (4, "validation"), (6, "validation"), (6, "test"))
    ]
    for line in evaluations:
        assert line["evaluation_losses"] == {"lm_loss": line["evaluation_loss"]} and "lm_loss" not in line
        assert abs(line["evaluation_loss"] - 4.2) < 0.5  # ln 67
    times = [line["time"] for line in map(json.loads, metrics.read_text().splitlines())]
    assert times == sorted(times) and all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times)
    ids = [line["run_id"] for line in steps]
    assert len(set(ids)) == 2 and len(set(ids[:3])) == len(set(ids[3:])) == 1
    # A run from the beginning into the same file says so.
    _, _, errors = program.run(*RUN, "--metrics_file", metrics, "--train_iters", 1)
    assert "warning: metrics_file" in errors and "run_id" in errors, errors
    program.run(*RUN, "--metrics_file", metrics, "--train_iters", 1, "--overwrite")
    assert len(read_metrics(metrics)) == 1


def test_the_log_has_what_the_terminal_had(program, tmp_path):
    _, output, errors = program.run(*RUN, "--log_file", "log.txt", cwd=tmp_path)
    log = (tmp_path / "log.txt").read_text()
    for line in output.splitlines():
        assert line in log
    assert errors.splitlines()[-1] in log
    program.run(*RUN, "--log_file", "log.txt", cwd=tmp_path)
    assert (tmp_path / "log.txt").read_text().startswith(log)
    _, _, errors = program.run(*RUN, "--log_file", "/dev/full", cwd=tmp_path)
    assert errors.count("warning: log_file: No space left on device") == 1
    program.run(*RUN, "--log_file", "log.txt", "--overwrite", cwd=tmp_path)
    assert (tmp_path / "log.txt").read_text().count("\n== ") == 0, "one start"


def test_results_that_a_full_disk_takes_are_no_success(program):
    for words in (("presets",), ("help", "lr"), ("inspect", "config", "--config", "demo")):
        with open("/dev/full", "w", encoding="utf-8") as full:
            process = subprocess.run(
                program.command(*words), env=program.environment({}), stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert process.returncode == 1 and "standard output could not be written" in process.stderr, process.stderr


def test_a_limit_on_file_sizes_is_an_error_and_no_signal(program, tmp_path):
    process = program.start(
        *(*RUN, "--train_iters", 1, "--save", tmp_path / "save"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1 and "File too large" in errors, errors


def test_tracing_says_nothing_of_its_own(program, tmp_path):
    words = ("--profile", "--profile_step_start", 1, "--profile_step_end", 2)
    _, output, errors = program.run(*RUN, *words, "--profile_dir", tmp_path, timeout=120)
    assert "wrote the trace" in errors
    assert not re.search(r"^\w+:\d{4}-\d\d-\d\d", output + errors, re.MULTILINE), output + errors


def test_what_is_no_number_is_nan(program, tmp_path):
    _, output, errors = program.run(
        *(*RUN, "--lr", 1e38, "--no_check_for_nan_in_loss_and_grad", "--metrics_file", tmp_path / "metrics.jsonl"),
        expected=None,
    )
    assert "nan" in (output + errors).lower()
    assert "-nan" not in (output + errors).lower()


def test_the_checkpoint_remembers_the_tokenizer_of_the_model(program, models, tmp_path):
    from tokenizers import Tokenizer, models as kinds, pre_tokenizers

    model = hf_models.changed_copy(models["llama"].folder, tmp_path / "model", None, None)
    tokenizer = Tokenizer(kinds.WordLevel({word: i for i, word in enumerate(["call", "me", "ishmael", "<unk>"])}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    words = ("train", "--mock_data", "--seq_length", 16, "--eval_iters", 0, "--save_interval", 1)
    program.run(*words, "--load_hf", "model", "--train_iters", 1, "--save", "first", cwd=tmp_path)
    generate = ("--prompt", "call me", "--max_new_tokens", 2, "--temperature", 0, "--ignore_eos")
    _, expected, _ = program.run("generate", "--load", "first", *generate, cwd=tmp_path)
    assert expected.startswith("call me"), expected
    # Through a run that only names the checkpoint, and in its export.
    program.run(*words, "--load", "first", "--train_iters", 2, "--save", "second", "--save_hf", "hf", cwd=tmp_path)
    program.run("generate", "--load", "second", *generate, cwd=tmp_path)
    assert (tmp_path / "hf" / "tokenizer.json").exists()


# What writes a file that somebody may have, and whether it knows its own.
WRITERS = {
    "page": (("train", *TINY, "--train_iters", 1, "--page_file"), "html", True),
    "plot": (("train", *TINY, "--train_iters", 1, "--loss_plot_file"), "svg", True),
    "record": (("train", *TINY, "--train_iters", 1, "--record_file"), "json", True),
    "metrics": (("train", *TINY, "--train_iters", 1, "--metrics_file"), "jsonl", True),
    "plan": (("plan", "--num_layers", 2, "--pipeline_model_parallel_size", 2, "--svg_file"), "svg", True),
    "bench": (("bench", "gemm", "--shapes", "8x8x8", "--iterations", 1, "--warmup", 1, "--output_file"), "jsonl", True),
    "losses": (("evaluate", "--load", "run", "--mock_data", "--seq_length", 16, "--eval_iters", 1, "--losses_file"), "jsonl", False),
    "logits": (("inspect", "logits", "--load", "run", "--prompt_ids", "1,2", "--output_file"), "safetensors", False),
    "vectors": (("embed", "--load", "texts", "--text", "call", "--pooling", "mean", "--output"), "jsonl", False),
    "picture": (("inspect", "picture", "red.png", "--output"), "png", False),
    "runs": (("inspect", "runs", "a.jsonl", "b.jsonl", "--page_file"), "html", True),
}


@pytest.fixture(scope="module")
def inputs(program, tmp_path_factory):
    place = tmp_path_factory.mktemp("inputs")
    for name in "ab":
        program.run(*RUN, "--train_iters", 2, "--metrics_file", f"{name}.jsonl", "--save", "run", "--overwrite", cwd=place)
    size = [word for word in TINY if word not in ("--vocab_size", 67)]
    program.run("train", *size, "--train_iters", 1, "--lr", 1e-3, "--save", "texts", cwd=place)  # of bytes
    (place / "red.png").write_bytes(base64.b64decode(RED_PIXEL))
    return place


RED_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_is_somebodys_is_not_replaced(name, program, inputs, tmp_path):
    words, ending, knows_its_own = WRITERS[name]
    file = tmp_path / f"mine.{ending}"
    file.write_text('{"text": "years of work"}\n')
    errors = program.run(*words, file, expected=2, cwd=inputs)[2]
    assert f"{words[-1][2:]} {file}: a file is there" in errors and "--overwrite" in errors, errors
    assert file.read_text() == '{"text": "years of work"}\n'
    program.run(*words, file, "--overwrite", cwd=inputs)
    written = file.read_bytes()
    assert b"years of work" not in written and len(written) > 20
    if name in ("page", "plot"):
        return  # the next test
    # Its own file is written again, or asks again.
    program.run(*words, file, expected=0 if knows_its_own else 2, cwd=inputs)
    assert name != "metrics" or file.read_bytes().startswith(written), "lines of an earlier start are kept"


def test_a_resumed_run_draws_its_own_files_again_and_no_other(program, tmp_path):
    words = (*RUN, "--save", "run", "--load", "run", "--page_file", "page.html", "--loss_plot_file", "loss.svg")
    program.run(*words, "--exit_interval", 3, cwd=tmp_path)
    program.run(*words, "--exit_interval", 5, cwd=tmp_path)
    (tmp_path / "page.html").write_text("<title>mine</title>")
    errors = refused(program, tmp_path, *words)
    assert "page_file page.html: a file is there" in errors and "loss_plot_file" not in errors, errors
