"""What cannot work with a BERT or a T5: networks that differ, vocabularies that lack tokens, words of other models."""

import json

import pytest
import torch
from refusals import refused
from transformers import BertConfig, BertForPreTraining, MegatronBertConfig, MegatronBertForPreTraining
from transformers import T5Config, T5ForConditionalGeneration

SHAPE = (
    *("--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4, "--vocab_size", 131),
    *("--max_position_embeddings", 64, "--seq_length", 32, "--device", "cpu"),
)
BERT = ("train", *SHAPE, "--model_type", "bert")
MOCK = (*BERT, "--mock_data")
WORDS = [f"{a}{b}" for a in ("ba", "co", "di", "fu", "ge") for b in ("la", "mi", "no", "ru", "se", "to")]


@pytest.fixture(scope="module")
def folder(program, tmp_path_factory):
    """Networks of transformers, sentence data, and vocabularies whole and with holes."""
    folder = tmp_path_factory.mktemp("encoders")
    torch.manual_seed(1)
    bert = dict(
        vocab_size=131, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=48
    )
    t5 = dict(vocab_size=131, d_model=64, d_kv=16, d_ff=112, num_layers=2, num_heads=4, decoder_start_token_id=0)
    for name, model in {
        "hf_bert": BertForPreTraining(BertConfig(**bert)),
        "megatron_bert": MegatronBertForPreTraining(MegatronBertConfig(**bert)),
        "t5_v1.0": T5ForConditionalGeneration(T5Config(**t5, feed_forward_proj="relu")),
        "t5_v1.1": T5ForConditionalGeneration(T5Config(**t5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    }.items():
        model.save_pretrained(folder / name)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    (folder / "holes.txt").write_text("\n".join(token for token in tokens if token not in ("[MASK]", "[SEP]")) + "\n")
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as texts, open(folder / "lines.jsonl", "w", encoding="utf-8") as lines:
        for number in range(40):
            sentence = " ".join([WORDS[number % len(WORDS)]] * 11).capitalize() + "."
            print(json.dumps({"text": " ".join([sentence] * 5)}), file=texts)
            print(json.dumps({"text": sentence}), file=lines)
    for name in ("texts", "lines"):
        program.run(
            *("prepare", "--input", folder / f"{name}.jsonl", "--output_prefix", folder / name, "--split_sentences"),
            *("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", folder / "vocab.txt"),
        )
    return folder


PIECES = ("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", "vocab.txt")
FROM = ("train", "--mock_data", "--seq_length", 32, "--device", "cpu", "--load_hf")
T5 = ("train", *SHAPE, "--model_type", "t5", "--position_embedding_type", "relative", *PIECES, "--decoder_seq_length", 32)
DIFFERENT = "these are different networks"
LEAVE = "--load_hf gives the architecture"
TEXTS = ("--data_path", "texts_text_sentence", "--split", "100,0,0", "--eval_iters", 0, "--train_iters", 2, "--data_cache_path", "cache")
LINES = ("--data_path", "lines_text_sentence", *TEXTS[2:])

# what is wrong, command, parts of the message in any order
WRONG = [
    ("Hugging Face's BERT for Megatron's", (*FROM, "hf_bert", "--config", "bert_345M"), ["Hugging Face's BERT", "Megatron-LM's BERT", DIFFERENT, LEAVE]),
    ("Megatron's BERT for Hugging Face's", (*FROM, "megatron_bert", "--config", "bert_base"), [DIFFERENT, LEAVE]),
    ("T5 1.0 for T5 1.1", (*FROM, "t5_v1.0", "--config", "t5_v1.1_small"), ["T5 1.0 (relu)", "T5 1.1 (geglu)", "t5_v1.1_small", DIFFERENT, "leave geglu away"]),
    ("T5 1.1 for T5 1.0", (*FROM, "t5_v1.1", "--relu"), ["T5 1.1 (geglu)", "T5 1.0 (relu)", "command line", DIFFERENT, "leave relu away"]),
    ("a BERT for a T5", (*FROM, "hf_bert", "--model_type", "t5"), ["hf_bert holds a model of model_type bert", "model_type t5", DIFFERENT]),
    ("a T5 for a BERT", (*FROM, "t5_v1.0", "--config", "bert_base"), ["model of model_type t5", "model_type bert", "bert_base", DIFFERENT]),
    ("a BERT that writes", ("generate", "--load_hf", "hf_bert", "--prompt_ids", "1,2", "--print_ids"), ["a BERT fills in masked tokens"]),
    ("samples of a BERT's text", (*MOCK, "--sample_interval", 5, "--sample_prompt_ids", "1,2"), ["sample_interval", "task bert writes no text"]),
    ("an encoder beyond its positions", (*MOCK, "--encoder_seq_length", 65), ["seq_length 65", "max_position_embeddings 64"]),
    ("a decoder of a BERT", (*MOCK, "--decoder_seq_length", 16), ["decoder_seq_length is given", "task bert has no decoder"]),
    ("a causal BERT", (*MOCK, "--is_causal"), ["is_causal is true, and with model_type bert always false", "leave is_causal out"]),
    ("documents that see no others", (*MOCK, "--reset_attention_mask"), ["reset_attention_mask", "a row of task bert is of one"]),
    ("ends of documents in a BERT", (*MOCK, "--eod_mask_loss"), ["eod_mask_loss", "leave them out"]),
    ("the next token from both sides", (*MOCK, "--task", "causal_lm"), ["causal_lm", "model_type bert"]),
    ("BERT's task for a decoder", ("train", *SHAPE, "--mock_data", "--task", "bert"), ["is_causal is true", "set model_type to bert"]),
    ("T5's task for a BERT", (*MOCK, "--task", "t5", "--decoder_seq_length", 16), ["an encoder and a decoder", "a single stack"]),
    ("relative positions of a BERT", (*MOCK, "--position_embedding_type", "relative"), ["position_embedding_type relative is for model_type t5, which is bert"]),
    ("types of tokens of a T5", (*T5[:-2], "--mock_data", "--decoder_seq_length", 32, "--num_token_types", 2), ["num_token_types is for model_type bert, biencoder or classifier, which is t5"]),
    ("a BERT that follows instructions", (*BERT, "--sft_data_path", "texts.jsonl"), ["sft_data_path", "causal_lm"]),
    ("a vocabulary with holes", (*BERT, *TEXTS, "--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", "holes.txt"), ["holes.txt", "lacks [SEP], [MASK]", "prepared with"]),
    ("no vocabulary at all", (*BERT, *TEXTS), ["needs the tokenizer that the data was made with", "--vocab_file"]),
    ("bytes for word pieces", (*BERT[:-2], "--vocab_size", 300, "--model_type", "bert", *TEXTS, "--tokenizer_type", "ByteTokenizer"), ["task bert needs [CLS], [SEP], [MASK]"]),
    ("one sentence each", (*BERT, *LINES, *PIECES), ["40 of fewer than 2 sentences", "--bert_no_binary_head"]),
    ("no sentinels", (*T5, *TEXTS), ["task t5 needs sentinels", "--vocab_extra_ids 100"]),
    ("few sentinels", (*T5, *TEXTS, "--vocab_extra_ids", 1, "--mask_prob", 0.5), ["sample ", "masked spans, and the vocabulary 1 sentinels", "raise vocab_extra_ids to"]),
    ("few made-up words", (*MOCK, "--vocab_size", 8), ["at least 16 ids", "vocab_size is 8"]),
    ("no room for a text", (*MOCK, "--seq_length", 4), ["[CLS], two [SEP] and a text do not fit", "raise seq_length"]),
]


@pytest.mark.parametrize("what, words, parts", WRONG, ids=[row[0] for row in WRONG])
def test_what_cannot_work_is_refused(what, words, parts, program, folder):
    refused(program, words, parts, folder)


def test_a_vocabulary_with_holes_is_one_mistake(program, folder):
    words = (*BERT, *TEXTS, "--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", "holes.txt")
    _, _, errors = program.run(*words, expected=2, cwd=folder)
    assert errors.count("error: ") == 1, errors


def test_data_of_one_sentence_serve_a_bert_without_the_sentence_head(program, folder):
    """The way out that the refusal names."""
    program.run(*BERT, *LINES, *PIECES, "--bert_no_binary_head", cwd=folder)
