"""Commands that write, killed at random moments and given again: the second one ends with the bytes of an undisturbed one.

Exporting and importing weights, preparing data, fetching from a hub (a server on this machine), and building index
caches, where two processes share a cache and one of them is killed: the other one goes on, with the right losses.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import indexed_data  # noqa: E402
from hub_server import Hub  # noqa: E402
from program import read_metrics  # noqa: E402

TIMEOUT_S = 120
MODEL = (
    *("--num_layers", 4, "--hidden_size", 64, "--num_attention_heads", 4, "--ffn_hidden_size", 128, "--vocab_size", 257),
    *("--normalization", "RMSNorm", "--position_embedding_type", "rope", "--disable_bias_linear", "--swiglu"),
    *("--untie_embeddings_and_output_weights", "--seq_length", 32, "--max_position_embeddings", 32, "--device", "cpu"),
    *("--num_threads", 1, "--global_batch_size", 2, "--micro_batch_size", 1, "--eval_iters", 0, "--train_iters", 3),
)
HUB_NAME = "proof/model"


def digest(folder):
    """The hash of every file that is not hidden, by name."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


class Operation:
    """words(target): the command. result(target): what must come out the same. processes: started at once."""

    def __init__(self, name, words, result, environment=None, processes=1):
        self.name, self.words, self.result, self.processes = name, words, result, processes
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **(environment or {})}


def curve(path):
    return [(line["iteration"], line["lm_loss"], line["grad_norm"]) for line in read_metrics(path)]


class Interrupted:
    def __init__(self, program, folder, seed, say):
        self.program, self.folder, self.random, self.say = Path(program), folder, random.Random(seed), say
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.hub = Hub()
        for server in self.hub.servers.values():
            server.handle_error = lambda *_: None  # who is killed hangs up
        self.operations = self.make_operations()

    def start(self, operation, target, i=0):
        words = [str(self.program), *map(str, operation.words(target, i))]
        return words, subprocess.Popen(
            words, cwd=self.folder, env=operation.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finish(self, operation, target, i=0):
        words, process = self.start(operation, target, i)
        try:
            said = process.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0] + f"\nno end within {TIMEOUT_S} s"
        return process.returncode, f"{' '.join(words)}\n{said[-2000:]}"

    def setup(self, *words):
        subprocess.run([str(self.program), *map(str, words)], cwd=self.folder, check=True, capture_output=True)

    def make_operations(self):
        run, model = self.folder / "run", self.folder / "model"
        self.setup("train", *MODEL, "--mock_data", "--save", run, "--save_hf", model)
        texts = self.folder / "texts.jsonl"
        words = [self.random.randbytes(3).hex() for _ in range(500)]
        with open(texts, "w") as file:
            for _ in range(4000):
                file.write(json.dumps({"text": " ".join(self.random.choices(words, k=self.random.randrange(1, 80)))}) + "\n")
        tokens = self.folder / "tokens"
        indexed_data.write(tokens, indexed_data.random_documents(num_documents=3000, vocab_size=257, seed=5))
        files = {"config.json": b"{}", "model.safetensors": self.random.randbytes(3_000_000), "tokenizer.json": self.random.randbytes(40_000)}
        self.hub.add(HUB_NAME, files, ("model.safetensors",))
        hub = {"HF_ENDPOINT": self.hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DOWNLOAD_TIMEOUT": "5", "no_proxy": "*", "HF_TOKEN": ""}

        def fetched(target):
            [snapshot] = (target / "hf" / f"models--{HUB_NAME.replace('/', '--')}" / "snapshots").iterdir()
            return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(snapshot.iterdir())}

        def trained(target, i):
            data = ("--data_path", tokens, "--split", "100,0,0", "--data_cache_path", target / "cache")
            return ("train", *MODEL, *data, "--metrics_file", target / f"metrics{i}.jsonl")

        return [
            Operation("export", lambda target, _: ("convert", "--load", run, "--save_hf", target / "hf", "--overwrite"), lambda target: digest(target / "hf")),
            Operation("import", lambda target, _: ("convert", "--load_hf", model, "--save", target / "saved", "--overwrite"), lambda target: digest(target / "saved")),
            Operation(
                "prepare",
                lambda target, _: (
                    *("prepare", "--input", texts, "--output_prefix", target / "data", "--workers", 2),
                    *("--tokenizer_type", "ByteTokenizer", "--append_eod"),
                ),
                digest,
            ),
            Operation(
                "fetch",
                lambda _target, _: ("fetch", HUB_NAME),
                fetched,
                hub,
            ),
            Operation(
                "index caches of two processes", trained, lambda target: [curve(target / f"metrics{i}.jsonl") for i in range(2)], processes=2
            ),
        ]

    def fresh(self, operation, name):
        target = self.folder / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        if operation.name == "fetch":
            operation.environment["HF_HUB_CACHE"] = str(target / "hf")
        return target

    def undisturbed(self, operation):
        """(result, seconds)."""
        target = self.fresh(operation, "undisturbed")
        begin = time.monotonic()
        for i in range(operation.processes):
            code, said = self.finish(operation, target, i)
            assert code == 0, said
        return operation.result(target), (time.monotonic() - begin) / operation.processes

    def disturb(self, operation, seconds):
        """(the result of a run that was killed and given again, or None; what was said)."""
        target = self.fresh(operation, "disturbed")
        started = [self.start(operation, target, i) for i in range(operation.processes)]
        time.sleep(self.random.uniform(0.02, max(0.05, seconds)))
        victim = self.random.randrange(len(started))
        was_running = started[victim][1].poll() is None
        started[victim][1].kill()
        said = []
        for i, (words, process) in enumerate(started):
            text = process.communicate(timeout=TIMEOUT_S)[0]
            if i != victim and process.returncode != 0:
                return was_running, None, f"beside a killed one: {' '.join(words)}\n{text[-2000:]}"
        if operation.processes > 1:
            (target / f"metrics{victim}.jsonl").unlink(missing_ok=True)
        code, text = self.finish(operation, target, victim)
        said.append(text)
        return was_running, operation.result(target) if code == 0 else None, "\n".join(said)


def prove(program, seconds, seed, folder, say):
    result = {"kills": 0, "failures": []}
    interrupted = Interrupted(program, folder, seed, say)
    try:
        expected = [interrupted.undisturbed(operation) for operation in interrupted.operations]
        end = time.monotonic() + seconds
        counts = {operation.name: 0 for operation in interrupted.operations}
        while time.monotonic() < end or not all(counts.values()):
            for operation, (right, usual) in zip(interrupted.operations, expected):
                was_running, found, said = interrupted.disturb(operation, usual)
                counts[operation.name] += was_running
                if found != right:
                    difference = "another result" if found is not None else "the second run failed"
                    result["failures"].append({"command": f"{operation.name}: {difference}", "said": said})
                    say(f"FAILED {operation.name}: {difference}\n{said}")
    finally:
        interrupted.hub.close()
    result["kills"] = sum(counts.values())
    result["by operation"] = counts
    say(f"interrupted: {counts}, {len(result['failures'])} failed")
    shutil.rmtree(folder, ignore_errors=True)
    return result
