"""All stages one after the other within an hour, then one table and one archive: needs no decision of a person."""

import json
import tarfile
import time

# What is asked of one H200, by figure.
TARGETS = {
    "3.8b_1k.mfu_percent": 65,
    "3.8b_8k.mfu_percent": 63,
    "3.7b_1k.mfu_percent": 65,
    "4.fp8_8b_1k.tflops": 900,
    "4.fp8_8b_8k.tflops": 900,
    "6.lora_8b.tokens_per_s": 12000,
    "6.lora_fp8_8b.tokens_per_s": 14000,
    "6.experts.mfu_percent": 45,
}
LARGEST_FILE = 32 << 20  # in the archive: checkpoints stay
END_S = 30  # for the table and the archive


def run_hour(stages, run_stage, out, budget_s, predictions):
    """run_stage(number, seconds) -> Stage. Whether all stages passed."""
    start = time.monotonic()
    passed = True
    for number, (_, name, own_s) in stages.items():
        left_s = budget_s - END_S - (time.monotonic() - start)
        if left_s <= 0:
            print(f"stage {number}, {name}: left out, the hour is over", flush=True)
            continue
        stage = run_stage(number, min(own_s, left_s))
        print(stage.table(), flush=True)
        passed = passed and stage.passed()
    text = summary(out, predictions)
    (out / "summary.txt").write_text(text, encoding="utf-8")
    print(text)
    archive = out.with_name(f"{out.name}.tar.gz")
    pack(out, archive)
    print(f"{time.monotonic() - start:.0f} s; send {archive}")
    return passed


def measured(out):
    """Figure -> value, of all stages' files."""
    found = {}
    for path in sorted(out.glob("stage_*/stage.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        for row in told["rows"]:
            for name, figure in row["figures"].items():
                found[f"{told['stage']}.{row['name']}.{name}"] = figure["value"]
    return found


def summary(out, predictions):
    """Measured beside the prediction, the better peer and the target; what was not measured is named."""
    values = measured(out)
    lines = ["", f"{'figure':<40} {'measured':>10} {'predicted':>10} {'off by':>8}  unit"]
    for key, (predicted, unit, spread) in predictions.items():
        value = values.get(key)
        if value is None:
            lines.append(f"{key:<40} {'-':>10} {predicted:>10g} {'':>8}  {unit}")
            continue
        off = value / predicted - 1
        mark = "" if abs(off) <= spread else "  beyond the range"
        lines.append(f"{key:<40} {value:>10.4g} {predicted:>10g} {100 * off:>+7.0f}%  {unit}{mark}")
    lines += ["", *peer_lines(values), "targets"]
    for key, least in TARGETS.items():
        value = values.get(key)
        state = "open" if value is None else "met" if value >= least else "missed"
        lines.append(f"  {key:<40} at least {least:<6} {state}" + ("" if value is None else f": {value:.4g}"))
    return "\n".join(lines) + "\n"


def peer_lines(values):
    for key, ratio in values.items():
        if key.startswith("5.") and key.endswith(".ratio"):
            yield f"{key.split('.', 1)[1].removesuffix('.ratio')}: {ratio:.2f} times the better of eager and compiled PyTorch"


def pack(out, archive):
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(out.rglob("*")):
            if path.is_file() and path.stat().st_size <= LARGEST_FILE and "checkpoint" not in path.parts:
                packed.add(path, path.relative_to(out.parent))
