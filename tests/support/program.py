"""Running the program, with its words when something goes wrong."""

import json
import os
import subprocess
import tempfile

import fork_server


class Program:
    def __init__(self, path):
        self.path = path

    def command(self, *words):
        return [str(self.path), *(str(word) for word in words)]

    @staticmethod
    def environment(more):
        # Passive waiting: on a busy machine, spinning costs hundreds of times what these tiny steps take.
        return {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", **more}

    def start(self, *words, environment={}, **options):
        """The process, still running."""
        return subprocess.Popen(
            self.command(*words),
            env=self.environment(environment),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def run(self, *words, expected=0, timeout=300, environment={}, cwd=None, stdin=0, preexec_fn=None):
        """(exit code, standard output, standard error); fails unless the exit code is the expected one."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            streams = (stdin, output, errors)
            variables, folder = self.environment(environment), cwd or os.getcwd()
            process = fork_server.start(self.command(*words), variables, folder, streams, preexec_fn)
            try:
                process.wait(timeout)
                wrong = expected is not None and process.returncode != expected
                state = f"exit code {process.returncode}, expected {expected}"
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                wrong, state = True, f"still ran after {timeout} s"
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read())
        if wrong:
            raise AssertionError(f"{self.line(words)}\n{state}\n{texts[0][-2000:]}\n{texts[1][-4000:]}")
        return process.returncode, *texts

    def line(self, words):
        return " ".join(self.command(*words))


def read_json_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_metrics(path, kind="step"):
    """The JSON objects of a metrics file, those of one kind: "step" or "evaluation"."""
    return [line for line in read_json_lines(path) if line["kind"] == kind]
