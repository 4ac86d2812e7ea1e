"""Holds the sources to what ARCHITECTURE.md says of them: which folder may include which, and how large a file may grow.

The rows of src/CMakeLists.txt are the table; the one in ARCHITECTURE.md must agree with it. Also holds documents, comments
and messages to plain words. Needs only Python.
"""

import io
import os
import re
import shutil
import subprocess
import tokenize
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 600
MOST_COLUMNS = 120
# clang-format's versions break some lines differently; this is the one that .clang-format was written for.
CLANG_FORMAT_VERSION = "14"

# Sources that open files from outside: core/input_file.h says why no others do.
FILE_LAYER = ("core/file.cc", "core/input_file.cc")
# Sources that open what they write, or what they lock, by themselves.
OPENS_TO_WRITE = (
    "tensor_files/safetensors_writer.cc",
    "cli/log_copy.cc",
    "compat/launch_process.cc",
    "hub/cache.cc",
    "hub/client.cc",
    "data/builder_lock.cc",
    "data/prepare_state.cc",
    "launch/folder_lock.cc",
    "data/spool_file.cc",
    "metrics/append_file.cc",
    "storage/object_mirror.cc",
    "train/outputs.cc",
)

# Sources that find options by name: a record holds nothing else, and resolve_fsdp() has a copy of the variables.
FIND_BY_NAME = ("cli/verify.cc", "parallel/data_parallel_options.cc")

# Words that readers stumbled over, and what was meant. A blank matches a line break, too.
STUMBLES = (
    (r"(?:^|\n\n|[.:;!?)*|#] )Of (?!course)", "a sentence begins with its subject"),
    (r"\b[Aa]lone\b", "say 'only', or 'by itself'"),
    (r"[Ee]ach term: its", "each term's"),
    (r"[Ii]n groups of such", "in the groups above"),
    (r"felt in the numbers", "change results"),
    (r"\bwhat is dear\b", "dominates the cost"),
    (r"\bsays ranks (?:below|above)", "one overrides the other"),
    (r"\b(?:is|are) no paths?\b", "is not a path here; the error shows the command that downloads it"),
)
# Printed by the program from the options' descriptions, which are checked in src/.
GENERATED_PAGES = ("options.md",)
# Uses of 'alone' that say that somebody or something has no company.
REAL_ALONE = re.compile(r"\b(?:left|let|leave|runs?|stands?) (?:it |them |\w+ )?alone\b|^alone$", re.IGNORECASE)
# Files whose comments and messages are not held to the words yet.
# This file names the words, and entries_test.py a keyword of costs.txt.
NAMES_THE_WORDS = ("tests/style/style_test.py", "tests/style/entries_test.py")

CPP_TOKEN = re.compile(
    r"""//(?P<comment>[^\n]*)|/\*.*?\*/|R"(?P<mark>\w*)\((?P<raw>.*?)\)(?P=mark)"|"(?P<text>(?:\\.|[^"\\\n])*)"|'(?:\\.|[^'\\])'""",
    re.DOTALL,
)


def layers():
    """Folder -> (whether it may include torch, folders that it names), from src/CMakeLists.txt."""
    table = {}
    for row in re.finditer(r"^megalith_layer\((\w+)([^)]*)\)", (ROOT / "src/CMakeLists.txt").read_text(), re.MULTILINE):
        before, _, uses = row[2].partition("USES")
        named = [word for word in uses.split() if "::" not in word]
        table[row[1]] = ("TORCH" in before.split(), named)
    return table


def reachable(table):
    """Folder -> all that it may include: itself, what it names, and what those may use."""
    result = {}

    def visit(folder):
        if folder not in result:
            result[folder] = {folder}
            for used in table[folder][1]:
                result[folder] |= visit(used)
        return result[folder]

    for folder in table:
        visit(folder)
    return result


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu"):
                yield path


def includes(path):
    """(line number, name, whether in quotes) of every include."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if found:
            yield number, found[2], found[1] == '"'


def texts_of_cpp(source):
    """(line, words) of every comment, its lines joined, and of every string, its literals joined."""
    texts, last = [], None  # last: what the last text is, and where it ends
    for token in CPP_TOKEN.finditer(source):
        kind = "comment" if token["comment"] is not None else "text"
        words = next((token[name] for name in ("comment", "raw", "text") if token[name] is not None), None)
        if words is None:
            continue
        words = words.strip() if kind == "comment" else words.replace("\\n", "\n\n")
        between = source[last[1] : token.start()] if last and last[0] == kind else "x"
        if between.strip() == "" and (kind == "text" or between.count("\n") == 1):
            separator = "" if kind == "text" else "\n" if words else "\n\n"
            texts[-1] = (texts[-1][0], texts[-1][1] + separator + words)
        else:
            texts.append((source.count("\n", 0, token.start()) + 1, words))
        last = (kind, token.end())
    return texts


def texts_of_python(source):
    texts, last_line = [], None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            words = token.string.lstrip("#").strip()
            if last_line == line - 1 and not token.line[: token.start[1]].strip():
                texts[-1] = (texts[-1][0], texts[-1][1] + "\n" + words)
            else:
                texts.append((line, words))
            last_line = line
        elif token.type == tokenize.STRING:
            texts.append((line, token.string.lstrip("rbfRBF").strip("\"'").strip()))
    return texts


def texts_of_script(source):
    """(line, words) of the comments of a shell or CMake file, neighbouring lines joined."""
    texts, last_line = [], None
    for number, line in enumerate(source.splitlines(), 1):
        found = re.match(r"\s*#(?!!)\s?(.*)|.*\s#\s(.*)", line)
        if not found:
            continue
        words = found[1] if found[1] is not None else found[2]
        if last_line == number - 1 and found[1] is not None:
            texts[-1] = (texts[-1][0], texts[-1][1] + "\n" + words)
        else:
            texts.append((number, words))
        last_line = number
    return texts


def texts_of(path):
    if path.suffix in (".h", ".cc", ".cu"):
        read = texts_of_cpp
    elif path.suffix == ".py":
        read = texts_of_python
    elif path.suffix in (".sh", ".cmake") or path.name == "CMakeLists.txt":
        read = texts_of_script
    else:
        return []
    return read(path.read_text(encoding="utf-8"))


def stumbles_in(text):
    """(offset, words, what was meant) of everything in a text that a reader would stumble over."""
    for pattern, meant in STUMBLES:
        for found in re.finditer(pattern.replace(" ", r"\s+"), text):
            around = " ".join(text[max(found.start() - 25, 0) : found.end()].split())
            if "lone" in found[0] and REAL_ALONE.search(around):
                continue
            yield found.end(), " ".join(found[0].split()), meant


class Style(unittest.TestCase):
    def fail_with(self, problems):
        if problems:
            self.fail("\n" + "\n".join(problems))

    def test_the_table_names_every_folder(self):
        table = layers()
        folders = {path.name for path in (ROOT / "src").iterdir() if path.is_dir()}
        self.assertFalse(folders - set(table), "folders of src/ without a row in src/CMakeLists.txt")
        for folder, (_, used) in table.items():
            for name in used:
                self.assertIn(name, table, f"{folder} uses {name}, which has no row")

    def test_includes_point_towards_the_ground(self):
        table = layers()
        allowed = reachable(table)
        problems = []
        for path in sources("src"):
            folder = path.relative_to(ROOT / "src").parts[0]
            where = path.relative_to(ROOT)
            for number, name, in_quotes in includes(path):
                if not in_quotes:
                    continue
                target = name.split("/")[0]
                if "/" not in name or target not in table:
                    problems.append(f'{where}:{number}: "{name}" is not written from src/: "folder/file.h"')
                elif target not in allowed[folder]:
                    problems.append(f"{where}:{number}: {folder}/ may not include {target}/ (src/CMakeLists.txt)")
                elif not (ROOT / "src" / name).exists():
                    problems.append(f'{where}:{number}: "{name}" does not exist')
        self.fail_with(problems)

    def test_torch_stays_where_it_may_be(self):
        table = layers()
        problems = []
        for path in sources("src"):
            folder = path.relative_to(ROOT / "src").parts[0]
            for number, name, _ in includes(path):
                where = f"{path.relative_to(ROOT)}:{number}"
                is_torch = name.split("/")[0] in ("ATen", "c10", "torch", "caffe2")
                if name == "torch/torch.h":
                    problems.append(f"{where}: torch/torch.h takes 17 s a file; include what is used")
                elif is_torch and not table[folder][0]:
                    problems.append(f"{where}: {folder}/ does not use torch (src/CMakeLists.txt)")
                elif is_torch and path.suffix == ".cu":
                    problems.append(f"{where}: GPU kernels are free of torch headers")
        self.fail_with(problems)

    def test_files_are_read_through_the_file_layer(self):
        reading = re.compile(r"\b(std::(basic_)?(ifstream|fstream|filebuf)|f(re|d)?open|open(at|64)|LoadFile|LoadAllFromFile)\b")
        opening = re.compile(r"(?<!\w)::open\s*\(")
        problems = []
        for path in sources("src"):
            name = path.relative_to(ROOT / "src").as_posix()
            if name in FILE_LAYER:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                code = line.split("//")[0]
                if reading.search(code) or (opening.search(code) and name not in OPENS_TO_WRITE):
                    problems.append(f"src/{name}:{number}: files are read through core/file.h or core/input_file.h")
        self.fail_with(problems)

    def test_json_is_read_by_the_checked_reader(self):
        unchecked = re.compile(
            r'(?<!std)\.(get|get_to|get_ref|get_ptr)\s*<|\.get_to\(|\.value\(\s*"|(?<!Ordered)Json::parse\('
            # An implicit conversion: int64_t n = json["n"].
            r'|\b(u?int\d*_t|int|size_t|double|float|bool|std::string)\s+\w+\s*[={]\s*\(?\*?\w+\)?(\.at\(|\[)\s*"'
        )
        problems = []
        for path in sources("src"):
            where = path.relative_to(ROOT)
            if str(where) == "src/core/json.cc":
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if unchecked.search(line.split("//")[0]):
                    problems.append(f"{where}:{number}: JSON is read with json_get and its kin (core/json.h), which check")
        self.fail_with(problems)

    def test_other_tools_words_stay_in_their_layer(self):
        """Variables of scripts, by the rows of scripts.table, keys of CVS, tags of MAD and its kinds of GPUs."""
        rows = (ROOT / "src/config/dialects/scripts.table").read_text(encoding="utf-8")
        rows = [row.split(" | ") for row in rows.splitlines() if re.match(r"[A-Z]", row)]
        launching = ("launching", "logging", "exported")  # torchrun's words, and libraries'
        variables = {word for row in rows if row[1] not in launching for word in row[0].split() if "_" in word}
        self.assertGreater(len(variables), 50, "the rows are not read any more")
        foreign = re.compile(
            rf"\b({'|'.join(sorted(variables))})\b"
            r"|\bmi3\d\dx?\b|\bpyt_(train|megatron)_|\b(result_dict|hf_token_file|nccl_ib_hca_list|container_config)\b"
        )
        problems = []
        for path in sources("src"):
            if path.relative_to(ROOT / "src").parts[0] == "compat":
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if found := foreign.search(line):
                    problems.append(f"{path.relative_to(ROOT)}:{number}: {found[0]} is another tool's word: it belongs to src/compat/")
        self.fail_with(problems)

    def test_only_kinds_ask_what_kind_a_model_is(self):
        """Others ask a Kind (train/kind.h) or a property of the architecture (models/model_config.h)."""
        asks = re.compile(r"\bModelType::k|\bis_diffusion\(")
        problems = []
        for path in sources("src"):
            where = path.relative_to(ROOT / "src")
            if where.parts[0] in ("kinds", "models") or str(where) == "config/option_traits.h":
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if asks.search(line):
                    problems.append(f"src/{where}:{number}: what depends on the kind of model belongs to src/kinds/")
        self.fail_with(problems)

    def test_options_are_found_by_their_variables(self):
        """OptionSet::of(variable); names are for declarations, messages, and the words of people and other programs."""
        found_by_name = re.compile(r'\b(?:options|set)_?(?:->|\.)find\("')
        problems = []
        for path in sources("src"):
            where = path.relative_to(ROOT / "src")
            if where.parts[0] in ("config", "compat") or str(where) in FIND_BY_NAME:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if found_by_name.search(line):
                    problems.append(f"src/{where}:{number}: ask the set for the variable: options.of(config.…)")
        self.fail_with(problems)

    def test_headers_are_included_once(self):
        problems = [
            f"{path.relative_to(ROOT)}: no #pragma once"
            for path in sources("src", "tests")
            if path.suffix == ".h" and "#pragma once" not in path.read_text(encoding="utf-8")
        ]
        self.fail_with(problems)

    def test_files_are_one_idea_and_lines_fit(self):
        problems = []
        for path in sources("src", "tests"):
            lines = path.read_text(encoding="utf-8").splitlines()
            where = path.relative_to(ROOT)
            if len(lines) > MOST_LINES:
                problems.append(f"{where}: {len(lines)} lines; beyond {MOST_LINES} look for the seam")
            # A source may leave the explanation to its header.
            own_header = f'#include "{path.relative_to(ROOT / where.parts[0]).with_suffix(".h")}"'
            if not lines or not (lines[0].startswith("//") or lines[0] == own_header):
                problems.append(f"{where}:1: begins without a comment that says what the file is for")
            for number, line in enumerate(lines, 1):
                # Texts are not broken.
                if len(line) > MOST_COLUMNS and '"' not in line:
                    problems.append(f"{where}:{number}: {len(line)} columns, at most {MOST_COLUMNS}")
                if line != line.rstrip() or "\t" in line:
                    problems.append(f"{where}:{number}: a tab, or blanks at the end of the line")
        self.fail_with(problems)

    def test_architecture_page_has_the_same_table(self):
        page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
        words = re.findall(r"[A-Za-z][\w'-]+", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
        self.assertLessEqual(len(words), 2300, "eight minutes of reading: details belong in docs/")
        rows = re.findall(r"^\| `?(\w+)/`? \|.*\|([^|]*)\|$", page, re.MULTILINE)
        found = {folder: re.findall(r"\w+", text) for folder, text in rows}
        expected = {folder: used for folder, (_, used) in layers().items()}
        self.assertEqual(found, expected, "the table in ARCHITECTURE.md differs from src/CMakeLists.txt")

    def test_documents_are_read_once(self):
        pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
        problems = []
        for path in pages:
            if path.name in GENERATED_PAGES:
                continue
            text = path.read_text(encoding="utf-8")
            for offset, words, meant in stumbles_in(text):
                number = text.count("\n", 0, offset) + 1
                problems.append(f"{path.relative_to(ROOT)}:{number}: '{words}': {meant}")
        self.fail_with(problems)

    def test_comments_and_messages_are_read_once(self):
        problems = []
        for folder in ("src", "tests", "scripts", "cmake", "benchmarks", "examples", "docker"):
            for path in sorted((ROOT / folder).rglob("*")):
                where = path.relative_to(ROOT).as_posix()
                if not path.is_file() or where in NAMES_THE_WORDS:
                    continue
                for line, text in texts_of(path):
                    for offset, words, meant in stumbles_in(text):
                        number = line + text.replace("\n\n", "\n").count("\n", 0, offset)
                        problems.append(f"{where}:{number}: '{words}': {meant}")
        self.fail_with(problems)

    def test_the_words_are_looked_for_where_people_read_them(self):
        source = (
            'int a = 1;  // Of each term\n// one\n//\n// Of two\nf("it keeps " "weights alone", \'"\', "x: a // Of b");\n'
            'const char* alone = "it runs alone";  // https://x/of\n'
        )
        found = [words for _, text in texts_of_cpp(source) for _, words, _ in stumbles_in(text)]
        self.assertEqual(found, ["Of", "Of", "alone"])
        script = 'set(alone 1)  # Of x\n# weights alone\n'
        self.assertEqual([words for _, text in texts_of_script(script) for _, words, _ in stumbles_in(text)], ["Of", "alone"])
        python = 'alone = 1  # weights alone\ndef f():\n    """Of all."""\n    return "alone"\n'
        self.assertEqual([words for _, text in texts_of_python(python) for _, words, _ in stumbles_in(text)], ["alone", "Of"])

    def test_judges_fail_what_is_no_number(self):
        """`difference > limit` is false for NaN, so what is wrong in every digit would pass."""
        pattern = re.compile(r"\b(?:\w*difference|worst|apart|relative)\s*>(?!=)|>=?\s*(?:\w+(?:\.|->))*\w*tolerance")
        seen = ["if (worst > most)", "difference>0", "x > run.tolerance", "if (difference <= limit)", "a->difference"]
        self.assertEqual([bool(pattern.search(line)) for line in seen], [True, True, True, False, False])
        problems = []
        for path in sources(*(f"src/{folder}" for folder in ("bench", "checkpoint", "cli", "compat", "verify"))):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if pattern.search(line.split("//")[0]):
                    problems.append(f"{path.relative_to(ROOT)}:{number}: NaN passes here: write !(difference <= limit)")
        self.fail_with(problems)

    def test_clang_format_has_nothing_to_change(self):
        program = os.environ.get("CLANG_FORMAT") or shutil.which(f"clang-format-{CLANG_FORMAT_VERSION}")
        program = program or shutil.which("clang-format")
        if not program:
            self.skipTest("clang-format is not installed")
        version = re.search(r"version (\d+)", subprocess.run([program, "--version"], capture_output=True, text=True).stdout)
        if not version or version[1] != CLANG_FORMAT_VERSION:
            self.skipTest(f"{program} is version {version and version[1]}; {CLANG_FORMAT_VERSION} is needed")
        files = [str(path) for path in sources("src", "tests", "cmake")]
        found = subprocess.run([program, "--dry-run", "--Werror", *files], capture_output=True, text=True)
        wrong = sorted({os.path.relpath(line.split(":")[0], ROOT) for line in found.stderr.splitlines() if ": error:" in line})
        self.assertEqual(found.returncode, 0, "\nrun 'make format'; it would change:\n" + "\n".join(wrong))


if __name__ == "__main__":
    unittest.main()
