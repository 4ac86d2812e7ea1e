"""`make proof`: attacks the program for as long as asked, and says what it tried and what it found.

    python3 tests/proof/proof.py --minutes 30 [--only layouts,runs,…] [--fuzz_runs N] [--seed N] [--output FOLDER]

  layouts      rows of a covering array over families, layouts and options, each against one rank (layouts.py)
  runs         whole runs with ranks as processes: exports, moments, evaluation, resuming, recomputation (runs.py)
  kills        SIGKILL of ranks at random moments of training and saving; the curve must stay the same bits
  losses       ranks of eight killed, stopped and cut off in runs that outlive them (--fault_tolerance); replacements
               join, die while they join, and receive flipped bits; 19 of 20 times the next step comes within 10 s
  interrupted  SIGKILL of exports, imports, preparing, fetching and index caches, then the same again (interrupted.py)
  faults       every system call of every writer fails or is the last one (ENOSPC, EIO, short writes, power loss)
  fuzz         readers of damaged input under sanitizers, from a kept corpus; --fuzz_runs of each instead of its time
  injections   flipped bits and spikes of the loss in steps of training: each is seen, the rank named, the action right
  damaged      damaged files of every kind given to whole commands (damaged.py)
  long         one long run with saving, evaluation, page and logs: memory, descriptors and threads stay flat

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

import damaged
import interrupted
import layouts
import long_run
import runs

ROOT = Path(__file__).resolve().parents[2]
SHARES = {
    **{"layouts": 0.27, "runs": 0.13, "kills": 0.07, "losses": 0.05, "interrupted": 0.08, "faults": 0.1, "fuzz": 0.14},
    **{"damaged": 0.06, "injections": 0.05, "long": 0.05},
}
NEXT_STEP_MS = 10_000  # after the loss of a rank
CORPUS = ROOT / "tests" / "fuzz" / "corpus"


def say(text):
    print(text, flush=True)


def run(command, environment=None, timeout=None):
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", **(environment or {})}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)


def failure(command, done):
    return {"command": command, "said": (done.stdout + done.stderr)[-3000:]}


def prove_layouts(options, seconds, folder):
    prover = layouts.Layouts(options.build / "megalith", ROOT)
    gone = [clause for _, clause in prover.check_known(layouts.known_refusals())]
    clauses = [clause for clause in layouts.known_clauses() if clause not in gone]
    result = layouts.prove(prover, seconds, options.seed, say=say, clauses=clauses)
    (folder / "refusals.json").write_text(json.dumps(result.pop("refusals"), indent=1) + "\n")
    return result


def prove_runs(options, seconds, folder):
    return runs.prove(options.build / "megalith", ROOT, seconds, options.seed, folder / "runs", say)


def prove_kills(options, seconds, _folder):
    return rounds_of("kills", "kill_test.py", ("MEGALITH_KILLS", "MEGALITH_KILL_SEED"), 10, options, seconds)


def prove_losses(options, seconds, folder):
    times = folder.resolve() / "losses.jsonl"
    times.unlink(missing_ok=True)
    variables = {"MEGALITH_LOSS_RANKS": "8", "MEGALITH_LOSS_TIMES": str(times)}
    result = rounds_of("losses", "lost_ranks_test.py", ("MEGALITH_LOSSES", "MEGALITH_LOSS_SEED"), 20, options, seconds, variables)
    lines = [json.loads(line) for line in times.read_text().splitlines()] if times.exists() else []
    if not lines:
        return result  # no run came so far, which its round says
    result |= {way: sum(line["way"] == way for line in lines) for way in sorted({line["way"] for line in lines})}
    waits = sorted(line["seconds"] for line in lines)
    result["p95_ms"] = round(1000 * waits[-(len(waits) // 20 + 1)])
    if result["p95_ms"] > NEXT_STEP_MS:
        said = f"the step after a loss took {result['p95_ms']} ms at the 95th percentile of {len(waits)}, not {NEXT_STEP_MS}"
        result["failures"].append({"command": f"see {times}", "said": said})
    say(f"losses: next step within {result['p95_ms']} ms at the 95th percentile")
    return result


def rounds_of(what, file, variables, kills, options, seconds, more={}):
    """Rounds of a file of tests/parallel_processes, a seed each."""
    result = {what: 0, "rounds": 0, "failures": []}
    build, seed = options.build, options.seed
    number_of, seed_of = variables
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seed += 1
        words = [sys.executable, "-m", "pytest", "-q", "-c", "tests/pytest.ini", f"tests/parallel_processes/{file}"]
        environment = {"MEGALITH_PROGRAM": str(build / "megalith"), number_of: str(kills), seed_of: str(seed), **more}
        done = run(words, environment)
        result["rounds"] += 1
        result[what] += kills
        if done.returncode != 0:
            line = " ".join([f"{name}={value}" for name, value in environment.items()] + words[1:])
            result["failures"].append(failure(f"python3 {line}", done))
        say(f"{what}: {result[what]}, {len(result['failures'])} rounds failed")
    return result


def prove_interrupted(options, seconds, folder):
    return interrupted.prove(options.build / "megalith", seconds, options.seed, folder / "interrupted", say)


def prove_faults(options, seconds, _folder):
    """Both suites of tests/crash, whose points are all there are."""
    result = {"suites": 0, "failures": []}
    for suite in ("CrashPoints", "Faults"):
        command = [str(options.build / "bin" / "test_crash"), f"--gtest_filter={suite}*"]
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


def prove_injections(options, seconds, _folder):
    """Rounds of a hundred flipped bits and fifty spikes, a seed each."""
    result = {"rounds": 0, "flips": 0, "spikes": 0, "failures": []}
    tests = "StepCheck.FindsAHundredOfAHundredFlippedBitsAndNamesTheRank:Faults.FiftySpikesGetFiftyRightActions"
    command = [str(options.build / "bin" / "test_train"), f"--gtest_filter={tests}"]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seed = options.seed * 1000 + result["rounds"]
        done = run(command, {"MEGALITH_INJECTION_SEED": str(seed)})
        result["rounds"] += 1
        for count, name in re.findall(r"^(\d+) (flips|spikes)$", done.stdout, re.MULTILINE):
            result[name] += int(count)
        if done.returncode != 0:
            result["failures"].append(failure(f"MEGALITH_INJECTION_SEED={seed} {' '.join(command)}", done))
        say(f"injections: {result['flips']} flips, {result['spikes']} spikes, {len(result['failures'])} rounds failed")
    return result


def prove_fuzz(options, seconds, folder):
    """Every target of fuzz_readers, for equal times or so many runs."""
    fuzz = options.build / "bin" / "fuzz_readers"
    if not fuzz.exists():
        return {"skipped": f"{fuzz} is not built: this compiler has no sanitizers", "failures": []}
    targets = run([str(fuzz), "--list"]).stdout.split()
    result = {"targets": 0, "runs": 0, "used": 0, "refused": 0, "failures": []}
    for name in targets:
        length = ["--runs", str(options.fuzz_runs)] if options.fuzz_runs else ["--seconds", f"{seconds / len(targets):.1f}"]
        command = [str(fuzz), "--target", name, *length, "--seed", str(options.seed), "--corpus", str(CORPUS), "--save", str(folder)]
        done = run(command)
        result["targets"] += 1
        for used, refused in re.findall(r"(\d+) used +(\d+) refused", done.stdout):
            result["runs"] += int(used) + int(refused)
            result["used"] += int(used)
            result["refused"] += int(refused)
        if done.returncode != 0:
            result["failures"].append(failure(" ".join(command), done))
        say(f"fuzz: {name}: {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.returncode}")
    return result


def prove_damaged(options, seconds, folder):
    return damaged.prove(options.build / "megalith", ROOT, seconds, options.seed, folder / "damaged", say)


def prove_long(options, seconds, folder):
    return long_run.prove(options.build / "megalith", seconds, options.seed, folder / "long", say)


PROOFS = {
    **{"layouts": prove_layouts, "runs": prove_runs, "kills": prove_kills, "losses": prove_losses},
    **{"interrupted": prove_interrupted},
    **{"faults": prove_faults, "fuzz": prove_fuzz, "damaged": prove_damaged, "injections": prove_injections},
    "long": prove_long,
}


def table(results):
    lines = ["| attack | tried | failed |", "| --- | --- | --- |"]
    for name, result in results.items():
        tried = ", ".join(f"{value:,} {key}" for key, value in result.items() if isinstance(value, int))
        lines.append(f"| {name} | {result.get('skipped', tried)} | {len(result['failures'])} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--only", default=",".join(PROOFS))
    parser.add_argument("--fuzz_runs", type=int, default=0)
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
        results[name] = PROOFS[name](options, seconds, folder)
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
