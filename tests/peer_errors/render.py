"""Prints docs/peer_errors.md: `python3 tests/peer_errors/render.py > docs/peer_errors.md`."""

import re
from pathlib import Path

from table import TABLE

TESTS = Path(__file__).resolve().parents[1]

HEAD = """# Wrong numbers that others shipped

A trainer that computes something else than it says looks healthy: its loss falls. This page lists {classes} classes of such
mistakes that were reported or mended in {projects} other projects, and the check that finds each of them here. It is made
of `tests/peer_errors/table.py`; a test looks up every check that is named.

*Seeded* mistakes are built into the program on purpose, for its tests only: each of them must be seen, or the build
fails. The others are tests of the behaviour itself. *Types* says that `megalith doctor --types` refuses the seeded
mistake before a number is computed. What is promised, and how often it is tested: [trust](trust.md).
"""


def names(path, begin, end, pattern=r'^ *"(.+)",$'):
    text = (TESTS / path).read_text(encoding="utf-8").split(begin)[1].split(end)[0]
    return set(re.findall(pattern, text, re.MULTILINE))


def found_by_types():
    """Seeded mistakes that the tests of types expect to be found."""
    rows, sources = "layouts/types_test.cc", "layouts_seeded/source_types_test.cc"
    found = names(rows, "kOfDistributions = {", "};") | names(sources, "kOfSources = {", "};")
    found |= names("layouts/mistakes.cc", "mistakes_for_types() {", "return list", r'(?:add|placement)\("([^"]+)"')
    return found - names(rows, "kNotByTypes = {", "};") - names(sources, "kNotByTypes = {", "};")


def link(where):
    repository, number = where.rsplit("#", 1)
    return f"[{repository.split('/')[1]} {number}](https://github.com/{repository}/issues/{number})"


def shown(check):
    if check.startswith("mistake: "):
        return f"seeded: {check.removeprefix('mistake: ')}"
    return f"`{check.split('::')[-1]}`"


def page():
    rows = [row for group in TABLE.values() for row in group]
    projects = {where.rsplit("#", 1)[0] for _, places, _ in rows for where in places}
    typed = {f"mistake: {name}" for name in found_by_types()}
    parts = [HEAD.format(classes=len(rows), projects=len(projects))]
    for group, rows in TABLE.items():
        lines = [
            f"| {name} | {', '.join(map(link, places))} | {'; '.join(map(shown, checks))} | {'yes' if typed & set(checks) else ''} |"
            for name, places, checks in rows
        ]
        parts.append("\n".join([f"## {group}", "", "| mistake | where | found here by | types |", "| --- | --- | --- | --- |", *lines]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
