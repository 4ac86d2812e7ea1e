"""Other tools' scripts: what they say of their variables and refuse, and that they are one shell around one command."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shells import shell

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "llama2": ["llama/train_llama2.sh"],
    "llama3": ["llama/train_llama3.sh"],
    "deepseek_v2": ["deepseek_v2/train_deepseekv2.sh"],
    "deepseek_v3": ["deepseek_v3/train_deepseekv3.sh", "deepseek_v3/train_deepseek_v3_slurm.sh"],
    "mixtral": ["mixtral/train_mixtral_moe.sh"],
    "primus": ["run_pretrain.sh", "run_local_pretrain.sh", "run_slurm_pretrain.sh"],
    **{
        name: [f"{name}.sh"]
        for name in (
            *("pretrain_bert", "pretrain_bert_distributed", "pretrain_bert_distributed_with_mp", "pretrain_gpt"),
            *("pretrain_gpt_distributed", "pretrain_gpt_distributed_with_mp", "pretrain_gpt3_175B", "pretrain_t5"),
            *("pretrain_t5_distributed", "pretrain_t5_distributed_with_mp", "pretrain_ict"),
        )
    },
}
MOST_SCRIPT_LINES = 30


def test_parameters_are_those_of_the_published_model(program):
    for script, size, count in (("llama3", "8B", 8030261248), ("llama3", "70B", 70553706496), ("llama2", "7B", 6738415616)):
        printed, _ = shell(f"DRY_RUN=json TP=1 BS=16 MODEL_SIZE={size} bash examples/llama/train_{script}.sh", program, ROOT)
        assert json.loads(printed)["parameters"] == count, (script, size)
    # 32 layers, each with experts: T is upstream's script, without a prediction module.
    printed, _ = shell("DRY_RUN=json bash examples/deepseek_v3/train_deepseek_v3_slurm.sh", program, ROOT)
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


def test_a_dry_run_of_every_script_makes_nothing(program, tmp_path):
    """One shell for all, in an empty folder that must stay empty."""
    scripts = [f"examples/{script}" for name in SCRIPTS for script in SCRIPTS[name]]
    scripts += [f"scripts/pytorch-train/pytorch_benchmark_{name}.sh" for name in ("report", "setup")]
    scripts += ["examples/llama/prepare_dataset.sh"]
    # Whatever takes DRY_RUN is here, but for the container's start, which has a test of its own.
    texts = {path: path.read_text(errors="replace") for folder in ("examples", "scripts") for path in (ROOT / folder).rglob("*.sh")}
    assert {str(path.relative_to(ROOT)) for path, text in texts.items() if "DRY_RUN" in text} == set(scripts)
    experiment = f"{ROOT}/examples/megatron/configs/MI300X/llama3.1_8B-BF16-pretrain.yaml"
    lines = [f"echo == {script}; bash {ROOT}/{script}{' -m Llama-3.1-8B' if 'benchmark' in script else ''}" for script in scripts]
    words = f"export DRY_RUN=1 TINY=1 EXP={experiment} DATASET=bookcorpus TOKENIZER_MODEL=some/tokenizer"
    printed, _ = shell("\n".join(["set -e", words, *lines]), program, folder=tmp_path)
    for script in scripts:
        _, _, said = printed.partition(f"== {script}\n")
        assert "would start: " in said or "would run " in said or "huggingface.co/" in said, script
    of_script = dict(zip(scripts, re.split(r"^== .*\n", printed, flags=re.MULTILINE)[1:], strict=True))
    assert re.search(r"would start in a container: \S+ run .* megalith:rocm megalith launch primus\n", of_script["examples/run_local_pretrain.sh"])
    assert re.search(r"would start on Slurm's machines: srun --nodes=1 .* launch primus SLURM=1\n", of_script["examples/run_slurm_pretrain.sh"])
    # Words that other scripts take for the same make nothing either, and both outputs are named.
    for word in ("1", "true", "json"):
        said, _ = shell(f"DRY_RUN={word} DATASET=wiki TOKENIZER_MODEL=a bash {ROOT}/examples/llama/prepare_dataset.sh", program, tmp_path)
        assert "data/wiki_text_document.{bin,idx}" in said and "data/wiki_text_sentence.{bin,idx}" in said
        assert said.endswith("DATA_PATH=data/wiki_text_document\n")
    assert list(tmp_path.iterdir()) == []


BAD_INPUT = [
    ("heads do not divide", "TP=3 MODEL_SIZE=8 bash examples/llama/train_llama3.sh", ["TP=3"]),
    ("batch does not divide", "TP=1 MBS=3 BS=16 MODEL_SIZE=8 bash examples/llama/train_llama3.sh", ["BS=16", "MBS=3"]),
    ("no such precision", "PR=int8 bash examples/llama/train_llama3.sh", ["PR=int8", "bf16, fp16, fp8"]),
    ("no such size", "MODEL_SIZE=9 bash examples/llama/train_llama3.sh", ["MODEL_SIZE=9", "70B, 8B"]),
    ("no such recomputation", "bash examples/mixtral/train_mixtral_moe.sh AC=some", ["AC=some", "none, sel, full"]),
    ("two spellings", "TP=2 TP_SIZE=4 bash examples/llama/train_llama3.sh", ["TP=2", "TP_SIZE=4", "disagree"]),
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
    (
        *("an interface that is not there", "TINY=1 NNODES=2 MASTER_ADDR=192.0.2.1 GLOO_SOCKET_IFNAME=ens77 bash examples/llama/train_llama3.sh"),
        ["GLOO_SOCKET_IFNAME", "'ens77' is not an interface of this machine", "lo"],
    ),
    ("no engine for containers", 'PATH=/nowhere "$MEGALITH" launch llama3 CONTAINER=1 DOCKER_IMAGE=a', ["neither docker nor podman"]),
    ("a container of no image", "CONTAINER=1 bash examples/llama/train_llama3.sh", ["CONTAINER=1", "DOCKER_IMAGE"]),
    ("no front end", '"$MEGALITH" launch lama3', ["lama3", "Did you mean 'llama3'"]),
    ("no name", '"$MEGALITH" launch', ["llama2, llama3"]),
]


@pytest.mark.parametrize("command, parts", [row[1:] for row in BAD_INPUT], ids=[row[0] for row in BAD_INPUT])
def test_bad_input_is_refused_in_the_users_words(command, parts, program):
    printed, said = shell(command, program, ROOT, expected=2)
    for part in parts:
        assert part in said, f"{said}\nlacks {part!r}"
    assert printed == "" and "error" in said


def test_a_line_of_the_env_file_must_be_an_assignment(program, tmp_path):
    (tmp_path / ".env").write_text("MBS=2\nhf_pasted_token\n")
    _, said = shell(f"DRY_RUN=1 bash {ROOT}/examples/llama/train_llama3.sh", program, folder=tmp_path, expected=2)
    assert ".env:2" in said and "hf_pasted_token" not in said


def test_a_hub_name_without_a_token_and_off_line_says_both(program, tmp_path):
    """Real data needs the tokenizer, which is not downloaded."""
    (tmp_path / "data.idx").write_text("")
    words = "TINY=1 GPUS_PER_NODE=1 MOCK_DATA=0 DATA_PATH=data TOKENIZER_MODEL=meta-llama/Llama-3.3-70B-Instruct"
    _, said = shell(
        f"{words} bash {ROOT}/examples/llama/train_llama3.sh", program, folder=tmp_path, expected=2, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)
    )
    assert "meta-llama/Llama-3.3-70B-Instruct" in said and "megalith fetch" in said, said


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
    linter = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not linter:
        pytest.skip("shellcheck is not installed; 'make test' asks for it")
    scripts = [f"examples/{script}" for name in SCRIPTS for script in SCRIPTS[name]] + ["examples/llama/prepare_dataset.sh"]
    done = subprocess.run([linter, *scripts], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_page_is_what_the_program_prints(program):
    printed = program.run("launch", "--markdown")[1]
    assert (ROOT / "docs/scripts.md").read_text() == printed, "build/megalith launch --markdown > docs/scripts.md"


def test_the_migration_guide_is_what_the_program_prints(program):
    printed = program.run("launch", "--migration")[1]
    assert (ROOT / "docs/migration.md").read_text() == printed, "build/megalith launch --migration > docs/migration.md"


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_lists_the_variables(name, program):
    text = program.run("launch", name, "--help")[1]
    assert text.startswith(f"usage: megalith launch {name} ") and "DRY_RUN" in text
    assert max(len(line) for line in text.splitlines()) <= 110
