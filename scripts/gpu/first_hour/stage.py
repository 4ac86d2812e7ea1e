"""A stage: commands within a budget, their logs, the rows of the table, and a JSON file that is whole after every row."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from statistics import median

# What a command needs to be worth starting.
LEAST_S = 2


# What nvidia-smi tells twice a second while a command runs.
CHIP = {"sm_mhz": "clocks.sm", "watts": "power.draw", "celsius": "temperature.gpu"}


@dataclass
class Ran:
    """A command that has ended."""

    code: int
    output: str  # standard output and error
    seconds: float
    chip: dict = field(default_factory=dict)  # the medians of CHIP while the GPU worked; empty where no tool tells


class ChipWatch:
    """Asks nvidia-smi from now to end(); of the first GPU."""

    def __init__(self, path):
        self.path, self.process = path, None
        program = shutil.which("nvidia-smi")
        if program is None:
            return
        words = [program, "--id=0", f"--query-gpu={','.join(CHIP.values())}", "--format=csv,noheader,nounits", "-lms", "500"]
        with open(path, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL)

    def end(self):
        if self.process is None:
            return {}
        self.process.terminate()
        self.process.wait()
        samples = [numbers for line in self.path.read_text(encoding="utf-8").splitlines() if (numbers := numbers_of(line))]
        if not samples:
            return {}
        # While a program starts, the GPU idles: the upper half by power is what it worked at.
        samples.sort(key=lambda numbers: numbers[list(CHIP).index("watts")])
        busy = samples[len(samples) // 2 :]
        return {name: median(values) for name, values in zip(CHIP, zip(*busy))}


def numbers_of(line):
    """The numbers of a line that is whole; None otherwise."""
    try:
        numbers = [float(word) for word in line.split(",")]
    except ValueError:
        return None
    return numbers if len(numbers) == len(CHIP) else None


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
            watch = ChipWatch(self.folder / f"{name}.chip.csv")
            try:
                code = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = -int(signal.SIGKILL)
                log.write(f"\nended after {limit_s:.0f} s\n")
            chip = watch.end()
        output = path.read_text(encoding="utf-8", errors="replace")
        return Ran(code, output[output.index("\n") + 1 :], time.monotonic() - start, chip)

    def add(self, name, status, seconds=0.0, note="", details=None, chip=None, **figures):
        """A row of the table. status: pass, fail, or left out. details go only to the JSON. chip: Ran.chip."""
        row = {"name": name, "status": status, "seconds": round(seconds, 2), "note": note, "figures": {}}
        for figure, value in figures.items():
            key = f"{self.number}.{name}.{figure}"
            predicted, unit, _ = self.predictions.get(key, (None, "", 0))
            row["figures"][figure] = {"value": value, "predicted": predicted, "unit": unit}
        if details is not None:
            row["details"] = details
        if chip and figures:  # a figure means little without the clock that it was measured at
            row["chip"] = chip
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
            self.add(name, "pass" if passed else "fail", ran.seconds, note, chip=ran.chip, **more)

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
            texts += [f"at {chip['sm_mhz']:.0f} MHz, {chip['watts']:.0f} W" for chip in [row.get("chip")] if chip]
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
