"""Every check that the table of peers' errors names is there, and is run; the page is made of the table.

usage: peer_errors_test.py CTEST BUILD_FOLDER
"""

import ast
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(TESTS / "layouts_seeded")]
CTEST, BUILD = sys.argv[1:3]
del sys.argv[1:3]

import render  # noqa: E402
import seed_mistakes  # noqa: E402
from table import TABLE  # noqa: E402

ROWS = [row for group in TABLE.values() for row in group]


def tests_of_cpp():
    """{Suite.Test: folder}"""
    found = {}
    for path in TESTS.glob("*/*_test.cc"):
        for suite, name in re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found[f"{suite}.{name}"] = path.parent.name
    return found


def tests_of_python():
    """{file.py::test: path below tests/}"""
    found = {}
    for path in TESTS.glob("*/*_test.py"):
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found[f"{path.name}::{name}"] = str(path.relative_to(TESTS))
    return found


def mistakes_of_mutation_test():
    """"model: what" of its two lists, without what it imports."""
    tree = ast.parse((TESTS / "oracle" / "mutation_test.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id in ("CONFIG_CHANGES", "WEIGHT_CHANGES"):
            yield from (f"{row.elts[0].value}: {row.elts[1].value}" for row in node.value.elts)


def seeded_mistakes():
    """{name: the test that must see it}"""
    text = (TESTS / "layouts" / "mistakes.cc").read_text(encoding="utf-8")
    places = r'(?:\badd\(|\bplace\(|\bbatch\(|\breads\(|\bforgets\(|collective\(|placement\(|\.name =)\s*"([^"]+)"'
    found = {name: "Mistakes.AreAllSeen" for name in re.findall(places, text)}
    found |= {name: "SeededSource.EveryMistakeIsSeen" for name, _, _ in seed_mistakes.MISTAKES}
    return found | {name: "mutation_test.py::test_wrong_weights_are_seen" for name in mistakes_of_mutation_test()}


class PeerErrors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shown = subprocess.run([CTEST, "--show-only=json-v1"], cwd=BUILD, capture_output=True, text=True, check=True)
        cls.entries = {test["name"]: " ".join(test.get("command", [])) for test in json.loads(shown.stdout)["tests"]}
        cls.cpp, cls.python, cls.mistakes = tests_of_cpp(), tests_of_python(), seeded_mistakes()

    def is_run(self, check):
        """Whether an entry of ctest runs this test."""
        if check in self.cpp:
            folder, suite = self.cpp[check], check.split(".")[0]
            names = [name.split(".", 2) for name in self.entries if f".{folder}." in name]
            return any(suite in name[2].split(",") for name in names)
        return check in self.python and any(self.python[check] in command for command in self.entries.values())

    def test_every_check_is_there_and_run(self):
        problems = []
        for name, _, checks in ROWS:
            if not checks:
                problems.append(f"{name}: no check")
            for check in checks:
                test = self.mistakes.get(check.removeprefix("mistake: ")) if check.startswith("mistake: ") else check
                if test is None:
                    problems.append(f"{name}: no such mistake: {check}")
                elif not self.is_run(test):
                    problems.append(f"{name}: no entry of ctest runs {test}")
        self.assertEqual(problems, [])

    def test_a_check_that_is_not_there_is_noticed(self):
        self.assertFalse(self.is_run("TrainStep.NoSuchTest"))
        self.assertFalse(self.is_run("data_test.py::test_nothing"))
        self.assertNotIn("no such mistake", self.mistakes)

    def test_mistakes_that_types_find_are_seeded_ones(self):
        found = render.found_by_types()
        self.assertGreaterEqual(len(found), 70)
        self.assertLessEqual(found, set(self.mistakes))

    def test_each_class_has_a_place_of_its_own(self):
        self.assertGreaterEqual(len(ROWS), 110)
        self.assertEqual(len({name for name, _, _ in ROWS}), len(ROWS))
        for name, places, _ in ROWS:
            self.assertTrue(places and all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", place) for place in places), name)

    def test_the_page_is_made_of_the_table(self):
        page = (TESTS.parent / "docs" / "peer_errors.md").read_text(encoding="utf-8")
        self.assertEqual(page, render.page(), "python3 tests/peer_errors/render.py > docs/peer_errors.md")


if __name__ == "__main__":
    unittest.main()
