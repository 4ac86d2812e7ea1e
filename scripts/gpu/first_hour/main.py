"""One stage of the first hour on a GPU: see first_hour.sh. Needs nothing but Python; the commands need torch."""

import argparse
import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True

import ceilings  # noqa: E402
import hour  # noqa: E402
import peers  # noqa: E402
import right  # noqa: E402
import training  # noqa: E402
from machine import REAL, TINY, Machine  # noqa: E402
from predictions import predict  # noqa: E402
from stage import Stage  # noqa: E402

# What a stage does, its name and its budget in seconds.
STAGES = {
    1: (right.run, "right", 540),
    2: (ceilings.run, "ceilings and kernels", 480),
    3: (training.run_bf16, "training, bf16", 480),
    4: (training.run_fp8, "training, FP8", 420),
    5: (peers.run, "peers", 420),
    6: (training.run_rest, "what is left", 900),
}
HOUR_S = 3600


def parse(words):
    parser = argparse.ArgumentParser(prog="first_hour.sh", description="\n".join(f"{n}: {s[1]}" for n, s in STAGES.items()),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=int, choices=STAGES, nargs="?", help="left out: all of them, in an hour at most")
    parser.add_argument("--out", type=Path, default=Path("first_hour_results"), help="the folder for logs and JSON")
    parser.add_argument("--budget_s", type=float, help="instead of the stage's own, or of the hour")
    parser.add_argument("--patience", type=float, default=1, help="times this: the budget and what a command may take")
    parser.add_argument("--build", type=Path, help="a build folder, where this is not a bundle")
    parser.add_argument("--device", default="gpu", help="of Megalith's programs")
    parser.add_argument("--peer_device", default="cuda", help="of PyTorch")
    parser.add_argument("--tiny", action="store_true", help="sizes of a rehearsal; its figures mean nothing")
    parser.add_argument("--program", type=Path, help="the program, instead of the bundle's or the build's")
    parser.add_argument("--operator_tests", type=Path, help="test_ops, likewise")
    parser.add_argument("--untested", action="store_true", help="measure although stage 1 has not passed")
    return parser.parse_args(words)


def has_passed(out):
    path = out / "stage_1" / "stage.json"
    return path.exists() and json.loads(path.read_text(encoding="utf-8"))["passed"]


def main():
    arguments = parse(sys.argv[1:])
    needs_stage_1 = (arguments.stage or 1) > 1 and not arguments.untested
    if needs_stage_1 and not has_passed(arguments.out):
        print(f"error: stage 1 has not passed in {arguments.out}: what is wrong need not be fast", file=sys.stderr)
        print("  run stage 1 and mend what it shows, or say --untested", file=sys.stderr)
        return 2
    machine = Machine(arguments, TINY if arguments.tiny else REAL)
    predictions = predict()

    def run_stage(number, budget_s):
        run, name, _ = STAGES[number]
        stage = Stage(number, name, arguments.out, budget_s, predictions, arguments.patience)
        run(stage, machine)
        return stage

    if arguments.stage is None:
        seconds = (arguments.budget_s or HOUR_S) * arguments.patience
        return 0 if hour.run_hour(STAGES, run_stage, arguments.out, seconds, predictions) else 1
    stage = run_stage(arguments.stage, arguments.budget_s or STAGES[arguments.stage][2])
    print(stage.table())
    return 0 if stage.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
