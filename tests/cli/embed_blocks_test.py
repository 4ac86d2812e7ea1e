"""`megalith embed --blocks`: the index of a biencoder, its files, the nearest blocks, several ranks; what cannot work."""

import json
import random

import numpy as np
import pytest
from ranks import run_ranks

WORDS = [f"{a}{b}" for a in ("ba", "co", "di", "fu", "ge", "ha") for b in ("la", "mi", "no", "ru", "se", "to")]
SIZES = ("--num_layers", 1, "--hidden_size", 16, "--num_attention_heads", 2, "--max_position_embeddings", 32)
COMMON = ("--seq_length", 24, "--device", "cpu", "--make_vocab_size_divisible_by", 8)
TRAIN = ("train", *SIZES, *COMMON, "--micro_batch_size", 4, "--train_iters", 1, "--eval_iters", 0)
DOCUMENTS = 12


@pytest.fixture(scope="module")
def made(program, tmp_path_factory):
    """(folder with a biencoder and a BERT of one step, words that name the data, words that name the titles)"""
    folder = tmp_path_factory.mktemp("index")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]) + "\n")
    rng = random.Random(3)
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as texts:
        for number in range(DOCUMENTS):
            sentences = [" ".join(rng.choices(WORDS, k=5)).capitalize() + "." for _ in range(1 if number == 7 else 8)]
            print(json.dumps({"text": " ".join(sentences), "title": WORDS[number]}), file=texts)
    tokenizer = ("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", folder / "vocab.txt")
    prepare = ("prepare", "--input", folder / "texts.jsonl", *tokenizer)
    program.run(*prepare, "--output_prefix", folder / "t", "--split_sentences", "--json_keys", "text", "title")
    program.run(*TRAIN, *tokenizer, "--mock_data", "--model_type", "biencoder", "--biencoder_projection_dim", 6, "--init_method_std", 0.3, "--save", folder / "ict")
    program.run(*TRAIN, *tokenizer, "--mock_data", "--model_type", "bert", "--save", folder / "bert")
    data = ("--data_path", folder / "t_text_sentence", "--data_cache_path", folder / "cache")
    return folder, data, ("--titles_data_path", folder / "t_title_sentence")


def embed(program, made, *words, **options):
    folder, data, titles = made
    given = ("embed", "--load", folder / "ict", "--blocks", *data, *titles, *COMMON[:4])
    return program.run(*given, *words, **options)


def test_a_row_a_block_in_every_form(program, made, tmp_path):
    _, printed, errors = embed(program, made, "--indexer_batch_size", 5, "--indexer_log_interval", 2)
    lines = [json.loads(line) for line in printed.splitlines()]
    # Seven words fill a sentence, a title and three tokens the rest of 24: four sentences are a block.
    assert [line["block"] for line in lines] == list(range(len(lines))) and len(lines) == 2 * (DOCUMENTS - 1)
    assert sorted({line["document"] for line in lines}) == [i for i in range(DOCUMENTS) if i != 7]
    covered = [sentence for line in lines for sentence in range(*line["sentences"])]
    assert sorted(covered) == covered and len(set(covered)) == 8 * (DOCUMENTS - 1)
    assert "embed: 10 of 22 blocks (45 %)" in errors and "embed: 20 of 22 blocks (91 %)" in errors and "ETA" in errors
    assert "22 vectors of 6 numbers" in errors
    _, printed, _ = embed(program, made, "--embedding_path", tmp_path / "v.npy", "--block_data_path", tmp_path / "b.jsonl")
    assert not printed
    vectors = np.load(tmp_path / "v.npy")
    assert np.abs(vectors - np.array([line.pop("vector") for line in lines])).max() < 1e-5 and np.abs(vectors).max() > 0.1
    assert [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()] == lines
    embed(program, made, "--use_one_sent_docs", "--output", tmp_path / "all.jsonl", "--normalise")
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert {row["document"] for row in rows} == set(range(DOCUMENTS))
    assert np.abs(np.linalg.norm([row["vector"] for row in rows], axis=1) - 1).max() < 1e-5


def test_the_nearest_blocks_are_printed_with_their_texts(program, made, tmp_path):
    query = ("--query", "Bala bami.", "hato", "--top_k", 2)
    _, printed, _ = embed(program, made, *query, "--output", tmp_path / "v.npy")
    lines = printed.splitlines()
    assert lines[0] == "Bala bami." and lines[3] == "" and lines[4] == "hato" and len(lines) == 7
    for line in (*lines[1:3], *lines[5:7]):
        score, _, block, _, _, document, title = line.split()[:7]
        assert np.isfinite(float(score)) and title == WORDS[int(document)] and 0 <= int(block) < 22
    assert float(lines[1].split()[0]) >= float(lines[2].split()[0])


def test_ranks_share_the_blocks(program, made, tmp_path):
    embed(program, made, "--output", tmp_path / "one.npy", "--block_data_path", tmp_path / "one.jsonl")
    folder, data, titles = made
    given = ("embed", "--load", folder / "ict", "--blocks", *data, *titles, *COMMON[:4], "--indexer_batch_size", 5)
    run_ranks(program, 3, *given, "--output", tmp_path / "three.npy", "--block_data_path", tmp_path / "three.jsonl")
    assert np.abs(np.load(tmp_path / "one.npy") - np.load(tmp_path / "three.npy")).max() < 1e-5
    assert (tmp_path / "one.jsonl").read_text() == (tmp_path / "three.jsonl").read_text()


def test_everything_wrong_is_told_at_once(program, made, tmp_path):
    folder, data, titles = made
    words = ("--text", "a", "--micro_batch_size", 2, "--output", tmp_path / "a.npy", "--embedding_path", tmp_path / "b.npy", "--block_data_path", tmp_path / "c.npy")
    _, output, errors = embed(program, made, *words, expected=2)
    assert not output
    for part in (
        "blocks is given beside text, input or pooling", "output and embedding_path are both given",
        "c.npy', ", "must end in .jsonl", "micro_batch_size is given", "--indexer_batch_size",
    ):
        assert part.rstrip(", '") in errors, (part, errors)
    program.run("prepare", "--input", folder / "texts.jsonl", "--output_prefix", tmp_path / "whole", *("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", folder / "vocab.txt"))
    blocks = ("embed", "--device", "cpu", "--blocks", "--seq_length", 24)
    ict, bert = ("--load", folder / "ict"), ("--load", folder / "bert")
    for given, parts in (
        ((*blocks, *ict), ["data_path is not given", "prepare --split_sentences"]),
        ((*blocks, *ict, *data[:2], "--embedding_path", tmp_path / "v.txt"), ["embedding_path is", "must end in .npy or .jsonl"]),
        ((*blocks, *ict, "--data_path", 0.5, folder / "t_text_sentence", 0.5, folder / "t_text_sentence"), ["does not name one data set"]),
        ((*blocks, *ict, "--data_path", tmp_path / "nowhere"), ["nowhere"]),
        ((*blocks, *ict, "--data_path", tmp_path / "whole_text_document"), ["--split_sentences", "--use_one_sent_docs"]),
        ((*blocks, *ict, *data[:2], "--pooling", "mean"), ["blocks is given beside text, input or pooling"]),
        ((*blocks, *bert, *data[:2]), ["an index is made by a model of two encoders"]),
        ((*blocks, *ict, *data[:2], "--split", "1,0,0"), ["--split is an option of"]),
        ((*blocks, *ict, *data[:2], "--indexer_batch_size", 0), ["indexer_batch_size"]),
        (("embed", *ict, "--text", "a"), ["makes vectors of blocks, and no blocks are asked for", "--blocks"]),
        (("embed", *bert, "--text", "a", "--indexer_batch_size", 3, *data[:2]), ["indexer_batch_size is given without blocks", "data_path is given without blocks"]),
        (("generate", *bert, "--prompt", "a", "--embedding_path", "x"), ["--embedding_path is an option of"]),
    ):
        _, output, errors = program.run(*given, expected=2)
        assert not output, given
        for part in parts:
            assert part in errors, (given, errors)
    (folder / "two.jsonl").write_text('{"text": "Bala bami. Cola comi."}\n' * 2)
    program.run("prepare", "--input", folder / "two.jsonl", "--output_prefix", tmp_path / "two", "--split_sentences", *("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", folder / "vocab.txt"))
    _, _, errors = program.run(*blocks, *ict, "--data_path", tmp_path / "two_text_sentence", *titles, expected=2)
    assert "each needs a title" in errors


def test_training_says_that_an_index_is_made_elsewhere(program, made):
    words = (*TRAIN, "--mock_data", "--vocab_size", 64, "--dry_run", "--indexer_batch_size", 64, "--block_data_path", "x.jsonl")
    _, _, errors = program.run(*words)
    assert "block_data_path, indexer_batch_size: read by 'megalith embed --blocks'" in errors, errors
    _, _, errors = program.run(*TRAIN, "--mock_data", "--vocab_size", 64, "--dry_run", "--indexer_batch_size", 128)
    assert "embed --blocks" not in errors
