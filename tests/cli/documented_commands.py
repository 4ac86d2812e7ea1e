#!/usr/bin/env python3
"""Runs every command that README.md and docs/ show, page by page, in an empty folder.

A page is a session: its fenced `sh` blocks are run in order with `megalith` on the PATH, so a reader who types them gets
what the page says. Left out are blocks that begin with a comment `# not run: reason`, and lines that call make, git or a
package manager (those are CI's own steps). Standard library only.

usage: documented_commands.py PROGRAM PAGE...
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

SETUP = ("make", "git ", "apt", "sudo ", "pip ", "cd ")


def blocks(text: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    """Shell commands of a block; a line that ends in a backslash goes on."""
    joined = block.replace("\\\n", " ")
    lines = (line.strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#") and not line.startswith(SETUP)]


def run_page(program: pathlib.Path, page: pathlib.Path) -> tuple[int, list[str]]:
    source = page.resolve().parents[0 if page.name == "README.md" else 1]
    failures, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        # Pages speak of build/megalith, configs/ and examples/ as seen from the source folder.
        for name in ("configs", "examples", "docs", "benchmarks", "docker"):
            if (source / name).exists():
                os.symlink(source / name, pathlib.Path(folder) / name)
        os.mkdir(pathlib.Path(folder) / "build")
        os.symlink(program.resolve(), pathlib.Path(folder) / "build" / "megalith")
        # Another test may run beside this one: threads that wait leave it the cores.
        environment = dict(os.environ, PATH=f"{program.resolve().parent}:{os.environ['PATH']}",
                           MEGALITH_CONFIGS=str(source / "configs"), OMP_WAIT_POLICY="passive")
        for block in blocks(page.read_text()):
            if block.startswith("# not run:"):
                continue
            for command in commands(block):
                count += 1
                start = time.monotonic()
                done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=300)
                print(f"  {time.monotonic() - start:6.1f} s  {command}")
                if done.returncode != 0:
                    failures.append(f"{page}: exit {done.returncode} from: {command}\n{done.stdout[-2000:]}"
                                    f"{done.stderr[-2000:]}")
    return count, failures


def main() -> int:
    program = pathlib.Path(sys.argv[1])
    failures, total = [], 0
    for page in map(pathlib.Path, sys.argv[2:]):
        print(page)
        count, failed = run_page(program, page)
        total += count
        failures += failed
    for failure in failures:
        print(failure, file=sys.stderr)
    if total == 0:
        print("no command was found: is the pages' form still what this test reads?", file=sys.stderr)
        return 1
    print(f"{total - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
