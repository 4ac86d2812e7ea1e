"""AMD's PyTorch benchmark scripts: setup and report as its pages print them, every entry of models.json, job files of torchtitan."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest

from chats import save_tokenizer
from hub_server import TOKEN, Hub

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "scripts/pytorch-train/pytorch_benchmark_report.sh"
SETUP = ROOT / "scripts/pytorch-train/pytorch_benchmark_setup.sh"
ENTRIES = json.loads((ROOT / "models.json").read_text())
# By which AMD's scripts read a log of torchtitan, one of Primus, and a result on the console.
TPS, TFLOPS = r"tps:\s*([\d,]+)", r"tflops:\s*([\d,.]+)"
PERFORMANCE = r"^performance: ([0-9.e+-]+) (\w+)$"


@pytest.fixture
def bash(program, tmp_path):
    """A printed command in a folder below `tmp_path`, in an environment that has nothing but what it needs."""
    folder = tmp_path / "pytorch-train"
    folder.mkdir()

    def run(command, expected=0, **variables):
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MEGALITH": str(program.path), "OMP_NUM_THREADS": "2"}
        environment.update({"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", **variables})
        done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == expected, f"{command}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout, done.stderr

    run.folder = folder
    return run


# The commands of the page, with the figures that they must have: layers, samples of a GPU, tokens, precision.
PAGE = [
    ("-t pretrain -p BF16 -m Llama-3.1-70B -s 8192", (80, 4, 8192, "bf16")),
    ("-t pretrain -p FP8 -m Llama-3.1-70B -s 8192", (80, 4, 8192, "fp8 hybrid")),
    ("-t pretrain -p BF16 -m Flux", (57, 10, 1536, "bf16")),
    ("-t finetune_fw -p BF16 -m Llama-3.1-70B", (80, 4, 8192, "bf16")),
    ("-t finetune_lora -p BF16 -m Llama-3.1-70B", (80, 4, 8192, "bf16")),
    ("-t finetune_fw -p BF16 -m Llama-2-70B", (80, 8, 4096, "bf16")),
    ("-t finetune_lora -p BF16 -m Llama-3.1-8B", (32, 16, 8192, "bf16")),
    ("-t finetune_qlora -p BF16 -m Llama-3.1-70B", (80, 4, 8192, "bf16")),
    ("-t HF_finetune_lora -p BF16 -m Llama-2-13B", (40, 32, 4096, "bf16")),
    ("-t pretrain -p FP8 -m Llama-3.1-8B", (32, 18, 8192, "fp8 hybrid")),
]


@pytest.mark.parametrize("flags, expected", PAGE, ids=[flags for flags, _ in PAGE])
def test_the_pages_commands_resolve(flags, expected, bash):
    printed, said = bash(f"{REPORT} {flags}", DRY_RUN="json")
    resolved = json.loads(printed)
    assert tuple(resolved[key] for key in ("num_layers", "micro_batch_size", "seq_length", "precision")) == expected
    sharding = "distributed_optimizer" if "qlora" in flags else "fsdp2"  # every rank has the weights in four bits
    assert (resolved["world_size"], resolved["sharding"], resolved["recompute"]["granularity"]) == (8, sharding, "full")
    memory = resolved["memory_bytes"]
    assert memory["total"] == sum(value for key, value in memory.items() if key != "total" and value is not None) > 0
    assert f"model_repo: {flags.split('-m ')[1].split()[0]}" in said
    assert ("Only Llama 3.1 8B supports FP8 precision." in said) == ("FP8" in flags and "70B" in flags)
    assert list(bash.folder.iterdir()) == []


def test_links_at_the_top_are_the_same_scripts():
    for script in (REPORT, SETUP):
        link = ROOT / script.name
        assert link.is_symlink() and link.resolve() == script


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])
def test_every_entry_of_models_json_runs_its_tag(entry, bash):
    assert set(entry) >= {"name", "url", "dockerfile", "scripts", "data", "n_gpus", "owner", "training_precision", "tags", "args"}
    assert entry["args"] == f"--model_repo {entry['name']}" and (ROOT / entry["dockerfile"]).exists()
    # TINY=1: the figures of the whole model are those of the scripts' own tests, and this is a start of the program each.
    printed, said = bash(f"{ROOT / entry['scripts']} {entry['args']}", DRY_RUN="json", TINY="1")
    resolved = json.loads(printed)
    assert resolved["world_size"] == 8 and resolved["precision"] == entry["training_precision"]
    assert resolved["train_iters"] == (100 if entry["name"] == "pyt_train_flux" else 50)
    assert f"results: {entry['multiple_results']}\n" in said


def test_models_json_has_the_tags_of_the_guide():
    guide = "llama-3.3-70b llama-3.1-8b llama-3.1-70b llama-2-7b llama-2-70b deepseek-v3-proxy deepseek-v2-lite-16b mixtral-8x7b"
    names = {entry["name"] for entry in ENTRIES}
    for model in (*guide.split(), "mixtral-8x22b-proxy", "qwen2.5-7b", "qwen2.5-72b"):
        assert {f"primus_pyt_megatron_lm_train_{model}", f"pyt_megatron_lm_train_{model}"} <= names
    assert {"pyt_train_llama-3.1-8b", "pyt_train_llama-3.1-70b", "pyt_train_flux"} <= names


TINY = {"TINY": "1", "GPUS_PER_NODE": "1", "MOCK_DATA": "1"}


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_toy_run_has_amds_log_and_results(bash):
    (bash.folder / "Llama-3.1-8B-pretrain.csv").write_text("tps: 1  tflops: 1.00\n" * 50)  # of an earlier run
    printed, said = bash(f"{REPORT} -t pretrain -p BF16 -m Llama-3.1-8B", **TINY)
    log = (bash.folder / "Llama-3.1-8B-pretrain.csv").read_text()
    speeds = [float(text.replace(",", "")) for text in re.findall(TPS, log)]
    assert len(speeds) == len(re.findall(TFLOPS, log)) == 50
    rows = rows_of(bash.folder.parent / "perf_Llama-3.1-8B.csv")
    assert list(rows[0])[:4] == ["model", "performance", "metric", "mode"]
    assert [(row["model"], row["metric"], row["mode"]) for row in rows] == [
        ("Llama-3.1-8B", "tok_per_s_per_gpu", "pretrain"),
        ("Llama-3.1-8B", "TFLOPS_per_gpu", "pretrain"),
    ]
    # One decimal is kept.
    assert float(rows[0]["performance"]) == pytest.approx(sum(speeds[30:40]) / 10, abs=0.051)
    assert len(rows[0]["build_commit"]) >= 7
    assert [name for _, name in re.findall(PERFORMANCE, printed, re.MULTILINE)] == ["tok_per_s_per_gpu", "TFLOPS_per_gpu"]
    assert "TINY=1" in said and "training log: Llama-3.1-8B-pretrain.csv" in said


ROWS = "".join(json.dumps({"input": f"Article {i} says something of its own, and then it ends."}) + "\n" for i in range(40))


@pytest.mark.parametrize("mode", ["finetune_fw", "finetune_lora", "finetune_qlora", "HF_finetune_lora"])
def test_a_toy_is_fine_tuned_and_amds_rules_read_its_figures(mode, bash):
    (bash.folder / "mine.json").write_text(ROWS.replace("input", "text") if mode.startswith("HF") else ROWS)
    # Rows of texts, also where the benchmark has conversations: a toy has no chat template.
    words = "--tokenizer_type ByteTokenizer" + (" --sft_column text" if mode.startswith("HF") else "")
    variables = {"TINY": "1", "GPUS_PER_NODE": "1", "TRAIN_FILE": "mine.json", "MAX_STEPS": "6"}
    if mode.startswith("HF"):
        words += " --sft_dataset_split null --sft_conversation_format auto"
    printed, _ = bash(f"{REPORT} -t {mode} -p BF16 -m Llama-3.1-70B {words}", **variables)
    log = (bash.folder / f"Llama-3.1-70B-{mode}.csv").read_text()
    rates = [float(text) for text in re.findall(r"tokens_per_second_per_gpu:([0-9]+\.[0-9]+)", log)]
    memory = [float(text) for text in re.findall(r"peak_memory_alloc:([0-9]+\.[0-9]+)", log)]
    assert len(rates) == len(memory) == 6

    def last(name):  # as AMD's script reads its log
        pattern = re.escape(name) + r"\s*(\d+\.\d+|\d{1,3}(?:,\d{3})*(?:\.\d+)?|\d+)"
        assert re.findall(pattern, log)[-1] == re.findall(pattern, printed)[-1]
        return float(re.findall(pattern, log)[-1])

    assert last("Max memory alloc (last half):") == pytest.approx(max(memory[3:]), abs=1e-6)
    assert last("Average tokens/s/gpu (last half):") == pytest.approx(sum(rates[3:]) / 3, rel=1e-4)
    assert last("Unmasked tokens/s/gpu:") == pytest.approx(sum(rates[1:]) / 5, rel=1e-4)
    assert last("Average tokens/s/gpu:") > 0 and last("Max memory alloc:") == pytest.approx(max(memory), abs=1e-6)
    rows = rows_of(bash.folder.parent / "perf_Llama-3.1-70B.csv")
    expected = ["max_memory_alloc", "avg_tokens_per_s_per_gpu"]
    if mode.startswith("HF"):
        expected.insert(0, "train_samples_per_s")
        assert last("'train_samples_per_second':") > 0
    assert [(row["metric"], row["mode"]) for row in rows] == [(name, mode) for name in expected]
    assert float(rows[-1]["performance"]) == pytest.approx(sum(rates[3:]) / 3, rel=0.01)


def test_conversations_of_the_hub_train_a_toy(bash):
    # The columns of HuggingFaceH4/ultrachat_200k; short, for a toy reads 7 tokens of a sequence.
    chats = [[{"role": role, "content": chr(97 + i % 20 + k)} for k, role in enumerate(("user", "assistant") * 2)] for i in range(40)]
    table = {"prompt": [chat[0]["content"] for chat in chats], "prompt_id": [f"{i:064x}" for i in range(len(chats))], "messages": chats}
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(table), out)
    save_tokenizer(bash.folder / "chatting")
    template = "{% for message in messages %}{{ message.content + ('</s>' if message.role == 'assistant' else '') }}{% endfor %}"
    (bash.folder / "chatting" / "chat_template.jinja").write_text(template)
    server = Hub()
    try:
        files = {"data/train_sft-00000-of-00001.parquet": out.getvalue(), "data/train_gen-00000-of-00001.parquet": b"no table"}
        server.add("HuggingFaceH4/ultrachat_200k", files, repo_type="dataset")
        words = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": server.endpoint, "HF_HOME": str(bash.folder / "hf"), "no_proxy": "*"}
        words.update({"TINY": "1", "MOCK_DATA": "false", "GPUS_PER_NODE": "1", "MAX_STEPS": "3"})
        _, said = bash(f"{REPORT} -t HF_finetune_lora -p BF16 -m Llama-3.1-8B --tokenizer_model chatting", **words)
    finally:
        server.close()
    assert f"{len(chats)} samples of conversations" in said
    rows = rows_of(bash.folder.parent / "perf_Llama-3.1-8B.csv")
    assert [row["metric"] for row in rows] == ["train_samples_per_s", "max_memory_alloc", "avg_tokens_per_s_per_gpu"]
    assert all(float(row["performance"]) > 0 for row in rows)


def test_made_up_tokens_serve_a_toy_without_rows(bash):
    command, results = f"{REPORT} -t finetune_lora -m Llama-2-7B", bash.folder.parent / "perf_Llama-2-7B.csv"
    results.write_text("something else\n")
    _, said = bash(command, expected=2, TINY="1", GPUS_PER_NODE="1", MAX_STEPS="3")
    assert "is another file: it does not begin with model,performance,metric" in said
    # Rows of another mode stay, those of this one are replaced.
    rows = ("1.0,tok_per_s_per_gpu,pretrain,old", "2.0,max_memory_alloc,finetune_lora,old")
    results.write_text("model,performance,metric,mode,build_commit\n" + "".join(f"Llama-2-7B,{row}\n" for row in rows))
    _, said = bash(command, TINY="1", GPUS_PER_NODE="1", MAX_STEPS="3")
    assert "tokens are made up" in said
    found = [(row["metric"], row["mode"], row["build_commit"] == "old") for row in rows_of(results)]
    ours = [(name, "finetune_lora", False) for name in ("max_memory_alloc", "avg_tokens_per_s_per_gpu")]
    assert found == [("tok_per_s_per_gpu", "pretrain", True), *ours]


@pytest.mark.parametrize("tag", ["primus_pyt_megatron_lm_train_llama-3.1-8b", "pyt_megatron_lm_train_llama-3.1-8b"])
def test_tags_of_other_backends_train_a_toy(tag, bash):
    bash(f"{REPORT} --model_repo {tag} --train_iters 12", **TINY)
    rows = rows_of(bash.folder / "perf_Llama-3.1-8B.csv")
    assert [row["metric"] for row in rows] == ["tok_per_s_per_gpu", "TFLOPS_per_gpu"]
    log = (bash.folder / "Llama-3.1-8B-pretrain.csv").read_text()
    pattern = r"tokens/s/GPU\):\s*(\d+\.?\d*)/" if tag.startswith("primus") else r"tokens/GPU/s:\s+([0-9.]+)"
    assert re.findall(pattern, log) and float(rows[0]["performance"]) > 0
    if tag.startswith("primus"):
        assert (rows[0]["precision"], rows[0]["num_gpus"]) == ("BF16", "1")


def test_flux_trains_a_toy_and_gives_its_figures(bash):
    _, said = bash(f"{REPORT} -t pretrain -p BF16 -m Flux --train_iters 12", TINY="1", GPUS_PER_NODE="1")
    rows = rows_of(bash.folder.parent / "perf_Flux.csv")
    assert [(row["model"], row["metric"], row["mode"]) for row in rows] == [
        ("Flux", "FPS_per_GPU", "pretrain"),
        ("Flux", "TFLOPS_per_GPU", "pretrain"),
    ]
    log = (bash.folder / "Flux-pretrain.csv").read_text()
    lines = re.findall(r"step_loss: ([\d.]+) .*step_time_total: ([\d.]+) .*fps_gpu: ([\d.]+) .*tflops/s: ([\d.]+)", log)
    assert len(lines) == 12 and "images per GPU (images/s/GPU)" in log
    (summary,) = rows_of(bash.folder / "runs_summary.csv")
    assert list(summary) == ["avg_fps", "avg_fps_gpu", "avg_tflops", "avg_step_time_total", "avg_loss"]
    assert float(summary["avg_loss"]) == pytest.approx(sum(float(line[0]) for line in lines[6:]) / 6, rel=1e-4)
    assert float(rows[0]["performance"]) == pytest.approx(float(summary["avg_fps_gpu"]), rel=0.01)


BAD_INPUT = [
    ("precision", f"{REPORT} -m Llama-3.1-8B -p FP16", ["-p FP16", "BF16, FP8"]),
    ("sequence", f"{REPORT} -m Llama-3.1-8B -s 1000", ["-s 1000", "at least 2048"]),
    ("no model", f"{REPORT} -t pretrain", ["-m is not set", "Llama-3.1-8B"]),
    ("unknown model", f"{REPORT} -m Llama-3.1-9B", ["-m Llama-3.1-9B", "Did you mean Llama-3.1-8B"]),
    ("unknown flag", f"{REPORT} -m Llama-3.1-8B -x 1", ["-x"]),
    ("FLUX of texts", f"{REPORT} -t pretrain -m Flux -s 4096", ["-s 4096", "FLUX has no such choice"]),
    ("fine-tuning in FP8", f"{REPORT} -t finetune_lora -m Llama-3.1-8B -p FP8", ["-p FP8", "-t finetune_lora", "write -p BF16"]),
    ("fine-tuning's variable", f"GAS=2 {REPORT} -t pretrain -m Llama-3.1-8B", ["GAS=2 is for fine-tuning"]),
    ("several at once", f"{REPORT} -m Llama-3.1-8B -p FP16 -n 3", ["-p FP16", "-n 3"]),
    ("setup of no model", f"{SETUP} -m Llama-4", ["-m Llama-4", "is no model that is set up"]),
    ("setup with a word", f"{SETUP} Flux", ["unexpected argument 'Flux'"]),
]


@pytest.mark.parametrize("command, parts", [row[1:] for row in BAD_INPUT], ids=[row[0] for row in BAD_INPUT])
def test_bad_input_is_refused_as_it_was_written(command, parts, bash):
    printed, said = bash(command, expected=2, GPUS_PER_NODE="1")
    for part in parts:
        assert part in said, f"{said}\nlacks {part!r}"
    assert printed == "" and "error" in said and list(bash.folder.iterdir()) == []


def table_of(texts):
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), out)
    return out.getvalue()


@pytest.fixture
def hub():
    server = Hub()
    server.add("meta-llama/Llama-3.1-70B-Instruct", {"model.safetensors": b"weights", "tokenizer.json": b"{}", "original/a.pth": b"no"})
    lines = ["", " = One = \n", "", " The first . \n", " = = Part = = \n", " More of it . \n", "", " = Two = \n", " The second . \n"]
    wikitext = {f"wikitext-103-raw-v1/{part}-00000.parquet": table_of(lines) for part in ("train", "test")}
    server.add("Salesforce/wikitext", {**wikitext, "wikitext-2-v1/train.parquet": b"no"}, repo_type="dataset")
    server.add("HuggingFaceH4/ultrachat_200k", {"data/train_sft-0.parquet": b"chats", "data/train_gen-0.parquet": b"no"}, repo_type="dataset")
    server.gated.add("meta-llama/Llama-3.1-70B-Instruct")
    yield server
    server.close()


def test_setup_fetches_what_the_benchmarks_need(hub, bash):
    words = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(bash.folder / "hf"), "no_proxy": "*"}
    _, said = bash(f"{SETUP} -m Llama-3.1-70B", expected=2, **words)
    assert f"{hub.endpoint}/meta-llama/Llama-3.1-70B-Instruct" in said and "HF_TOKEN" in said
    assert hub.requests() == []
    printed, said = bash(f"{SETUP} -m Llama-3.1-70B", HF_TOKEN=TOKEN, **words)
    folders = [Path(line) for line in printed.splitlines()]
    found = [sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) for folder in folders]
    tables = ["wikitext-103-raw-v1/test-00000.parquet", "wikitext-103-raw-v1/train-00000.parquet"]
    assert found == [["model.safetensors", "tokenizer.json"], tables, ["data/train_sft-0.parquet"]]
    assert TOKEN not in printed + said
    # Articles are put together from their lines.
    rows = [json.loads(line)["input"] for line in (bash.folder / "wikitext_train.json").read_text().splitlines()]
    assert [row.split("\n")[0] for row in rows] == [" = One = ", " = Two = "] and " More of it . \n" in rows[0]
    # What is in the cache serves without the hub.
    assert bash(f"{SETUP} -m pyt_train_llama-3.1-70b", **{**words, "HF_HUB_OFFLINE": "1"})[0] == printed


def test_setup_prepares_the_pictures_of_flux(hub, bash, tmp_path):
    pytest.importorskip("diffusers")
    import flux_encoders_test as encoders
    from diffusers import AutoencoderKL
    from PIL import Image

    folder = tmp_path / "flux"
    folder.mkdir()
    encoders.Flux(folder)
    levels = {"block_out_channels": (8, 8, 8, 8), "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    AutoencoderKL(**{**encoders.VAE, **levels}).save_pretrained(folder / "vae")
    (folder / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.add("black-forest-labs/FLUX.1-dev", files)
    content = io.BytesIO()
    Image.linear_gradient("L").resize((600, 520)).convert("RGB").save(content, "PNG")
    hub.add("bghira/pseudo-camera-10k", {"a red boat.png": content.getvalue(), "README.md": b""}, repo_type="dataset")
    words = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(bash.folder / "hf"), "no_proxy": "*", "HF_TOKEN": TOKEN}
    printed, _ = bash(f"{SETUP} -m Flux", **words)
    assert "1 picture of 512 × 512 pixels" in printed
    index = json.loads((bash.folder / "pseudo-camera-10k" / "index.json").read_text())
    assert index["samples"] == 1 and index["text_length"] == 512
    # Done once: a second setup leaves it.
    _, said = bash(f"{SETUP} -m Flux", **words)
    assert "pseudo-camera-10k holds prepared pictures" in said


def test_a_dry_setup_says_what_from_where_and_how_large(bash):
    printed, _ = bash(SETUP, DRY_RUN="1")
    lines = printed.splitlines()
    assert len(lines) == 7
    assert lines[1].startswith("https://huggingface.co/meta-llama/Llama-3.1-70B-Instruct: ") and "141 GB" in lines[1] and "gated" in lines[1]
    listed = json.loads(bash(f"{SETUP} -m Flux", DRY_RUN="json")[0])
    assert [item["repo"] for item in listed] == ["black-forest-labs/FLUX.1-dev", "bghira/pseudo-camera-10k"]
    assert list(bash.folder.iterdir()) == []


JOB = """
[model]
name = "llama3"
flavor = "debugmodel"
[training]
steps = 3
local_batch_size = 2
seq_len = 32
[lr_scheduler]
warmup_steps = 1
[metrics]
log_freq = 1
[parallelism]
data_parallel_shard_degree = 1
[compile]
enable = true
"""


def test_a_job_file_of_torchtitan_trains(program, tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    words = ("train", "--config", "job.toml", "--mock_data", "--device", "cpu", "--log_style", "torchtitan")
    _, printed, said = program.run(*words, cwd=tmp_path)
    assert re.findall(r"step:\s+(\d+) ", printed) == ["1", "2", "3"] and "compile.enable" in said
    (tmp_path / "job.toml").write_text(JOB.replace("steps = 3", "step = 3"))
    _, _, said = program.run(*words, cwd=tmp_path, expected=2)
    assert "job.toml:6" in said and "Did you mean 'training.steps'?" in said


def bare(script):
    """The lines of a script without its name, its comment and its settings."""
    text = re.sub(r"^# ---- your settings.*?^# ---- end of your settings ----\n", "", script.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"launch \w+ ", "launch NAME ", line) for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("script, name", [(REPORT, "benchmark"), (SETUP, "benchmark_setup")])
def test_the_scripts_are_the_one_shell_of_all_scripts(script, name, program):
    assert bare(script) == bare(ROOT / "examples/llama/train_llama3.sh")
    text = script.read_text()
    assert len(text.splitlines()) <= 30 and f" launch {name} " in text and os.access(script, os.X_OK)
    helped = program.run("launch", name, "--help")[1]
    assert helped.startswith(f"usage: megalith launch {name} ") and "-m, --model_repo" in helped and "DRY_RUN" in helped
    linter = shutil.which("shellcheck")
    if linter:
        done = subprocess.run([linter, str(script)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
