"""Every mistake of seed_mistakes.py is caught: races by ThreadSanitizer, all others in the program with AddressSanitizer,
UndefinedBehaviorSanitizer and the emulation's own checks.

usage: mistakes_test.py PROGRAM_WITH_ADDRESS_SANITIZER PROGRAM_WITH_THREAD_SANITIZER
"""

import os
import re
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from seed_mistakes import MISTAKES, RACE

ADDRESS, THREAD = sys.argv[1:3]
del sys.argv[1:3]
LEAST = 100
LIMIT_S = 300
ROOT = Path(__file__).resolve().parents[3]
INCLUDE = re.compile(r'#include "(ops/[\w/.]+)"')


def run(program, planted, tests="*"):
    choices = {"MEGALITH_FEW_CASES": "1", "MEGALITH_PLANTED": planted}
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", **choices}
    # A mistake is caught by the first test that fails.
    command = [program, f"--gtest_filter={tests}", "--gtest_break_on_failure=0", "--gtest_fail_fast"]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, timeout=LIMIT_S)


def included(path):
    """The files of src/ops that a file includes, and those that they include."""
    found, rest = set(), INCLUDE.findall(path.read_text(encoding="utf-8"))
    while rest:
        name = rest.pop()
        if name not in found and (ROOT / "src" / name).exists():
            found.add(name)
            rest += INCLUDE.findall((ROOT / "src" / name).read_text(encoding="utf-8"))
    return found


def tests_of_kernels():
    """A file with kernels, or one that they include -> the filter for the tests that run them."""
    suites = {}
    for test in sorted(Path(__file__).resolve().parents[1].glob("*_test.cc")):
        text = test.read_text(encoding="utf-8")
        names = set(re.findall(r"^TEST(?:_F|_P)?\((\w+),", text, re.MULTILINE)) - {"Emulation"}
        # A test calls what an operator's header declares, and the operator's folder has the kernels.
        for folder in {name.split("/")[1] for name in INCLUDE.findall(text)} - {"gpu"}:
            kernels = ROOT / "src" / "ops" / folder / "gpu.cu"
            if kernels.exists():
                for name in {f"ops/{folder}/gpu.cu"} | included(kernels):
                    suites.setdefault(name.removeprefix("ops/"), set()).update(names)
    return {file: ":".join(f"*{name}.*" for name in sorted(names)) for file, names in suites.items()}


TESTS = tests_of_kernels()


def fault_of(mistake):
    """Empty when the mistake is caught as it should be."""
    done = run(THREAD if mistake.says == RACE else ADDRESS, mistake.name, TESTS[mistake.file])
    said = done.stdout + done.stderr
    if done.returncode == 0:
        return f"{mistake.name}: not caught"
    if not re.search(mistake.says, said):
        return f"{mistake.name}: caught, but nothing says '{mistake.says}':\n{said[:1500]}"
    return ""


class Mistakes(unittest.TestCase):
    def test_there_are_enough(self):
        self.assertGreaterEqual(len(MISTAKES), LEAST)
        self.assertEqual(len({mistake.name for mistake in MISTAKES}), len(MISTAKES))

    def test_each_is_caught(self):
        with ThreadPoolExecutor(2) as pool:
            faults = [fault for fault in pool.map(fault_of, MISTAKES) if fault]
        self.assertFalse(faults, "\n" + "\n".join(faults))

    def test_one_that_is_not_known_is_refused(self):
        self.assertEqual(run(ADDRESS, "no such mistake").returncode, 2)


if __name__ == "__main__":
    unittest.main()
