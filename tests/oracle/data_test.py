"""Token files and sample order against numpy: what Megatron-LM would read, and in which order."""

import json

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
