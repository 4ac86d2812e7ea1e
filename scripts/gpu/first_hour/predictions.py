"""What each figure was predicted to be: the tables of benchmarks/results/gpu.md, whose rows begin with a figure's name."""

import re


def read_predictions(path):
    """Figure -> (value, unit). Rows read `| `stage.row.figure` | 15400 tokens/s | … |`."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = re.match(r"\| `([a-z0-9_.]+)` +\| ([0-9.]+) ([^|]*?) *\|", line)
        if row:
            found[row[1]] = (float(row[2]), row[3])
    return found
