"""Running the program, with its words when something goes wrong."""

import json
import os
import subprocess


class Program:
    def __init__(self, path):
        self.path = path

    def command(self, *words):
        return [str(self.path), *(str(word) for word in words)]

    def start(self, *words, **options):
        """The process, still running."""
        # Passive waiting: on a busy machine, spinning costs hundreds of times what these tiny steps take.
        defaults = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
        environment = {**os.environ, **defaults, **options.pop("environment", {})}
        return subprocess.Popen(
            self.command(*words), env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )

    def run(self, *words, expected=0, timeout=300, **options):
        """(exit code, standard output, standard error); fails unless the exit code is the expected one."""
        process = self.start(*words, **options)
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise AssertionError(f"{self.line(words)}\nstill ran after {timeout} s\n{output[-2000:]}\n{errors[-2000:]}")
        if expected is not None and process.returncode != expected:
            raise AssertionError(
                f"{self.line(words)}\nexit code {process.returncode}, expected {expected}\n{output[-2000:]}\n{errors[-4000:]}"
            )
        return process.returncode, output, errors

    def line(self, words):
        return " ".join(self.command(*words))


def read_json_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_metrics(path, kind="step"):
    """The JSON objects of a metrics file, those of one kind: "step" or "evaluation"."""
    return [line for line in read_json_lines(path) if line["kind"] == kind]
