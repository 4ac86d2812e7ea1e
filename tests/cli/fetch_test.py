"""`megalith fetch`, and hub names as paths: against a hub on this machine, and beside huggingface_hub's own cache."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hub_server import TOKEN, Hub

NAME = "some-org/some-model"
BIG = random.Random(1).randbytes(3_000_000)
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"version": "1.0"}',
    "model.safetensors": BIG,
    "original/params.json": b"{}",
    "empty.txt": b"",
    "a file with # and %.txt": b"odd",
}
LARGE = ("model.safetensors",)


@pytest.fixture
def hub():
    server = Hub()
    yield server
    server.close()


class Client:
    """megalith with a cache of its own, and huggingface_hub over the same cache."""

    def __init__(self, program, hub, folder):
        self.program, self.hub, self.home = program, hub, folder / "hf"
        self.cache = self.home / "hub"
        self.environment = {
            **{"HF_HOME": str(self.home), "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0"},
            **{"TRANSFORMERS_OFFLINE": "0", "HF_HUB_DOWNLOAD_TIMEOUT": "1", "no_proxy": "*", "HF_TOKEN": ""},
            **{"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        }

    def run(self, *words, expected=0, **variables):
        """Standard output and standard error; the token is in neither, nor in any file of the cache."""
        environment = {**self.environment, **variables}
        _, output, errors = self.program.run(*words, expected=expected, environment=environment, timeout=120)
        for text in (output, errors):
            assert TOKEN not in text and "sigsigsig" not in text
        for path in self.cache.rglob("*"):
            if path.is_file():
                assert TOKEN.encode() not in path.read_bytes()
        return output, errors

    def fetch(self, *words, **options):
        return self.run("fetch", *words, **options)

    def python(self, source, **variables):
        environment = {**os.environ, **self.environment, **variables}
        done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def repo(self, name=NAME, kind="model"):
        return self.cache / f"{kind}s--{name.replace('/', '--')}"


@pytest.fixture
def client(program, hub, tmp_path):
    return Client(program, hub, tmp_path)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def layout(root):
    """Every file and link of a repository in the cache, with its bytes or its target."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[path.relative_to(root).as_posix()] = os.readlink(path)
        elif path.is_file():
            found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def test_files_arrive_in_the_layout_of_huggingface_hub(hub, client, tmp_path):
    repo = hub.add(NAME, FILES, LARGE)
    output, errors = client.fetch(NAME)
    folder = client.repo() / "snapshots" / repo.commit
    assert output == f"{folder}\n"
    assert contents(folder) == FILES
    assert (client.repo() / "refs" / "main").read_text() == repo.commit
    assert not list(client.cache.rglob("*.incomplete"))
    # What huggingface_hub makes of the same repository is the same to the byte and the link.
    theirs = client.python(f"import huggingface_hub as h; print(h.snapshot_download('{NAME}'))", HF_HOME=str(tmp_path / "theirs"))
    assert layout(client.repo()) == layout(Path(theirs).parents[1])
    assert "6 files" in errors and "2.86 MiB" in errors


def test_huggingface_hub_finds_off_line_what_we_fetched(hub, client):
    repo = hub.add(NAME, FILES, LARGE)
    client.fetch(NAME)
    source = f"import huggingface_hub as h; print(h.snapshot_download('{NAME}')); print(h.hf_hub_download('{NAME}', 'original/params.json'))"
    found = client.python(source, HF_HUB_OFFLINE="1").splitlines()
    folder = client.repo() / "snapshots" / repo.commit
    assert found == [str(folder), str(folder / "original/params.json")]


def test_we_find_what_huggingface_hub_fetched(hub, client):
    repo = hub.add(NAME, FILES, LARGE)
    theirs = client.python(f"import huggingface_hub as h; print(h.snapshot_download('{NAME}'))")
    assert client.fetch(NAME, HF_HUB_OFFLINE="1")[0] == f"{theirs}\n"
    hub.log.clear()
    assert client.fetch(NAME)[0] == f"{theirs}\n"
    assert hub.requests() == [("hub", f"/api/models/{NAME}/revision/main?blobs=true")]
    assert client.fetch(f"{NAME}@{repo.commit}", HF_HUB_OFFLINE="1")[0] == f"{theirs}\n"


def test_a_revision_is_a_branch_a_tag_a_request_or_a_commit(hub, client):
    old = hub.add(NAME, {"config.json": b"1"}, revision="v1.0")
    new = hub.add(NAME, {"config.json": b"2"})
    proposed = hub.add(NAME, {"config.json": b"3"}, revision="refs/pr/7")
    assert client.fetch(f"{NAME}@v1.0")[0].strip().endswith(old.commit)
    assert client.fetch(NAME, "--revision", "v1.0")[0].strip().endswith(old.commit)
    assert client.fetch(f"{NAME}@{old.commit}")[0].strip().endswith(old.commit)
    assert client.fetch(f"{NAME}@refs/pr/7")[0].strip().endswith(proposed.commit)
    assert (client.repo() / "refs/refs/pr/7").read_text() == proposed.commit
    assert client.fetch(NAME)[0].strip().endswith(new.commit)
    found = client.python(f"import huggingface_hub as h; print(h.snapshot_download('{NAME}', revision='v1.0'))", HF_HUB_OFFLINE="1")
    assert found.endswith(old.commit)
    # A branch that moves is followed.
    moved = hub.add(NAME, {"config.json": b"4"})
    assert client.fetch(NAME)[0].strip().endswith(moved.commit)
    assert (client.repo() / "refs/main").read_text() == moved.commit


def test_include_and_exclude_choose_as_huggingface_hub_does(hub, client, tmp_path):
    hub.add(NAME, FILES, LARGE)
    output, _ = client.fetch(NAME, "--include", "*.json", "original/", "--exclude", "tok*")
    assert set(contents(output.strip())) == {"config.json", "original/params.json"}
    source = f"import huggingface_hub as h; print(h.snapshot_download('{NAME}', allow_patterns=['*.json', 'original/'], ignore_patterns=['tok*']))"
    theirs = client.python(source, HF_HOME=str(tmp_path / "theirs"))
    assert layout(client.repo()) == layout(Path(theirs).parents[1])
    assert "leave none" in client.fetch(NAME, "--include", "*.nothing", expected=2)[1]


def test_a_dry_run_lists_and_fetches_nothing(hub, client):
    hub.add(NAME, FILES, LARGE)
    output, _ = client.fetch(NAME, "--dry_run", "--include", "*.safetensors", "*.txt")
    assert [line.split("  ")[-1] for line in output.splitlines()] == [f"{NAME}/{file}" for file in FILES if file.endswith(("safetensors", "txt"))]
    assert "2.86 MiB" in output and not client.cache.exists()


def test_data_sets_and_several_names(hub, client):
    first = hub.add("org/texts", {"a.jsonl": b"{}\n"}, repo_type="dataset")
    second = hub.add("org/more", {"b.bin": BIG}, ["b.bin"], repo_type="dataset")
    output, _ = client.fetch("org/texts", "org/more", "--repo_type", "dataset")
    assert [line.split("snapshots/")[1] for line in output.splitlines()] == [first.commit, second.commit]
    assert (client.repo("org/more", "dataset") / "snapshots" / second.commit / "b.bin").read_bytes() == BIG
    assert "dataset" in client.fetch("org/texts", expected=2, HF_TOKEN=TOKEN)[1]


def test_a_mirror_that_lists_no_hashes_is_asked_for_each_file(hub, client, tmp_path):
    hub.add(NAME, FILES, LARGE)
    hub.lists_hashes = False
    client.fetch(NAME)
    assert len(hub.requests("HEAD")) == len(FILES)
    theirs = client.python(f"import huggingface_hub as h; print(h.snapshot_download('{NAME}'))", HF_HOME=str(tmp_path / "theirs"))
    assert layout(client.repo()) == layout(Path(theirs).parents[1])
    hub.faults["model.safetensors"] = [("wrong",), ("wrong",)]
    (client.repo() / "blobs" / hub.repos["model", NAME, "main"].files["model.safetensors"].sha256).unlink()
    assert "SHA-256" in client.fetch(NAME, expected=1)[1]


@pytest.mark.parametrize(
    "faults",
    [
        [("cut", 1_000_000)],
        [("cut", 1_000_000), ("cut", 0), ("cut", 700_000)],
        [("stall", 1_500_000)],
        [("cut", 1_000_000), ("whole",)],
        [("wrong",)],
        [("long",)],
        [("status", 503), ("status", 429)],
    ],
    ids=["cut", "cut often", "stall", "no ranges", "corrupted once", "too long once", "overloaded"],
)
def test_a_connection_that_fails_is_taken_up_again(hub, client, faults):
    hub.add(NAME, FILES, LARGE)
    hub.faults["model.safetensors"] = list(faults)
    output, _ = client.fetch(NAME)
    assert contents(output.strip()) == FILES
    assert not list(client.cache.rglob("*.incomplete"))
    # One more than there are faults, but an answer without ranges is as good as any.
    asked = [role for role, _ in hub.requests("GET", "model.safetensors") if role == "store"]
    assert len(asked) == len(faults) + (("whole",) not in faults)


def test_an_interrupted_download_goes_on_where_it_was(hub, client, tmp_path):
    repo = hub.add(NAME, FILES, LARGE)
    incomplete = client.repo() / "blobs" / f"{repo.files['model.safetensors'].sha256}.incomplete"
    hub.faults["model.safetensors"] = [("stall", 2_000_000)]
    process = client.program.start("fetch", NAME, environment={**client.environment, "HF_HUB_DOWNLOAD_TIMEOUT": "600"})
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not (incomplete.exists() and incomplete.stat().st_size >= 1_900_000):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    arrived = incomplete.stat().st_size
    assert 1_900_000 <= arrived <= 2_000_000
    assert not (client.repo() / "snapshots" / repo.commit / "model.safetensors").exists()
    hub.log.clear()
    output, _ = client.fetch(NAME)
    assert contents(output.strip()) == FILES
    ranges = [headers.get("Range") for role, _, _, headers in hub.log if role == "store"]
    assert ranges == [f"bytes={arrived}-"]


def test_what_huggingface_hub_left_incomplete_is_taken_up(hub, client):
    repo = hub.add(NAME, FILES, LARGE)
    blob = client.repo() / "blobs" / repo.files["model.safetensors"].sha256
    blob.parent.mkdir(parents=True)
    Path(f"{blob}.incomplete").write_bytes(BIG[:1234])
    output, _ = client.fetch(NAME)
    assert contents(output.strip()) == FILES
    assert [headers["Range"] for role, _, _, headers in hub.log if role == "store"] == ["bytes=1234-"]


@pytest.mark.parametrize("there", [b"other bytes", BIG + b"too many"], ids=["other", "too long"])
def test_an_incomplete_file_that_is_wrong_is_fetched_anew(hub, client, there):
    repo = hub.add(NAME, FILES, LARGE)
    blob = client.repo() / "blobs" / repo.files["model.safetensors"].sha256
    blob.parent.mkdir(parents=True)
    Path(f"{blob}.incomplete").write_bytes(there)
    output, _ = client.fetch(NAME)
    assert contents(output.strip()) == FILES


def test_wrong_bytes_never_appear(hub, client):
    repo = hub.add(NAME, FILES, LARGE)
    for name in ("model.safetensors", "config.json"):
        hub.faults[name] = [("wrong",)] * 9
    for name, kind in (("model.safetensors", "SHA-256"), ("config.json", "SHA-1")):
        _, errors = client.fetch(NAME, "--include", name, expected=1)
        assert name in errors and kind in errors
        assert not (client.repo() / "snapshots" / repo.commit / name).exists()
    assert not list((client.repo() / "blobs").iterdir())


def test_a_hub_that_stays_broken_is_given_up_with_what_arrived(hub, client):
    hub.add(NAME, FILES, LARGE)
    hub.faults["model.safetensors"] = [("cut", 1_000_000)] + [("status", 500)] * 9
    _, errors = client.fetch(NAME, expected=1)
    assert "model.safetensors stopped at 1000000 of 3000000" in errors and ".incomplete" in errors
    # Each pause is told with the reason for it. The try that was cut is the first of the five.
    assert re.findall(r"model.safetensors: the answer was 500; try (\d) of 5 follows in 1.00 s", errors) == ["3", "4", "5"]
    assert re.search(r"model.safetensors: http://localhost.*; try 2 of 5 follows in 1.00 s", errors)
    hub.faults.clear()
    assert contents(client.fetch(NAME)[0].strip()) == FILES


def test_the_token_goes_to_the_hub_alone(hub, client):
    hub.add(NAME, FILES, LARGE)
    hub.gated.add(NAME)
    output, _ = client.fetch(NAME, HF_TOKEN=TOKEN)
    assert contents(output.strip()) == FILES
    sent = {(role, headers.get("Authorization")) for role, _, _, headers in hub.log}
    assert sent == {("hub", f"Bearer {TOKEN}"), ("store", None)}


def test_the_token_may_lie_in_a_file(hub, client, tmp_path):
    hub.add(NAME, FILES, LARGE)
    hub.gated.add(NAME)
    client.home.mkdir()
    (client.home / "token").write_text(f"{TOKEN}\n")
    client.fetch(NAME)
    (tmp_path / "elsewhere").write_text("hf_wrong")
    _, errors = client.fetch(NAME, expected=2, HF_TOKEN_PATH=str(tmp_path / "elsewhere"))
    assert str(tmp_path / "elsewhere") in errors and "hf_wrong" not in errors


@pytest.mark.parametrize("lists", [False, True], ids=["hidden", "listed"])
@pytest.mark.parametrize("token", ["", "hf_wrong"], ids=["none", "wrong"])
def test_a_refusal_names_repository_licence_and_variable(hub, client, token, lists):
    hub.add(NAME, FILES, LARGE)
    hub.gated.add(NAME)
    hub.lists_gated = lists
    _, errors = client.fetch(NAME, expected=2, HF_TOKEN=token)
    for part in (NAME, f"{hub.endpoint}/{NAME}", "HF_TOKEN", "licence", "403" if token and not lists else "401"):
        assert part in errors
    assert client.fetch(NAME, expected=2, HF_HUB_OFFLINE="1")
    assert "hf_wrong" not in errors


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")
def test_connections_are_encrypted_and_stay_so(program, hub, tmp_path):
    words = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", *words, "-keyout", "key", "-out", "cert"], cwd=tmp_path, check=True, capture_output=True)
    hub.encrypt(tmp_path / "cert", tmp_path / "key")
    hub.add(NAME, FILES, LARGE)
    client = Client(program, hub, tmp_path)
    client.environment |= {"REQUESTS_CA_BUNDLE": "", "CURL_CA_BUNDLE": ""}
    _, errors = client.fetch(NAME, expected=2)
    assert "certificate" in errors and "SSL_CERT_FILE" in errors
    trusted = {"SSL_CERT_FILE": str(tmp_path / "cert")}
    output, _ = client.fetch(NAME, "--exclude", "*.safetensors", **trusted)
    assert set(contents(output.strip())) == set(FILES) - set(LARGE)
    assert "not encrypted" in client.fetch(NAME, expected=1, **trusted)[1]


def test_what_is_not_there_is_named(hub, client):
    hub.add(NAME, FILES, LARGE)
    assert "no revision 'v9'" in client.fetch(f"{NAME}@v9", expected=2)[1]
    assert "HF_TOKEN" in client.fetch("some-org/nothing", expected=2)[1]
    assert "no model some-org/nothing" in client.fetch("some-org/nothing", expected=2, HF_TOKEN=TOKEN)[1]


def test_without_a_network_the_folder_to_put_files_in_is_named(hub, client):
    # Who asked for it is told that it was asked for (2); a hub that does not answer is a failure (1).
    for variables, code in (({"HF_HUB_OFFLINE": "1"}, 2), ({"HF_ENDPOINT": "http://127.0.0.1:9"}, 1)):
        _, errors = client.fetch(NAME, expected=code, **variables)
        assert str(client.repo()) in errors and f"megalith fetch {NAME}" in errors


def test_the_wait_for_a_hub_is_an_option_of_every_command_that_asks_it(hub, client, models, tmp_path):
    hub.add(NAME, FILES, LARGE)
    # The server asks for a second of rest, which is more than the patience, so the first answer is the last.
    patience = ("--hub_timeout_minutes", 0.01)
    tokenizer = ("--tokenizer_model", NAME)
    small = ("--num_layers", 1, "--hidden_size", 32, "--num_attention_heads", 4, "--max_position_embeddings", 32)
    for words in (
        ("fetch", NAME),
        ("inspect", "tokenizer", *tokenizer, "--text", "a"),
        ("inspect", "data", "org/tokens"),
        ("prepare", "--input", "org/texts/a.jsonl", "--output_prefix", tmp_path / "x"),
        ("convert", "--load_hf", NAME, "--save_hf", tmp_path / "x"),
        ("train", *small, "--mock_data", "--seq_length", 16, "--train_iters", 1, "--device", "cpu", *tokenizer),
        ("train", "--load_hf", NAME, "--mock_data", "--seq_length", 16, "--train_iters", 1, "--device", "cpu"),
    ):
        hub.list_faults = [("status", 429)] * 9
        hub.log.clear()
        _, errors = client.run(*words, *patience, expected=1)
        assert "429" in errors and "hub_timeout_minutes" in errors and "asked for in 1.00 s" in errors
        assert len(hub.log) == 1
    hub.list_faults = [("status", 500)]
    _, errors = client.fetch(NAME, "--include", "config.json")
    assert "answers 500; try 2 of 3 follows in 1.00 s" in errors
    assert "hub_timeout_minutes" in client.fetch(NAME, "--hub_timeout_minutes", 0, expected=2)[1]


def test_a_list_without_end_is_read_to_a_limit(hub, client):
    hub.list_faults = [("endless",)]
    _, errors = client.fetch(NAME, expected=1)
    assert "longer than 32.0 MiB" in errors
    assert hub.num_endless < 64 << 20


def test_wrong_words_are_refused(hub, client):
    for word, part in (
        ("s3://bucket/x", "aws s3 sync"),
        ("https://huggingface.co/some-org/some-model/tree/main", "some-org/some-model@main"),
        ("hf://datasets/org/name", "org/name"),
        ("org/name/more", "org/name/more"),
        ("org/na me", "na me"),
        ("org/name@a..b", "a..b"),
    ):
        assert part in client.fetch(word, expected=2)[1]
    assert "fetch" in client.fetch(expected=2)[1]
    assert "HF_ENDPOINT" in client.fetch(NAME, expected=2, HF_ENDPOINT="hub")[1]
    _, errors = client.fetch(NAME, expected=2, HF_TOKEN=f"{TOKEN} x")
    assert "HF_TOKEN" in errors


def test_a_hostile_list_writes_nothing_outside(hub, client):
    hub.add(NAME, {"../../../../escaped": b"x", "config.json": b"{}"})
    assert "unsafe" in client.fetch(NAME, expected=1)[1]
    assert not list(client.home.parent.rglob("escaped"))


def test_processes_that_share_a_cache_fetch_once(hub, client):
    hub.add(NAME, FILES, LARGE)
    hub.faults["model.safetensors"] = [("slow", 0.02)]
    started = [client.program.start("fetch", NAME, environment=client.environment) for _ in range(4)]
    done = [process.communicate(timeout=240) for process in started]
    assert {process.returncode for process in started} == {0}
    assert len({output for output, _ in done}) == 1
    assert contents(done[0][0].strip()) == FILES
    assert len([path for role, path in hub.requests("GET") if role == "store"]) == 1


def test_progress_and_time_left_are_shown(hub, client):
    hub.add(NAME, {"model.safetensors": random.Random(2).randbytes(14_000_000)}, LARGE)
    hub.faults["model.safetensors"] = [("slow", 0.06)]
    _, errors = client.fetch(NAME)
    assert "of 14.0 M bytes" in errors and "ETA" in errors


def weights_and_tokenizer(model):
    """A tiny model's folder as a repository, with files that training does not need."""
    files = {path.name: path.read_bytes() for path in Path(model.folder).iterdir() if path.is_file()}
    tokenizer = Path(__file__).resolve().parents[1] / "tokenizer/data/llama3"
    files |= {path.name: path.read_bytes() for path in tokenizer.iterdir()}
    return files | {"pytorch_model.bin": b"pickle", "original/consolidated.00.pth": b"pickle"}


def weights(files):
    return {name for name in files if name.endswith(".safetensors")}


def test_a_model_is_fetched_where_a_folder_is_taken(hub, client, models, data):
    files = weights_and_tokenizer(models["llama"])
    repo = hub.add(NAME, files, weights(files))
    snapshot = client.repo() / "snapshots" / repo.commit
    words = ("inspect", "logits", "--prompt_ids", "1,2,3", "--device", "cpu", "--output")
    client.home.mkdir()
    client.run(*words, client.home / "a", "--load_hf", models["llama"].folder)
    client.run(*words, client.home / "b", "--load_hf", NAME)
    assert (client.home / "a").read_bytes() == (client.home / "b").read_bytes()
    assert set(contents(snapshot)) == set(files) - {"pytorch_model.bin", "original/consolidated.00.pth"}
    # Off line from now on, by name and by commit.
    hub.log.clear()
    for name in (NAME, f"{NAME}@{repo.commit}"):
        client.run(*words, client.home / "c", "--overwrite", "--load_hf", name, HF_HUB_OFFLINE="1")
    client.run(*words, client.home / "c", "--overwrite", "--load_hf", NAME)
    assert not hub.log


def test_weights_and_data_wait_until_nothing_else_is_wrong(hub, client, models, data):
    files = weights_and_tokenizer(models["llama"])
    repo = hub.add(NAME, files, weights(files))
    snapshot = client.repo() / "snapshots" / repo.commit
    tokens = {f"part/wiki.{end}": Path(f"{data.prefix}.{end}").read_bytes() for end in ("bin", "idx")}
    hub.add("org/tokens", tokens | {"README.md": b""}, list(tokens), repo_type="dataset")
    run = ("train", "--load_hf", NAME, "--data_path", "org/tokens", "--split", "100,0,0", "--seq_length", 32, "--eval_iters", 0)
    run = (*run, "--device", "cpu", "--train_iters", 1)
    # A rule that needs no model is told before the hub is asked for one.
    client.run(*run, "--micro_batch_size", 3, "--global_batch_size", 4, expected=2)
    assert not hub.log
    for wrong in (("--tensor_model_parallel_size", 1, "--seq_length", 1 << 20), ("--dry_run",)):
        client.run(*run, *wrong, expected=0 if wrong == ("--dry_run",) else 2)
        assert "config.json" in contents(snapshot) and not weights(contents(snapshot))
        assert not client.repo("org/tokens", "dataset").exists()
    # What cannot be read, or cannot be a path, is said before anything is asked.
    hub.log.clear()
    _, errors = client.run(*run, "--lr", "many", "--save", "gs://bucket/run", expected=2)
    assert "many" in errors and "gcloud" in errors and not hub.log
    save = client.home / "run"
    _, errors = client.run(*run, "--save", save, HF_TOKEN=TOKEN)
    assert weights(contents(snapshot)) == weights(files)
    found = contents(client.repo("org/tokens", "dataset") / "snapshots")
    assert {Path(name).name for name in found if "cache" not in name} == {"wiki.bin", "wiki.idx"}
    for path in save.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()
    # The checkpoint records what was asked for, not where it lay.
    recorded = dict(json.loads(next(save.rglob("checkpoint.json")).read_text())["configuration"])
    assert recorded["load_hf"] == NAME and recorded["data_path"] == "[org/tokens]"


def test_names_in_files_of_lists_are_fetched(hub, client, models, data):
    tokens = {f"part/wiki.{end}": Path(f"{data.prefix}.{end}").read_bytes() for end in ("bin", "idx")}
    hub.add("org/tokens", tokens, list(tokens), repo_type="dataset")
    client.home.mkdir()
    lists = {"data_args_path": f"0.5 org/tokens 0.5 {data.prefix}\n", "per_split_data_args_path": json.dumps({"train": [1, "org/tokens"]})}
    run = ("train", "--load_hf", models["llama"].folder, "--seq_length", 32, "--eval_iters", 0, "--device", "cpu", "--train_iters", 1)
    for option, content in lists.items():
        file = client.home / option
        file.write_text(content)
        client.run(*run, f"--{option}", file)
    found = contents(client.repo("org/tokens", "dataset") / "snapshots")
    assert {Path(name).name for name in found if "cache" not in name} == {"wiki.bin", "wiki.idx"}
    (client.home / "data_args_path").write_text("org/nothing\n")
    _, errors = client.run(*run, "--data_args_path", client.home / "data_args_path", expected=2)
    assert "data_args_path" in errors and "org/nothing" in errors


def test_ranks_that_start_together_fetch_once(hub, client, models, data):
    files = weights_and_tokenizer(models["llama"])
    hub.add(NAME, files, weights(files))
    for name in weights(files):
        hub.faults[name] = [("slow", 0.05)]
    words = ("inspect", "logits", "--load_hf", NAME, "--prompt_ids", "1,2,3", "--device", "cpu", "--output")
    started = [client.program.start(*words, client.home / str(i), environment=client.environment) for i in range(3)]
    for process in started:
        assert process.communicate(timeout=120) and process.returncode == 0
    assert len([path for role, path in hub.requests("GET") if role == "store"]) == len(weights(files))
    assert len(hub.requests("GET", "/config.json")) == 1


def test_a_recorded_tokenizer_is_in_the_checkpoint(hub, client, models, tmp_path):
    hub.add(NAME, weights_and_tokenizer(models["llama"]))
    model = ("--num_layers", 1, "--hidden_size", 32, "--num_attention_heads", 4, "--max_position_embeddings", 32)
    model = (*model, "--swiglu", "--normalization", "RMSNorm", "--position_embedding_type", "rope", "--disable_bias_linear")
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "the quick brown fox " * 5}) + "\n" for _ in range(20)), encoding="utf-8")
    run = ("train", "--data_path", text, "--split", "100,0,0", "--seq_length", 16, "--eval_iters", 0, "--device", "cpu", "--train_iters", 1)
    client.run(*run, *model, "--vocab_size", 2000, "--tokenizer_model", NAME, "--save", tmp_path / "run")
    other = str(tmp_path / "other")
    client.cache.rename(tmp_path / "gone")
    client.run("generate", "--load", tmp_path / "run", "--prompt", "a", "--max_new_tokens", 1, "--device", "cpu", HF_HOME=other)
    assert not Path(other).exists() or not list(Path(other).rglob("*.json"))


def test_the_other_commands_take_names(hub, client, models, tmp_path):
    files = weights_and_tokenizer(models["llama"])
    hub.add(NAME, files, weights(files))
    hub.add("org/texts", {"a/b.jsonl": b'{"text": "Call me"}\n'}, repo_type="dataset")
    local = Path(__file__).resolve().parents[1] / "tokenizer/data/llama3"
    expected = client.run("inspect", "tokenizer", "--tokenizer_model", local, "--text", "Call me")[0]
    assert client.run("inspect", "tokenizer", NAME, "--text", "Call me")[0] == expected
    client.run("prepare", "--input", "org/texts/a/b.jsonl", "--tokenizer_model", NAME, "--output_prefix", tmp_path / "out")
    assert "documents 1" in client.run("inspect", "data", tmp_path / "out_text_document")[0]
    client.run("convert", "--load_hf", NAME, "--save_hf", tmp_path / "out")
    assert {"config.json", "tokenizer.json"} <= set(contents(tmp_path / "out"))


def test_a_data_set_is_prepared_by_its_name(hub, client, tmp_path):
    lines = {name: f'{{"text": "{name}"}}\n'.encode() for name in ("a", "b", "test")}
    files = {"README.md": b"#", "data/train-1.jsonl": lines["b"], "data/train-0.jsonl": lines["a"], "data/test.jsonl": lines["test"]}
    hub.add("org/texts", files, repo_type="dataset")
    hub.add("org/two", {"small/train.jsonl": lines["a"], "large/train.jsonl": lines["b"]}, repo_type="dataset")

    def prepared(name, **variables):
        words = ("--output_prefix", tmp_path / "out", "--tokenizer_type", "ByteTokenizer", "--append_eod")
        client.run("prepare", "--overwrite", "--input", name, *words, **variables)
        return list(memoryview((tmp_path / "out_text_document.bin").read_bytes()).cast("H"))

    assert prepared("org/texts") == [*b"a", 256, *b"b", 256]
    assert not list(client.cache.rglob("test.jsonl"))  # nothing else is fetched
    assert prepared("org/texts", HF_HUB_OFFLINE="1") == [*b"a", 256, *b"b", 256]
    assert prepared("org/texts/data/test.jsonl") == [*b"test", 256]
    assert prepared("org/two/large") == [*b"b", 256]
    refused = ("prepare", "--input", "org/two", "--output_prefix", tmp_path / "x")
    assert "configurations: large, small" in client.run(*refused, expected=2)[1]
    missing = ("prepare", "--input", "org/nothing", "--output_prefix", tmp_path / "x")
    assert "'org/nothing' does not exist here" in client.run(*missing, expected=2)[1]
    assert "HF_HUB_OFFLINE" in client.run(*missing, expected=2, HF_HUB_OFFLINE="1")[1]


def test_what_a_repository_lacks_is_said(hub, client, models):
    hub.add(NAME, {"config.json": weights_and_tokenizer(models["llama"])["config.json"], "pytorch_model.bin": b"x"})
    words = ("inspect", "logits", "--prompt_ids", "1", "--device", "cpu", "--output", client.home / "a", "--load_hf")
    _, errors = client.run(*words, NAME, expected=2)
    assert "safetensors" in errors and "pytorch_model.bin" in errors
    _, errors = client.run("inspect", "tokenizer", "--tokenizer_model", NAME, expected=2)
    assert "no tokenizer" in errors
    files = {f"{name}.{end}": b"x" for name in ("a", "b/c") for end in ("bin", "idx")}
    hub.add("org/two", files, repo_type="dataset")
    hub.add("org/none", {"x.parquet": b"x"}, repo_type="dataset")
    _, errors = client.run("inspect", "data", "org/two", expected=2)
    assert "a, b/c" in errors and "org/two/PREFIX" in errors
    assert "megalith prepare" in client.run("inspect", "data", "org/none", expected=2)[1]
    # A mistyped path is told from a name that is not there.
    _, errors = client.run("inspect", "data", "data/wiki", expected=2)
    assert "'data/wiki' does not exist here" in errors
    _, errors = client.run("inspect", "data", "data/wiki", expected=2, HF_HUB_OFFLINE="1")
    assert "'data/wiki' does not exist here" in errors and "HF_HUB_OFFLINE" in errors
