"""Where ranks meet: when somebody else has the place, or ranks were started with different things, they say so."""

import json
import os
import re
import socket
import struct
import subprocess
import threading
import time

import indexed_data
import pytest
from launch_test import clean_environment, train_words
from ranks import environment_of, free_port

TIMEOUT_S = 3
OPTIONS = ("--distributed_timeout_minutes", TIMEOUT_S / 60)
# The meeting's patience, and 5 s for replies. The rest is for a machine with more processes than cores.
BOUND_S = TIMEOUT_S + 5 + 60


def say_nothing(connection, kept):
    kept.append(connection)


def reset(connection, kept):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def speak_http(connection, kept):
    connection.recv(1)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connection.close()


@pytest.mark.parametrize("serve", [say_nothing, reset, speak_http])
def test_a_port_that_another_program_has_is_named_by_every_rank(serve, program, data, tmp_path):
    kept = []

    def accept(listener):
        while True:
            try:
                serve(listener.accept()[0], kept)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        begin = time.monotonic()
        processes = [start_rank(program, data, tmp_path, rank, port) for rank in (0, 1)]
        try:
            errors = [
                process.communicate(timeout=max(begin + BOUND_S - time.monotonic(), 0.1))[1] for process in processes
            ]
        finally:
            for process in processes:
                process.kill()
                process.wait()
            listener.shutdown(socket.SHUT_RDWR)
            for connection in kept:
                connection.close()
    assert [process.returncode for process in processes] == [2, 1], errors
    owner = rf"[^,\n]* \(process {os.getpid()}\)"
    assert re.search(rf"port {port} of this machine .* is in use by {owner}\n  .*set MASTER_PORT", errors[0]), errors[0]
    place = rf"127\.0\.0\.1:{port} \(MASTER_ADDR, MASTER_PORT\) within .*"
    said = rf"the 2 ranks did not meet at {place}: something listens there, {owner}, but does not speak as the store"
    assert re.search(rf"\[rank 1 dp1\] error: {said}.*\n  see what rank 0 says", errors[1]), errors[1]


def start_rank(program, data, folder, rank, port):
    environment = clean_environment() | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    environment |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        program.command(*train_words(data, folder, *OPTIONS)),
        env=environment,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def ended(program, words_of_ranks, environment_of_ranks):
    """Exit code and standard error of ranks that are started with different words and variables."""
    port = free_port()
    processes = []
    for rank, (words, more) in enumerate(zip(words_of_ranks, environment_of_ranks, strict=True)):
        environment = environment_of(rank, len(words_of_ranks), port) | more
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(program.command(*words), env=environment, text=True, **streams))
    try:
        errors = [process.communicate(timeout=60)[1] for process in processes]
        return [process.returncode for process in processes], errors
    finally:
        for process in processes:
            process.kill()
            process.wait()


# What one rank is given, and the line that says so. Other options: tests/verify/run_terms_test.cc.
DIFFERENCES = {
    "lr: 0.003 on rank 0, 0.5 on rank 1": ("--lr", 0.5),
    "num_layers: 2 on rank 0, 4 on rank 1": ("--num_layers", 4),
    "tensor_model_parallel_size: 1 on rank 0, 2 on rank 1": ("--tensor_model_parallel_size", 2),
    "train_iters: 8 on rank 0, 9 on rank 1": ("--train_iters", 9),
    "exit_interval: null on rank 0, 3 on rank 1": ("--exit_interval", 3),
    "seed: 1234 on rank 0, 7 on rank 1": (),  # from a file
    "NCCL_PROTO: not set on rank 0, Simple on rank 1": (),
}


def test_ranks_that_differ_end_before_they_train_and_one_says_how(program, data, tmp_path):
    other = tmp_path / "other"
    indexed_data.write(other, [(document + 1) % 131 for document in data.documents])  # of equal length
    (tmp_path / "own.yaml").write_text("seed: 7\n")
    words = train_words(data, tmp_path)
    different = ["--config", tmp_path / "own.yaml", "--data_path", other]
    for more in DIFFERENCES.values():
        different += more
    variables = [{"TORCHELASTIC_ERROR_FILE": str(tmp_path / f"error{rank}.json")} for rank in (0, 1)]
    variables[1]["NCCL_PROTO"] = "Simple"
    codes, errors = ended(program, [words, (*words, *different)], variables)
    together = "".join(errors)
    assert codes == [2, 2], together
    assert together.count("error: ") == 1, together
    said = together[together.index("error: ") :]
    assert said.startswith("error: the ranks of this run have different options, environment variables, data\n")
    for line in DIFFERENCES:
        assert f"  {line}\n" in said, f"{line}\n{said}"
    assert re.search(r"  data_path: contents (\w{8}) of \S+ on rank 0, contents (?!\1)\w{8} of \S+ on rank 1\n", said), said
    assert "use one command line and one configuration on all ranks" in said
    assert not (tmp_path / "metrics.jsonl").exists()
    for rank in (0, 1):  # what torchrun shows of each rank
        message = json.loads((tmp_path / f"error{rank}.json").read_text())["message"]
        assert message["message"].startswith("error: the ranks of this run have different options"), message
        assert abs(int(message["extraInfo"]["timestamp"]) - time.time()) < 300


def test_ranks_with_a_secret_and_words_of_their_own_train(program, data, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    words = train_words(data, tmp_path, "--store_secret_file", secret, steps=3)
    copy = tmp_path / "copy"
    indexed_data.write(copy, data.documents)
    own = (*words, "--data_path", copy, "--num_threads", 2, "--quiet", "--data_cache_path", tmp_path / "own")
    codes, errors = ended(program, [words, own], [{}, {}])
    assert codes == [0, 0], errors
    secret.chmod(0o644)
    codes, errors = ended(program, [words], [{}])
    assert codes == [0], errors  # one process meets no other, and reads no secret
    codes, errors = ended(program, [words, words], [{}, {}])
    assert codes == [2, 2] and "may be read or written by other users (mode 644)" in "".join(errors), errors
