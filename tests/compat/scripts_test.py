"""Other tools' scripts: their printed commands resolve to the figures that their guides give, and they really train."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    [part.strip() for part in line.split(" | ")]
    for line in (ROOT / "tests/compat/commands.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
SCRIPTS = {
    "llama2": ["llama/train_llama2.sh"],
    "llama3": ["llama/train_llama3.sh"],
    "deepseek_v2": ["deepseek_v2/train_deepseekv2.sh"],
    "deepseek_v3": ["deepseek_v3/train_deepseekv3.sh", "deepseek_v3/train_deepseek_v3_slurm.sh"],
    "mixtral": ["mixtral/train_mixtral_moe.sh"],
    "primus": ["run_pretrain.sh", "run_local_pretrain.sh", "run_slurm_pretrain.sh"],
}
MOST_SCRIPT_LINES = 30
# The readers of Megatron-LM's logs, as CVS has them; they look at the end of the log.
SUMMARY = (
    r"throughput per GPU(?:\s*\([^)]*\))?\s*:\s+([0-9\.]+)",
    r"tokens\/GPU\/s:\s+([0-9]+)",
    r"mem usages:\s+([0-9\.]+)",
    r"elapsed time per iteration:\s+([0-9\.]+)",
)
LAST_LINES = 15


def without_network():
    """Words before a command that leave it no network, where namespaces may be made."""
    words = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        return words if subprocess.run([*words, "true"], capture_output=True).returncode == 0 else []
    except FileNotFoundError:
        return []


NO_NETWORK = without_network()


def shell(command, program, folder=ROOT, expected=0, before=(), **variables):
    """(standard output, standard error) of a printed command, in an environment that has nothing but what it needs."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "MEGALITH": str(program.path), "OMP_NUM_THREADS": "2"}
    environment.update({"OMP_WAIT_POLICY": "passive", **variables})
    done = subprocess.run(
        [*before, "bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == expected, f"{command}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout, done.stderr


def figures(resolved):
    recompute = [resolved["recompute"][key] for key in ("granularity", "method", "num_layers")]
    return " ".join(
        str(part)
        for part in (
            resolved["world_size"],
            resolved["num_layers"],
            "/".join(str(resolved[key]) for key in ("micro_batch_size", "global_batch_size", "seq_length")),
            resolved["pipeline_model_parallel_size"],
            resolved["expert_model_parallel_size"],
            resolved["data_parallel_size"],
            resolved["num_microbatches"],
            resolved["sharding"],
            "/".join(str(part) for part in recompute) if recompute[0] else "-",
            resolved["precision"].split()[0],
        )
    )


@pytest.mark.parametrize("source, expected, command", [(row[0], row[2], row[3]) for row in COMMANDS if row[1] == "dry run"])
def test_a_printed_command_resolves_to_its_figures(source, expected, command, program):
    experiment = re.search(r"EXP=(\S+)", command)
    if experiment and not (ROOT / experiment[1]).exists():
        pytest.skip(f"{experiment[1]} is not in the tree")
    printed, _ = shell(f"export DRY_RUN=json; {command}", program, before=NO_NETWORK)
    resolved = json.loads(printed)
    assert figures(resolved) == expected
    assert resolved["tokens_per_iteration"] == resolved["global_batch_size"] * resolved["seq_length"]
    memory = resolved["memory_bytes"]
    assert memory["total"] == sum(value for key, value in memory.items() if key != "total") > 0
    assert "train" in resolved["command"] and resolved["command"][0].endswith("torchrun")


def test_parameters_are_those_of_the_published_model(program):
    for script, size, count in (("llama3", "8B", 8030261248), ("llama3", "70B", 70553706496), ("llama2", "7B", 6738415616)):
        printed, _ = shell(f"DRY_RUN=json TP=1 BS=16 MODEL_SIZE={size} bash examples/llama/train_{script}.sh", program)
        assert json.loads(printed)["parameters"] == count, (script, size)
    # 32 layers, each with experts: T is upstream's script, without a prediction module.
    printed, _ = shell("DRY_RUN=json bash examples/deepseek_v3/train_deepseek_v3_slurm.sh", program)
    assert json.loads(printed)["parameters"] == 370086525952


def test_a_dry_run_says_what_every_variable_became(program, tmp_path):
    printed, said = shell(
        f"DRY_RUN=1 FSDP=1 MBS=2 BS=16 MCORE=1 MODEL_SIZE=8 bash {ROOT}/examples/llama/train_llama3.sh",
        program,
        folder=tmp_path,
        HF_TOKEN="hf_secret",
    )
    assert "MBS=2: --micro_batch_size 2" in said and "MODEL_SIZE=8: --config llama3.1_8B" in said
    assert "MCORE=1: no effect here" in said and "sequence_parallel is off" in said
    assert "would start: " in printed and "torchrun" in printed and "export NCCL_PROTO=Simple" in printed
    assert "dry run: nothing was allocated" in printed
    assert "hf_secret" not in printed + said
    assert list(tmp_path.iterdir()) == []  # nothing is written


BAD_INPUT = [
    ("heads do not divide", "TP=3 MODEL_SIZE=8 bash examples/llama/train_llama3.sh", ["TP=3"]),
    ("batch does not divide", "TP=1 MBS=3 BS=16 MODEL_SIZE=8 bash examples/llama/train_llama3.sh", ["BS=16", "MBS=3"]),
    ("no such precision", "PR=int8 bash examples/llama/train_llama3.sh", ["PR=int8", "bf16, fp16, fp8"]),
    ("no such size", "MODEL_SIZE=9 bash examples/llama/train_llama3.sh", ["MODEL_SIZE=9", "70B, 8B"]),
    ("no such recomputation", "bash examples/mixtral/train_mixtral_moe.sh AC=some", ["AC=some", "none, sel, full"]),
    ("two spellings", "TP=2 TP_SIZE=4 bash examples/llama/train_llama3.sh", ["TP=2", "TP_SIZE=4", "disagree"]),
    ("FSDP with a pipeline", "FSDP=1 PP=2 bash examples/llama/train_llama3.sh", ["FSDP=1", "PP=2"]),
    ("FSDP with experts", "FSDP=1 EP=8 bash examples/deepseek_v2/train_deepseekv2.sh", ["FSDP=1", "EP=8"]),
    ("FSDP in fp16", "FSDP=1 PR=fp16 bash examples/llama/train_llama3.sh", ["FSDP=1", "PR=fp16"]),
    ("unknown word", "bash examples/llama/train_llama3.sh TOTAL_ITER=3", ["TOTAL_ITER", "Did you mean TOTAL_ITERS?"]),
    ("another script's word", "EXP=x bash examples/run_pretrain.sh MBS=2", ["MBS", "--micro_batch_size"]),
    ("unknown option", "bash examples/llama/train_llama3.sh --train_iter 3", ["--train_iter", "train_iters"]),
    ("no data", "MOCK_DATA=0 bash examples/llama/train_llama3.sh", ["MOCK_DATA=0", "DATA_PATH"]),
    ("data that is not there", "MOCK_DATA=0 DATA_PATH=a/b bash examples/llama/train_llama3.sh", ["DATA_PATH=a/b", "a/b.idx"]),
    ("machines without an address", "NNODES=2 bash examples/llama/train_llama3.sh", ["NNODES=2", "MASTER_ADDR"]),
    ("a machine beyond the last", "NODE_RANK=1 bash examples/llama/train_llama3.sh", ["NODE_RANK=1", "NNODES=1"]),
    ("more ranks than devices", "GPUS_PER_NODE=4096 bash examples/llama/train_llama3.sh", ["GPUS_PER_NODE=4096"]),
    ("no experiment", "bash examples/run_pretrain.sh", ["EXP is not set", "EXP="]),
    ("an experiment that is not there", "EXP=configs/models/demos.yaml bash examples/run_pretrain.sh", ["demos.yaml", "demo.yaml"]),
    ("tuning in stages", "PRIMUS_HIPBLASLT_TUNING_STAGE=1 EXP=x bash examples/run_pretrain.sh", ["--gemm_tuning"]),
    ("a container of no image", "CONTAINER=1 bash examples/llama/train_llama3.sh", ["CONTAINER=1", "DOCKER_IMAGE"]),
    ("no front end", '"$MEGALITH" launch lama3', ["lama3", "Did you mean 'llama3'"]),
    ("no name", '"$MEGALITH" launch', ["llama2, llama3"]),
]


@pytest.mark.parametrize("command, parts", [row[1:] for row in BAD_INPUT], ids=[row[0] for row in BAD_INPUT])
def test_bad_input_is_refused_in_the_users_words(command, parts, program):
    printed, said = shell(command, program, expected=2)
    for part in parts:
        assert part in said, f"{said}\nlacks {part!r}"
    assert printed == "" and "error" in said


def test_a_line_of_the_env_file_must_be_an_assignment(program, tmp_path):
    (tmp_path / ".env").write_text("MBS=2\nhf_pasted_token\n")
    _, said = shell(f"DRY_RUN=1 bash {ROOT}/examples/llama/train_llama3.sh", program, folder=tmp_path, expected=2)
    assert ".env:2" in said and "hf_pasted_token" not in said


def iterations_in(log):
    return [int(number) for number in re.findall(r"^ iteration\s+(\d+)/", log, re.MULTILINE)]


TINY = "TINY=1 GPUS_PER_NODE=1 TOTAL_ITERS=5 LOG_DIR=logs"


def test_the_log_goes_to_console_and_file(program, tmp_path):
    printed, _ = shell(f"{TINY} TEE_OUTPUT=1 MODEL_SIZE=8 bash {ROOT}/examples/llama/train_llama3.sh", program, folder=tmp_path)
    log = (tmp_path / "logs/output_perf.log").read_text()
    for text in (printed, log):
        assert iterations_in(text) == [1, 2, 3, 4, 5]
        end = "\n".join(text.splitlines()[-LAST_LINES:])
        for pattern in SUMMARY:
            assert re.search(pattern, end), f"{pattern} not in\n{end}"


def test_the_log_goes_only_to_the_file(program, tmp_path):
    printed, said = shell(f"{TINY} TEE_OUTPUT=0 bash {ROOT}/examples/llama/train_llama2.sh", program, folder=tmp_path)
    assert printed == "" and "logs/output_perf.log" in said
    assert iterations_in((tmp_path / "logs/output_perf.log").read_text()) == [1, 2, 3, 4, 5]


def test_a_redirected_log_has_every_line_once(program, tmp_path):
    """CVS replaces the script's TRAIN_LOG= line, and redirects the script's output to the same file."""
    script = tmp_path / "examples" / "train.sh"
    script.parent.mkdir()
    text = (ROOT / "examples/llama/train_llama3.sh").read_text()
    script.write_text(text)
    subprocess.run(["sed", "-i", f"/^TRAIN_LOG=/c\\TRAIN_LOG={tmp_path}/training.log", script], check=True)
    assert script.read_text() != text
    shell(f"{TINY} MODEL_SIZE=8 bash {script} > training.log 2>&1", program, folder=tmp_path)
    log = (tmp_path / "training.log").read_text()
    assert iterations_in(log) == [1, 2, 3, 4, 5]
    end = "\n".join(log.splitlines()[-LAST_LINES:])
    for pattern in SUMMARY:
        assert len(re.findall(f"^{pattern}", end, re.MULTILINE)) == 1, f"{pattern} in\n{end}"


@pytest.mark.parametrize("name, script", [(name, script) for name in SCRIPTS if name != "primus" for script in SCRIPTS[name]])
def test_every_script_trains_a_toy(name, script, program, tmp_path):
    if script.endswith("slurm.sh"):
        pytest.skip("needs Slurm: its own test")
    printed, said = shell(f"{TINY} bash {ROOT}/examples/{script}", program, folder=tmp_path)
    assert iterations_in(printed) == [1, 2, 3, 4, 5] and "TINY=1" in said


def test_two_ranks_train_and_the_exit_code_is_the_trainings(program, tmp_path):
    words = f"{TINY.replace('GPUS_PER_NODE=1', 'GPUS_PER_NODE=2')} MODEL_SIZE=8 bash {ROOT}/examples/llama/train_llama3.sh"
    printed, said = shell(f"{words} TP=2", program, folder=tmp_path)
    assert iterations_in(printed) == [1, 2, 3, 4, 5] and "torchrun" in said


def test_primus_prints_its_banners_and_exit_line(program, tmp_path):
    experiment = tmp_path / "mine-pretrain.yaml"
    experiment.write_text(
        "exp_name: mine\nmodules:\n  pre_trainer:\n    framework: megatron\n    model: demo.yaml\n    overrides:\n"
        "      mock_data: true\n      vocab_size: 257\n      train_iters: 50\n      seq_length: 32\n      micro_batch_size: 1\n"
    )
    words = f"TINY=1 GPUS_PER_NODE=1 EXP=mine-pretrain.yaml bash {ROOT}/examples/run_pretrain.sh --train_iters 4"
    printed, _ = shell(words, program, folder=tmp_path)
    assert "========== Training cluster info ==========" in printed
    assert "Launching distributed training with command: " in printed
    assert printed.splitlines()[-1] == "torchrun exited with code 0"
    assert iterations_in(printed) == [1, 2, 3, 4]
    assert iterations_in((tmp_path / "output/log_torchrun_pretrain_mine-pretrain.txt").read_text()) == [1, 2, 3, 4]


def bare(text):
    """A script without its name, its comment and its settings."""
    text = re.sub(r"^# ---- your settings.*?^# ---- end of your settings ----\n", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [re.sub(r"launch \w+ ", "launch NAME ", line) for line in lines]


def test_scripts_are_one_shell(program):
    bodies = []
    for name, scripts in SCRIPTS.items():
        for script in scripts:
            text = (ROOT / "examples" / script).read_text()
            assert len(text.splitlines()) <= MOST_SCRIPT_LINES, script
            assert f" launch {name} " in text, script
            assert len(re.findall(r"^TRAIN_LOG=", text, re.MULTILINE)) == 1, script
            bodies.append(bare(text))
    assert all(body == bodies[0] for body in bodies[1:])


def test_scripts_pass_the_linter():
    linter = shutil.which("shellcheck")
    if not linter:
        pytest.skip("shellcheck is not installed")
    scripts = [f"examples/{script}" for name in SCRIPTS for script in SCRIPTS[name]] + ["examples/llama/prepare_dataset.sh"]
    done = subprocess.run([linter, *scripts], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_page_is_what_the_program_prints(program):
    printed = program.run("launch", "--markdown")[1]
    assert (ROOT / "docs/scripts.md").read_text() == printed, "build/megalith launch --markdown > docs/scripts.md"


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_lists_the_variables(name, program):
    text = program.run("launch", name, "--help")[1]
    assert text.startswith(f"usage: megalith launch {name} ") and "DRY_RUN" in text
    assert max(len(line) for line in text.splitlines()) <= 110
