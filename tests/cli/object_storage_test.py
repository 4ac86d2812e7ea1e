"""Checkpoints and data in S3-compatible storage: moto's server, after a proxy that fails, cuts and delays."""

import threading

import object_storage
import pytest
from program import read_metrics

pytest.importorskip("moto")

# Files above 8 MiB go in parts.
OPTIONS = (
    *("--num_layers", 1, "--hidden_size", 128, "--num_attention_heads", 4, "--vocab_size", 20000, "--seq_length", 32),
    *("--max_position_embeddings", 32, "--split", "100,0,0", "--micro_batch_size", 2, "--global_batch_size", 2),
    *("--lr", 1e-3, "--train_iters", 4, "--eval_iters", 0, "--fp32", "--device", "cpu", "--save_interval", 2),
)


@pytest.fixture(scope="module")
def storage(data):
    server = object_storage.ObjectStorage()
    for ending in ("idx", "bin"):
        server.client.upload_file(f"{data.prefix}.{ending}", "bucket", f"data/random.{ending}")
    yield server
    server.close()


@pytest.fixture(autouse=True)
def no_faults(storage):
    storage.faults.__init__()
    storage.requests.clear()


def words(folder, save, data="s3://bucket/data/random"):
    return (
        *("train", *OPTIONS, "--data_path", data, "--data_cache_path", folder / "cache", "--save", save),
        *("--load", save, "--metrics_file", folder / "metrics.jsonl"),
    )


def losses(folder):
    return {line["iteration"]: (line["lm_loss"], line["grad_norm"]) for line in read_metrics(folder / "metrics.jsonl")}


@pytest.fixture(scope="module")
def straight(program, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    program.run(*words(folder, folder / "save", data.prefix))
    return folder


def test_a_run_in_storms_goes_on_elsewhere_and_equals_one_on_a_disk(storage, straight, program, tmp_path):
    storage.faults.share = 0.25
    machines = [storage.environment(tmp_path / name) for name in ("first", "second")]
    for machine in machines:
        machine["AWS_MAX_ATTEMPTS"] = "40"
    program.run(*words(tmp_path, "s3://bucket/run"), "--exit_interval", 2, environment=machines[0])
    more = ("--output_dir", tmp_path / "run", "--keep_last", 1)
    _, _, errors = program.run(*words(tmp_path, "s3://bucket/run"), *more, environment=machines[1])
    assert losses(tmp_path) == losses(straight)
    kinds = {kind for *_, kind in storage.requests}
    assert kinds == {"", "503", "silent", "cut", "late"} and "follows in" in errors
    assert any("uploadId" in path for _, path, *_ in storage.requests), "no file went in parts"
    assert any(wanted for _, path, wanted, _ in storage.requests if path.endswith(".safetensors")), "no range was read"
    # As in a folder, of which only the last checkpoint was kept.
    save = straight / "save"
    local = {str(file.relative_to(save)): file for file in sorted(save.rglob("*")) if file.is_file()}
    kept = [name for name in local if name.startswith("iter_0000004") or name.startswith("latest")]
    assert storage.names("run") == kept
    assert storage.uploads() == []
    # A folder that was copied there is loaded, too.
    for name, file in local.items():
        storage.client.upload_file(str(file), "bucket", f"copied/{name}")
    storage.faults.share = 0
    _, said, _ = program.run("inspect", "checkpoint", "s3://bucket/copied", environment=machines[0])
    assert said.count("intact") == 2
    written = [file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert len(written) > 3 and not any(object_storage.SECRET.encode() in text for text in [errors.encode(), *written])


def test_a_kill_within_an_upload_loses_only_what_was_not_saved(storage, straight, program, tmp_path):
    machine = storage.environment(tmp_path / "machine")
    process = None
    killed = threading.Event()

    def kill(method, path):
        if method == "PUT" and "iter_0000004" in path and "partNumber=2" in path:
            process.kill()
            killed.set()

    storage.faults.on_request = kill
    process = program.start(*words(tmp_path, "s3://bucket/killed"), environment=machine)
    process.communicate(timeout=60)
    assert killed.is_set() and process.returncode == -9
    storage.faults.on_request = None
    assert storage.uploads() and "iter_0000004/checkpoint.json" not in storage.names("killed")
    _, said, _ = program.run("inspect", "checkpoint", "s3://bucket/killed", environment=machine)
    assert said.count("intact") == 1 and "iter_0000002" in said
    _, _, errors = program.run(*words(tmp_path, "s3://bucket/killed"), environment=machine)
    assert "left by a run that was stopped while it saved" in errors
    assert losses(tmp_path) == losses(straight)
    assert storage.uploads() == [] and "iter_0000004/checkpoint.json" in storage.names("killed")
    # Saved again by a run that goes back: the new files replace the old ones after the manifest.
    program.run(*words(tmp_path, "s3://bucket/killed"), "--ckpt_step", 2, environment=machine)
    _, said, _ = program.run("inspect", "checkpoint", "s3://bucket/killed", environment=machine)
    assert said.count("intact") == 2
    assert sum(name.startswith("iter_0000004/model") for name in storage.names("killed")) == 1


REFUSALS = [
    ((403, "AccessDenied", {}), ["AccessDenied", "AWS_ACCESS_KEY_ID"]),
    ((403, "RequestTimeTooSkewed", {"Date": "Sat, 01 Jan 2000 00:00:00 GMT"}), ["clock"]),
    ((301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-3"}), ["eu-west-3", "AWS_REGION"]),
]


@pytest.mark.parametrize("canned, said", REFUSALS)
def test_refusals_say_what_to_do(canned, said, storage, program, tmp_path):
    machine = storage.environment(tmp_path / "machine")
    storage.faults.canned = canned
    _, _, errors = program.run(*words(tmp_path, "s3://bucket/refused"), environment=machine, expected=2)
    assert all(word in errors for word in said), errors


def test_wrong_names_and_commands_are_refused_and_a_dry_run_reads_no_bodies(storage, program, tmp_path):
    machine = storage.environment(tmp_path / "machine")

    def refuse(*given, said, environment={}):
        _, _, errors = program.run(*given, environment={**machine, **environment}, expected=2)
        assert said in errors, errors

    refuse(*words(tmp_path, "s3://missing/run"), said="there is no bucket missing")
    refuse(*words(tmp_path, "s3://bucket/new", "s3://bucket/data/other"), said="other.idx and other.bin")
    refuse(*words(tmp_path, "s3://x"), said="s3://bucket/prefix")
    refuse("convert", "--load", "s3://bucket/run", "--save_hf", tmp_path / "hf", said="aws s3 sync")
    refuse(*words(tmp_path, tmp_path / "save"), "--save_hf", "s3://bucket/hf", said="aws s3 sync")
    without = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(tmp_path)}
    refuse(*words(tmp_path, "s3://bucket/new"), said="no credentials", environment=without)
    (tmp_path / "config").write_text("[profile night]\nsso_session = us\n")
    named = {**without, "AWS_PROFILE": "night", "AWS_CONFIG_FILE": str(tmp_path / "config")}
    refuse(*words(tmp_path, "s3://bucket/new"), said="sso_session", environment=named)
    storage.requests.clear()
    program.run(*words(tmp_path, "s3://bucket/new"), "--dry_run", environment=machine)
    assert storage.names("new") == [] and not any(wanted for *_, wanted, _ in storage.requests)
    # After the first step a refusal is a failed run.
    storage.faults.on_request = lambda method, path: (
        setattr(storage.faults, "canned", REFUSALS[0][0]) if "iter_0000002" in path else None
    )
    program.run(*words(tmp_path, "s3://bucket/new"), environment=machine, expected=1)


def test_prepare_reads_objects(storage, program, tmp_path):
    machine = storage.environment(tmp_path / "machine")
    for name, text in (("a.jsonl", "one two"), ("deep/b.jsonl", "three"), ("c.bin", "no text")):
        storage.client.put_object(Bucket="bucket", Key=f"texts/{name}", Body='{"text": "%s"}\n' % text)
    bytes_of = ("prepare", "--output_prefix", tmp_path / "out", "--tokenizer_type", "ByteTokenizer")
    _, said, _ = program.run(*bytes_of, "--input", "s3://bucket/texts", environment=machine)
    assert "2 documents" in said, said
    assert (tmp_path / "out_text_document.bin").exists()
    program.run(*bytes_of, "--input", "s3://bucket/none", environment=machine, expected=2)
