"""Starts the program without loading it: a fork of one that waits before main() (fork_server.c)."""

import array
import os
import select
import signal
import socket
import struct
import subprocess
from pathlib import Path

# Libraries read these while they are loaded: each set of values has a server of its own.
READ_AT_LOAD = ("LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH_", "PYTORCH_")


class Forked:
    """The part of subprocess.Popen that the tests use."""

    def __init__(self, args, pid, request):
        self.args, self.pid, self.request, self.returncode = args, pid, request, None

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self.request], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = os.waitstatus_to_exitcode(read_int(self.request))
            self.request.close()
        return self.returncode

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def read_int(connection):
    return struct.unpack("=i", connection.recv(4, socket.MSG_WAITALL))[0]


class Server:
    def __init__(self, path, library, environment):
        self.channel, other = socket.socketpair()
        with other:
            variables = environment | {"LD_PRELOAD": str(library), "FORK_SERVER": str(other.fileno())}
            streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            self.process = subprocess.Popen([path], env=variables, pass_fds=[other.fileno()], **streams)
        self.is_up = self.channel.recv(4, socket.MSG_WAITALL) == bytes(4)

    def start(self, args, environment, folder, streams):
        request, other = socket.socketpair()
        with other:
            descriptors = array.array("i", [file if isinstance(file, int) else file.fileno() for file in (*streams, other)])
            self.channel.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        variables = (f"{name}={value}" for name, value in environment.items())
        strings = b"".join(os.fsencode(text) + b"\0" for text in (folder, *args, *variables))
        request.sendall(struct.pack("=II", len(strings), len(args)) + strings)
        return Forked(args, read_int(request), request)


servers = {}


def start(args, environment, folder, streams, preexec_fn=None):
    """Starts a process with these three standard streams. It is a fork unless the program is an installed one, was built
    with a sanitizer, or gets limits of its own."""
    path = Path(args[0])
    library = path.parent / ("" if path.parent.name == "bin" else "bin") / "libfork_server.so"
    read_at_load = sorted(item for item in environment.items() if item[0].startswith(READ_AT_LOAD))
    key = (path, *read_at_load)
    if preexec_fn is None and "LD_PRELOAD" not in environment and library.exists():
        if key not in servers:
            servers[key] = Server(path, library, environment)
        if servers[key].is_up:
            return servers[key].start(args, environment, os.path.abspath(folder), streams)
    stdin, stdout, stderr = streams
    return subprocess.Popen(args, env=environment, cwd=folder, stdin=stdin, stdout=stdout, stderr=stderr, preexec_fn=preexec_fn)
