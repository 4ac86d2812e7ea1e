"""Ranks started by hand: a launcher takes longer to start than these runs take. launch_test.py has the launchers."""

import os
import socket
import subprocess
import tempfile
import time
from types import SimpleNamespace

import fork_server

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PREFIXES = ("OMPI_", "SLURM_", "PMIX_", "TORCHELASTIC_")


def clean_environment():
    """Without what a launcher around the tests may have left."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHER_VARIABLES and not name.startswith(PREFIXES)
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment_of(rank, num_ranks, port):
    """What torchrun sets on one machine. Threads that wait do not spin: the other ranks want the cores."""
    environment = clean_environment() | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    environment |= {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_PORT": str(port)}
    return environment | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def rank_environment(rank, world_size):
    """For a rank whose peers never start: it reports its error without them."""
    environment = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    return environment | {"LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def run_ranks(program, num_ranks, *words, timeout=240):
    """What all ranks wrote, in the order of the ranks: stdout and stderr. Fails unless each ends with 0."""
    port = free_port()
    processes, files = [], []
    try:
        for rank in range(num_ranks):
            # Files, not pipes: a rank whose pipe is not read would stop in the middle of a line.
            files.append([tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)])
            environment = environment_of(rank, num_ranks, port)
            processes.append(fork_server.start(program.command(*words), environment, os.getcwd(), (0, *files[-1])))
        end = time.monotonic() + timeout
        late = []
        for rank, process in enumerate(processes):
            try:
                process.wait(timeout=max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                late.append(rank)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    texts = []
    for pair in files:
        for file in pair:
            file.seek(0)
        texts.append([file.read() for file in pair])
        for file in pair:
            file.close()
    for rank, (process, (output, errors)) in enumerate(zip(processes, texts, strict=True)):
        state = f"still ran after {timeout} s" if rank in late else f"exit code {process.returncode}"
        assert process.returncode == 0, f"{program.line(words)}\nrank {rank}: {state}\n{output[-2000:]}\n{errors[-4000:]}"
    return SimpleNamespace(stdout="".join(text[0] for text in texts), stderr="".join(text[1] for text in texts))
