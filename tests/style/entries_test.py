"""Every suite of the test programs is in exactly one entry of ctest, which is named after it, every test in Python has
an entry, and every row of costs.txt names one.

usage: entries_test.py CTEST BUILD_FOLDER
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CTEST, BUILD = sys.argv[1:3]
del sys.argv[1:3]


def entries():
    """Name -> command of every entry. Asked from another folder: in its own, ctest would begin the log of tests anew."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "CTestTestfile.cmake").write_text(f"subdirs([[{BUILD}]])\n", encoding="utf-8")
        shown = subprocess.run([CTEST, "--show-only=json-v1"], cwd=folder, capture_output=True, text=True, check=True)
    return {test["name"]: test.get("command", []) for test in json.loads(shown.stdout)["tests"]}


def suites_in_sources(folder):
    """The first argument of every TEST, TEST_F and TEST_P."""
    for path in (TESTS / folder).glob("*.cc"):
        yield from re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)


class Entries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.entries = entries()

    def test_every_suite_is_in_one_entry_with_its_name(self):
        problems = []
        num_suites = 0
        for folder in sorted(path.parent.name for path in TESTS.glob("*/*_test.cc")):
            program = f"/test_{folder}"
            if folder == "gpu_kernels" and "unit.gpu_kernels.address" not in self.entries:
                continue  # the compiler has no sanitizers, or the whole build has one
            found = Counter()
            for name, command in self.entries.items():
                # Others run the same program again, with other kernels.
                if not re.fullmatch(rf"\w+\.{folder}\.[\w,]+", name) or not any(part.endswith(program) for part in command):
                    continue
                filters = [part.partition("=")[2] for part in command if part.startswith("--gtest_filter=")]
                named = set(name.split(".", 2)[2].split(","))
                chosen = {re.sub(r"^.*/", "", re.sub(r"(/\d+)?\.\*$", "", part)) for part in filters[0].split(":")}
                if named != chosen:
                    problems.append(f"{name} runs {sorted(chosen)}")
                found.update(named)
            suites = set(suites_in_sources(folder))
            num_suites += len(suites)
            problems += [f"{folder}: {suite} is in {found[suite]} entries" for suite in suites if found[suite] != 1]
        if problems:
            self.fail("\n" + "\n".join(problems))
        self.assertGreater(num_suites, 200)

    def test_every_test_in_python_has_an_entry(self):
        run = {part for command in self.entries.values() for part in command}
        # Those of these folders need a compiler that not every machine has.
        files = [path for path in TESTS.glob("*/*_test.py") if path.parent.name not in ("fuzz", "gpu_kernels")]
        self.assertGreater(len(files), 80)
        self.assertEqual([str(path.relative_to(TESTS)) for path in files if str(path) not in run], [])

    def test_every_row_of_the_costs_names_an_entry(self):
        rows = [line for line in (TESTS / "costs.txt").read_text().splitlines() if line and not line.startswith("#")]
        for row in rows:
            self.assertRegex(row, r"^[\w.,]+ +[1-9]\d*( alone)?$")
        names = [row.split()[0] for row in rows]
        self.assertEqual([name for name, count in Counter(names).items() if count > 1], [], "rows that are there twice")
        unknown = set(names) - set(self.entries)
        if "unit.fuzz" not in self.entries:
            unknown -= {"unit.fuzz", "unit.fuzz_planted"}  # the compiler has no sanitizers
        if "unit.gpu_kernels.address" not in self.entries:
            unknown = {name for name in unknown if not name.startswith("unit.gpu_kernels")}
        self.assertEqual(unknown, set(), "rows without an entry")


if __name__ == "__main__":
    unittest.main()
