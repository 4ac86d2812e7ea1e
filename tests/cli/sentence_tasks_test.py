"""Tasks on sentences from text to training: BERT's learns, goes on to the same bits, and what cannot work is refused."""

import json

import pytest
from program import read_metrics

WORDS = [f"{a}{b}" for a in ("ba", "co", "di", "fu", "ge") for b in ("la", "mi", "no", "ru", "se", "to")]
ENCODER = (
    *("--task", "bert", "--is_causal", "false", "--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4),
    *("--max_position_embeddings", 32, "--seq_length", 32, "--device", "cpu", "--micro_batch_size", 8, "--lr", 5e-3),
    *("--lr_warmup_iters", 5, "--train_iters", 60, "--eval_interval", 60, "--eval_iters", 2, "--make_vocab_size_divisible_by", 8),
)
MOCK = ("--mock_data", "--vocab_size", 48)


@pytest.fixture(scope="module")
def data(program, tmp_path_factory):
    """Documents of sentences of one word each, a vocabulary of word pieces, and texts of one sentence."""
    folder = tmp_path_factory.mktemp("sentences")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]) + "\n")
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as texts, open(folder / "lines.jsonl", "w", encoding="utf-8") as lines:
        for number in range(60):
            sentence = " ".join([WORDS[number % len(WORDS)]] * 11)
            sentences = [f"{sentence.capitalize()}."] * 5
            print(json.dumps({"text": " ".join(sentences)}), file=texts)
            print(json.dumps({"text": sentences[0]}), file=lines)
    tokenizer = ("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", folder / "vocab.txt")
    for name in ("texts", "lines"):
        program.run(
            *("prepare", "--input", folder / f"{name}.jsonl", "--output_prefix", folder / name, "--split_sentences"),
            *tokenizer,
        )
    return folder, tokenizer


def losses_of(folder):
    return {line["iteration"]: line["lm_loss"] for line in read_metrics(folder / "metrics.jsonl") if "grad_norm" in line}


def train(program, folder, *words):
    return program.run(
        *("train", *ENCODER, *words, "--data_cache_path", folder / "cache", "--metrics_file", folder / "metrics.jsonl"),
        *("--save", folder / "checkpoint", "--load", folder / "checkpoint"),
    )


def test_hidden_words_of_sentences_are_learned_and_a_run_goes_on(program, data, tmp_path):
    folder, tokenizer = data
    words = ("--data_path", folder / "texts_text_sentence", "--split", "80,20,0", *tokenizer)
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    _, output, _ = train(program, straight, *words)
    losses = losses_of(straight)
    # A guess costs ln 36 = 3.6; who reads the words around a hidden one knows it.
    assert losses[1] > 3 and sum(losses[i] for i in range(51, 61)) / 10 < 1.5, losses
    assert "validation loss" in output
    train(program, parts, *words, "--exit_interval", 10)
    train(program, parts, *words, "--exit_interval", 14)
    assert losses_of(parts) == {i: losses[i] for i in range(1, 15)}


def test_mock_sentences_need_no_tokenizer(program, tmp_path):
    train(program, tmp_path, *MOCK, "--exit_interval", 2)
    assert len(losses_of(tmp_path)) == 2
    for task, fields in (
        ("bert", "tokens token_types labels loss_weights key_lengths sentence_labels truncated"),
        ("t5", "encoder_tokens encoder_key_lengths tokens key_lengths labels loss_weights truncated"),
    ):
        words = ("inspect", "data", *MOCK, "--task", task, "--seq_length", 32, "--decoder_seq_length", 24)
        _, output, _ = program.run(*words, "--print_samples", "valid", "--num_samples", 2)
        samples = [json.loads(line) for line in output.splitlines()]
        assert [list(sample) for sample in samples] == [fields.split()] * 2


SAMPLES = ("inspect", "data", "--print_samples", "train", "--split", "1,0,0", "--seq_length", 32)
TRAIN = ("train", *ENCODER, "--dry_run")
WRONG = [
    ("a causal model", (*TRAIN, *MOCK, "--is_causal", "true"), ["task bert needs attention to both sides"]),
    ("a single stack", (*TRAIN, *MOCK, "--task", "t5", "--decoder_seq_length", 8), ["an encoder and a decoder"]),
    ("no length", (*TRAIN, *MOCK, "--task", "t5"), ["task t5 needs decoder_seq_length", "--decoder_seq_length"]),
    (
        "a long decoder",
        (*TRAIN, *MOCK, "--task", "t5", "--decoder_seq_length", 33),
        ["decoder_seq_length 33 is larger than max_position_embeddings 32"],
    ),
    ("masks of documents", (*TRAIN, *MOCK, "--reset_position_ids"), ["a row of task bert is of one"]),
    ("no tokenizer", (*SAMPLES, "--task", "bert", "TEXTS"), ["needs the tokenizer that the data was made with", "vocab_file"]),
    (
        "bytes",
        (*SAMPLES, "--task", "bert", "TEXTS", "--tokenizer_type", "ByteTokenizer"),
        ["task bert needs [CLS], [SEP], [MASK]"],
    ),
    (
        "one sentence each",
        (*SAMPLES, "--task", "bert", "LINES", "TOKENIZER"),
        ["documents 0 to 60 of 60", "gives no sample: 60 of fewer than 2 sentences", "--bert_no_binary_head", "--split_sentences"],
    ),
    (
        "no sentinels",
        (*SAMPLES, "--task", "t5", "--decoder_seq_length", 24, "TEXTS", "TOKENIZER"),
        ["task t5 needs sentinels", "--vocab_extra_ids 100"],
    ),
    (
        "few sentinels",
        (*SAMPLES, "--task", "t5", "--decoder_seq_length", 24, "TEXTS", "TOKENIZER", "--vocab_extra_ids", 1, "--mask_prob", 0.5),
        ["masked spans, and the vocabulary 1 sentinels", "raise vocab_extra_ids to"],
    ),
    (
        "a short decoder",
        (*SAMPLES, "--task", "t5", "--decoder_seq_length", 4, "TEXTS", "TOKENIZER", "--vocab_extra_ids", 20),
        ["tokens of the decoder, and decoder_seq_length is 4", "raise decoder_seq_length"],
    ),
    ("no room", (*SAMPLES, "--task", "bert", "TEXTS", "TOKENIZER", "--seq_length", 4), ["task bert with seq_length 4"]),
    ("an empty split", (*SAMPLES, "--task", "bert", "TEXTS", "TOKENIZER", "--split", "0.1,99,0.9"), ["train split", "is empty"]),
]


@pytest.mark.parametrize("what, words, parts", WRONG, ids=[row[0] for row in WRONG])
def test_what_cannot_work_is_refused(what, words, parts, program, data):
    folder, tokenizer = data
    named = {
        "TEXTS": ("--data_path", folder / "texts_text_sentence"), "LINES": ("--data_path", folder / "lines_text_sentence"),
        "TOKENIZER": tokenizer,
    }
    given = [each for word in words for each in (named[word] if word in named else (word,))]
    _, _, errors = program.run(*given, "--num_samples", 60, expected=2) if words[0] == "inspect" else program.run(*given, expected=2)
    for part in parts:
        assert part in errors, errors
