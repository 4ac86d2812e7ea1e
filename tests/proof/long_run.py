"""A long run of tiny steps with everything on: what it holds of the machine must not grow.

Resident memory, descriptors and threads are read from /proc while the run goes on. Two windows are compared, the second
fifth of the run and the last one: allocators fill up at the beginning, what grows afterwards grows for ever.
"""

import os
import shutil
import statistics
import subprocess
import time

STEPS = 100_000
SAMPLES = 200
MOST_GROWTH_BYTES = 4 << 20
MODEL = (
    *("--num_layers", 1, "--hidden_size", 16, "--num_attention_heads", 2, "--vocab_size", 64, "--seq_length", 8),
    *("--max_position_embeddings", 8, "--device", "cpu", "--num_threads", 1, "--global_batch_size", 1, "--mock_data"),
)


def state_of(pid):
    """(resident bytes, descriptors, threads)."""
    with open(f"/proc/{pid}/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def sinks(folder, steps):
    often = max(1, steps // 50)
    return (
        *("--save", folder / "checkpoint", "--save_interval", often, "--keep_last", 2, "--async_save"),
        *("--eval_interval", often, "--eval_iters", 1, "--log_interval", max(1, steps // 1000)),
        *("--page_file", folder / "page.html", "--metrics_file", folder / "metrics.jsonl"),
        *("--tensorboard_dir", folder / "board"),
    )


def watch(process, every_s):
    states = []
    while process.poll() is None:
        try:
            states.append(state_of(process.pid))
        except OSError:  # it has just ended
            break
        time.sleep(every_s)
    return states


def judge(states):
    """What grew: a list of sentences."""
    if len(states) < 20:
        return [f"only {len(states)} looks at the run: it was too short"]
    fifth = len(states) // 5
    early, late = states[fifth : 2 * fifth], states[-fifth:]
    found = []
    for i, (name, most) in enumerate((("resident bytes", MOST_GROWTH_BYTES), ("descriptors", 2), ("threads", 0))):
        before, after = (statistics.median(state[i] for state in window) for window in (early, late))
        if after - before > most:
            found.append(f"{name} grew from {before:.0f} to {after:.0f}")
    return found


def prove(program, seconds, seed, folder, say):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin = time.monotonic()
    probe = [str(word) for word in (program, "train", *MODEL, "--seed", seed, "--train_iters", 500, "--eval_iters", 0)]
    subprocess.run(probe, capture_output=True, check=True)
    steps = max(2000, min(STEPS, int(500 * seconds / (time.monotonic() - begin))))
    words = [program, "train", *MODEL, "--seed", seed, "--train_iters", steps, *sinks(folder, steps)]
    with open(folder / "said.txt", "w") as said:
        process = subprocess.Popen([str(word) for word in words], stdout=said, stderr=said)
        states = watch(process, max(0.02, seconds / SAMPLES))
    line = " ".join(str(word) for word in words)
    found = judge(states)
    if process.returncode != 0:
        found.append(f"exit code {process.returncode}")
    left = [path.name for path in (folder / "checkpoint").iterdir() if path.name.startswith((".", "tmp"))]
    if left:
        found.append(f"files stayed behind: {', '.join(left)}")
    peak = max((state[0] for state in states), default=0)
    say(f"long: {steps} steps, {len(states)} looks, at most {peak / 2**20:.0f} MiB; {'; '.join(found) or 'flat'}")
    failures = [{"command": line, "said": "; ".join(found) + "\n" + (folder / "said.txt").read_text()[-2000:]}] if found else []
    return {"steps": steps, "looks": len(states), "failures": failures}
