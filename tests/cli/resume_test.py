"""A run that was stopped, in whatever way, ends as if it had not been: same losses, same weights, bit for bit."""

import random
import re
import signal
import time

import pytest
from program import read_metrics

STEPS = 24

# Dropout, so that a generator whose state was lost would be seen; several microbatches; more than one pass over the data.
OPTIONS = (
    *("--num_layers", 2, "--hidden_size", 48, "--num_attention_heads", 4, "--ffn_hidden_size", 96, "--vocab_size", 131),
    *("--group_query_attention", "--num_query_groups", 2, "--max_position_embeddings", 32, "--seq_length", 32),
    *("--swiglu", "--normalization", "RMSNorm", "--position_embedding_type", "rope", "--disable_bias_linear"),
    *("--untie_embeddings_and_output_weights", "--hidden_dropout", 0.1, "--attention_dropout", 0.1),
    *("--split", "90,10,0", "--micro_batch_size", 2, "--global_batch_size", 6, "--train_iters", STEPS),
    *("--lr", 3e-3, "--min_lr", 1e-4, "--lr_decay_style", "cosine", "--lr_warmup_iters", 4, "--eval_interval", 5),
    *("--eval_iters", 1, "--device", "cpu"),
)


def train(program, data, folder, *more, **options):
    return program.run(
        *("train", *OPTIONS, "--data_path", data.prefix, "--data_cache_path", folder / "cache"),
        *("--save", folder / "checkpoint", "--load", folder / "checkpoint", "--metrics_file", folder / "metrics.jsonl"),
        *more,
        **options,
    )


def losses(folder):
    """Loss and gradient norm by iteration. An iteration that was done again must have had the same values."""
    by_iteration = {}
    for line in read_metrics(folder / "metrics.jsonl"):
        values = (line["lm_loss"], line["grad_norm"], line["learning_rate"])
        assert by_iteration.setdefault(line["iteration"], values) == values, f"iteration {line['iteration']} differs"
    return by_iteration


def weights(folder):
    """Every byte of the exported model."""
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}


@pytest.fixture(scope="module", params=["--fp32", "--bf16"])
def straight(request, program, data, tmp_path_factory):
    """The run in one go: its precision, losses and weights."""
    folder = tmp_path_factory.mktemp("straight")
    train(program, data, folder, request.param, "--save_hf", folder / "hf")
    found = losses(folder)
    assert sorted(found) == list(range(1, STEPS + 1))
    assert len(set(found.values())) == STEPS
    return request.param, found, weights(folder / "hf")


@pytest.mark.parametrize("stop", [1, 7, 23])
def test_resumed_run_equals_one_in_one_go(stop, straight, program, data, tmp_path):
    precision, expected_losses, expected_weights = straight
    train(program, data, tmp_path, precision, "--exit_interval", stop)
    assert max(losses(tmp_path)) == stop
    train(program, data, tmp_path, precision, "--save_hf", tmp_path / "hf")
    assert losses(tmp_path) == expected_losses
    assert weights(tmp_path / "hf") == expected_weights


def test_what_changes_the_numbers_is_said_and_what_does_not_is_not(program, data, tmp_path):
    train(program, data, tmp_path, "--exit_interval", 1)
    changed = ("--weight_decay", 0.03, "--num_threads", 1, "--recompute_granularity", "selective", "--log_interval", 2)
    _, _, errors = train(program, data, tmp_path, *changed, "--use_distributed_optimizer", "--exit_interval", 2)
    said = re.findall(r"(\w+) was (\S+) in the checkpoint and is (\S+) now", errors)
    assert said == [("weight_decay", "0.01", "0.03")], errors


def test_signal_saves_and_exits_with_3(straight, program, data, tmp_path):
    precision, expected_losses, expected_weights = straight
    process = program.start(
        *("train", *OPTIONS, precision, "--data_path", data.prefix, "--data_cache_path", tmp_path / "cache"),
        *("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint"),
        *("--metrics_file", tmp_path / "metrics.jsonl"),
    )
    wait_for_lines(tmp_path / "metrics.jsonl", 3, process)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=120)
    assert process.returncode in (3, 0), errors  # 0: it had ended before the signal came
    train(program, data, tmp_path, precision, "--save_hf", tmp_path / "hf")
    assert losses(tmp_path) == expected_losses
    assert weights(tmp_path / "hf") == expected_weights


def test_the_pointer_is_advice(straight, program, data, tmp_path):
    """Whatever became of it and of the checkpoint that it names: the newest intact one is taken, and it is said."""
    precision, expected_losses, expected_weights = straight
    pointer = tmp_path / "checkpoint" / "latest_checkpointed_iteration.txt"

    def go_on(stop, *words):
        _, _, errors = train(program, data, tmp_path, precision, "--save_interval", 2, "--exit_interval", stop)
        for word in words:
            assert word in errors, errors

    go_on(6)
    pointer.unlink()
    go_on(8, "latest_checkpointed_iteration.txt is missing: taking the newest intact checkpoint, iteration 6\n")
    pointer.write_text("")
    go_on(10, "latest_checkpointed_iteration.txt is empty: taking the newest intact checkpoint, iteration 8\n")
    pointer.write_bytes(b"\0\xfe garbage")
    go_on(12, "not an iteration: taking the newest intact checkpoint, iteration 10\n")
    pointer.write_text("99999\n")
    go_on(14, "says 99999: taking iteration 12, the newest intact checkpoint\n")
    newest = tmp_path / "checkpoint" / "iter_0000014"
    weights_file = newest / "model.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-1])
    go_on(16, f"checkpoint {newest} is not intact: ", "says 14: taking iteration 12, the newest intact checkpoint\n")
    (tmp_path / "checkpoint" / "iter_0000016" / "checkpoint.json").unlink()
    go_on(18, "says 16: taking iteration 14, the newest intact checkpoint\n")
    train(program, data, tmp_path, precision, "--save_hf", tmp_path / "hf")
    assert losses(tmp_path) == expected_losses
    assert weights(tmp_path / "hf") == expected_weights


def wait_for_lines(path, count, process, timeout=120):
    end = time.monotonic() + timeout
    while time.monotonic() < end and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.002)


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments(seed, straight, program, data, tmp_path):
    """kill -9 again and again, in the middle of steps, of saving and of starting, until the run gets through."""
    precision, expected_losses, expected_weights = straight
    rng = random.Random(seed)
    print("seed", seed)
    metrics = tmp_path / "metrics.jsonl"
    kills = 0
    for attempt in range(12):
        process = program.start(
            *("train", *OPTIONS, precision, "--data_path", data.prefix, "--data_cache_path", tmp_path / "cache"),
            *("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint", "--metrics_file", metrics),
            *("--save_interval", 2, "--keep_last", 2),
        )
        if attempt % 4 != 3:  # the fourth is killed wherever its start-up has come to
            lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
            wait_for_lines(metrics, lines + rng.randint(1, 4), process)
        time.sleep(rng.uniform(0, 0.03))
        process.kill()
        output, errors = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), errors
        if process.returncode == 0:
            break
        kills += 1
    assert kills >= 3, "it was too quick to be killed"
    train(program, data, tmp_path, precision, "--save_interval", 2, "--keep_last", 2, "--save_hf", tmp_path / "hf")
    assert losses(tmp_path) == expected_losses
    assert weights(tmp_path / "hf") == expected_weights
    # Nothing half-written is left, and what is there is intact.
    program.run("inspect", "checkpoint", tmp_path / "checkpoint")
    # One more than keep_last when the last kill came between the last save and the deletion that follows it.
    assert len([path for path in (tmp_path / "checkpoint").iterdir() if path.is_dir()]) <= 3
