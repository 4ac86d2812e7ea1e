"""What a run would open and is not there is told before anything is allocated, all of it at once, in a dry run as well."""

import shutil

import indexed_data
import pytest

MODEL = (
    *("--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4, "--vocab_size", 131, "--seq_length", 16),
    *("--max_position_embeddings", 32, "--swiglu", "--normalization", "RMSNorm", "--position_embedding_type", "rope"),
    *("--disable_bias_linear", "--device", "cpu", "--eval_iters", 0),
)
RUN = ("train", *MODEL, "--mock_data", "--train_iters", 2)
OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def checkpoint(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "run"
    program.run(*RUN, "--save", folder, "--save_interval", 1)
    return folder


@pytest.fixture
def tokens(tmp_path):
    indexed_data.write(tmp_path / "tokens", [[1, 2, 3, 4] * 40] * 8)
    return tmp_path / "tokens"


def errors_of(program, words, expected=2, **options):
    _, output, errors = program.run(*words, expected=expected, timeout=60, environment=OFFLINE, **options)
    assert "iteration" not in output, output
    return errors


@pytest.mark.parametrize("command", [("train", *MODEL), ("evaluate", *MODEL, "--eval_iters", 1)], ids=["train", "evaluate"])
def test_without_data_there_is_nothing_to_say(command, checkpoint, program):
    load = ("--load", checkpoint) if command[0] == "evaluate" else ()
    length = ("--train_iters", 1) if command[0] == "train" else ()
    errors = errors_of(program, (*command, *load))
    assert "no data is given" in errors and "--data_path" in errors and "--mock_data" in errors
    program.run(*command, *load, "--mock_data", *length)


def test_a_dry_run_without_data_says_that_a_run_would_be_refused(program):
    _, output, errors = program.run("train", *MODEL, "--dry_run")
    assert "dry run: nothing was allocated" in output
    assert "no data is given: a run would be refused" in errors


# what is missing, words, parts of the message
MISSING = [
    ("data by an absolute path", ("--data_path", "/nowhere/data", "--split", "1,0,0"), ["/nowhere/data.idx does not exist"]),
    ("data by a name", ("--data_path", "nowhere/data", "--split", "1,0,0"), ["nowhere/data", "does not exist here"]),
    ("one of a blend", ("--data_path", "1", "/nowhere/a", "2", "/nowhere/b", "--split", "1,0,0"), ["/nowhere/a.idx", "/nowhere/b.idx"]),
    ("a list of data", ("--data_args_path", "lists.txt"), ["lists.txt"]),
    ("data of one split", ("--train_data_path", "/nowhere/a", "--valid_data_path", "/nowhere/b"), ["/nowhere/a.idx", "/nowhere/b.idx"]),
    ("tokenizer", ("--mock_data", "--tokenizer_type", "HuggingFaceTokenizer", "--tokenizer_model", "./nowhere"), ["./nowhere"]),
    ("folder to load", ("--mock_data", "--load", "nowhere"), ["load nowhere holds no checkpoint", "no such folder"]),
    ("checkpoint to begin with", ("--mock_data", "--pretrained_checkpoint", "nowhere"), ["pretrained_checkpoint nowhere", "no such folder"]),
    ("model to begin with", ("--mock_data", "--load_hf", "./nowhere"), ["./nowhere", "config.json"]),
]


@pytest.mark.parametrize("is_dry", [False, True], ids=["run", "dry_run"])
@pytest.mark.parametrize("what, words, parts", MISSING, ids=[row[0] for row in MISSING])
def test_what_is_missing_is_refused(what, words, parts, is_dry, program, tmp_path):
    errors = errors_of(program, ("train", *MODEL, *words, *(("--dry_run",) if is_dry else ())), cwd=tmp_path)
    for part in parts:
        assert part in errors, errors
    assert "num_layers" not in errors
    assert not list(tmp_path.iterdir()), "something was written"


@pytest.mark.parametrize("more", [(), ("--dry_run",)], ids=["run", "dry_run"])
def test_all_that_is_missing_and_wrong_is_told_at_once(more, program, tmp_path):
    words = ("train", *MODEL, "--data_path", "/nowhere/data", "--load", "nowhere", "--pretrained_checkpoint", "gone", *more)
    words += ("--tokenizer_type", "HuggingFaceTokenizer", "--tokenizer_model", "./words")
    errors = errors_of(program, (*words, "--micro_batch_size", 4, "--global_batch_size", 6), cwd=tmp_path)
    for part in ("/nowhere/data.idx", "load nowhere", "pretrained_checkpoint gone", "./words", "global_batch_size 6"):
        assert part in errors, errors
    assert errors.count("error: ") == 5, errors


def test_a_name_that_the_hub_may_have_is_told_with_what_else_is_wrong(program, tmp_path):
    errors = errors_of(program, ("train", *MODEL, "--data_path", "org/tokens", "--load", "nowhere"), cwd=tmp_path)
    assert "load nowhere" in errors and "data_path org/tokens does not exist here" in errors and "hub" in errors


def test_a_dry_run_opens_what_a_run_would_open(program, checkpoint, tokens, tmp_path):
    words = ("train", *MODEL, "--data_path", tokens, "--split", "1,0,0", "--load", tmp_path / "copy", "--dry_run")
    shutil.copytree(checkpoint, tmp_path / "copy")
    program.run(*words)
    # A data set that is cut, and a checkpoint without one of its files.
    bin_file = tmp_path / "tokens.bin"
    bin_file.write_bytes(bin_file.read_bytes()[:-8])
    for folder in (tmp_path / "copy").glob("iter_*"):
        next(folder.glob("model*.safetensors")).unlink()
    errors = errors_of(program, words)
    assert "tokens.bin" in errors and "no intact checkpoint" in errors and "model" in errors, errors
    assert "5" in errors_of(program, (*RUN, "--load", checkpoint, "--ckpt_step", 5, "--dry_run"))


def megatron_folder(folder, form):
    """The names that Megatron-LM writes, and nothing in them."""
    iteration = folder / "iter_0000020"
    (folder / "latest_checkpointed_iteration.txt").parent.mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("20")
    if form == "torch_dist":
        iteration.mkdir()
        for name in (".metadata", "common.pt", "metadata.json", "__0_0.distcp"):
            (iteration / name).write_bytes(b"x")
    else:
        (iteration / "mp_rank_00").mkdir(parents=True)
        (iteration / "mp_rank_00" / "model_optim_rng.pt").write_bytes(b"x")
    return iteration


@pytest.mark.parametrize("form", ["torch_dist", "torch"])
def test_a_checkpoint_of_megatron_is_named_as_what_it_is(form, program, tmp_path):
    iteration = megatron_folder(tmp_path / "theirs", form)
    generate = ("generate", "--prompt_ids", "1", "--print_ids")
    errors = errors_of(program, (*RUN, "--load_hf", "theirs"), cwd=tmp_path)
    assert "a checkpoint of Megatron-LM" in errors and "to --load" in errors, errors
    assert "num_layers" not in errors and errors.count("error: ") == 1, errors
    for words in ((*RUN, "--load", "theirs"), (*RUN, "--dry_run", "--load", iteration), (*generate, "--load", "theirs"),
                  ("inspect", "checkpoint", "theirs"), ("convert", "--load", "theirs", "--save_hf", "out")):
        errors = errors_of(program, words, cwd=tmp_path)
        assert "it is no zip file" in errors and errors.count("error: ") == 1, errors


def test_each_kind_of_folder_is_given_to_its_option(program, checkpoint, models, tmp_path):
    model = models["llama"].folder
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    evaluate = ("evaluate", "--mock_data", "--device", "cpu")
    generate = ("generate", "--prompt_ids", "1", "--print_ids", "--device", "cpu")
    for command in (evaluate, generate):
        for path, parts in (
            (model, ["it is a Hugging Face model", f"--load_hf {model}"]),
            ("empty", ["in it there is nothing"]),
            ("notes", ["in it there is readme.txt"]),
            ("file", ["it is a file"]),
            ("nowhere", ["no such folder"]),
        ):
            errors = errors_of(program, (*command, "--load", path), cwd=tmp_path)
            for part in (f"load {path} holds no checkpoint", *parts):
                assert part in errors, errors
            assert errors.count("error: ") == 1, errors
        errors = errors_of(program, (*command, "--load_hf", checkpoint), cwd=tmp_path)
        assert "this is a checkpoint of megalith" in errors and f"--load {checkpoint}" in errors
        errors = errors_of(program, command, cwd=tmp_path)
        assert "no weights given" in errors and errors.count("error: ") == 1, errors
    errors = errors_of(program, (*RUN, "--load", model), cwd=tmp_path)
    assert f"--load_hf {model}" in errors
    # A run may begin with a folder that is still empty, but not where the model is to come from it.
    errors = errors_of(program, ("train", "--mock_data", "--device", "cpu", "--load", "notes"), cwd=tmp_path)
    assert "load notes holds no checkpoint: in it there is readme.txt" in errors and errors.count("error: ") == 1, errors


def test_a_run_that_finds_nothing_to_go_on_from_says_so_aloud(program, tmp_path):
    (tmp_path / "typo").mkdir()
    _, _, errors = program.run(*RUN, "--load", "typo", cwd=tmp_path)
    assert "STARTING AFRESH" in errors and "typo" in errors and "!!!!!!!!!!" in errors
    # Where it saves, the first start of a run finds nothing, which is no alarm.
    for _ in range(2):
        _, _, errors = program.run(*RUN, "--load", "run", "--save", "run", cwd=tmp_path)
        assert "STARTING AFRESH" not in errors
    assert "at iteration 2" in errors
    # But for who forbids it.
    errors = errors_of(program, (*RUN, "--load", "new", "--save", "new", "--exit_on_missing_checkpoint"), cwd=tmp_path)
    assert "load new holds no checkpoint" in errors and "exit_on_missing_checkpoint" in errors


def test_weights_of_a_model_that_are_missing_are_told_before_the_run(program, models, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(models["llama"].folder, model)
    for file in model.glob("*.safetensors"):
        file.unlink()
    words = ("train", "--mock_data", "--load_hf", model, "--seq_length", 16, "--device", "cpu", "--data_path", "/nowhere/x")
    for more in ((), ("--dry_run",)):
        errors = errors_of(program, (*words, *more))
        assert "model.safetensors" in errors and "mock_data and a data path are given together" in errors
