"""How other tools read a training log: CVS (its old suites and its new ones), the end of ROCm's scripts, and MAD.

Nothing here is Megalith's: the patterns are those of ROCm/cvs (cvs/lib/megatron_training_lib.py, cvs/lib/training/megatron),
of ROCm/Megatron-LM's examples and of ROCm/MAD (scripts/megatron-lm, scripts/primus). Each reader gives what it found, and
nothing, or None, where its tool would find nothing.
"""

import re

# The old suites look only at the end of the log; the completion pattern is true from the first iteration on.
CVS_LAST_LINES = 15
CVS_OLD = {
    "throughput_per_gpu": r"throughput per GPU(?:\s*\([^)]*\))?\s*:\s+([0-9\.]+)",
    "tokens_per_gpu": r"tokens\/GPU\/s:\s+([0-9]+)",
    "mem_usage": r"mem usages:\s+([0-9\.]+)",
    "elapsed_time_per_iteration": r"elapsed time per iteration \(ms\):\s+([0-9\.]+)",
}
CVS_BEFORE_MAY_2026 = {**CVS_OLD, "throughput_per_gpu": r"throughput per GPU:\s+([0-9\.]+)"}
CVS_OLD_COMPLETE = r"throughput per GPU(?:\s*\([^)]*\))?\s*:|tokens\/GPU\/s\s+[0-9]+"
CVS_NAN = r"(?:throughput per GPU(?:\s*\([^)]*\))?\s*:|tokens/GPU/s:|mem usages:)\s+(?:NaN|Inf)"
# The new suites: the end first, then the whole log, whose first value is dropped.
CVS_NEW = {
    "throughput_per_gpu": r"throughput per GPU:\s+([0-9\.]+)",
    "tokens_per_gpu": r"tokens/GPU/s:\s+([0-9\.]+)",
    "mem_usage": r"mem usages:\s+([0-9\.]+)",
    "elapsed_time_per_iteration": r"elapsed time per iteration:\s+([0-9\.]+)",
}
CVS_NEW_WHOLE = {
    "throughput_per_gpu": r"throughput per GPU\s*\([^)]*\)\s*:\s*([0-9.eE+\-]+)",
    "mem_usage": r"mem usages:\s*([0-9.eE+\-]+)",
    "elapsed_time_per_iteration": r"elapsed time per iteration\s*\([^)]*\)\s*:\s*([0-9.eE+\-]+)",
}
CVS_LOSS = r"iteration\s+(\d+)\s*/\s*\d+[^\n]*?\blm loss:\s*([0-9.eE+\-]+)"
# Any of these anywhere fails a run of either; upper and lower case count.
CVS_FAILURES = (
    "NCCL ERROR",
    "NCCL timeout",
    "ncclRemoteError: A call failed possibly due to a network error",
    "NCCL error:",
    "HW Exception by GPU",
    "GPU Hang",
    "Uncorrectable error",
    "GPU Reset",
    "torch.distributed.elastic.multiprocessing.errors",
)

ROCM_THROUGHPUT = r"throughput per GPU \(TFLOP/s/GPU\): ([0-9\.]+)"
ROCM_ELAPSED = r"elapsed time per iteration \(ms\): ([0-9\.]+)"
ROCM_MEMORY = r"mem usages: ([0-9\.]+)"

MAD_MEGATRON = {"tok_per_s_per_gpu": r"tokens/GPU/s:\s*([0-9.]+)", "TFLOPS_per_gpu": r"throughput per GPU:\s*([0-9.]+)"}
MAD_PRIMUS = {"tok_per_s_per_gpu": r"tokens/s/GPU\):\s*(\d+\.?\d*)/", "TFLOPS_per_gpu": r"TFLOP/s/GPU\):\s*(\d+\.?\d*)/"}
# torchtitan's lines, as MAD's pretraining script and CVS's suite for it read them. MAD takes the matches 30 to 39.
MAD_TORCHTITAN = {"tok_per_s_per_gpu": r"tps:\s*([0-9,.]+)", "TFLOPS_per_gpu": r"tflops:\s*([0-9,.]+)"}
MAD_MEASURED = slice(30, 40)
CVS_TORCHTITAN = {"tps": r"tps:\s+([0-9,\.]+)", "loss": r"loss:\s+([0-9\.]+)", "memory": r"memory:\s+([0-9\.]+)\s*GiB"}


def last_lines(log):
    return "\n".join(log.splitlines()[-CVS_LAST_LINES:])


def cvs_old(log, patterns=None):
    """Every value that the old suites compare with its bound."""
    end = last_lines(log)
    found = (patterns or CVS_OLD).items()
    return {name: [float(value) for value in re.findall(pattern, end, re.IGNORECASE)] for name, pattern in found}


def cvs_old_is_complete(log):
    return re.search(CVS_OLD_COMPLETE, log, re.IGNORECASE) is not None


def cvs_new(log):
    """The figures of the new suites."""
    end, figures = last_lines(log), {}
    for name, pattern in CVS_NEW.items():
        values = re.findall(pattern, end, re.IGNORECASE)
        figures[name] = float(values[-1]) if values else None
    return figures


def cvs_new_from_iterations(log):
    """Their figures for a log without a summary."""
    figures = {}
    for name, pattern in CVS_NEW_WHOLE.items():
        values = [float(value) for value in re.findall(pattern, log, re.IGNORECASE)][1:]
        figures[name] = sum(values) / len(values) if values else None
    return figures


def cvs_new_is_complete(log, iterations):
    return re.search(rf"iteration\s+{iterations}\s*/\s*{iterations}\b", log, re.IGNORECASE) is not None


def cvs_has_nan(log):
    return re.search(CVS_NAN, log, re.IGNORECASE) is not None


def cvs_losses(log):
    return [(int(iteration), float(loss)) for iteration, loss in re.findall(CVS_LOSS, log, re.IGNORECASE)]


def failures(text):
    return [phrase for phrase in CVS_FAILURES if phrase in text]


def rocm_summary(log, tokens_of_iteration, ranks, dropped_first=2):
    """What ROCm's scripts compute of the iterations' lines: means without the first two, or one, and without the last."""
    means = []
    for pattern in (ROCM_THROUGHPUT, ROCM_ELAPSED, ROCM_MEMORY):
        lines = [line for line in log.splitlines() if re.search(ROCM_ELAPSED, line)]
        values = [float(re.search(pattern, line)[1]) for line in lines][dropped_first:-1]
        means.append(sum(values) / len(values))
    throughput, elapsed_ms, memory = means
    return {
        "throughput_per_gpu": throughput,
        "elapsed_time_per_iteration": elapsed_ms,
        "tokens_per_gpu": tokens_of_iteration * 1000 / (elapsed_ms * ranks),
        "mem_usage": memory,
    }


def mad_megatron(log):
    """The last line of each counts."""
    return {name: float(re.findall(pattern, log)[-1]) for name, pattern in MAD_MEGATRON.items() if re.search(pattern, log)}


def mad_primus(log):
    """The mean over the iterations' lines."""
    found = {name: [float(value) for value in re.findall(pattern, log)] for name, pattern in MAD_PRIMUS.items()}
    return {name: sum(values) / len(values) for name, values in found.items() if values}


def number(text):
    return float(text.replace(",", ""))


def mad_torchtitan(log):
    found = {name: [number(value) for value in re.findall(pattern, log)][MAD_MEASURED] for name, pattern in MAD_TORCHTITAN.items()}
    return {name: sum(values) / len(values) for name, values in found.items() if len(values) == 10}


def cvs_torchtitan(log):
    return {name: [number(value) for value in re.findall(pattern, log)] for name, pattern in CVS_TORCHTITAN.items()}


def cvs_torchtitan_is_complete(log, iterations):
    return re.search(rf"step:\s+{iterations}\b", log) is not None
