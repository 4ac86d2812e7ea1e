"""`megalith embed`: what it writes and prints, on one rank and several; what cannot work is refused at once."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from ranks import run_ranks

TEXTS = ["the sea", "a cold, cold sea, far away", "bread", "the ship and the bread"]
WORDS = "the a sea cold far away bread ship and , .".split()
BERT = (
    *("--config", "demo_bert", "--num_layers", 2, "--hidden_size", 32, "--ffn_hidden_size", 64, "--vocab_size", 24),
    *("--max_position_embeddings", 32, "--seq_length", 16, "--mock_data", "--micro_batch_size", 2, "--eval_iters", 0),
    *("--train_iters", 1, "--device", "cpu", "--lr", 1e-2, "--make_vocab_size_divisible_by", 8),
)


@pytest.fixture(scope="module")
def model(program, tmp_path_factory):
    """(checkpoint, words of the tokenizer) of a BERT after one step."""
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    tokenizer = ("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", vocabulary)
    # By a relative path: the checkpoint is read from other folders.
    words = ("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", "vocab.txt")
    program.run("train", *BERT, *words, "--save", folder / "saved", cwd=folder)
    return folder / "saved", tokenizer


def embed(program, model, *words, **options):
    return program.run("embed", "--load", model[0], "--device", "cpu", *words, **options)


def test_every_way_out_has_the_same_numbers(program, model, tmp_path):
    _, printed, errors = embed(program, model, "--text", *TEXTS)
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["text"] for line in lines] == TEXTS
    vectors = np.array([line["vector"] for line in lines], dtype=np.float32)
    assert vectors.shape == (4, 32) and np.abs(vectors).max() > 0.01
    assert "4 vectors of 32 numbers" in errors
    for name, words in (("out.npy", ("--text", *TEXTS)), ("out.jsonl", ("--input", tmp_path / "texts.txt"))):
        (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
        _, printed, _ = embed(program, model, *words, "--output", tmp_path / name)
        assert not printed
    assert np.array_equal(np.load(tmp_path / "out.npy"), vectors)
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == lines
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": text, "id": 1}) + "\n" for text in TEXTS))
    _, printed, _ = embed(program, model, "--input", tmp_path / "rows.jsonl", "--text_key", "body")
    assert [json.loads(line) for line in printed.splitlines()] == lines


def test_an_export_is_complete(program, model, tmp_path):
    from transformers import AutoTokenizer

    words = ("--position_embedding_type", "learned_absolute", "--bias_gelu_fusion", "false")  # as Hugging Face's class
    folder, saved = tmp_path / "hf", tmp_path / "saved"
    vocabulary = Path(shutil.copy(model[1][-1], tmp_path / "vocab.txt"))
    program.run("train", *BERT, *words, *model[1][:-1], vocabulary, "--save", saved, "--save_hf", folder)
    vectors = [tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "c.npy"]
    moved = tmp_path / "moved"
    for words, path in zip((("--load", saved), ("--load_hf", folder), ("--load", moved)), vectors, strict=True):
        if path == vectors[-1]:  # as on another machine: the checkpoint has its vocabulary
            vocabulary.unlink()
            saved.rename(moved)
        program.run("embed", *words, "--device", "cpu", "--text", *TEXTS, "--output", path)
    first, *others = map(np.load, vectors)
    assert all(np.array_equal(first, other) for other in others)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs.tokenize("A cold [MASK]") == ["a", "cold", "[MASK]"] and theirs("a")["input_ids"] == [2, 6, 3]
    assert "library_name: transformers" in (folder / "README.md").read_text()


def test_a_vector_may_have_the_length_one(program, model, tmp_path):
    for pooling in ("cls", "mean", "last", "pooler"):
        out = tmp_path / f"{pooling}.npy"
        embed(program, model, "--text", *TEXTS, "--pooling", pooling, "--normalise", "--output", out)
        assert np.abs(np.linalg.norm(np.load(out), axis=1) - 1).max() < 1e-6, pooling


def test_the_nearest_are_printed(program, model):
    _, output, _ = embed(program, model, "--text", *TEXTS, "--query", "bread", "A cold, cold sea, far away", "--top_k", 2)
    lines = output.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == ["bread", "A cold, cold sea, far away"]
    assert lines[1].split() == ["1.0000", "3", "bread"] and lines[5].split(maxsplit=2) == ["1.0000", "2", TEXTS[1]]
    assert len(lines) == 7


def test_long_texts_are_cut_in_front_of_what_ends_them(program, model, tmp_path):
    long = "the sea " * 40
    _, _, errors = embed(program, model, "--text", long, "the sea the sea the", "--output", tmp_path / "out.npy", "--seq_length", 7)
    assert "1 text is longer than 7 tokens" in errors
    first, second = np.load(tmp_path / "out.npy")
    assert np.abs(first - second).max() < 1e-6, "[CLS], five words and [SEP]"


@pytest.mark.parametrize("num_ranks, words", [(2, ("--tensor_model_parallel_size", 2)), (3, ())], ids=["tp2", "dp3"])
def test_ranks_give_what_one_gives(num_ranks, words, program, model, tmp_path):
    given = ("--load", model[0], "--device", "cpu", "--text", *TEXTS, "--pooling", "pooler", "--micro_batch_size", 1)
    program.run("embed", *given, "--output", tmp_path / "one.npy")
    run_ranks(program, num_ranks, "embed", *given, *words, "--output", tmp_path / "several.npy")
    one, several = np.load(tmp_path / "one.npy"), np.load(tmp_path / "several.npy")
    assert np.abs(one - several).max() < 1e-6


GPT = ("--num_layers", 1, "--hidden_size", 16, "--num_attention_heads", 2, "--max_position_embeddings", 16, "--vocab_size", 257)


def test_everything_wrong_is_told_at_once(program, model, tmp_path):
    words = ("--output", tmp_path / "out.txt", "--context_parallel_size", 1, "--seq_length", 99)
    _, output, errors = embed(program, model, *words, expected=2)
    assert not output
    for part in ("no texts given", "out.txt", "must end in .npy or .jsonl", "seq_length 99 is larger than max_position_embeddings 32"):
        assert part in errors, errors
    wrong = (
        (("--text", "a", "--input", "b.txt"), "texts and a file of texts are both given"),
        (("--text", "a", "--pipeline_model_parallel_size", 2), "pipeline_model_parallel_size"),
        (("--text", "a", "--top_k", -1), "--top_k"),
        (("--text", "a", "--pooling", "max"), "--pooling"),
        (("--text", "a", "--output", tmp_path / "no" / "where" / "x" / "out.npy", "--input", "y"), "both given"),
        (("--text", "a", "--max_new_tokens", 3), "--max_new_tokens is an option of generate"),
    )
    for words, part in wrong:
        _, output, errors = embed(program, model, *words, expected=2)
        assert part in errors and not output, errors
    assert list(tmp_path.iterdir()) == []


def test_a_decoder_must_be_told_how(program, tmp_path):
    program.run("train", *GPT, "--mock_data", "--seq_length", 8, "--train_iters", 1, "--eval_iters", 0, "--device", "cpu", "--save", tmp_path / "gpt")
    words = ("embed", "--load", tmp_path / "gpt", "--device", "cpu", "--text", "abc", "a")
    _, _, errors = program.run(*words, expected=2)
    assert "this model is a decoder" in errors and "--pooling last, mean or cls" in errors
    _, _, errors = program.run(*words, "--pooling", "pooler", expected=2)
    assert "pooling pooler is a BERT's" in errors
    _, output, _ = program.run(*words, "--pooling", "last")
    assert len(json.loads(output.splitlines()[0])["vector"]) == 16
    _, _, errors = program.run("embed", "--load", tmp_path / "gpt", "--device", "cpu", "--text", "abc", "", "--pooling", "last", expected=2)
    assert "text 2" in errors and "has no tokens" in errors


def test_no_text_is_written_by_a_bert(program, model):
    _, output, errors = program.run("generate", "--load", model[0], "--prompt", "the sea", "--device", "cpu", expected=2)
    assert not output and "a BERT fills in masked tokens" in errors and "model_type gpt" in errors
