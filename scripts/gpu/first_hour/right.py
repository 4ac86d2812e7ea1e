"""Stage 1: is it right? The kernels under NVIDIA's sanitizer, the operators, small models against the CPU."""

import hashlib
import json
import math
import re
import shutil

SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZER_FAILED = 9

SMALL = ("--num_layers", 4, "--hidden_size", 64, "--num_attention_heads", 4)
LLAMA = (
    *(*SMALL, "--swiglu", "--ffn_hidden_size", 96, "--normalization", "RMSNorm", "--position_embedding_type", "rope"),
    *("--disable_bias_linear", "--hidden_dropout", 0, "--attention_dropout", 0, "--group_query_attention"),
    *("--num_query_groups", 2),
)
FAMILIES = {
    "llama": (*LLAMA, "--untie_embeddings_and_output_weights"),
    "qwen3": (*LLAMA, "--qk_layernorm", "--kv_channels", 24, "--reset_attention_mask", "--eod_mask_loss"),
    "gpt2": (*SMALL, "--openai_gelu", "--hidden_dropout", 0.1, "--attention_dropout", 0.1),
    "mixtral": (
        *(*LLAMA, "--num_experts", 8, "--moe_router_topk", 2, "--moe_router_load_balancing_type", "aux_loss"),
        *("--moe_aux_loss_coeff", 0.02),
    ),
}
RUN = (
    *("--mock_data", "--seq_length", 64, "--lr", 1e-3, "--lr_decay_style", "constant", "--num_workers", 0, "--eval_iters", 0),
    *("--vocab_size", 131, "--max_position_embeddings", 64, "--micro_batch_size", 2, "--global_batch_size", 4),
)
# A GPU rounds each sum in its own order. In fp32 that is some 1e-7 a step, and Adam divides small gradients by themselves,
# so that differences grow a hundredfold in twenty steps. In bf16 weights and activations are rounded to 2^-9 of their value.
BOUNDS = {"fp32": 1e-4, "bf16": 2e-2}


def run(stage, machine):
    describe_machine(stage, machine)
    stage.add_ran("doctor", stage.command("doctor", machine.megalith("doctor", "--disk_probe_mib", 1), 60))
    check_operators(stage, machine)
    compare_with_cpu(stage, machine)
    compare_libraries(stage, machine)
    wait_for_nothing(stage, machine)
    replay_graphs(stage, machine)
    repeat(stage, machine)
    resume(stage, machine)
    for tool in SANITIZERS:
        sanitize(stage, machine, tool)


def describe_machine(stage, machine):
    ran = stage.command("version", [machine.program, "--version"], 30)
    stage.add_ran("version", ran, note=ran.output.strip().splitlines()[0] if ran and ran.output.strip() else "")
    if shutil.which("nvidia-smi") is None:
        stage.add("gpu", "left out", note="there is no nvidia-smi")
        return
    query = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    ran = stage.command("gpu", ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 30)
    stage.add_ran("gpu", ran, note=ran.output.strip().replace("\n", "; ") if ran else "")


def check_operators(stage, machine):
    """Values and gradients of every operator on the device, against the reference and float64."""
    words, environment = machine.operator_tests(on_device(machine.sizes.tested), "--gtest_brief=1")
    ran = stage.command("operators", words, 240, environment)
    count = count_tests(ran)
    stage.add_ran("operators", ran, passed=count > 0, note="" if count else "no test ran on the device", tests=count)


def on_device(suites):
    return f"--gtest_filter={':'.join(f'On/{suite}.*' for suite in suites.split(':'))}-*/cpu"


def count_tests(ran):
    found = re.search(r"\[  PASSED  \] (\d+) test", ran.output) if ran else None
    return int(found[1]) if found else 0


def sanitize(stage, machine, tool):
    name = f"sanitizer_{tool}"
    program = shutil.which("compute-sanitizer")
    if program is None:
        stage.add(name, "left out", note="there is no compute-sanitizer on the PATH")
        return
    under = (program, "--tool", tool, "--error-exitcode", SANITIZER_FAILED)
    words, environment = machine.operator_tests(on_device(machine.sizes.sanitized), "--gtest_brief=1", under=under)
    ran = stage.command(name, words, 60, environment)
    count = count_tests(ran)
    stage.add_ran(name, ran, passed=count > 0, note="" if count else "no test ran on the device", tests=count)


class Trained:
    """What a run left; ran is None or failed where it did not come to its end."""

    def __init__(self, ran, folder):
        self.ran = ran
        self.is_whole = ran is not None and ran.code == 0
        metrics = folder / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        self.steps = [(line["lm_loss"], line["grad_norm"]) for line in lines if "lm_loss" in line]
        self.files = {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((folder / "checkpoint").rglob("*.safetensors"))
        }


def train(stage, machine, name, family, precision, steps, *words, device=None):
    folder = stage.folder / name
    folder.mkdir(exist_ok=True)
    words = (
        *(machine.program, "train", *RUN, *FAMILIES[family], f"--{precision}", "--train_iters", steps),
        *("--metrics_file", folder / "metrics.jsonl", "--data_cache_path", stage.folder / "cache", *words),
        *("--device", device or machine.device),
    )
    return Trained(stage.command(name, words, 60), folder)


def largest_gap(pairs):
    """Between the losses of two runs; infinite where one has none that is a number, which max() would pass over."""
    gaps = [abs(ours[0] / theirs[0] - 1) if ours[0] and theirs[0] else math.inf for ours, theirs in pairs]
    return max(gaps, default=math.inf) if all(map(math.isfinite, gaps)) else math.inf


def compare_with_cpu(stage, machine):
    steps = machine.sizes.steps_against_cpu
    for family in machine.sizes.families:
        for precision, bound in BOUNDS.items():
            name = f"{family}_{precision}"
            on_cpu = train(stage, machine, f"{name}_cpu", family, precision, steps, device="cpu")
            if not on_cpu.is_whole:
                stage.add_ran(f"{name}_cpu", on_cpu.ran)
                continue
            on_gpu = train(stage, machine, name, family, precision, steps)
            pairs = list(zip(on_gpu.steps, on_cpu.steps))
            worst = largest_gap(pairs)
            is_near = len(on_gpu.steps) == len(on_cpu.steps) == steps and worst <= bound
            note = "" if is_near else f"{len(on_gpu.steps)} of {steps} steps; the loss may differ by {bound:g}"
            stage.add_ran(name, on_gpu.ran, note, is_near, largest_difference=worst)


# Who computes attention and products, by options.
LIBRARIES = {
    "attention_cudnn": ("--attention_backend", "cudnn"),
    "attention_flash": ("--attention_backend", "flash"),
    "products_tuned": ("--gemm_tuning", "tune"),
    "products_as_tuned": ("--gemm_tuning", "use"),  # reads what the one before has written
}


def compare_libraries(stage, machine):
    """Every library's calls against the reference attention and LibTorch's products."""
    steps = machine.sizes.steps_resumed
    expected = train(stage, machine, "no_library", "llama", "bf16", steps, "--attention_backend", "reference")
    for name, words in LIBRARIES.items():
        tuned = ("--gemm_tuning_file", stage.folder / "gemm_tuning.json") if "--gemm_tuning" in words else ()
        ours = train(stage, machine, name, "llama", "bf16", steps, *words, *tuned)
        pairs = list(zip(ours.steps, expected.steps))
        worst = largest_gap(pairs)
        is_near = len(pairs) == steps and worst <= BOUNDS["bf16"]
        note = "" if is_near else f"{len(pairs)} of {steps} steps; the loss may differ by {BOUNDS['bf16']:g}"
        stage.add_ran(name, ours.ran, note, is_near, largest_difference=worst)


def wait_for_nothing(stage, machine):
    """A wait of the host within a step ends these runs."""
    for family in machine.sizes.families:
        name = f"no_waits_{family}"
        run = train(stage, machine, name, family, "bf16", machine.sizes.steps_resumed, "--fail_on_host_sync")
        stage.add_ran(name, run.ran)


def replay_graphs(stage, machine):
    """Microbatches as CUDA graphs: the bits of the same run without."""
    steps = machine.sizes.steps_resumed
    for family in machine.sizes.captured:
        runs = []
        for name, words in (("plain", ()), ("graphs", ("--cuda_graphs", "microbatch", "--cuda_graph_warmup_steps", 1))):
            save = ("--save", stage.folder / f"{name}_{family}" / "checkpoint", "--deterministic_mode")
            runs.append(train(stage, machine, f"{name}_{family}", family, "bf16", steps, *save, *words))
        plain, graphs = runs
        is_same = graphs.steps == plain.steps and graphs.files == plain.files and bool(graphs.files)
        stage.add_ran(f"graphs_{family}", graphs.ran if plain.is_whole else plain.ran, passed=is_same,
                      note="" if is_same else "losses or weights differ from those without graphs")


def repeat(stage, machine):
    """Deterministic mode, twice: the same bits."""
    save = lambda name: ("--save", stage.folder / name / "checkpoint", "--deterministic_mode")  # noqa: E731
    steps = machine.sizes.steps_resumed
    once, again = (train(stage, machine, name, "mixtral", "bf16", steps, *save(name)) for name in ("once", "again"))
    is_same = once.steps == again.steps and once.files == again.files and bool(once.files)
    stage.add_ran("deterministic", again.ran if once.is_whole else once.ran, passed=is_same,
                  note="" if is_same else "losses or weights of two runs differ")


def resume(stage, machine):
    """N steps in one go, and N/2 twice: the same bits."""
    steps = machine.sizes.steps_resumed
    straight = train(stage, machine, "straight", "gpt2", "bf16", steps, "--deterministic_mode",
                     "--save", stage.folder / "straight" / "checkpoint")
    checkpoint = stage.folder / "parts" / "checkpoint"
    words = ("--deterministic_mode", "--save", checkpoint, "--load", checkpoint)
    first = train(stage, machine, "parts", "gpt2", "bf16", steps, *words, "--exit_interval", steps // 2)
    then = train(stage, machine, "parts", "gpt2", "bf16", steps, *words)
    last = f"iter_{steps:07d}"
    weights = [{path: digest for path, digest in run.files.items() if last in path} for run in (straight, then)]
    is_same = weights[0] == weights[1] and bool(weights[0]) and len(first.steps) == steps // 2
    ran = next((run.ran for run in (straight, first) if not run.is_whole), then.ran)
    stage.add_ran("resume", ran, passed=is_same, note="" if is_same else "the weights differ from those of a run in one go")
