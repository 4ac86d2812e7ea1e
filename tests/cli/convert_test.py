"""`megalith convert`: what goes through it comes back bit for bit, and a run goes on from what it wrote."""

import json
import os
import resource
import shutil
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from program import read_metrics

STEPS = 6
MODEL = (
    *("--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4, "--ffn_hidden_size", 48, "--vocab_size", 131),
    *("--group_query_attention", "--num_query_groups", 2, "--max_position_embeddings", 32, "--swiglu"),
    *("--normalization", "RMSNorm", "--position_embedding_type", "rope", "--disable_bias_linear"),
)
RUN = ("--mock_data", "--seq_length", 16, "--micro_batch_size", 2, "--lr", 1e-2, "--eval_iters", 0, "--device", "cpu")


def train(program, folder, *more, **options):
    return program.run("train", *MODEL, *RUN, "--metrics_file", folder / "metrics.jsonl", *more, **options)


@pytest.fixture(scope="module", params=["tied", "untied"])
def trained(request, program, tmp_path_factory):
    """A checkpoint of a bf16 run after STEPS steps, and the Hugging Face folder that the run itself exported."""
    folder = tmp_path_factory.mktemp(request.param)
    tying = ("--untie_embeddings_and_output_weights",) if request.param == "untied" else ()
    train(program, folder, *tying, "--bf16", "--train_iters", STEPS, "--save", folder / "run", "--save_hf", folder / "hf")
    return folder, tying


def agreement(output):
    return float(output.split("agree to ")[1].split()[0])


def tensors(folder):
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found[file.name] = file.read_bytes()
    assert found
    return found


def test_a_checkpoint_becomes_the_folder_that_the_run_exported(trained, program, tmp_path):
    folder, _ = trained
    _, output, _ = program.run("convert", "--load", folder / "run", "--save_hf", tmp_path / "hf", "--check")
    assert 0 < agreement(output) < 0.05  # bf16 against the masters
    assert tensors(tmp_path / "hf") == tensors(folder / "hf")
    assert json.loads((tmp_path / "hf/config.json").read_text()) == json.loads((folder / "hf/config.json").read_text())


def test_an_end_of_text_that_cannot_occur_is_noted_and_left_out(trained, program, tmp_path):
    """As in GPT-2's files beside another vocabulary; transformers loads them."""
    shutil.copytree(trained[0] / "hf", tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs/config.json").read_text())
    (tmp_path / "theirs/config.json").write_text(json.dumps({**config, "eos_token_id": [7, 50256]}))
    note = "eos_token_id 50256 is not below vocab_size 131: it cannot occur, and ends no text"
    words = ("--prompt_ids", "1,2", "--print_ids", "--max_new_tokens", 4, "--device", "cpu")
    _, output, errors = program.run("generate", "--load_hf", tmp_path / "theirs", *words)
    assert note in errors
    assert len(output.split()) == 4 or output.split()[-1] == "7", output
    _, _, errors = program.run("convert", "--load_hf", tmp_path / "theirs", "--save_hf", tmp_path / "ours")
    assert note in errors
    assert json.loads((tmp_path / "ours/config.json").read_text())["eos_token_id"] == 7


def test_fp32_takes_the_master_weights(trained, program, tmp_path):
    folder, _ = trained
    _, output, _ = program.run(
        "convert", "--load", folder / "run", "--save_hf", tmp_path / "hf", "--dtype", "fp32", "--check"
    )
    assert agreement(output) == 0
    wide = load_file(tmp_path / "hf/model.safetensors")
    [checkpoint] = sorted((folder / "run").glob("iter_*"))
    masters = load_file(checkpoint / "master.safetensors")
    assert wide.keys() == masters.keys()
    assert all(np.array_equal(wide[name], masters[name]) for name in wide)


def test_there_and_back_is_the_same(trained, program, tmp_path):
    folder, _ = trained
    program.run("convert", "--load_hf", folder / "hf", "--save", tmp_path / "native", "--check")
    program.run("convert", "--load", tmp_path / "native", "--save_hf", tmp_path / "hf", "--check")
    assert tensors(tmp_path / "hf") == tensors(folder / "hf")


def test_a_narrower_dtype_is_measured_and_no_failure(trained, program, tmp_path):
    folder, _ = trained
    program.run("convert", "--load", folder / "run", "--save_hf", tmp_path / "wide", "--dtype", "fp32")
    _, output, _ = program.run(
        "convert", "--load_hf", tmp_path / "wide", "--save_hf", tmp_path / "narrow", "--dtype", "bf16", "--check"
    )
    assert 0 < agreement(output) < 0.05


def test_a_run_goes_on_from_a_rewritten_checkpoint(trained, program, tmp_path):
    folder, tying = trained
    program.run("convert", "--load", folder / "run", "--save", tmp_path / "copy", "--check")
    for source, name in ((folder / "run", "original"), (tmp_path / "copy", "rewritten")):
        (tmp_path / name).mkdir()
        train(program, tmp_path / name, *tying, "--bf16", "--train_iters", STEPS + 3, "--load", source)
    values = [[(line["lm_loss"], line["grad_norm"]) for line in read_metrics(tmp_path / name / "metrics.jsonl")]
              for name in ("original", "rewritten")]
    assert len(values[0]) == 3
    assert values[0] == values[1]


def test_a_checkpoint_joins_those_of_a_run(trained, program, tmp_path):
    folder, tying = trained
    train(program, tmp_path, *tying, "--bf16", "--train_iters", 1, "--output_dir", tmp_path / "run")
    words = ("convert", "--load_hf", folder / "hf", "--save", tmp_path / "run")
    _, _, errors = program.run(*words, expected=2)
    assert f"{tmp_path}/run/checkpoints: it holds checkpoints" in errors and "--overwrite" in errors, errors
    program.run(*words, "--overwrite")
    found = sorted(path.relative_to(tmp_path / "run").as_posix() for path in (tmp_path / "run").rglob("iter_*"))
    assert found == ["checkpoints/iter_0000000", "checkpoints/iter_0000001"], found


def test_the_check_notices_a_changed_weight(trained, program, tmp_path):
    """The figure follows the weights: two folders that differ in one of them do not agree."""
    folder, _ = trained
    program.run("convert", "--load_hf", folder / "hf", "--save_hf", tmp_path / "fp16", "--dtype", "fp32")
    weights = load_file(tmp_path / "fp16/model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] + np.float32(1e-3)  # below fp16's and bf16's precision at 1
    save_file(weights, tmp_path / "fp16/model.safetensors", {"format": "pt"})
    _, output, _ = program.run(
        "convert", "--load_hf", tmp_path / "fp16", "--save_hf", tmp_path / "rounded", "--dtype", "bf16", "--check"
    )
    assert agreement(output) > 1e-4


WRONG = {
    "nothing to read": (("--save", "x"), "nothing to read is given"),
    "both to read": (("--load", "a", "--load_hf", "b", "--save", "x"), "load and load_hf are both given"),
    "nowhere to write": (("--load", "a"), "nowhere to write is given"),
    "no checkpoint": (("--load", "absent", "--save", "x"), "absent holds no checkpoint"),
    "no folder": (("--load_hf", "absent", "--save", "x"), "absent"),
    "dtype unknown": (("--load", "a", "--save_hf", "x", "--dtype", "int3"), "dtype is 'int3'"),
    "dtype of a checkpoint": (("--load", "a", "--save", "x", "--dtype", "bf16"), "a checkpoint keeps the dtypes"),
    "form unknown": (("--load", "a", "--save", "x", "--to", "onnx"), "to is 'onnx'"),
    "form of nothing": (("--load", "a", "--save_hf", "x", "--to", "gguf"), "to is given, and not where to write"),
    "quantised folder": (("--load", "a", "--save_hf", "x", "--dtype", "q8_0"), "quantised types are GGUF's: --to gguf"),
    "type unknown": (("--load", "a", "--save", "x", "--to", "gguf", "--dtype", "q3"), "or q8_0, q6_k, q5_k_m or q4_k_m"),
    "file is a folder": (("--load", "a", "--save", ".", "--to", "gguf"), "save . is a folder"),
    "check of a file": (("--load", "a", "--save", "x", "--to", "gguf", "--check"), "the form gguf cannot be loaded here"),
    "step of a folder": (("--load_hf", "a", "--save", "x", "--ckpt_step", 3), "load_hf has no iterations"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name, program, tmp_path):
    words, message = WRONG[name]
    _, _, errors = program.run("convert", *words, expected=2, cwd=tmp_path)
    assert message in errors
    assert os.listdir(tmp_path) == []


def test_a_gguf_file_appears_whole_or_not_at_all(trained, program, tmp_path):
    def full_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    words = ("convert", "--load", trained[0] / "run", "--to", "gguf", "--save", tmp_path / "out" / "model.gguf")
    _, _, errors = program.run(*words, expected=1, preexec_fn=full_disk)
    assert "model.gguf" in errors and os.listdir(tmp_path / "out") == [], errors
    _, _, errors = program.run(*words)
    assert "the GGUF file has no tokenizer" in errors, errors
    head = (tmp_path / "out" / "model.gguf").read_bytes()[:4000]
    assert head.startswith(b"GGUF\x03\0\0\0") and b"general.architecture" in head and b"tokenizer.ggml.model" in head
    _, _, errors = program.run(*words, expected=2)
    assert "replace it with --overwrite" in errors, errors


@pytest.mark.parametrize("wrong_id", [-1, 1_000_000])
def test_a_gguf_file_has_no_token_outside_the_vocabulary(trained, wrong_id, program, tmp_path):
    added = {"id": wrong_id, "content": "<odd>", "special": True}
    tokenizer = {"added_tokens": [added], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    words = ("--tokenizer_model", tmp_path / "tokenizer.json", "--to", "gguf", "--save", tmp_path / "x.gguf")
    _, _, errors = program.run("convert", "--load_hf", trained[0] / "hf", *words, expected=2)
    assert f"a token has the id {wrong_id}" in errors and not (tmp_path / "x.gguf").exists(), errors


def test_a_folder_with_a_missing_tensor_is_refused_and_nothing_written(trained, program, tmp_path):
    folder, _ = trained
    program.run("convert", "--load_hf", folder / "hf", "--save_hf", tmp_path / "hf", "--dtype", "fp32")
    weights = load_file(tmp_path / "hf/model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "hf/model.safetensors", {"format": "pt"})
    _, _, errors = program.run("convert", "--load_hf", tmp_path / "hf", "--save", tmp_path / "native", expected=2)
    assert "1 missing: model.layers.1.mlp.up_proj.weight" in errors
    assert not (tmp_path / "native").exists()


def small_tokenizer(folder):
    """Words, an end of text and padding, with a template of chats."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir()
    words = {word: i for i, word in enumerate(["call", "me", "ishmael", "<unk>", "<pad>", "<end>"])}
    tokenizer = Tokenizer(models.WordLevel(words, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<pad>", "<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"eos_token": "<end>", "pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")


def test_an_export_knows_where_texts_end_and_has_its_tokenizer(program, tmp_path):
    small_tokenizer(tmp_path / "tokens")
    train(
        *(program, tmp_path, "--tokenizer_model", "tokens", "--train_iters", 1, "--save", "run", "--save_hf", "trained"),
        cwd=tmp_path,
    )
    program.run("convert", "--load", "run", "--save_hf", "converted", cwd=tmp_path)
    program.run("convert", "--load_hf", "converted", "--save_hf", "again", cwd=tmp_path)
    # One file of a folder brings what the folder says of chats and ends.
    program.run("convert", "--load", "run", "--tokenizer_model", "tokens/tokenizer.json", "--save_hf", "named", cwd=tmp_path)
    for name in ("trained", "converted", "again", "named"):
        config = json.loads((tmp_path / name / "config.json").read_text())
        generation = json.loads((tmp_path / name / "generation_config.json").read_text())
        for found in (config, generation):
            assert (found["eos_token_id"], found["pad_token_id"]) == (5, 4), (name, found)
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "tokens" / file).read_bytes(), (name, file)
    # Ends that config.json has besides stay. The checkpoint has its tokenizer, which may be gone where it was.
    config = json.loads((tmp_path / "again/config.json").read_text())
    (tmp_path / "again/config.json").write_text(json.dumps({**config, "eos_token_id": [2, 5]}))
    program.run("convert", "--load_hf", "again", "--save_hf", "several", cwd=tmp_path)
    for file in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "several" / file).read_text())["eos_token_id"] == [2, 5]
    (tmp_path / "tokens").rename(tmp_path / "moved")
    program.run("convert", "--load", "run", "--save_hf", "moved_away", cwd=tmp_path)
    assert (tmp_path / "moved_away/tokenizer.json").read_bytes() == (tmp_path / "moved/tokenizer.json").read_bytes()


def test_transformers_stops_where_the_export_says(program, tmp_path):
    transformers = pytest.importorskip("transformers")
    small_tokenizer(tmp_path / "tokens")
    train(program, tmp_path, "--tokenizer_model", tmp_path / "tokens", "--train_iters", 1, "--save_hf", tmp_path / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert model.generation_config.eos_token_id == 5 and model.config.pad_token_id == 4
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "call"}], tokenize=False) == "call"


def test_what_is_there_is_replaced_only_when_asked_for_and_file_by_file(trained, program, tmp_path):
    folder, _ = trained
    shutil.copytree(folder / "hf", tmp_path / "hf")
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "hf/notes.txt").write_text("mine")
    (tmp_path / "hf/tokenizer.json").write_text("mine too")
    (tmp_path / "hf/more").mkdir()
    (tmp_path / "hf/more/deep.txt").write_text("deep")
    (tmp_path / "hf/link").symlink_to("notes.txt")
    (tmp_path / "hf/model-00001-of-00002.safetensors").write_text("of an earlier export")

    def everything():
        return {str(path): path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}

    before = everything()
    for words in (("--load", folder / "run", "--save_hf", tmp_path / "hf"), ("--load_hf", folder / "hf", "--save", tmp_path / "run")):
        errors = program.run("convert", *words, expected=2)[2]
        assert "--overwrite" in errors and "holds" in errors, errors
        assert everything() == before
    program.run("convert", "--load", folder / "run", "--save_hf", tmp_path / "hf", "--dtype", "fp32", "--overwrite")
    assert (tmp_path / "hf/notes.txt").read_text() == "mine" and (tmp_path / "hf/more/deep.txt").read_text() == "deep"
    assert (tmp_path / "hf/tokenizer.json").read_text() == "mine too" and (tmp_path / "hf/link").is_symlink()
    assert not (tmp_path / "hf/model-00001-of-00002.safetensors").exists()
    assert json.loads((tmp_path / "hf/config.json").read_text())["torch_dtype"] == "float32"
    program.run("convert", "--load_hf", folder / "hf", "--save", tmp_path / "run", "--overwrite")
    assert {path.name for path in (tmp_path / "run").glob("iter_*")} == {"iter_0000000", f"iter_{STEPS:07}"}
