"""Names that people bring from other programs: read as options, said to do nothing, or refused with what to write."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accepted_names.md"
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
    rows = re.findall(r"^\| [^|]* \| ([^|]*) \| `(\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
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


ACCEPTED = [
    ("evaluations off as in Megatron-LM", ("--eval-iters", -1), ""),
    ("no generator to load", ("--no-load-rng", "--no-save-rng"), "no effect here: load_rng, save_rng"),
    ("the checkpoint's architecture", ("--use-checkpoint-args",), "no effect here: use_checkpoint_args"),
    ("sequence parallelism of one rank", ("--sequence_parallel",), "sequence_parallel is off"),
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


REFUSED = [
    ("the checkpoint's curve", ("--use-checkpoint-opt_param-scheduler",), ["learning-rate curve", "lr_decay_style"]),
    ("the checkpoint's layout", ("--use-mp-args-from-checkpoint-args",), ["parallel sizes", "every layout"]),
    ("the optimizer on the host", ("--optimizer-cpu-offload",), ["host memory", "use_distributed_optimizer"]),
    ("spread activations", ("--distribute-saved-activations",), ["sequence_parallel"]),
    ("accumulation", ("--gradient_accumulation_steps", 8), ["global_batch_size", "micro_batch_size times"]),
    ("epochs", ("--num_train_epochs", 3), ["train_iters", "inspect data"]),
    ("recomputation", ("--gradient_checkpointing",), ["recompute_granularity full"]),
    ("adapters", ("--lora_rank", 8), ["adapters such as LoRA"]),
    ("a data set's name", ("--dataset_name", "wiki"), ["data_path", "megalith prepare"]),
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
