"""`make proof`: attacks the program for as long as asked, and says what it tried and what it found.

    python3 tests/proof/proof.py --minutes 30 [--only layouts,kills,faults,damage,long] [--seed N] [--output FOLDER]

  layouts  rows of a covering array over families, layouts and options, each against one rank (layouts.py)
  kills    SIGKILL of ranks at random moments of training and saving; the curve must stay the same bits
  faults   every system call of every writer fails or is the last one (ENOSPC, EIO, short writes, power loss)
  damage   damaged files of every kind that is read, under sanitizers
  long     one long run with saving, evaluation, page and logs: memory, descriptors and threads stay flat

Everything is drawn from --seed. The summary is FOLDER/proof.json and proof.md; a failure comes with the command that
shows it again, layouts with the smallest one. Exit code 1 when something failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import layouts
import long_run

ROOT = Path(__file__).resolve().parents[2]
SHARES = {"layouts": 0.45, "kills": 0.15, "faults": 0.1, "damage": 0.2, "long": 0.1}


def say(text):
    print(text, flush=True)


def run(command, environment=None, timeout=None):
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", **(environment or {})}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)


def failure(command, done):
    return {"command": command, "said": (done.stdout + done.stderr)[-3000:]}


def prove_layouts(build, seconds, seed, _folder):
    prover = layouts.Layouts(build / "megalith", ROOT)
    return layouts.prove(prover, seconds, seed, say=say, clauses=layouts.known_clauses())


def prove_kills(build, seconds, seed, _folder):
    """Rounds of tests/parallel_processes/kill_test.py, a seed each."""
    result = {"kills": 0, "rounds": 0, "failures": []}
    kills = 10
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seed += 1
        words = [sys.executable, "-m", "pytest", "-q", "-c", "tests/pytest.ini", "tests/parallel_processes/kill_test.py"]
        environment = {"MEGALITH_PROGRAM": str(build / "megalith"), "MEGALITH_KILLS": str(kills), "MEGALITH_KILL_SEED": str(seed)}
        done = run(words, environment)
        result["rounds"] += 1
        result["kills"] += kills
        if done.returncode != 0:
            line = " ".join([f"{name}={value}" for name, value in environment.items()] + words[1:])
            result["failures"].append(failure(f"python3 {line}", done))
        say(f"kills: {result['kills']}, {len(result['failures'])} rounds failed")
    return result


def prove_faults(build, seconds, _seed, _folder):
    """Both suites of tests/crash, whose points are all there are."""
    result = {"suites": 0, "failures": []}
    for suite in ("CrashPoints", "Faults"):
        command = [str(build / "bin" / "test_crash"), f"--gtest_filter={suite}*"]
        done = run(command, timeout=max(600, 4 * seconds))
        result["suites"] += 1
        for name, count in re.findall(r"^ *(\d+) (points|faults|calls)\b", done.stdout, re.MULTILINE):
            result[count] = result.get(count, 0) + int(name)
        passed = re.search(r"\[  PASSED  \] (\d+) test", done.stdout)
        result["tests"] = result.get("tests", 0) + (int(passed[1]) if passed else 0)
        if done.returncode != 0:
            result["failures"].append(failure(" ".join(command), done))
        say(f"faults: {suite}, exit code {done.returncode}")
    return result


def prove_damage(build, seconds, seed, folder):
    """Every target of fuzz_readers, for equal times."""
    fuzz = build / "bin" / "fuzz_readers"
    if not fuzz.exists():
        return {"skipped": f"{fuzz} is not built: this compiler has no sanitizers", "failures": []}
    targets = run([str(fuzz), "--list"]).stdout.split()
    targets = [name for name in targets if name and not name.startswith(("seed", "planted"))]
    result = {"targets": 0, "used": 0, "refused": 0, "failures": []}
    for name in targets:
        each = f"{seconds / max(1, len(targets)):.1f}"
        command = [str(fuzz), "--target", name, "--seconds", each, "--seed", str(seed), "--save", str(folder)]
        done = run(command)
        result["targets"] += 1
        for used, refused in re.findall(r"(\d+) used +(\d+) refused", done.stdout):
            result["used"] += int(used)
            result["refused"] += int(refused)
        if done.returncode != 0:
            result["failures"].append(failure(" ".join(command), done))
        say(f"damage: {name}: {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.returncode}")
    return result


def prove_long(build, seconds, seed, folder):
    return long_run.prove(build / "megalith", seconds, seed, folder / "long", say)


PROOFS = {"layouts": prove_layouts, "kills": prove_kills, "faults": prove_faults, "damage": prove_damage, "long": prove_long}


def table(results):
    lines = ["| attack | tried | failed |", "| --- | --- | --- |"]
    for name, result in results.items():
        tried = ", ".join(f"{value:,} {key}" for key, value in result.items() if isinstance(value, (int, float)))
        lines.append(f"| {name} | {result.get('skipped', tried)} | {len(result['failures'])} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--only", default=",".join(PROOFS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(PROOFS):
        parser.error(f"no such attack: {', '.join(sorted(unknown))}; there are {', '.join(PROOFS)}")
    folder = options.output or options.build / "proof"
    folder.mkdir(parents=True, exist_ok=True)
    whole = sum(SHARES[name] for name in chosen)
    results = {}
    for name in chosen:
        seconds = options.minutes * 60 * SHARES[name] / whole
        say(f"{name}: {seconds / 60:.1f} minutes")
        results[name] = PROOFS[name](options.build, seconds, options.seed, folder)
        (folder / "proof.json").write_text(json.dumps(results, indent=1) + "\n")
        (folder / "proof.md").write_text(table(results))
    say(table(results))
    failures = [one for result in results.values() for one in result["failures"]]
    for one in failures:
        say(f"FAILED {one.get('smallest', one['command'])}")
    say(f"written to {folder}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
