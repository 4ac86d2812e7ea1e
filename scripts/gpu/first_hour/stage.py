"""A stage: commands within a budget, their logs, the rows of the table, and a JSON file that is whole after every row."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass

# What a command needs to be worth starting.
LEAST_S = 2


@dataclass
class Ran:
    """A command that has ended."""

    code: int
    output: str  # standard output and error
    seconds: float


class Stage:
    def __init__(self, number, name, out, budget_s, predictions, patience=1):
        self.number, self.name, self.predictions, self.patience = number, name, predictions, patience
        self.folder = out / f"stage_{number}"
        before = out / f"stage_{number}.before"
        shutil.rmtree(before, ignore_errors=True)
        if self.folder.exists():
            self.folder.rename(before)
        self.folder.mkdir(parents=True)
        self.budget_s = budget_s * patience
        self.start = time.monotonic()
        self.rows = []
        self.write()

    def left_s(self):
        return self.budget_s - (time.monotonic() - self.start)

    def command(self, name, words, limit_s, environment=None):
        """Runs it with its output in NAME.log. A failed or a late one has a code other than 0; None: no time is left."""
        limit_s = min(limit_s * self.patience, self.left_s())
        if limit_s < LEAST_S:
            return None
        words = [str(word) for word in words]
        path, start = self.folder / f"{name}.log", time.monotonic()
        with open(path, "w", encoding="utf-8") as log:
            log.write(f"{shlex.join(words)}\n")
            log.flush()
            # A group of its own, so that what it started ends with it.
            process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                                       env={**os.environ, **(environment or {})})
            try:
                code = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = -int(signal.SIGKILL)
                log.write(f"\nended after {limit_s:.0f} s\n")
        output = path.read_text(encoding="utf-8", errors="replace")
        return Ran(code, output[output.index("\n") + 1 :], time.monotonic() - start)

    def add(self, name, status, seconds=0.0, note="", details=None, **figures):
        """A row of the table. status: pass, fail, or left out. details go only to the JSON."""
        row = {"name": name, "status": status, "seconds": round(seconds, 2), "note": note, "figures": {}}
        for figure, value in figures.items():
            key = f"{self.number}.{name}.{figure}"
            predicted, unit = self.predictions.get(key, (None, ""))
            row["figures"][figure] = {"value": value, "predicted": predicted, "unit": unit}
        if details is not None:
            row["details"] = details
        self.rows.append(row)
        self.write()

    def add_ran(self, name, ran, note="", passed=True, **more):
        """The row of a command: what became of it, unless the caller knows better."""
        if ran is None:
            self.add(name, "left out", note="the stage's time was over")
        elif ran.code != 0:
            last = [line for line in ran.output.strip().splitlines() if line.strip()][-1:] or ["no output"]
            self.add(name, "fail", ran.seconds, note=f"exit code {ran.code}: {last[0][:120]}")
        else:
            self.add(name, "pass" if passed else "fail", ran.seconds, note, **more)

    def passed(self):
        return bool(self.rows) and not any(row["status"] == "fail" for row in self.rows)

    def write(self):
        told = {"stage": self.number, "name": self.name, "budget_s": self.budget_s, "passed": self.passed(), "rows": self.rows,
                "seconds": round(time.monotonic() - self.start, 1)}
        fresh = self.folder / "stage.json.new"
        fresh.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.folder / "stage.json")

    def table(self):
        lines = [f"stage {self.number}, {self.name}: {time.monotonic() - self.start:.0f} of {self.budget_s:.0f} s, {self.folder}"]
        width = max((len(row["name"]) for row in self.rows), default=0)
        for row in self.rows:
            texts = [figure_text(name, figure) for name, figure in row["figures"].items()]
            texts += [row["note"]] if row["note"] else []
            lines.append(f"  {row['name']:<{width}}  {row['status']:<8} {row['seconds']:6.1f} s  {'; '.join(texts)}".rstrip())
        verdict = "passed" if self.passed() else "failed: " + ", ".join(r["name"] for r in self.rows if r["status"] == "fail")
        return "\n".join([*lines, verdict])


def figure_text(name, figure):
    text = f"{name} {figure['value']:.4g} {figure['unit']}".rstrip()
    predicted = figure["predicted"]
    if not predicted:
        return text
    return f"{text} (predicted {predicted:g}, {100 * (figure['value'] / predicted - 1):+.0f} %)"
