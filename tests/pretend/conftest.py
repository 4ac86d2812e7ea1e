"""The program with the pretend accelerator instead of the usual one, and what these tests share."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "numbers")]

import record  # noqa: E402
from program import Program  # noqa: E402

STEPS = 3
LOSSES = ("lm_loss", "mse_loss", "loss")  # the first that a model has is its main one
# No threads that read ahead; one that computes, because sums in threads depend on their number.
RUN = (
    *("--mock_data", "--lr", 3e-3, "--lr_decay_style", "constant", "--num_workers", 0, "--eval_iters", 0),
    *("--num_threads", 1, "--micro_batch_size", 2, "--global_batch_size", 4),
)


@dataclass
class Run:
    """What a run left."""

    code: int
    errors: str
    steps: list  # (loss, gradient norm) of each
    files: dict  # checksums of the tensors that were saved, by path
    waits: list  # (period, count, what, place)


class Trainer(Program):
    def train(self, folder, *words, device="gpu", steps=STEPS, saves=True, expected=0, **environment):
        folder.mkdir(parents=True, exist_ok=True)
        metrics, waits = folder / "metrics.jsonl", folder / "waits.txt"
        for file in (metrics, waits):
            file.unlink(missing_ok=True)
        save = ("--save", folder / "checkpoint") if saves else ()
        code, _, errors = self.run(
            *("train", *RUN, "--device", device, "--train_iters", steps, *save, *words),
            *("--metrics_file", metrics, "--data_cache_path", folder / "cache"),
            expected=expected,
            environment={"PRETEND_WAITS": str(waits), **environment},
        )
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        found = []
        for line in waits.read_text().splitlines() if waits.exists() else ():  # a run that was refused leaves none
            period, count, what, place = line.split("\t")
            found.append((int(period), int(count), what, place))
        losses = [next((line[name] for name in LOSSES if name in line), None) for line in lines]
        numbers = [(loss, line["grad_norm"]) for loss, line in zip(losses, lines) if loss is not None]
        return Run(code, errors, numbers, record.checksums(folder / "checkpoint") if saves else {}, found)


@pytest.fixture(scope="session")
def program():
    path = Path(os.environ.get("MEGALITH_PROGRAM", TESTS.parent / "build/bin/megalith_pretend")).resolve()
    if not path.exists():
        pytest.fail(f"{path} is missing: build it with 'make build', or name it with MEGALITH_PROGRAM")
    return Trainer(path)
