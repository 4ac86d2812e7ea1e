"""Plans of this machine's own runs against the runs: step time and memory of 2 to 8 CPU ranks.

For each layout `megalith bench calibrate` measures rates with all of its ranks at work, at the run's precision and
sizes; then the layout is planned with those rates, and trained on made-up tokens. A step's time is the median after the
first two; memory is what the tensors of the last rank, which writes the metrics, hold at most: a dry run knows it to
the byte but for what kernels borrow. The last lines count the layouts within 10 % of time and 5 % of memory. Run it on
an idle machine: it takes at most --minutes, and says what it left out.
--tiny only shows that everything runs.

usage: plan_here.py --program build/megalith [--iterations 8] [--minutes 12] [--tiny]
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ("--num_layers=4", "--hidden_size=256", "--num_attention_heads=8", "--vocab_size=2048", "--seq_length=256",
         "--max_position_embeddings=256", "--swiglu", "--normalization=RMSNorm", "--position_embedding_type=rope",
         "--disable_bias_linear", "--attention_dropout=0", "--hidden_dropout=0")  # fmt: skip
TINY = ("--num_layers=2", "--hidden_size=64", "--num_attention_heads=4", "--vocab_size=256", "--seq_length=64",
        "--max_position_embeddings=64")  # fmt: skip
RUN = ("--micro_batch_size=2", "--global_batch_size=32")
LAYOUTS = {
    2: {"dp 2": ("--use_distributed_optimizer",), "tp 2": ("--tensor_model_parallel_size=2", "--sequence_parallel"),
        "pp 2": ("--pipeline_model_parallel_size=2",)},
    4: {"dp 4": ("--use_torch_fsdp2",),
        "tp 2, pp 2": ("--tensor_model_parallel_size=2", "--pipeline_model_parallel_size=2", "--sequence_parallel"),
        "cp 2, dp 2": ("--context_parallel_size=2", "--use_distributed_optimizer")},
    8: {"dp 8": ("--use_distributed_optimizer",),
        "tp 2, pp 2, dp 2": ("--tensor_model_parallel_size=2", "--pipeline_model_parallel_size=2",
                             "--sequence_parallel", "--use_distributed_optimizer")},
}  # fmt: skip


def launch(program, ranks, *words):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(ranks):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}  # fmt: skip
        environment = os.environ | {name: str(value) for name, value in own.items()}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen([program, *words], env=environment, **streams))
    said = [process.communicate()[0] for process in started]
    for process, text in zip(started, said):
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, words))} ended with {process.returncode}:\n{text}")


def measured(program, ranks, model, words, iterations, folder):
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    launch(program, ranks, "train", *model, *RUN, *words, "--device=cpu", "--mock_data", "--eval_iters=0",
           f"--train_iters={iterations}", f"--metrics_file={metrics}", "--allow_oversubscription")  # fmt: skip
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [step for step in steps if step["kind"] == "step"][2:]
    peak = max(step.get("memory_peak_bytes", 0) for step in steps)
    return statistics.median(step["elapsed_ms"] for step in steps) / 1e3, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/megalith")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--ranks", type=int, nargs="*", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--minutes", type=float, default=12, help="no layout begins after nine tenths of it")
    parser.add_argument("--tiny", action="store_true", help="a model that trains in an instant")
    arguments = parser.parse_args()
    model = (*MODEL, *(TINY if arguments.tiny else ()))
    last_begin = time.monotonic() + 0.9 * 60 * arguments.minutes
    times, memories, above, left_out = [], [], 0, []
    print("| ranks | layout | step, s | planned, s | error | memory, MB | planned, MB | at most, MB | error |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for ranks in arguments.ranks:
            for layout, words in LAYOUTS[ranks].items():
                if time.monotonic() > last_begin:
                    left_out.append(layout)
                    continue
                rates = folder / f"{layout}.yaml".replace(", ", "_").replace(" ", "")
                launch(arguments.program, ranks, "bench", "calibrate", *model, *RUN, *words, "--dtype=fp32",
                       "--device=cpu", "--allow_oversubscription", f"--output_file={rates}")  # fmt: skip
                seconds, peak = measured(arguments.program, ranks, model, words, arguments.iterations, folder)
                command = [arguments.program, "plan", f"--cluster={rates}:{ranks}", "--json", *model, *RUN, *words]
                plan = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                held, at_most = plan["memory_by_stage_bytes"][-1], plan["memory_at_most_bytes"]
                times.append(plan["step_s"] / seconds - 1)
                memories.append(held / peak - 1)
                above += peak > at_most
                print(f"| {ranks} | {layout} | {seconds:.3f} | {plan['step_s']:.3f} | {100 * times[-1]:+.0f} % | "
                      f"{peak / 1e6:.1f} | {held / 1e6:.1f} | {at_most / 1e6:.0f} | {100 * memories[-1]:+.1f} % |",
                      flush=True)  # fmt: skip
    within = lambda errors, bar: f"{sum(abs(error) <= bar for error in errors)} of {len(errors)}"  # noqa: E731
    print(f"\ntime within 10 %: {within(times, 0.1)}; memory within 5 %: {within(memories, 0.05)}; "
          f"above the bound: {above}")  # fmt: skip
    if left_out:
        print(f"left out, as {arguments.minutes:g} minutes were over: {'; '.join(left_out)}")


if __name__ == "__main__":
    main()
