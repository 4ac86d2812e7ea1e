"""The place where ranks meet is taken by somebody else: every rank says so, and none waits without end."""

import os
import re
import socket
import struct
import subprocess
import threading
import time

import pytest
from launch_test import clean_environment, train_words

TIMEOUT_S = 3
OPTIONS = ("--distributed_timeout_minutes", TIMEOUT_S / 60)
# The meeting's patience, and 5 s for replies. The rest is for a machine with more processes than cores.
BOUND_S = TIMEOUT_S + 5 + 10


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
