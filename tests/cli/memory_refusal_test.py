"""A model that cannot fit is refused before anything is allocated: who would hold how much, what there is, what helps."""

import json
import re
import resource
import struct

import pytest

SMALL = (
    *("--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4, "--vocab_size", 131, "--seq_length", 32),
    *("--max_position_embeddings", 64, "--swiglu", "--normalization", "RMSNorm", "--position_embedding_type", "rope"),
    *("--disable_bias_linear", "--device", "cpu", "--mock_data", "--train_iters", 1, "--eval_iters", 0),
)
# 64 billion parameters at 16 bytes: no machine of today has the memory.
LARGE = (*SMALL, "--num_layers", 80, "--hidden_size", 8192, "--num_attention_heads", 64, "--vocab_size", 128000)
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def bytes_of(text):
    number, unit = re.fullmatch(r"([\d.]+) (\w+)", text).groups()
    return float(number) * UNITS[unit]


def owners(text):
    """What a rank holds by owner, of the sentence that begins with 'it holds'."""
    [line] = re.findall(r"it holds (.*)", text)
    return {name: bytes_of(size) for name, size in re.findall(r"([a-z -]+?) ([\d.]+ \w+)(?:, |$)", line)}


def test_a_model_that_cannot_fit_is_refused_with_owners_and_ways_out(program):
    # Nothing is allocated: the limit is less than a tenth of it.
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (16 * 10**9, 16 * 10**9))
    _, output, errors = program.run("train", *LARGE, expected=2, preexec_fn=limit)
    assert not output
    needed, there = re.search(r"rank 0 needs about ([\d.]+ \w+), and ([\d.]+ \w+) are there for it", errors).groups()
    found = owners(errors)
    parameters = 80 * (4 * 8192**2 + 3 * 8192 * 21888) + 2 * 128000 * 8192
    # The feed-forward width is a default that this test need not know to the last element.
    assert found["parameters"] == pytest.approx(4 * parameters, rel=0.1)
    assert found["gradients"] == found["parameters"] and found["optimizer states"] == pytest.approx(2 * found["parameters"], rel=0.01)
    assert sum(found.values()) == pytest.approx(bytes_of(needed), rel=0.01) and bytes_of(there) < bytes_of(needed)
    savings = re.findall(r"--.* saves ([\d.]+ \w+)", errors)
    assert 1 <= len(savings) <= 3 and all(0 < bytes_of(size) < bytes_of(needed) for size in savings), errors
    assert "--allow_oversubscription" in errors


def hollow_model(folder):
    """A Hugging Face folder of LARGE's sizes whose file of weights says nothing."""
    config = {
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80},
        **{"num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128000},
        **{"max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    attention, mlp = 2 * 8192**2 + 2 * 8192 * 1024, 3 * 8192 * 28672
    return 80 * (attention + mlp + 2 * 8192) + 2 * 128000 * 8192 + 8192


INFERENCE = {
    "generate": ("generate", "--prompt_ids", "1,2,3", "--print_ids", "--max_new_tokens", 5000),
    "evaluate": ("evaluate", "--mock_data", "--micro_batch_size", 2, "--seq_length", 4096),
}


@pytest.mark.parametrize("command", INFERENCE)
def test_other_commands_refuse_what_cannot_fit_by_what_they_hold(command, program, tmp_path):
    parameters = hollow_model(tmp_path / "m")
    words = (*INFERENCE[command], "--load_hf", tmp_path / "m", "--device", "cpu")
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (16 * 10**9, 16 * 10**9))
    _, output, errors = program.run(*words, expected=2, timeout=120, preexec_fn=limit)
    assert not output and "rank 0 needs about" in errors and "--allow_oversubscription" in errors
    assert "use_torch_fsdp2" not in errors and "optimizer" not in errors  # no words of training
    found = owners(errors)
    # Sizes are printed with three digits.
    assert found["parameters"] == pytest.approx(4 * parameters, rel=0.01)
    saved = bytes_of(re.search(r"--bf16 saves ([\d.]+ \w+)", errors).group(1))
    assert saved >= found["parameters"] / 2 * 0.99
    if command == "generate":
        # Keys and values of 80 layers with 8 heads of 128 channels.
        assert set(found) == {"parameters", "keys and values", "activations"}
        assert found["keys and values"] == pytest.approx(5003 * 80 * 2 * 8 * 128 * 4, rel=0.01)
    else:
        # At least the logits of one sample, and what the feed-forward part of one layer makes at once.
        assert set(found) == {"parameters", "activations"} and found["activations"] > 2 * 4096 * 28672 * 4
    # Who goes on all the same hears it when memory runs out.
    _, _, errors = program.run(*words, "--allow_oversubscription", expected=1, timeout=120, preexec_fn=limit)
    assert "out of memory: rank 0 needs about" in errors and "frame #" not in errors


def test_who_goes_on_all_the_same_gets_the_same_message_when_memory_runs_out(program, tmp_path):
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (8 * 10**9, 8 * 10**9))
    words = ("train", *LARGE, "--allow_oversubscription", "--save", tmp_path / "run")
    _, _, errors = program.run(*words, expected=1, timeout=120, preexec_fn=limit)
    assert "out of memory: rank 0 needs about" in errors and "it holds parameters" in errors and " saves " in errors
    assert "frame #" not in errors and "terminate" not in errors
    assert not (tmp_path / "run").exists()


def test_the_options_that_are_named_do_save_what_is_said(program):
    _, _, errors = program.run("train", *LARGE, expected=2, timeout=120)
    [needed] = re.findall(r"needs about ([\d.]+ \w+)", errors)
    words, saved = re.search(r"\n  (--.*) saves ([\d.]+ \w+)", errors).groups()
    _, _, after = program.run("train", *LARGE, *words.split(), expected=2, timeout=120)
    [less] = re.findall(r"needs about ([\d.]+ \w+)", after)
    # Sizes are printed with three digits.
    assert bytes_of(needed) - bytes_of(less) == pytest.approx(bytes_of(saved), rel=0.1)


def table(output):
    """Owner and bytes of each line below 'memory of rank'."""
    lines = output[output.index("memory of rank") :].splitlines()
    rows = [re.fullmatch(r"  (\S.*?) +([\d.]+ \w+)", line) for line in lines[1:]]
    return {row.group(1): bytes_of(row.group(2)) for row in rows if row}


@pytest.mark.parametrize("sharding", [(), ("--use_distributed_optimizer",), ("--use_torch_fsdp2",)], ids=["none", "zero", "fsdp"])
def test_a_dry_run_tells_the_memory_of_a_rank_by_owner(sharding, program):
    words = ("train", *LARGE, "--bf16", "--dry_run", "--dry_run_world_size", 16, *sharding)
    _, output, _ = program.run(*words, timeout=120)
    found = table(output)
    weights = 2 * 80 * (4 * 8192**2 + 3 * 8192 * 21888) + 4 * 128000 * 8192
    shared = 16 if "fsdp2" in "".join(sharding) else 1
    divided = 16 if sharding else 1
    assert found["parameters"] == pytest.approx(weights / shared, rel=0.1)
    assert found["gradients"] == pytest.approx(2 * found["parameters"], rel=0.01)
    assert found["master weights"] == pytest.approx(2 * weights / divided, rel=0.1)
    assert found["optimizer states"] == pytest.approx(2 * found["master weights"], rel=0.01)
    assert ("communication" in found) == (shared > 1)
    assert "dry run: nothing was allocated" in output


def test_a_dry_run_shows_the_stage_of_a_pipeline_that_holds_most(program):
    words = ("train", *LARGE, "--bf16", "--dry_run", "--dry_run_world_size", 4, "--pipeline_model_parallel_size", 4)
    _, output, _ = program.run(*words, "--global_batch_size", 8, timeout=120)
    # The first stage holds the embedding and four microbatches; the last the head, one microbatch and the logits.
    assert re.search(r"memory of rank [03], of those that hold most, estimated: ", output), output
