"""Holds README.md and docs/ to what they name: links and their headings, files, options, messages of the program.

A page is read long after it was written, so what it says in passing is compared with the sources. Needs only Python.
"""

import re
import unittest
from pathlib import Path

from style_test import ROOT, sources, texts_of_cpp

# Prose and commands; rows of tables cannot be broken, and what a program prints is shown as it is.
MOST_COLUMNS = 120
# Printed by the program; the texts are in src/, and the lines are rows of tables.
GENERATED_PAGES = ("options.md", "accepted_names.md")
# Pages with words of other programs beside ours: an option there may be theirs.
OTHERS = ("megatron", "primus", "torchtitan", "torchtune", "deepspeed", "finetuners")
PAGES_OF_OTHERS = tuple(f"migrate_{name}.md" for name in OTHERS)
# Options of launchers, shells, schedulers, tools and scripts that pages show beside the program's own.
OPTIONS_OF_OTHERS = set(
    """no-python standalone nproc-per-node max-restarts nnodes node-rank master-addr master-port rdzv-backend rdzv-id
    rdzv-endpoint local-addr host nodes ntasks-per-node gpus-per-node requeue signal kill-on-bad-exit format bind-to map-by
    shm-size ipc gpus ulimit build-arg test-dir no-dev out backend-store-uri no-load-rng untested list target seconds seed input
    no-masked-softmax-fusion no-gradient-accumulation-fusion""".split()
)
FOLDERS = ("src", "tests", "configs", "scripts", "examples", "benchmarks", "docs", "cmake")


def pages(but=()):
    return [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.name not in but]


def without_code(text):
    """The text with its fenced blocks empty, lines kept in number."""
    return re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """The names after '#' that a link may have: the headings as GitHub writes them."""
    found = re.findall(r"^#+ +(.*)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in found}


def lines_of(path):
    return enumerate(path.read_text(encoding="utf-8").splitlines(), 1)


def words_of_sources():
    """Every string and every cell of src/ that is one word, as names of options are."""
    names = set()
    for path in sources("src"):
        text = path.read_text(encoding="utf-8").replace("-", "_")
        names.update(re.findall(r'"_{0,2}(\w[\w.]*)"', text), re.findall(r"\b(\w+)=", text))
    for path in sorted((ROOT / "src/config/dialects").glob("*.table")):
        text = path.read_text(encoding="utf-8")
        names.update(re.findall(r"(?:^|\| )(\w[\w.]*)(?= \||$)", text, re.MULTILINE), re.findall(r"\b(\w+)=", text))
    return names


def messages_of_sources():
    """All texts of src/ in one, a line each: \\0 stands for what the program fills in, and blanks are one."""
    texts = []
    for path in sources("src"):
        texts += [" ".join(text.split()) for _, text in texts_of_cpp(path.read_text(encoding="utf-8"))]
    for path in sorted((ROOT / "src/config/dialects").glob("*.table")):  # an indented line goes on with its row
        texts.append(re.sub(r"\n +", " ", path.read_text(encoding="utf-8")))
    return re.sub(r"\{[^{}\n]*\}", "\x00", "\n".join(texts))


def pattern_of(message):
    """A message as a page quotes it: '…', N, numbers, --x and NAMES stand for anything that the program fills in."""
    parts = re.split(r"…|\bN\b|--[xy]\b|\d+(?:\.\d+)*|python3|\bNAME\b", message)
    parts = [re.escape(" ".join(part.split())).replace(r"\ ", " ") for part in parts if re.search(r"\w", part)]
    return re.compile(r".{0,60}?".join(parts))


class Pages(unittest.TestCase):
    def fail_with(self, problems):
        if problems:
            self.fail("\n" + "\n".join(problems))

    def test_lines_fit(self):
        problems = []
        for path in pages(but=GENERATED_PAGES):
            fence = ""
            for number, line in lines_of(path):
                if line.lstrip().startswith("```"):
                    fence = "" if fence else line.strip()
                is_breakable = fence in ("", "```sh") and not line.lstrip().startswith("|")
                if len(line) > MOST_COLUMNS and is_breakable:
                    problems.append(f"{path.relative_to(ROOT)}:{number}: {len(line)} columns, at most {MOST_COLUMNS}")
        self.fail_with(problems)

    def test_links_lead_somewhere(self):
        problems = []
        for path in [*pages(), ROOT / "ARCHITECTURE.md"]:
            text = without_code(path.read_text(encoding="utf-8"))
            for found in re.finditer(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text):
                link = found[1] or found[2]
                if re.match(r"\w+:", link):
                    continue
                name, _, anchor = link.partition("#")
                target = (path.parent / name).resolve() if name else path
                where = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}"
                if not target.exists():
                    problems.append(f"{where}: {link}: there is no such file")
                elif anchor and anchor not in anchors(target):
                    problems.append(f"{where}: {link}: no such heading")
        self.fail_with(problems)

    def test_every_page_is_in_the_index(self):
        index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
        missing = [path.name for path in pages() if path.name != "README.md" and f"({path.name})" not in index]
        self.assertEqual(missing, [], "pages that docs/README.md does not name")

    def test_files_that_are_named_exist(self):
        named = re.compile(r"`((?:%s)/[\w./*-]*\w)`" % "|".join(FOLDERS))
        problems = []
        for path in [*pages(), ROOT / "ARCHITECTURE.md"]:
            for number, line in lines_of(path):
                for name in named.findall(line):
                    # NAME is the reader's; a header and its source are named once, without an ending.
                    name = name.replace("NAME", "*")
                    if not any(ROOT.glob(name)) and not any(ROOT.glob(name + ".*")):
                        problems.append(f"{path.relative_to(ROOT)}:{number}: there is no {name}")
        self.fail_with(problems)

    def test_the_tour_quotes_the_sources(self):
        tour = re.search(r"## A tour of one step.*?```cpp\n(.*?)```", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL)
        self.assertIsNotNone(tour)
        problems, source, lines = [], "", 0
        for line in tour[1].splitlines():
            if stop := re.match(r"// (src/[\w/.]+): ", line):
                source = (ROOT / stop[1]).read_text(encoding="utf-8")
                continue
            lines += 1
            if line not in (found.strip() for found in source.splitlines()):
                problems.append(f"ARCHITECTURE.md's tour: no such line: {line}")
        self.assertGreaterEqual(lines, 12)
        self.fail_with(problems)

    def test_options_that_are_named_exist(self):
        known = words_of_sources()
        problems = []
        for path in pages(but=(*PAGES_OF_OTHERS, *GENERATED_PAGES)):
            for number, line in lines_of(path):
                for word in re.findall(r"(?<![\w-])--([a-z][\w.-]*\w)", line):
                    name = word.replace("-", "_")
                    if word in OPTIONS_OF_OTHERS or name in known or name.removeprefix("no_") in known:
                        continue
                    problems.append(f"{path.relative_to(ROOT)}:{number}: there is no option --{word}")
        self.fail_with(problems)

    def test_options_beside_other_programs_words_exist(self):
        known = words_of_sources()
        problems = []
        for name in PAGES_OF_OTHERS:
            for number, line in lines_of(ROOT / "docs" / name):
                ours = line.rstrip("| ").split(" | ")[-1] if line.startswith("|") else ""
                for word in re.findall(r"(?<![\w-])--([a-z][\w-]+)", ours):
                    option = word.replace("-", "_")
                    if not word.endswith("-") and word not in OPTIONS_OF_OTHERS and option not in known:
                        if option.removeprefix("no_") not in known:
                            problems.append(f"docs/{name}:{number}: there is no option --{word}")
        self.fail_with(problems)

    def test_defaults_that_are_named_are_the_options(self):
        rows = re.findall(r"^\| (`[^|]*`) \| [^|]* \| `([^|`]*)` \|", (ROOT / "docs/options.md").read_text(), re.MULTILINE)
        defaults = {name: default for names, default in rows for name in re.findall(r"\w+", names)}
        self.assertEqual(defaults["micro_batch_size"], "1")
        problems = []
        for path in pages(but=GENERATED_PAGES):
            for number, line in lines_of(path):
                for name, value in re.findall(r"`-{0,2}(\w+)` \((?:default )?([\d.]+)[);]", line):
                    if name in defaults and float(value) != float(defaults[name]):
                        problems.append(f"{path.relative_to(ROOT)}:{number}: {name} is {defaults[name]}, not {value}")
        self.fail_with(problems)

    def test_every_field_of_the_metrics_is_explained(self):
        source = (ROOT / "src/metrics/jsonl.cc").read_text(encoding="utf-8")
        fields = set(re.findall(r'line\["(\w+)"\]', source))
        self.assertIn("grad_norm", fields)
        page = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("runs.md", "experts.md"))
        missing = sorted(field for field in fields if f"`{field}`" not in page)
        self.assertEqual(missing, [], "fields of metrics.jsonl that docs/runs.md does not explain")

    def test_messages_that_are_explained_are_the_programs(self):
        messages = messages_of_sources()
        problems = []
        for number, line in lines_of(ROOT / "docs/troubleshooting.md"):
            if line.startswith("| `"):
                for message in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                    if not pattern_of(message).search(messages):
                        problems.append(f"docs/troubleshooting.md:{number}: no text of src/ says '{message}'")
        self.fail_with(problems)

    def test_what_is_looked_for_is_found(self):
        self.assertTrue(pattern_of("the N ranks did not meet at …").search("the \x00 ranks did not meet at \x00"))
        self.assertFalse(pattern_of("the N ranks did not meet at …").search("the ranks met"))
        self.assertEqual(without_code("a\n```sh\n# b\n```\nc"), "a\n\n\n\nc")
        self.assertIn("when-it-does-not-work", anchors(ROOT / "docs/hub.md"))
        self.assertNotIn("not-there", anchors(ROOT / "docs/hub.md"))


if __name__ == "__main__":
    unittest.main()
