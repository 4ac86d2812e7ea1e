"""`--help`: the options that people use, by topic; a topic, an option, all; only what acts in a command, in 110 columns."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent / "help"
MOST_COLUMNS = 110
# Pages that a person has read. After a change: read what `megalith … --help` prints now, then write it to the file.
GOLDEN = {
    "train": ("train",),
    "generate": ("generate",),
    "plan": ("plan",),
    "option": ("train", "lr_decay_style"),
}


def page(program, *words):
    return program.run(*words)[1]


def names(text):
    return re.findall(r"^  --([\w.]+)", text, re.MULTILINE)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_page_is_the_one_that_was_read(name, program):
    command, *word = GOLDEN[name]
    printed = page(program, command, "--help", *word)
    expected = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert printed == expected, f"read this page, then: megalith {command} --help {' '.join(word)} > tests/cli/help/{name}.txt"


COMMANDS = ("train", "prepare", "prepare merge", "prepare check", "fetch", "generate", "chat", "evaluate", "embed", "inspect config")
COMMANDS += ("inspect data", "inspect tokenizer", "inspect sft", "inspect checkpoint", "inspect logits", "inspect gradients", "convert")
COMMANDS += ("plan", "doctor", "doctor --parallel", "doctor --types", "verify", "bench ops", "bench train", "bench overlap", "completion")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_line_fits(command, program):
    words = command.split()
    pages = [page(program, *words, "--help"), page(program, *words, "--help=all")]
    for text in pages:
        assert text.startswith(f"usage: megalith {command}")
        for line in text.splitlines():
            assert len(line) <= MOST_COLUMNS, line
        if command != "completion":
            assert "\n  --config FILE " in text


def test_the_first_page_has_forty_options(program):
    text = page(program, "train", "--help")
    # Beside the two rows on --config and --help, and the three on where more is.
    rows = [name for name in names(text) if name not in ("config", "help")]
    assert len(rows) == len(set(rows)) == 40
    assert len(text.splitlines()) < 95


def test_all_has_all(program):
    text = page(program, "train", "--help", "all")
    listed = set(re.findall(r"^\| `([\w.]+)`", (FOLDER.parents[2] / "docs/options.md").read_text(), re.MULTILINE))
    assert set(names(text)) == listed | {"config", "help"}


WORDS = [
    (("train", "--help", "lr"), ["--lr X\n", "takes       number at least 0", "MEGALITH_LR"], ["--min_lr"]),
    (("train", "--help=tensor-model-parallel-size"), ["--tensor_model_parallel_size N\n"], []),
    (("train", "--help", "checkpoints"), ["Checkpoints\n", "--keep_last N"], ["--lr "]),
    (("train", "--help", "experts"), ["Mixture of experts\n", "--num_experts N"], ["--lr "]),
    (("train", "--help", "warmup"), ["--lr_warmup_iters N", "--lr_warmup_fraction X"], ["--lr X"]),
    (("train", "--help", "learning_rate"), ["Hugging Face's Trainer's word for lr", "--lr X\n"], []),
    (("train", "--help", "gradient_checkpointing"), ["write recompute_granularity full"], []),
    (("help", "lr"), ["--lr X\n"], []),
    (("help", "generate"), ["usage: megalith generate"], []),
    (("help", "prepare", "merge"), ["usage: megalith prepare merge"], []),
    (("help", "train", "lr"), ["--lr X\n"], []),
    (("--help",), ["  train ", "  completion "], []),
    (("help", "learning rate"), ["Learning rate and weight decay\n", "--lr X", "--lr_warmup_iters N"], ["--save TEXT"]),
    (("help", "learning", "rate"), ["Learning rate and weight decay\n"], []),
    (("train", "--help", "resume"), ["newest checkpoint", "--load TEXT", "--auto_continue_train"], ["--lr X"]),
    (("help", "out of memory"), ["dry_run prints what a run takes", "--recompute_granularity", "--use_torch_fsdp2"], ["--lr X"]),
    (("help", "out", "of", "memory"), ["--recompute_granularity"], []),
    (("generate", "--help", "CUDA out-of-memory"), ["--bf16", "--max_new_tokens"], ["--recompute_granularity"]),
    (("help", "loss spike"), ["--loss_spike_threshold"], []),
    (("help", "fine-tuning"), ["--sft_data_path"], []),
    (("help", "label_smoothing_factor"), ["is not supported: it asks for label smoothing"], []),
    (("help", "noisy_embedding_alpha"), ["--neftune_noise_alpha X", "NEFTune"], []),
]


@pytest.mark.parametrize("words, parts, others", WORDS, ids=[" ".join(words) for words, _, _ in WORDS])
def test_help_answers_a_word(words, parts, others, program):
    text = page(program, *words)
    for part in parts:
        assert part in text, f"{part!r} is not in:\n{text}"
    for other in others:
        assert other not in text, f"{other!r} is in:\n{text}"


def test_a_word_that_says_nothing_is_an_error(program):
    _, output, errors = program.run("train", "--help", "lernrate", expected=2)
    assert not output and "'lernrate'" in errors
    _, output, errors = program.run("generate", "--help", "min_lr", expected=2)
    assert not output and "--min_lr is an option of train; generate has no use for it" in errors


# What each command must show, and what does nothing in it.
ACTING = {
    "generate": (
        {"prompt", "max_new_tokens", "temperature", "top_k", "sampling_seed", "seed", "load", "load_hf", "num_layers"},
        {"lr", "train_iters", "data_path", "save", "global_batch_size", "recompute_granularity", "use_torch_fsdp2"},
    ),
    "evaluate": (
        {"eval_split", "losses_file", "data_path", "split", "eval_iters", "micro_batch_size", "seq_length", "seed"},
        {"lr", "train_iters", "save", "temperature", "clip_grad", "optimizer", "profile", "num_workers"},
    ),
    "embed": (
        {"text", "input", "pooling", "normalise", "output", "query", "top_k", "load_hf", "seq_length", "micro_batch_size"},
        {"lr", "save", "temperature", "recompute_granularity", "global_batch_size"},
    ),
    "plan": (
        {"draw", "svg_file", "pp_algorithm", "num_layers", "pipeline_model_parallel_size"},
        {"lr", "data_path", "hidden_size", "tokenizer_model"},
    ),
    "inspect logits": ({"output_file", "prompt_ids", "load_hf", "bf16"}, {"lr", "data_path", "train_iters"}),
    "bench gemm": ({"shapes", "iterations", "seq_length", "hidden_size"}, {"lr", "data_path", "save"}),
    "doctor": ({"lr", "data_path", "collectives"}, set()),  # it is given a run's whole command line
}


@pytest.mark.parametrize("command", ACTING)
def test_a_command_shows_and_takes_only_what_acts(command, program):
    shown, useless = ACTING[command]
    words = command.split()
    listed = set(names(page(program, *words, "--help", "all")))
    assert shown <= listed and not useless & listed
    if not useless:
        return
    _, output, errors = program.run(*words, *(f"--{name}=1" for name in sorted(useless)), expected=2)
    assert not output
    for name in useless:
        assert re.search(rf"--{name} is an option of [\w, ]*train[\w, -]*; {command} has no use for it", errors), name


def test_own_options_come_first(program):
    _, _, text = page(program, "generate", "--help").partition("\n\n")
    assert text.index("--prompt TEXT") < text.index("--temperature") < text.index("--load_hf")
