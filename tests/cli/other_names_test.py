"""Names that people bring from other programs: read as options, said to do nothing, or refused with what to write."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accepted_names.md"
NAMES = Path(__file__).resolve().parents[1] / "config" / "data"
MODEL = (
    *("--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4, "--vocab_size", 131, "--seq_length", 16),
    *("--max_position_embeddings", 32, "--position_embedding_type", "rope", "--mock_data", "--device", "cpu", "--dry_run"),
)


def test_the_page_is_what_the_program_prints(program):
    printed = program.run("inspect", "config", "--accepted_names")[1]
    assert PAGE.read_text(encoding="utf-8") == printed, (
        "run: build/megalith inspect config --accepted_names > docs/accepted_names.md"
    )


def test_every_word_stands_for_an_option_and_is_none(program):
    rows = re.findall(r"^\| [^|]* \| ([^|]*) \| `(\w+)[^`]*` \| [^|]*\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    options = program.run("train", "--help", "all")[1]
    assert len(rows) > 50
    for words, option in rows:
        assert re.search(rf"^  --{option}\b", options, re.MULTILINE), option
        for word in re.findall(r"`(\w+)`", words):
            assert not re.search(rf"^  --{word}\b", options, re.MULTILINE), f"{word} is an option now: its row misleads"


def resolved(program, *words):
    """Option -> value of what differs from the defaults, and the notes."""
    _, output, errors = program.run("inspect", "config", *words)
    return dict(re.findall(r"^(\w+): (\S+)", output, re.MULTILINE)), errors


def test_hugging_face_words_are_understood(program):
    words = ("--learning_rate", 2e-4, "--max_steps", 30, "--per_device_train_batch_size", 3, "--warmup_steps", 5)
    words += ("--weight_decay", 0.1, "--max_grad_norm", 0.5, "--logging_steps", 2, "--save_total_limit", 4)
    values, notes = resolved(program, *words, "--lr_scheduler_type", "cosine", "--max_steps", -1)
    assert values == {
        **{"lr": "0.0002", "train_iters": "30", "micro_batch_size": "3", "lr_warmup_iters": "5", "weight_decay": "0.1"},
        **{"clip_grad": "0.5", "log_interval": "2", "keep_last": "4", "lr_decay_style": "cosine"},
    }
    assert notes.count("other programs' words") == 1 and "learning_rate is lr" in notes


@pytest.mark.parametrize("word", ["optim", "optimizer"])
def test_other_trainers_values_of_the_optimizer_are_understood(word, program):
    values, notes = resolved(program, f"--{word}", "paged_adamw_8bit")
    assert values == {"optimizer": "adam8bit"} and "paged_adamw_8bit is optimizer adam8bit (states are not paged here" in notes
    assert resolved(program, f"--{word}", "adamw_bnb_8bit")[0] == values
    assert resolved(program, f"--{word}", "adamw_torch_fused")[0] == {}
    # Whatever the value, a command that does not train has no use for it.
    assert "generate has no use for it" in program.run("generate", f"--{word}", "adamw_torch", expected=2)[2]


def test_a_word_may_stand_for_values_of_options(program, tmp_path):
    words = ("--softmax-scale", 0.125, "--use_sink_attention", "--sink_sliding_window", 128, "--activation_func", "swiglu")
    values, notes = resolved(program, *words, "--no-yarn-correction-range-round-to-int")
    expected = {"query_pre_attn_scalar": "64", "softmax_type": "learnable", "window_size": "[128,", "swiglu": "true"}
    assert values == {**expected, "window_attn_skip_freq": '"2"', "rope_scaling_truncate": "false"}
    assert "use_sink_attention true is softmax_type learnable" in notes
    assert resolved(program, "--megatron-fsdp-grad-comm-dtype", "bf16")[0] == {"grad_reduce_in_bf16": "true"}
    # One value of an option: beside rope it means nothing.
    file = tmp_path / "model.yaml"
    file.write_text("position_embedding_type: yarn\nuse_sink_attention: false\nload_optim: false\n")
    values, _ = resolved(program, "--config", file)
    assert values == {**{"position_embedding_type": "rope", "use_rope_scaling": "true", "rope_scaling_type": "yarn"}, "no_load_optim": "true"}
    assert resolved(program, "--config", file, "--position_embedding_type", "rope")[0]["use_rope_scaling"] == "true"
    for scale in ("0", "-0.5"):
        assert "is no number above 0" in program.run("inspect", "config", f"--softmax_scale={scale}", expected=2)[2]
    # The last of a word counts, but not over an option that was set since.
    values, notes = resolved(program, "--config", file, "--load_optim")
    assert "no_load_optim" not in values and "load_optim true takes no_load_optim true back" in notes
    assert "softmax_type" not in resolved(program, "--use_sink_attention", "--use_sink_attention", "false")[0]
    assert resolved(program, "--config", file, "--no_load_optim", "--load_optim", "true")[0]["no_load_optim"] == "true"


def test_torchtitan_and_torchtune_words_are_understood_in_a_file(program, tmp_path):
    file = tmp_path / "job.yaml"
    rows = ("training.steps: 7", "training.seq_len: 64", "training.local_batch_size: 2", "optimizer.lr: 0.5")
    rows += ("parallelism.tensor_parallel_degree: 2", "lr_scheduler.num_warmup_steps: 3", "tokenizer.path: there")
    file.write_text("\n".join(rows) + "\n")
    values, _ = resolved(program, "--config", file)
    assert values == {
        **{"train_iters": "7", "seq_length": "64", "micro_batch_size": "2", "lr": "0.5"},
        **{"tensor_model_parallel_size": "2", "lr_warmup_iters": "3", "tokenizer_model": "there"},
    }


@pytest.mark.parametrize(
    "names, count", [("primus_v0.1_keys.txt", 476), ("primus_v26.5_keys.txt", 607), ("megatron_r0.14_arguments.txt", 507),
                     ("megatron_main_arguments.txt", 914), ("huggingface_arguments.txt", 242)]
)
def test_no_name_of_upstream_is_unknown(names, count, program, tmp_path):
    listed = [line for line in (NAMES / names).read_text().splitlines() if not line.startswith("#")]
    assert len(listed) == count
    file = tmp_path / "all.yaml"
    file.write_text("".join(f"{name}: null\n" for name in listed))
    program.run("inspect", "config", "--config", file)
    # An unknown one is refused in the same place.
    file.write_text(file.read_text() + "nobodys_key: null\n")
    assert "unknown key 'nobodys_key'" in program.run("inspect", "config", "--config", file, expected=2)[2]


HUB = ("--tokenizer_type", "Llama3Tokenizer", "--tokenizer_model", "meta-llama/Llama-3.1-8B")
OFFLINE = {"HF_HUB_OFFLINE": "1"}
VOCABULARY = tuple(word for word in MODEL if word not in ("--vocab_size", 131))


def test_mock_data_leaves_a_hubs_tokenizer_closed(program):
    _, output, notes = program.run("train", *MODEL, *HUB, environment=OFFLINE)
    assert "meta-llama/Llama-3.1-8B is not opened; vocabulary 131 and end of document 130" in notes
    assert "vocabulary 131" in output
    _, output, notes = program.run("train", *VOCABULARY, *HUB, environment=OFFLINE)
    assert "vocabulary 128256 and end of document 128001 come from the published model" in notes
    assert "vocabulary 128256" in output
    # Nobody knows the size of this one, and a text that is to be written needs the tokenizer itself.
    unknown = ("--tokenizer_model", "nobody/nothing")
    assert "nobody/nothing" in program.run("train", *VOCABULARY, *unknown, expected=2, environment=OFFLINE)[2]
    samples = ("--sample_interval", 1, "--sample_prompt", "a")
    errors = program.run("train", *MODEL, *HUB, *samples, expected=2, environment=OFFLINE)[2]
    assert "Llama-3.1-8B" in errors


def test_published_vocabularies_are_those_of_the_presets():
    source = (PAGE.parents[1] / "src" / "train" / "unopened_tokenizer.cc").read_text()
    rows = {repo: (int(size), int(eod)) for repo, size, eod in re.findall(r'\{"([^"]+)", (\d+), (\d+)\}', source)}
    compared = 0
    for preset in (PAGE.parents[1] / "configs" / "models").glob("*.yaml"):
        text = preset.read_text()
        repo = re.search(r"^#.* As ([\w.-]+/[\w.-]+?)[:,]", text)
        if repo and repo[1] in rows:
            compared += 1
            eod = int(re.search(r"^eos_token_ids: \[(\d+)", text, re.MULTILINE)[1])
            assert rows[repo[1]] == (int(re.search(r"^vocab_size: (\d+)", text, re.MULTILINE)[1]), eod), preset.stem
    assert len(rows) > compared > 30  # the others are models without a preset


def test_extra_rows_are_added_to_the_vocabulary(program, tmp_path):
    output = program.run("train", *MODEL, "--extra-vocab-size", 2400)[1]
    assert "vocabulary 2531" in output
    model = tuple(word for word in MODEL if word != "--dry_run")
    run = ("--train_iters", 1, "--lr", 0, "--eval_iters", 0, "--save", tmp_path, "--load", tmp_path)
    program.run("train", *model, "--extra-vocab-size", 10, *run)
    # The rows that a checkpoint has are all it has, whether or not they are asked for again.
    for words in ((), ("--extra-vocab-size", 10)):
        shape = ("--load", tmp_path, "--mock_data", "--device", "cpu", "--dry_run", *words)
        assert "vocabulary 141" in program.run("train", *shape)[1]
    refused = ("--tokenizer_type", "NullTokenizer", "--extra-vocab-size", 10)
    assert "raise vocab_size instead" in program.run("train", *MODEL, *refused, expected=2)[2]


def test_a_dry_run_needs_no_launcher(program):
    nodes = {"NNODES": "2", "NODE_RANK": "0"}
    assert "dry run: nothing was allocated" in program.run("train", *MODEL, environment=nodes)[1]
    real = tuple(word for word in MODEL if word != "--dry_run")
    assert "NNODES is 2" in program.run("train", *real, "--train_iters", 1, environment=nodes, expected=2)[2]


def test_the_program_says_what_it_was_built_of(program):
    assert re.fullmatch(r"megalith [\d.]+ \(commit (unknown|[0-9a-f]{12})\)\n", program.run("--version")[1])


def test_head_norms_without_latent_attention_count(program):
    def parameters(*words):
        return int(re.search(r"([\d,]+) parameters", program.run("train", *MODEL, *words)[1])[1].replace(",", ""))

    words = ("--normalization", "RMSNorm")
    assert parameters(*words, "--qk_layernorm") - parameters(*words) == 2 * 2 * 8  # layers, q and k, dims of a head


ACCEPTED = [
    ("evaluations off as in Megatron-LM", ("--eval-iters", -1), ""),
    ("no generator to load", ("--no-load-rng", "--no-save-rng"), "no effect here: load_rng, save_rng"),
    ("the checkpoint's architecture", ("--use-checkpoint-args",), "no effect here: use_checkpoint_args"),
    ("sequence parallelism of one rank", ("--sequence_parallel",), "sequence_parallel is off"),
    ("the same with FSDP2", ("--sequence_parallel", "--use_torch_fsdp2"), "sequence_parallel is off"),
    ("a checkpoint that nobody named", ("--exit_on_missing_checkpoint",), ""),
    ("a warm-up of no samples", ("--lr_warmup_iters", 2, "--lr_warmup_samples", 0), ""),
    ("null for a switch", ("--no_load_rng", "null", "--finetune", "null"), "no effect here: load_rng"),
    ("the ROCm scripts' data set", ("--dataset", "LLama-Pretrain-Idxmap"), "no effect here: dataset"),
    ("the ROCm scripts' tokenizer", ("--patch-tokenizer-type", "NullTokenizer"), "patch-tokenizer-type is tokenizer_type"),
    ("parameters in one buffer", ("--use-contiguous-parameters-in-local-ddp",), "belong to one buffer"),
    ("and gradients not", ("--mmap-warmup", "--no-contiguous-buffers-in-local-ddp"), "memory-mapped"),
    ("recomputation by its first name", ("--activations-checkpoint-method", "uniform"), "is recompute_method"),
    ("data that ranks share out", ("--data_sharding", "true"), ""),
    ("schedules for one stage", ("--pp_algorithm", "zbv-formatted", "--enable_zero_bubble", "false"), ""),
    ("a model with rotary positions", ("--no-position-embedding",), "position_embedding_type decides"),
    ("Primus's preset", ("--zero_bubble_v_schedule_mem_setup", "half", "--optimizer_cpu_offload=false"), ""),
    (
        "Megatron-LM's FSDP",
        ("--use-megatron-fsdp", "--data-parallel-sharding-strategy", "optim_grads_params", "--use-distributed-optimizer"),
        "use_megatron_fsdp with data_parallel_sharding_strategy optim_grads_params: use_torch_fsdp2",
    ),
]


@pytest.mark.parametrize("words, note", [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
def test_what_asks_for_what_is_there_is_accepted(words, note, program):
    _, _, errors = program.run("train", *MODEL, *words)
    assert note in errors, errors


# Hugging Face's libraries and what is built of them: a value that asks for something, and where it leads.
LEADS = {
    "wandb_mode=online": "write wandb_project NAME",
    "mlflow_tracking_uri=http://a": "write mlflow_dir DIR",
    "use_muon=true": "write optimizer adam, sgd, muon, lion, adafactor or adam8bit",
    "max_length=2048": "write seq_length",
    "load_in_4bit=true": "write lora.enabled true and lora.quantization nf4",
    "label_smoothing_factor=0.1": "does not support label smoothing",
    "assistant_only_loss=false": "write train_on_input true",
    "disable_dropout=true": "write hidden_dropout 0",
    "data_seed=3": "write seed",
    "hub_token=hf_x": "",
    "wandb_mode=offline": "",
    "neftune_noise_alpha=0": "",
    "pissa_init=true": "write lora.init_lora_weights pissa_niter_16, or pissa",
    "torch_compile_backend=inductor": "no effect here",
    "dataloader_pin_memory=true": "no effect here: dataloader_pin_memory (no Python runs here)",
    "full_determinism=true": "full_determinism is deterministic_mode",
    "save_only_model=true": "save_only_model is no_save_optim",
}


@pytest.mark.parametrize("written", LEADS)
def test_a_word_of_hugging_faces_libraries_leads_somewhere(written, program):
    lead = LEADS[written]
    is_refused = lead.startswith(("write ", "does not"))
    _, output, errors = program.run("train", *MODEL, f"--{written}", expected=2 if is_refused else 0)
    assert lead in errors and "unknown option" not in errors and "hf_x" not in errors + output, errors


def test_samples_are_packed_by_the_words_of_others(program):
    for word in ("packing", "sample_packing", "neat_packing"):
        values, notes = resolved(program, f"--{word}", "--beta", 0.2)
        assert values == {"enable_packed_sequences": "true", "dpo_beta": "0.2"} and "beta is dpo_beta" in notes


REFUSED = [
    ("gradients in bf16 of an fp32 model", ("--main_grads_dtype", "bf16"), ["16-bit weights", "add --bf16"]),
    ("a padded size in numbers", ("--padded-vocab-size", 256), ["make_vocab_size_divisible_by"]),
    ("sharded replicas", ("--enable-full-sharding-in-hsdp",), ["use_torch_fsdp2"]),
    (
        "a trace behind the last step",
        ("--train_iters", 8, "--profile", "--profile_step_start", 8, "--profile_step_end", 9),
        ["profile_step_start is 8", "has 8 steps", "set profile_step_start to 6 and profile_step_end to 8"],
    ),
    ("two warm-ups", ("--lr_warmup_iters", 2, "--lr_warmup_samples", 4), ["lr_warmup_iters and lr_warmup_samples"]),
    ("the checkpoint's curve", ("--use-checkpoint-opt_param-scheduler",), ["learning-rate curve", "lr_decay_style"]),
    ("the checkpoint's layout", ("--use-mp-args-from-checkpoint-args",), ["parallel sizes", "every layout"]),
    ("spread activations", ("--distribute-saved-activations",), ["sequence_parallel"]),
    ("accumulation beside a batch", ("--gradient_accumulation_steps", 8, "--global_batch_size", 8), ["are both given"]),
    ("epochs of no rows", ("--num_train_epochs", 3), ["sft_data_path is not", "train_iters"]),
    ("steps of an epoch", ("--max_steps_per_epoch", 3), ["train_iters", "train_epochs"]),
    ("recomputation", ("--gradient_checkpointing",), ["recompute_granularity full"]),
    ("adapters", ("--lora_rank", 8), ["lora.dim is 8, but lora.enabled is not set"]),
    ("a data set's name", ("--dataset_name", "wiki"), ["sft_data_path NAME", "data_path NAME"]),
    ("adapters by PEFT", ("--use_peft",), ["write lora.enabled true"]),
    ("DeepSpeed's stage", ("--zero_stage", 3), ["use_torch_fsdp2 (ZeRO-3)"]),
    ("a strategy without its FSDP", ("--data-parallel-sharding-strategy", "optim"), ["needs use_megatron_fsdp"]),
    ("two FSDPs", ("--use_megatron_fsdp", "--use_torch_fsdp2"), ["are both on", "keep one"]),
    ("missing dashes", ("bf16",), ["unexpected argument 'bf16'", "--bf16"]),
    (
        "learned positions that are not to be",
        ("--no-position-embedding", "--position_embedding_type", "learned_absolute"),
        ["without learned positions", "set position_embedding_type to rope or none"],
    ),
]


@pytest.mark.parametrize("words, parts", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_would_change_a_run_is_refused_with_a_way_out(words, parts, program):
    _, output, errors = program.run("train", *MODEL, *words, expected=2)
    assert not output
    for part in parts:
        assert part in errors, f"{part!r} is not in:\n{errors}"
    assert "q_lora_rank" not in errors


def test_generation_takes_the_runs_seed(program, tmp_path):
    model = tuple(word for word in MODEL if word not in ("--dry_run",))
    program.run("train", *model, "--train_iters", 1, "--lr", 0, "--save", tmp_path / "run", "--eval_iters", 0)
    words = ("generate", "--load", tmp_path / "run", "--prompt_ids", "1,2", "--print_ids", "--max_new_tokens", 12)
    words += ("--device", "cpu", "--ignore_eos")

    def generation(*more):
        return program.run(*words, *more)[1]

    assert generation("--seed", 7) == generation("--seed", 7) == generation("--sampling_seed", 7)
    assert generation("--seed", 7) != generation("--seed", 8)
    assert generation("--seed", 8, "--sampling_seed", 7) == generation("--seed", 7)
    assert generation() == generation("--seed", 1234)
