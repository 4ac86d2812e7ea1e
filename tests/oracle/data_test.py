"""Token files and sample order against numpy: what Megatron-LM would read, and in which order."""

import gzip
import json
import lzma
import os
import subprocess
import sys
import time
from pathlib import Path

import hf_models
import indexed_data
import numpy as np
import pytest
import torch
from compare import assert_close


def losses_in_order(program, model, prefix, output, num_samples, sequence, *more):
    program.run(
        *("evaluate", "--load_hf", model.folder, "--data_path", prefix, "--seq_length", sequence, "--micro_batch_size", 1),
        *("--global_batch_size", 1, "--eval_iters", num_samples, "--losses_file", output, "--device", "cpu", *more),
    )
    with open(output, encoding="utf-8") as file:
        return torch.tensor([json.loads(line) for line in file])


def test_own_order_is_megatrons():
    """The judge itself: vectors computed with Megatron-LM's own code (its seed 1234, documents of 5, 3, 7, 4, 6 tokens)."""
    documents = [np.arange(10 * i, 10 * i + length) for i, length in enumerate([5, 3, 7, 4, 6])]
    one_epoch = indexed_data.gpt_samples(documents, 6, 4, seed=1234)
    assert one_epoch[0].tolist() == [26, 30, 31, 32, 33]
    assert one_epoch[1].tolist() == [2, 3, 4, 10, 11]
    stream = [40, 41, 42, 43, 44, 45, 0, 1, 2, 3, 4, 10, 11, 12, 20, 21, 22, 23, 24, 25, 26, 30, 31, 32, 33]
    assert one_epoch.tolist() == [stream[4 * k : 4 * k + 5] for k in [5, 2, 3, 1, 0, 4]]
    # Two epochs and three, the last shuffled on its own.
    order = [4, 0, 1, 2, 3, 3, 2, 1, 0, 4]
    stream = np.concatenate([documents[k] for k in order])
    two_epochs = indexed_data.gpt_samples(documents, 8, 4, seed=1234)
    assert two_epochs.tolist() == [stream[4 * k : 4 * k + 5].tolist() for k in [0, 4, 3, 2, 5, 1, 7, 6]]
    order = [2, 2, 4, 1, 0, 3, 4, 0, 1, 3, 0, 4, 3, 2, 1]
    stream = np.concatenate([documents[k] for k in order])
    three_epochs = indexed_data.gpt_samples(documents, 13, 4, seed=1234)
    assert three_epochs.tolist() == [
        stream[4 * k : 4 * k + 5].tolist() for k in [7, 11, 2, 3, 1, 9, 5, 4, 0, 8, 6, 10, 17]
    ]


# An epoch of 2499 tokens has 146 samples of 17: within one epoch, a little and nearly all of a second, and a third.
@pytest.mark.parametrize("num_samples", [60, 150, 290, 310])
def test_samples_come_in_megatrons_order(num_samples, program, models, data, tmp_path):
    sequence = 17
    ours = losses_in_order(
        program, models["llama"], data.prefix, tmp_path / "losses.jsonl", num_samples, sequence, "--split", "100,0,0"
    )
    with torch.no_grad():
        theirs = hf_models.token_losses(models["llama"].reference, data.samples(num_samples, sequence))
    assert_close(ours, theirs, f"{num_samples} samples")


def test_seed_chooses_the_order(program, models, data, tmp_path):
    ours = losses_in_order(
        program, models["llama"], data.prefix, tmp_path / "losses.jsonl", 20, 17, "--split", "100,0,0", "--seed", 77
    )
    with torch.no_grad():
        theirs = hf_models.token_losses(models["llama"].reference, data.samples(20, 17, seed=77))
        others = hf_models.token_losses(models["llama"].reference, data.samples(20, 17))
    assert_close(ours, theirs, "seed 77")
    assert not torch.allclose(theirs, others)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_token_files_of_every_width_are_read(dtype, program, models, data, tmp_path):
    prefix = tmp_path / "wide"
    indexed_data.write(prefix, data.documents, dtype)
    ours = losses_in_order(program, models["llama"], prefix, tmp_path / "losses.jsonl", 8, 31, "--split", "100,0,0")
    with torch.no_grad():
        theirs = hf_models.token_losses(models["llama"].reference, data.samples(8, 31))
    assert_close(ours, theirs, str(dtype))


def test_splits_take_megatrons_ranges(program, models, data, tmp_path):
    # 37 documents: boundaries at round(37 * 0.7) = 26 and round(37 * 0.9) = 33.
    for split, (first, last) in {"train": (0, 26), "valid": (26, 33), "test": (33, 37)}.items():
        ours = losses_in_order(
            *(program, models["llama"], data.prefix, tmp_path / f"{split}.jsonl", 4, 13),
            *("--split", "70,20,10", "--eval_split", split),
        )
        samples = indexed_data.gpt_samples(data.documents[first:last], 4, 13, seed=1234)
        with torch.no_grad():
            assert_close(ours, hf_models.token_losses(models["llama"].reference, samples), split)


TEXTS = ["The first document.", "Zweites Dokument: äöü €.", "", "東京 and \U0001f600", "a"]


def test_prepared_bytes_are_what_numpy_reads(program, tmp_path):
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in TEXTS), encoding="utf-8")
    program.run(
        *("prepare", "--input", source, "--output_prefix", tmp_path / "out", "--tokenizer_type", "ByteTokenizer"),
        *("--append_eod", "--workers", 2),
    )
    documents = [document.tolist() for document in indexed_data.read(tmp_path / "out_text_document") if len(document)]
    assert documents == [[*text.encode(), 256] for text in TEXTS if text]


def test_prepared_tokens_are_those_of_the_tokenizers_library(program, tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sentences = [f"{text} number {i}, again and again: {i * i}." for i, text in enumerate(TEXTS * 20)]
    tokenizer.train_from_iterator(
        sentences,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"})
    )
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences), encoding="utf-8")
    program.run(
        *("prepare", "--input", source, "--output_prefix", tmp_path / "out", "--append_eod", "--workers", 2),
        *("--tokenizer_type", "HuggingFaceTokenizer", "--tokenizer_model", folder),
    )
    eod = tokenizer.token_to_id("<|endoftext|>")
    expected = [[*tokenizer.encode(text).ids, eod] for text in sentences]
    assert [document.tolist() for document in indexed_data.read(tmp_path / "out_text_document")] == expected


def prepare_words(source, output, *more):
    return ("prepare", "--input", source, "--output_prefix", output, "--tokenizer_type", "ByteTokenizer", "--workers", 2, *more)


def output_bytes(prefix):
    return tuple(Path(f"{prefix}_text_document.{ending}").read_bytes() for ending in ("bin", "idx"))


def write_lines(path, count):
    with open(path, "w", encoding="utf-8") as file:
        for i in range(count):
            print(json.dumps({"text": f"document {i} " + "again and " * (i % 97)}), file=file)


def test_a_killed_run_goes_on_and_gives_the_same_bytes(program, tmp_path):
    source = tmp_path / "texts.jsonl"
    write_lines(source, 60_000)
    program.run(*prepare_words(source, tmp_path / "whole"))
    content = source.read_bytes()
    state = tmp_path / "stopped.prepare" / "state.json"
    reader, writer = os.pipe()
    process = program.start(*prepare_words("-", tmp_path / "stopped"), stdin=reader)
    os.close(reader)
    # A state comes with the first chunk after five seconds: the text trickles until there is one.
    sent, deadline = 0, time.monotonic() + 60
    while not state.exists() and sent < len(content) and time.monotonic() < deadline:
        sent += os.write(writer, content[sent : sent + 60_000])
        time.sleep(0.05)
    assert state.exists() and sent < len(content)
    process.kill()
    process.communicate()
    os.close(writer)
    assert not Path(f"{tmp_path}/stopped_text_document.bin").exists()
    # Another text instead of the first is noticed.
    with open(tmp_path / "other.jsonl", "wb") as file:
        file.write(content.replace(b"document 1 ", b"Document 1 ", 1))
    with open(tmp_path / "other.jsonl", "rb") as file:
        packed = subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE)
        _, _, errors = program.run(*prepare_words("-", tmp_path / "stopped"), stdin=packed.stdout, expected=2)
    packed.stdout.close()
    packed.wait()
    assert "are not those that were read the last time" in errors
    unpacked = subprocess.Popen(["cat", source], stdout=subprocess.PIPE)
    _, _, errors = program.run(*prepare_words("-", tmp_path / "stopped"), stdin=unpacked.stdout)
    unpacked.wait()
    assert "going on after document" in errors
    assert output_bytes(tmp_path / "stopped") == output_bytes(tmp_path / "whole")
    assert not state.exists()


def test_compressed_inputs_and_standard_input_give_the_same_bytes(program, tmp_path):
    source = tmp_path / "texts.jsonl"
    write_lines(source, 500)
    program.run(*prepare_words(source, tmp_path / "plain"))
    expected = output_bytes(tmp_path / "plain")
    content = source.read_bytes()
    for name, packed in {"gz": gzip.compress(content), "xz": lzma.compress(content)}.items():
        (tmp_path / f"texts.{name}").write_bytes(packed)
        program.run(*prepare_words(tmp_path / f"texts.{name}", tmp_path / name))
        assert output_bytes(tmp_path / name) == expected
    with open(tmp_path / "texts.xz", "rb") as file:
        program.run(*prepare_words("-", tmp_path / "stdin"), stdin=file)
    assert output_bytes(tmp_path / "stdin") == expected


SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "llama" / "prepare_dataset.sh"


def run_script(program, folder, *words, **environment):
    return subprocess.run(
        ["bash", SCRIPT, *words], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "MEGALITH": str(program.path), "PYTHON": sys.executable, **environment},
    )


def test_the_script_for_known_data_sets_says_what_it_would_fetch(program, tmp_path):
    for name in ("wiki", "fineweb", "bookcorpus"):
        done = run_script(program, tmp_path, DATASET=name, TOKENIZER_MODEL="tokenizer", DRY_RUN="1")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0].startswith("would fetch the list of files https://huggingface.co/api/datasets/")
        assert lines[-1] == f"DATA_PATH=data/{name}_text_document"
    for environment in ({"DATASET": "c4", "TOKENIZER_MODEL": "x"}, {"DATASET": "wiki"}):
        done = run_script(program, tmp_path, DRY_RUN="1", **environment)
        assert done.returncode == 2 and done.stderr.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


def test_the_script_prepares_parquet_files(program, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    for number, texts in enumerate([TEXTS, ["another file", None]]):
        pyarrow.parquet.write_table(
            pyarrow.table({"id": list(range(len(texts))), "text": texts}), tmp_path / f"{number}.parquet"
        )
    words = {"DATASET": "wiki", "TOKENIZER_TYPE": "ByteTokenizer", "TOKENIZER_MODEL": "unused", "APPEND_EOD": "1"}
    files = f"{tmp_path}/0.parquet {tmp_path}/1.parquet"
    done = run_script(program, tmp_path, PARQUET_FILES=files, **words)
    assert done.returncode == 0, done.stderr
    prefix = done.stdout.splitlines()[-1].removeprefix("DATA_PATH=")
    expected = [[*text.encode(), 256] if text else [] for text in [*TEXTS, "another file", ""]]
    assert [document.tolist() for document in indexed_data.read(tmp_path / prefix)] == expected
    # One set of files under the two names that guides have.
    assert (tmp_path / "data/wiki_text_sentence.bin").samefile(tmp_path / f"{prefix}.bin")
    # Another data set does not replace the first one, and neither does the same one by mistake.
    other = run_script(program, tmp_path, PARQUET_FILES=f"{tmp_path}/1.parquet", **{**words, "DATASET": "fineweb"})
    assert other.stdout.splitlines()[-1] == "DATA_PATH=data/fineweb_text_document"
    assert [document.tolist() for document in indexed_data.read(tmp_path / prefix)] == expected
    again = run_script(program, tmp_path, PARQUET_FILES=f"{tmp_path}/1.parquet", **words)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    assert [document.tolist() for document in indexed_data.read(tmp_path / prefix)] == expected
    again = run_script(program, tmp_path, "--overwrite", PARQUET_FILES=f"{tmp_path}/1.parquet", **words)
    assert again.returncode == 0, again.stderr
    assert [document.tolist() for document in indexed_data.read(tmp_path / prefix)] == expected[-2:]
    # A file that cannot be read must not pass for the end of the data.
    (tmp_path / "1.parquet").write_bytes(b"PAR1 broken")
    done = run_script(program, tmp_path, PARQUET_FILES=files, DATA_DIR="other", **words)
    assert done.returncode != 0
    assert not list((tmp_path / "other").glob("*.bin"))


def test_data_sets_are_shown(program, data):
    _, output, _ = program.run("inspect", "data", data.prefix, "--num_samples", 2)
    assert "documents 37" in output and "tokens 2499 of 2 bytes" in output and "#" in output
    _, output, _ = program.run(
        *("inspect", "data", "--data_path", data.prefix, "--split", "100,0,0", "--seq_length", 17, "--num_samples", 150),
        *("--print_samples", "train"),
    )
    samples = data.samples(150, 17)
    for line, sample in zip(output.splitlines(), samples, strict=True):
        assert json.loads(line) == {"tokens": sample[:-1].tolist(), "labels": sample[1:].tolist()}
    _, output, _ = program.run("prepare", "check", data.prefix, "--vocab_size", 131)
    assert "sound: 37 documents" in output
    code, output, _ = program.run("prepare", "check", f"{data.prefix}.idx", "--vocab_size", 100, expected=1)
    assert "damaged" in output and "but the vocabulary has 100 ids" in output
