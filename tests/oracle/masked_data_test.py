"""BERT's and T5's data sets against megatron-core itself: every field of every sample, the index files, caches, blends."""

import json
import warnings

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed ('make tools' says why)")
    from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
    from megatron.core.datasets.utils import get_blend_from_list

SENTINELS = 100
SEQUENCE, DECODER = 96, 64
# Every third piece continues a word.
WORDS = [f"##p{i}" if i % 3 == 2 else f"w{i}" for i in range(500)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "[BOS]", "[EOS]", *(f"<extra_id_{i}>" for i in range(SENTINELS))]


class Tokenizer:
    """What the data sets ask of a word-piece tokenizer."""

    inv_vocab = dict(enumerate(PIECES))
    pad, cls, sep, mask = (PIECES.index(name) for name in ("[PAD]", "[CLS]", "[SEP]", "[MASK]"))
    bos, eos, eod = PIECES.index("[BOS]"), PIECES.index("[EOS]"), PIECES.index("[EOS]")
    additional_special_tokens_ids = list(range(len(PIECES) - SENTINELS, len(PIECES)))
    unique_identifiers = {"class": "Tokenizer", "tokenizer_path": ["somewhere"]}


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory):
    """A world of one: Megatron asks for the rank before it builds an index."""
    store = tmp_path_factory.mktemp("store") / "file"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def write_sentences(prefix, num_documents, seed):
    """Documents of 0 to 12 sentences; some begin with a piece that continues a word, one has a very long sentence."""
    rng = np.random.RandomState(seed)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for number in range(num_documents):
        lengths = rng.randint(1, 40, size=rng.randint(0, 13)).tolist()
        if number == num_documents // 2:
            lengths = [20, 600, 30]
        builder.add_document(rng.randint(5, 5 + len(WORDS), size=sum(lengths)).tolist(), lengths)
    builder.finalize(f"{prefix}.idx")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two data sets, and the words that name the tokenizer."""
    folder = tmp_path_factory.mktemp("corpora")
    for number in range(2):
        write_sentences(folder / f"corpus{number}", 40 + 11 * number, number)
    # The tokens after the file's are the program's own to add.
    (folder / "vocab.txt").write_text("\n".join(PIECES[: 5 + len(WORDS)]) + "\n")
    words = ("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", folder / "vocab.txt")
    return folder, (*words, "--vocab_extra_ids", SENTINELS)


def megatron_datasets(kind, sizes, short, head=True, seed=1234, mask_prob=0.15, **settings):
    common = {
        "random_seed": seed, "sequence_length": SEQUENCE, "tokenizer": Tokenizer(), "masking_probability": mask_prob,
        "short_sequence_probability": short, "masking_do_full_word": True, "masking_do_permutation": False,
        "masking_use_longer_ngrams": False, **settings,
    }
    if kind == "bert":
        cls = BERTMaskedWordPieceDataset
        config = BERTMaskedWordPieceDatasetConfig(
            **common, masking_max_ngram=3, masking_use_geometric_distribution=False, classification_head=head
        )
    else:
        cls = T5MaskedWordPieceDataset
        config = T5MaskedWordPieceDatasetConfig(
            **common, masking_max_ngram=10, masking_use_geometric_distribution=True, sequence_length_decoder=DECODER
        )
    return BlendedMegatronDatasetBuilder(cls, sizes, lambda: True, config).build()


def our_samples(program, corpus, kind, count, short, *words, head=True, split="train", total=None):
    _, output, _ = program.run(
        *("inspect", "data", "--task", kind, "--print_samples", split, "--seq_length", SEQUENCE, "--num_samples", count),
        *("--total_samples", total or count, "--short_seq_prob", short, *corpus[1], *words),
        *(() if head else ("--bert_no_binary_head",)), *(("--decoder_seq_length", DECODER) if kind == "t5" else ()),
    )
    return [json.loads(line) for line in output.splitlines()]


def lengths_as_mask(length, size):
    return [1] * length + [0] * (size - length)


def assert_same_samples(kind, ours, theirs):
    assert len(ours) > 0
    for i, sample in enumerate(ours):
        expected = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in theirs[i].items()}
        expected.pop("dataset_id", None)  # which of a blend
        expected["labels"] = [max(label, 0) for label in expected["labels"]]  # -1 where nothing is predicted
        found = {"labels": sample["labels"], "loss_mask": sample["loss_weights"], "truncated": sample["truncated"]}
        if kind == "bert":
            found |= {
                "text": sample["tokens"], "types": sample["token_types"], "is_random": sample["sentence_labels"],
                # Megatron takes a [PAD] that was drawn instead of a masked word for padding; here it is a word.
                "padding_mask": [
                    mask * int(token != Tokenizer.pad)
                    for mask, token in zip(lengths_as_mask(sample["key_lengths"], SEQUENCE), sample["tokens"], strict=True)
                ],
            }
        else:
            found |= {
                "text_enc": sample["encoder_tokens"], "text_dec": sample["tokens"],
                "enc_mask": lengths_as_mask(sample["encoder_key_lengths"], SEQUENCE),
                "dec_mask": lengths_as_mask(sample["key_lengths"], DECODER),
            }
        assert found.keys() == expected.keys()
        for name, value in found.items():
            assert value == expected[name], f"sample {i}: {name}"


def arrays(folder):
    """Name without the hash -> bytes."""
    return {path.name.split("-", 1)[1]: path.read_bytes() for path in folder.glob("*.npy")}


@pytest.mark.parametrize(
    "kind, epochs, short, head, seed",
    [
        ("bert", 1, 0.1, True, 1234), ("bert", 3, 0, True, 7), ("bert", 3, 0.1, False, 1234), ("bert", 1, 0, False, 99),
        ("t5", 1, 0.1, True, 1234), ("t5", 3, 0, True, 7), ("t5", 3, 0.5, True, 1),
    ],
)
def test_samples_are_megatrons(kind, epochs, short, head, seed, program, corpus, tmp_path):
    prefix, theirs_folder, ours_folder = str(corpus[0] / "corpus0"), tmp_path / "theirs", tmp_path / "ours"
    # An epoch has about 110 samples, and none is broken off.
    wanted = {1: 60, 3: 300}[epochs]
    theirs = megatron_datasets(
        kind, [wanted, 0, 0], short, head, seed, blend=([prefix], None), split="1,0,0", path_to_cache=str(theirs_folder)
    )[0]
    assert len(theirs) >= wanted
    words = ("--data_path", prefix, "--split", "1,0,0", "--seed", seed)
    count = min(wanted, 150)
    ours = our_samples(
        program, corpus, kind, count, short, *words, "--data_cache_path", ours_folder, head=head, total=wanted
    )
    assert_same_samples(kind, ours, theirs)
    assert len(arrays(ours_folder)) == 1
    assert arrays(ours_folder) == arrays(theirs_folder)
    # What the draws are for is there: hidden words (a very short sample may have none), and with the sentence head both
    # orders.
    assert sum(sum(sample["loss_weights"]) for sample in ours) > 5 * len(ours)
    if kind == "bert":
        assert {sample["sentence_labels"] for sample in ours} == ({0, 1} if head else {0})
    assert {sample["truncated"] for sample in ours} == {0, 1}
    # And what Megatron built serves here: nothing is added to its folder.
    files = sorted(theirs_folder.iterdir())
    again = our_samples(program, corpus, kind, 5, short, *words, "--data_cache_path", theirs_folder, head=head, total=wanted)
    assert again == ours[:5]
    assert sorted(theirs_folder.iterdir()) == files


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_splits_count_documents(kind, program, corpus, tmp_path):
    prefix, sizes = str(corpus[0] / "corpus1"), [70, 9, 8]
    theirs = megatron_datasets(kind, sizes, 0.1, blend=([prefix], None), split="70,20,10", path_to_cache=str(tmp_path / "a"))
    for split, count, expected in zip(("train", "valid", "test"), sizes, theirs):
        words = ("--data_path", prefix, "--split", "70,20,10", "--data_cache_path", tmp_path / "b")
        assert_same_samples(kind, our_samples(program, corpus, kind, count, 0.1, *words, split=split), expected)


def test_blends_are_megatrons(program, corpus, tmp_path):
    words = ["0.7", str(corpus[0] / "corpus0"), "0.3", str(corpus[0] / "corpus1")]
    theirs = megatron_datasets(
        "bert", [120, 0, 0], 0.1, blend=get_blend_from_list(words), split="1,0,0", path_to_cache=str(tmp_path / "theirs")
    )[0]
    ours = our_samples(
        program, corpus, "bert", 120, 0.1, "--data_path", *words, "--split", "1,0,0", "--data_cache_path", tmp_path / "ours"
    )
    assert_same_samples("bert", ours, theirs)
