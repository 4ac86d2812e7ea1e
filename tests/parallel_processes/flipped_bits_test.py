"""A bit that is flipped in a process's memory from outside, through /proc: every rank ends with the exit code of a
transient fault, and the message names the rank and the weight."""

import re
import subprocess
import sys
import time

import pytest
from ranks import environment_of, free_port
from safetensors.numpy import load_file

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/PID/mem")

MODEL = (
    *("--num_layers", 1, "--hidden_size", 32, "--ffn_hidden_size", 64, "--num_attention_heads", 2, "--vocab_size", 64),
    *("--max_position_embeddings", 16, "--mock_data", "--eval_iters", 0, "--micro_batch_size", 1, "--device", "cpu"),
    *("--global_batch_size", 2, "--quiet"),
    # Nothing moves the weights, so that they can be found.
    *("--lr", 1e-30, "--lr_decay_style", "constant", "--weight_decay", 0),
)
PATIENCE_S = 240


def flip_where(pid, pattern):
    """Flips a bit of each copy of the pattern in the process's own memory; how many there were."""
    count = 0
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            span, access, _, _, inode = line.split()[:5]
            begin, end = (int(word, 16) for word in span.split("-"))
            if not access.startswith("rw") or inode != "0" or "[v" in line:
                continue
            try:
                memory.seek(begin)
                held = memory.read(end - begin)
            except OSError:
                continue  # unmapped meanwhile
            place = held.find(pattern)
            while place >= 0:
                memory.seek(begin + place + 2)
                memory.write(bytes([pattern[2] ^ 0x10]))
                count += 1
                place = held.find(pattern, place + 1)
    return count


def test_a_flipped_bit_ends_every_rank_and_names_its_own(program, tmp_path):
    saved = tmp_path / "saved"
    program.run("train", *MODEL, "--global_batch_size", 1, "--train_iters", 1, "--save", saved)
    tensors = {}
    for file in saved.glob("iter_*/model.safetensors"):
        tensors |= load_file(file)
    # Held as it is in the file; of a layer, ranks hold several tensors as one.
    name, weight = next((name, one) for name, one in tensors.items() if name.endswith("wte.weight"))
    pattern = weight.reshape(-1)[100:116].tobytes()

    words = ("train", *MODEL, "--train_iters", 10**6, "--check_determinism", 50, "--deterministic_mode")
    port, hit = free_port(), 1
    logs = [tmp_path / f"rank{rank}.log" for rank in range(2)]
    ranks = []
    metrics = tmp_path / "metrics.jsonl"
    try:
        for rank, log in enumerate(logs):
            with open(log, "w", encoding="utf-8") as stream:
                command = program.command(*words, "--metrics_file", metrics)
                ranks.append(
                    subprocess.Popen(command, env=environment_of(rank, 2, port), stdout=stream, stderr=subprocess.STDOUT)
                )
        end = time.monotonic() + PATIENCE_S
        while not metrics.exists() or metrics.read_text(encoding="utf-8").count("\n") < 20:
            assert time.monotonic() < end and all(rank.poll() is None for rank in ranks), logs[0].read_text()
            time.sleep(0.05)
        # A flip while the update itself is under way is what the update left; then another one is made.
        while ranks[hit].poll() is None and time.monotonic() < end:
            assert flip_where(ranks[hit].pid, pattern) > 0, f"{name} was not found in memory"
            try:
                ranks[hit].wait(timeout=3)
            except subprocess.TimeoutExpired:
                pattern = pattern[:2] + bytes([pattern[2] ^ 0x10]) + pattern[3:]
        codes = [rank.wait(timeout=PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    text = "".join(log.read_text(encoding="utf-8") for log in logs)
    assert codes == [16, 16], text
    assert re.search(r"check_determinism at iteration \d+: rank 1 \(host .*\) changed in memory", text), text
    assert f"the weight {name}" in text, text
