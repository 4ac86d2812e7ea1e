"""Primus's experiment files: what its guide types resolves to the figures that the guide expects, without a network."""

import re
from pathlib import Path

import pytest
from program import read_metrics

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "megatron"
CONFIGS = EXAMPLES / "configs"
NO_NETWORK = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
LLAMA_70B, LLAMA_8B = 70_553_706_496, 8_030_261_248

# What the guide types (--train_iters 50 in all), and what the run is: layers, micro-batch, global batch, sequence,
# data-parallel ranks, microbatches; FSDP2 with so many recomputed layers, or the distributed optimizer; the precision
# and the parameters. These follow the published models (docs/migrate_primus.md says where Primus's presets differ).
COMMANDS = [
    ("llama3.3_70B", "--micro_batch_size 2 --global_batch_size 16", 8, (80, 2, 16, 8192, 8, 1), 80, "bf16", LLAMA_70B),
    ("llama3.1_8B", "--fp8 hybrid", 8, (32, 2, 128, 8192, 8, 8), None, "fp8", LLAMA_8B),
    ("llama3.1_8B", "", 8, (32, 2, 128, 8192, 8, 8), None, "bf16", LLAMA_8B),
    ("llama3.1_70B", "", 8, (80, 3, 24, 8192, 8, 1), 80, "bf16", LLAMA_70B),
    (
        *("llama3.1_70B", "--num_layers 40 --fp8 hybrid --no_fp8_weight_transpose_cache true"),
        *(8, (40, 3, 24, 8192, 8, 1), 80, "fp8", 36_327_530_496),
    ),
    ("llama2_7B", "--fp8 hybrid", 8, (32, 4, 256, 4096, 8, 8), None, "fp8", 6_738_415_616),
    ("llama2_7B", "", 8, (32, 4, 256, 4096, 8, 8), None, "bf16", 6_738_415_616),
    ("llama2_70B", "", 8, (80, 7, 56, 4096, 8, 1), 80, "bf16", 68_976_648_192),
    # Three layers with experts, their 768 biases among the parameters; the prediction module is counted apart.
    ("deepseek_v3", "--num_layers 3 --moe_layer_freq 1", 8, (3, 4, 256, 4096, 8, 8), None, "bf16", 36_375_224_064),
    ("deepseek_v2_lite", "--global_batch_size 256", 8, (27, 4, 256, 4096, 8, 8), None, "bf16", 15_787_873_024),
    (
        *("deepseek_v2_lite", "--multi_latent_attention true"),
        *(8, (27, 4, 640, 4096, 8, 20), None, "bf16", 15_706_484_224),
    ),
    ("mixtral_8x7B_v0.1", "", 8, (32, 2, 32, 4096, 8, 2), None, "bf16", 46_702_792_704),
    (
        *("mixtral_8x22B_v0.1", "--num_layers 4 --pipeline_model_parallel_size 1 --micro_batch_size 1 --global_batch_size 16"),
        *(8, (4, 1, 16, 8192, 8, 2), 0, "bf16", 10_409_465_856),
    ),
    ("qwen2.5_7B", "", 8, (28, 10, 640, 2048, 8, 8), None, "bf16", 7_615_616_512),
    ("qwen2.5_7B", "--fp8 hybrid", 8, (28, 10, 640, 2048, 8, 8), None, "fp8", 7_615_616_512),
    ("qwen2.5_72B", "", 8, (80, 4, 32, 2048, 8, 1), 80, "bf16", 72_706_203_648),
    # Eight nodes.
    (
        *("llama3.3_70B", "--fp8 hybrid --no_fp8_weight_transpose_cache true --micro_batch_size 4 --global_batch_size 256"),
        *(64, (80, 4, 256, 8192, 64, 1), 80, "fp8", LLAMA_70B),
    ),
    (
        *("llama3.1_70B", "--micro_batch_size 1 --global_batch_size 256 --recompute_num_layers 12"),
        *(64, (80, 1, 256, 8192, 64, 4), 12, "bf16", LLAMA_70B),
    ),
    ("llama3.1_8B", "--global_batch_size 1024 --fp8 hybrid", 64, (32, 2, 1024, 8192, 64, 8), None, "fp8", LLAMA_8B),
    ("llama2_7B", "--global_batch_size 2048 --fp8 hybrid", 64, (32, 4, 2048, 4096, 64, 8), None, "fp8", 6_738_415_616),
    (
        *("llama2_70B", "--micro_batch_size 2 --global_batch_size 1536 --recompute_num_layers 12"),
        *(64, (80, 2, 1536, 4096, 64, 12), 12, "bf16", 68_976_648_192),
    ),
    ("mixtral_8x7B_v0.1", "--global_batch_size 256", 64, (32, 2, 256, 4096, 64, 2), None, "bf16", 46_702_792_704),
    (
        *("qwen2.5_72B", "--fp8 hybrid --micro_batch_size 8 --global_batch_size 512 --recompute_num_layers 80"),
        *(64, (80, 8, 512, 2048, 64, 1), 80, "fp8", 72_706_203_648),
    ),
]


def dry_run(program, file, words, world, folder):
    said = ("--dry_run_world_size", world) if world else ()
    words = ("train", "--config", file, *words, "--dry_run", *said)
    _, output, errors = program.run(*words, cwd=folder, environment={**NO_NETWORK, "HF_HOME": str(folder)})
    assert not list(folder.iterdir()), "a dry run leaves nothing behind"
    return output, errors


def number(text):
    return int(text.replace(",", ""))


def batch_of(output):
    """Global batch, sequence, microbatches, micro-batch and data-parallel ranks."""
    words = r"^batch +(\d+) samples? of (\d+) tokens = (\d+) microbatch(?:es)? of (\d+)(?: on (\d+) data-parallel ranks)?"
    return [int(part or 1) for part in re.search(words, output, re.MULTILINE).groups()]


def options_of(output):
    return dict(re.findall(r"^(\w+): (.*?) +# ", output, re.MULTILINE))


@pytest.mark.parametrize("model, words, world, sizes, recomputed, precision, parameters", COMMANDS)
def test_the_guides_commands_resolve_to_its_figures(
    model, words, world, sizes, recomputed, precision, parameters, program, tmp_path
):
    words = ("--train_iters", 50, *words.split())
    output, errors = dry_run(program, CONFIGS / f"{model}-pretrain.yaml", words, world, tmp_path)
    layers, micro_batch, global_batch, sequence, ranks, microbatches = sizes
    options = options_of(output)
    assert batch_of(output) == [global_batch, sequence, microbatches, micro_batch, ranks]
    assert number(re.search(r"([\d,]+) parameters", output)[1]) == parameters
    assert f"{layers} layers" in output or f"{layers - 1} layers" in output or str(layers) == options["num_layers"]
    is_fsdp = recomputed is not None and recomputed > 0
    assert ("use_torch_fsdp2" in options) == is_fsdp
    assert ("use_distributed_optimizer" in options) != is_fsdp
    assert options.get("recompute_num_layers") == (None if recomputed is None else str(recomputed))
    assert options.get("fp8") == ("hybrid" if precision == "fp8" else None) or options.get("fp8_format") == "hybrid"
    has_experts = "moe_router_force_load_balancing" in options
    assert options.get("expert_model_parallel_size") == ("8" if has_experts else None)
    assert options["bf16"] == "true" and options["norm_epsilon"] in ("1e-06", "1.0e-6", "0.000001", "1e-6")
    assert "warning" not in errors


FILES = sorted(path.relative_to(CONFIGS) for path in CONFIGS.glob("**/*.yaml"))
WORLDS = {"llama3.1_405B": 64, "mixtral_8x22B_v0.1": 32, "deepseek_v2": 32}  # the others take a node


def test_the_files_are_those_of_primus():
    here = [str(path) for path in FILES]
    assert sum("/" not in name for name in here) == 15
    kinds = [name.split("/")[0] for name in here if "/" in name]
    assert {kind: kinds.count(kind) for kind in kinds} == {"MI300X": 22, "MI325X": 22, "MI355X": 22}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_file_resolves(file, program, tmp_path):
    model = re.sub(r"(-BF16|-FP8)?-pretrain$", "", file.stem)
    world = 128 if file.parts[0] == "MI355X" and model == "deepseek_v3" else WORLDS.get(model, 8)
    output, errors = dry_run(program, CONFIGS / file, ("--suggest_layout", "false"), None if len(file.parts) > 1 else world, tmp_path)
    options = options_of(output)
    assert re.search(rf"^layout +{world} ranks", output, re.MULTILINE), output
    if len(file.parts) > 1:
        assert options["dry_run_device"] == file.parts[0] and re.search(rf"^(fits|does not fit) {file.parts[0]}", output, re.MULTILINE)
    text = (CONFIGS / file).read_text()
    for name in ("micro_batch_size", "global_batch_size"):
        assert options.get(name, "1") == re.search(rf"{name}: (\d+)", text)[1]
    fp8 = re.search(r"fp8: (\w+)", text)
    assert options.get("fp8", options.get("fp8_format")) == (fp8 and fp8[1])
    assert ("-FP8-" in file.name) == bool(fp8)
    assert "unknown" not in errors


def test_a_first_run_takes_model_lengths_and_layout_from_the_environment(program, tmp_path):
    environment = {"PRIMUS_MODEL": "qwen2.5_7B", "PRIMUS_SEQ_LENGTH": "512", "PRIMUS_TP": "2", "PRIMUS_EXP_NAME": "mine"}
    words = ("train", "--config", EXAMPLES / "exp_pretrain.yaml", "--mock_data", "--dry_run", "--dry_run_world_size", 8)
    output = program.run(*words, cwd=tmp_path, environment={**NO_NETWORK, **environment})[1]
    assert batch_of(output) == [16, 512, 4, 1, 4]
    assert options_of(output)["output_dir"] == "./output/amd/root/mine"


SMALL = """
work_group: team
user_name: ${PRIMUS_USER:me}
exp_name: small
workspace: ./output
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: tiny.yaml
    overrides: {train_iters: 3, seq_length: 16, micro_batch_size: 1, global_batch_size: 2, mock_data: true, lr_warmup_iters: 1}
"""
TINY = "{num_layers: 2, hidden_size: 32, num_attention_heads: 4, vocab_size: 131, max_position_embeddings: 32}"


def test_the_header_names_the_folder_of_the_run(program, tmp_path):
    (tmp_path / "exp.yaml").write_text(SMALL)
    (tmp_path / "tiny.yaml").write_text(TINY)
    words = ("train", "--config", "exp.yaml", "--device", "cpu")
    program.run(*words, cwd=tmp_path)
    run = tmp_path / "output" / "team" / "me" / "small"
    assert [step["iteration"] for step in read_metrics(run / "metrics.jsonl")] == [1, 2, 3]
    assert (run / "log.txt").exists() and (run / "run.json").exists()
    assert not (run / "checkpoints").exists(), "pre_trainer.yaml saves nothing"
    # Started again it is the same run's folder; another name is another folder; one that is given wins.
    program.run(*words, cwd=tmp_path)
    program.run(*words, cwd=tmp_path, environment={"PRIMUS_USER": "you"})
    program.run(*words, "--output_dir", "elsewhere", cwd=tmp_path)
    assert {path.name for path in (tmp_path / "output" / "team").iterdir()} == {"me", "you"}
    assert (tmp_path / "elsewhere" / "run.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"exp.yaml", "tiny.yaml", "output", "elsewhere"}


def test_a_header_without_a_workspace_names_no_folder(program, tmp_path):
    (tmp_path / "exp.yaml").write_text(SMALL.replace("workspace: ./output\n", ""))
    (tmp_path / "tiny.yaml").write_text(TINY)
    program.run("train", "--config", "exp.yaml", "--device", "cpu", cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"exp.yaml", "tiny.yaml"}


def test_trainer_presets_are_primuss(program, tmp_path):
    (tmp_path / "exp.yaml").write_text("modules: {pre_trainer: {config: pre_trainer.yaml, model: llama3.1_8B.yaml}}")
    output = program.run("inspect", "config", "--config", tmp_path / "exp.yaml")[1]
    values = options_of(output)
    expected = {"train_iters": "1000", "global_batch_size": "16", "micro_batch_size": "2", "seq_length": "1024", "lr": "2e-05"}
    expected |= {"lr_warmup_iters": "40", "weight_decay": "0", "adam_beta2": None, "clip_grad": None, "eval_iters": "0"}
    expected |= {"bf16": "true", "use_distributed_optimizer": "true", "finetune": "true", "distributed_timeout_minutes": "60"}
    assert {name: values.get(name) for name in expected} == expected


SFT = """
work_group: team
workspace: ./output
modules:
  post_trainer:
    framework: megatron
    config: sft_trainer.yaml
    model: tiny.yaml
    overrides:
      stage: sft
      hf_path: {model}
      tokenizer_model: {model}
      sft_dataset_name: {rows}
      sft_dataset_split: null
      sft_conversation_format: alpaca
      enable_packed_sequences: true
      use_packed_attention: false
      train_iters: 2
      global_batch_size: 2
      seq_length: 512
      max_position_embeddings: 512
      lr_warmup_iters: 0
      eval_iters: 0
      finetune: true
      load: null
      save: null
      sft_bridge_compat_inline_bos: false
      sft_sanitize_nan_grads: false
      enable_odc_lb_mini: false
      lb_mini_max_token_len: 0
      enable_fused_linear_ce: false
      auto_detect_ckpt_format: true
      override_opt_param_scheduler: true
      use_flash_attn: true
      lora:
        enabled: true
        dim: 4
        alpha: 8
        target_modules: [linear_qkv, linear_proj]
"""


def test_an_experiment_of_sft_trainer_is_fine_tuning(program, tmp_path):
    from chats import save_tokenizer, write_rows
    from transformers import LlamaConfig, LlamaForCausalLM

    model = save_tokenizer(tmp_path / "model")
    config = LlamaConfig(vocab_size=272, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=512)
    LlamaForCausalLM(config).save_pretrained(model)
    rows = write_rows(tmp_path / "rows.jsonl", [{"instruction": "Add.", "input": "1 2", "output": "3"}] * 9)
    (tmp_path / "exp.yaml").write_text(SFT.format(model=model, rows=rows))
    (tmp_path / "tiny.yaml").write_text("model_type: gpt\n")
    words = ("train", "--config", "exp.yaml", "--device", "cpu")
    _, output, errors = program.run(*words, "--dry_run", "--dry_run_world_size", 1, cwd=tmp_path)
    assert not (tmp_path / "output").exists(), "a dry run leaves nothing behind"
    values = options_of(program.run("inspect", "config", "--config", "exp.yaml", cwd=tmp_path)[1])
    expected = {"stage": "sft", "sft_packing": "first_fit_decreasing", "use_packed_attention": "false", "weight_decay": "0.1"}
    assert {name: values.get(name) for name in expected} == expected
    _, output, errors = program.run(*words, cwd=tmp_path)
    assert "9 samples of instructions" in output + errors and "step 2/2" in output


NEWER_PRESET = ROOT / "tests/config/data/primus_v26.5_trainer.yaml"
GUIDES_MODELS = """llama2_7B llama2_70B llama3.1_8B llama3.1_70B llama3.3_70B qwen2.5_7B qwen2.5_72B deepseek_v2_lite deepseek_v2
    deepseek_v3 mixtral_8x7B_v0.1 mixtral_8x22B_v0.1""".split()


@pytest.mark.parametrize("model", GUIDES_MODELS)
def test_the_newer_trainer_preset_resolves_as_it_stands(model, program, tmp_path):
    experiment = f"modules: {{pre_trainer: {{config: {NEWER_PRESET}, model: {model}.yaml, overrides: {{mock_data: true}}}}}}"
    (tmp_path / "exp.yaml").write_text(experiment)
    _, output, errors = program.run("inspect", "config", "--config", tmp_path / "exp.yaml")
    values = options_of(output)
    assert values["allow_padding_num_layers"] == "true" and values["train_iters"] == "1000"
    assert "enable_zero_bubble" not in values, "patch_zero_bubble is false"
    assert "muon_tp_mode (read only by the optimizer muon)" in errors
    # With what it asks for in earnest, the preset's way is refused.
    words = ("optimizer=muon", "use_distributed_optimizer=true", "tensor_model_parallel_size=2")
    errors = program.run("inspect", "config", "--config", tmp_path / "exp.yaml", *words, expected=2)[2]
    assert "muon_tp_mode blockwise: this build does not support" in errors


def test_layers_that_no_stages_share_evenly_are_shared_by_their_work_or_padded(program, tmp_path):
    (tmp_path / "exp.yaml").write_text(SMALL.replace("workspace: ./output\n", ""))
    (tmp_path / "tiny.yaml").write_text(TINY.replace("num_layers: 2", "num_layers: 3"))
    words = ("train", "--config", "exp.yaml", "--pipeline_model_parallel_size", 2, "--dry_run", "--dry_run_world_size", 2)
    errors = program.run(*words, cwd=tmp_path)[2]
    assert "3 layers are shared by 2 pipeline stages by their work, the embedding and the head as a layer each: 2, 1" in errors
    errors = program.run(*words, "--allow_padding_num_layers", cwd=tmp_path)[2]
    assert "by their work" not in errors


PAGE = ROOT / "docs" / "migrate_primus.md"
PAIRS = re.findall(r"^\| `(\w+: [^`]+)` \| `(--[^`]+)` \|$", PAGE.read_text(), re.MULTILINE)


def test_every_pair_of_the_page_is_one_configuration(program, tmp_path):
    assert len(PAIRS) > 25
    (tmp_path / "keys.yaml").write_text("".join(f"{key}\n" for key, _ in PAIRS))
    keys = options_of(program.run("inspect", "config", "--config", tmp_path / "keys.yaml")[1])
    options = options_of(program.run("inspect", "config", *(word for _, option in PAIRS for word in option.split()))[1])
    assert keys == options and len(keys) > 20
    # One by one, so that no pair hides another.
    for key, option in PAIRS[:: len(PAIRS) // 6]:
        (tmp_path / "key.yaml").write_text(key + "\n")
        one = options_of(program.run("inspect", "config", "--config", tmp_path / "key.yaml")[1])
        assert one == options_of(program.run("inspect", "config", *option.split())[1]), key


def test_an_options_variants_of_primus_are_those_of_the_page(program, tmp_path):
    """What the table of differences says gives Primus's models."""
    for preset, words, parameters in (
        ("qwen2.5_7B", ("add_qkv_bias=false",), 7_615_487_488),
        ("qwen2.5_72B", ("add_qkv_bias=false",), 72_705_384_448),
    ):
        output, _ = dry_run(program, CONFIGS / f"{preset}-pretrain.yaml", words, 8, tmp_path)
        assert number(re.search(r"([\d,]+) parameters", output)[1]) == parameters
        assert f"{parameters:,}" in PAGE.read_text()


# What files of v26.5.1 say that earlier ones did not, as one small model says it.
NEWER = """
modules:
  pre_trainer:
    framework: megatron
    model: tiny.yaml
    overrides:
      {mock_data: true, train_iters: 3, seq_length: 16, max_position_embeddings: 32, global_batch_size: 8, num_experts: 8,
       tokenizer_type: HuggingFaceTokenizer, tokenizer_model: Qwen/Qwen3-235B-A22B, use_sink_attention: true,
       sink_sliding_window: 0, sink_window_even_layers_only: true, router_logit_softcapping: 30.0, lr_warmup_iters: 1,
       pytorch_profiler_collect_shapes: false, check_for_nan_in_loss: true, CLEAN_DOCKER_CONTAINER: 0}
"""


def test_newer_keys_act_and_the_hub_is_not_asked_beside_mock_data(program, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/exp.yaml").write_text(NEWER)
    (tmp_path / "files/tiny.yaml").write_text("{num_layers: 2, hidden_size: 32, num_attention_heads: 4}")
    (tmp_path / "run").mkdir()
    output, errors = dry_run(program, tmp_path / "files/exp.yaml", (), 8, tmp_path / "run")
    options = options_of(output)
    assert options["softmax_type"] == "learnable" and options["router_logit_softcapping"] == "30"
    assert "vocabulary 151936" in errors and "window_size" not in options


def test_rows_of_the_hub_are_planned_off_line(program, tmp_path):
    (tmp_path / "exp.yaml").write_text(SFT.format(model="NousResearch/Meta-Llama-3-8B", rows="rajpurkar/squad").replace("alpaca", "squad"))
    (tmp_path / "tiny.yaml").write_text(TINY.replace(", vocab_size: 131", ""))
    (tmp_path / "run").mkdir()
    output, errors = dry_run(program, tmp_path / "exp.yaml", ("global_batch_size=8",), 8, tmp_path / "run")
    assert "load_hf NousResearch/Meta-Llama-3-8B is not here" in errors and "vocabulary 128256" in errors
    assert options_of(output)["sft_conversation_format"] == "squad"


TITAN = """
work_group: team
modules:
  pre_trainer:
    framework: {framework}
    config: pre_trainer.yaml
    model: {model}.yaml
    overrides:
      sink_level: null
      training: {{local_batch_size: 2, seq_len: 4096, steps: 50, debug_moe_force_load_balance: true}}
      parallelism: {{expert_parallel_degree: {experts}}}
      primus_turbo: {{enable_primus_turbo: true}}
"""
TITAN_PRESET = """
training: {mock_data: true, seed: null, global_batch_size: -1}
lr_scheduler: {decay_ratio: null, decay_type: linear, min_lr_factor: 0.0, warmup_steps: 10}
activation_checkpoint: {mode: none}
parallelism: {expert_tensor_parallel_degree: 1, pipeline_parallel_split_points: []}
experimental: {custom_import: "", custom_args_module: primus.backends.torchtitan.primus_turbo_extensions.config_extension}
"""


@pytest.mark.parametrize(
    "name, flavor, fp8, experts, parameters",
    [("llama3", "8B", True, 1, LLAMA_8B), ("qwen3", "4B", False, 1, 4_022_468_096), ("gpt_oss", "20b", True, 8, 20_914_757_184),
     ("deepseek_v3", "16B", False, 8, 15_706_484_224), ("llama4", "17bx16e", False, 8, 107_769_861_888)],
)  # fmt: skip
def test_experiments_of_torchtitan_are_read_by_its_keys(name, flavor, fp8, experts, parameters, program, tmp_path):
    tree, run = tmp_path / "tree", tmp_path / "run"
    for folder in ("models", "modules"):
        (tree / "primus/configs" / folder / "torchtitan").mkdir(parents=True)
    run.mkdir()
    (tree / "primus/configs/modules/torchtitan/pre_trainer.yaml").write_text(TITAN_PRESET)
    converters = ["primus_turbo"] + ["quantize.linear.float8"] * fp8
    (tree / "primus/configs/models/torchtitan/model.yaml").write_text(
        f"model: {{name: {name}, flavor: {flavor}, hf_assets_path: org/model, converters: {converters}}}\n"
    )
    file = tree / "exp.yaml"
    file.write_text(TITAN.format(framework="torchtitan", model="model", experts=experts))
    output, errors = dry_run(program, file, (), 8, run)
    assert batch_of(output) == [16, 4096, 1, 2, 8] and number(re.search(r"([\d,]+) parameters", output)[1]) == parameters
    options = options_of(output)
    assert options["mock_data"] == "true" and options.get("fp8_format") == ("hybrid" if fp8 else None)
    assert ("expert_model_parallel_size" in options) == (experts > 1)


def test_experiments_of_other_frameworks_are_refused_with_the_nearest(program, tmp_path):
    (tmp_path / "primus/configs/modules").mkdir(parents=True)
    for name in ("maxtext/configs/MI300X/llama2_7B-pretrain", "megatron/configs/MI300X/llama2_7B-BF16-pretrain"):
        file = tmp_path / "examples" / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(TITAN.format(framework="maxtext", model="model", experts=1))
    words = ("train", "--config", tmp_path / "examples/maxtext/configs/MI300X/llama2_7B-pretrain.yaml", "--dry_run")
    errors = program.run(*words, expected=2)[2]
    assert errors.count("error:") == 1 and "framework is 'maxtext'" in errors
    assert "the same model for the megatron framework is" in errors and "llama2_7B-BF16-pretrain.yaml" in errors
    # A model of the same family is named; another family has none.
    for name, words in (("llama2_70B", "the nearest model for the megatron framework is"), ("wan2", "write framework: megatron")):
        other = tmp_path / "examples/maxtext/configs/MI300X" / f"{name}-pretrain.yaml"
        other.write_text(TITAN.format(framework="diffusion", model="model", experts=1))
        errors = program.run("train", "--config", other, "--dry_run", expected=2)[2]
        assert "framework is 'diffusion'" in errors and words in errors


def test_a_dry_run_takes_the_fewest_ranks_that_a_file_allows_or_says_which_fit(program, tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    file = tmp_path / "exp.yaml"
    file.write_text(SMALL.replace("global_batch_size: 2", "global_batch_size: 12, pipeline_model_parallel_size: 2"))
    run = tmp_path / "run"
    run.mkdir()
    output, errors = dry_run(program, file, (), None, run)
    assert "a dry run for 2 ranks, the fewest" in errors and batch_of(output) == [12, 16, 12, 1, 1]
    words = ("train", "--config", file, "--dry_run", "--dry_run_world_size", 16)
    assert "data-parallel size 8\n" in (said := program.run(*words, expected=2)[2]) and "; it fits 12 ranks" in said
    # A trainer class is Primus's affair, and so is the folder of a GPU, whose nodes have eight.
    (tmp_path / "MI300X").mkdir()
    file = tmp_path / "MI300X" / "exp.yaml"
    text = SMALL.replace("global_batch_size: 2", "global_batch_size: 16").replace("config: pre", "trainer_class: Some\n    config: pre")
    file.write_text(text.replace("tiny.yaml", str(tmp_path / "tiny.yaml")))
    output, errors = dry_run(program, file, (), None, run)
    assert "a dry run for 8 ranks, the number nearest to a node's 8" in errors and "\nfits MI300X" in output
    assert "trainer_class has no effect here" in errors


FLUX = """
modules:
  pre_trainer:
    framework: megatron
    model: flux_535M.yaml
    overrides: {model_type: flux_schnell, timestep_sampling_strategy: direct_uniform, dataloader_type: external, out_channels: 64,
      vae_scale: 0.3611, vae_shift: 0.1159, params_dtype: bfloat16, use_fsdp2_bf16_master_weight_optimizer: true, bf16: true,
      use_torch_fsdp2: true, mock_data: true, micro_batch_size: 2, global_batch_size: 32, train_iters: 4}
"""


def test_primuss_words_for_flux_are_understood(program, tmp_path):
    file = tmp_path / "flux.yaml"
    file.write_text(FLUX)
    run = tmp_path / "run"
    run.mkdir()
    options = options_of(dry_run(program, file, (), 8, run)[0])
    expected = {"model_type": "diffusion_model", "timestep_sampling_strategy": None, "dataloader_type": "cyclic"}
    assert {name: options.get(name) for name in expected} == expected
    file.write_text(FLUX.replace("0.3611", "0.5").replace("out_channels: 64", "nemo_chimera_init: true"))
    errors = program.run("train", "--config", file, "--dry_run", expected=2)[2]
    assert "vae_scale 0.5" in errors and "ranks that begin with different weights" in errors
    # Its presets name what models of texts have, and its experiments a length; on the command line these are mistakes.
    (tmp_path / "flux_here.yaml").write_text("extends: [base.yaml]\nnum_joint_layers: 1\nnum_single_layers: 1\n")
    base = "num_layers: 2\nvocab_size: 1\ntokenizer_type: NullTokenizer\nuntie_embeddings_and_output_weights: true\n"
    (tmp_path / "base.yaml").write_text(base + "hidden_size: 64\nnum_attention_heads: 4\naxes_dim: [4, 4, 8]\n")
    file.write_text(FLUX.replace("flux_535M.yaml", "flux_here.yaml").replace("out_channels: 64", "seq_length: 512"))
    output, errors = dry_run(program, file, ("--nemo_aligned_lr_warmup", "true"), 8, run)
    assert "not read by model_type diffusion_model, so the file's do not count: num_layers 2" in errors
    assert "seq_length 512" in errors and "seq_length" not in options_of(output)
    errors = program.run("train", "--config", file, "--seq_length", 512, "--dry_run", expected=2)[2]
    assert "seq_length is for model_type" in errors
