"""The fuzz driver fails on each planted fault, says what it was, and leaves an input that fails again.

usage: planted_test.py FUZZ_READERS
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = sys.argv.pop()
EXPECTED = {
    "planted_read": "AddressSanitizer: heap-buffer-overflow",
    "planted_mapped_read": "AddressSanitizer: heap-buffer-overflow",
    "planted_overflow": "signed integer overflow",
    "planted_exception": "neither used nor refused",
    "planted_allocation": "AddressSanitizer: allocator is out of memory",
    "planted_loop": "takes more than",
    "planted_cost": "costs 2.00 times what it may",
}


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, errors="replace")


class Planted(unittest.TestCase):
    def test_every_fault_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, expected in EXPECTED.items():
                with self.subTest(name):
                    found = run("--target", name, "--seconds", 30, "--seed", 3, "--save", folder)
                    self.assertNotEqual(found.returncode, 0, found.stdout)
                    self.assertIn(expected, found.stderr)
                    self.assertIn("seed 3", found.stdout)
                    saved = Path(folder) / f"fuzz_{name}.failure"
                    self.assertTrue(saved.read_bytes().startswith(b"FA"), saved.read_bytes())
                    if name == "planted_loop":
                        continue  # it takes its seconds again
                    again = run("--target", name, "--input", saved)
                    self.assertNotEqual(again.returncode, 0)
                    self.assertIn(expected, again.stderr)

    def test_only_known_targets_run(self):
        self.assertEqual(run("--target", "no_such_target").returncode, 2)


if __name__ == "__main__":
    unittest.main()
