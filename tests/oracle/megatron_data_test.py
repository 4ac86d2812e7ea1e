"""Data sets against megatron-core itself: file bytes, samples, masks, blends, and the index cache in both directions."""

import json
import warnings
from pathlib import Path

import indexed_data
import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed ('make tools' says why)")
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    from megatron.core.datasets.utils import get_blend_from_list

EOD = 7
SEQUENCE = 17


class Tokenizer:
    """What the data sets ask of one. No padding id, as most have none: Megatron takes -1."""

    eod = EOD
    vocab_size = 1 << 16
    unique_identifiers = {"class": "Tokenizer", "tokenizer_path": ["somewhere"]}

    @property
    def pad(self):
        raise NotImplementedError


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory):
    """A world of one: Megatron asks for the rank before it builds a blend's cache."""
    store = tmp_path_factory.mktemp("store") / "file"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def write_with_megatron(prefix, documents, dtype=np.uint16):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in documents:
        builder.add_document(document, [len(document)] if len(document) else [])
    builder.finalize(f"{prefix}.idx")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Eleven data sets of different sizes, with ids below 100 so that the end of documents is met inside samples too."""
    folder = tmp_path_factory.mktemp("corpora")
    prefixes = []
    for number in range(11):
        documents = indexed_data.random_documents(num_documents=23 + 9 * number, vocab_size=100, seed=number)
        write_with_megatron(folder / f"corpus{number}", documents)
        prefixes.append(str(folder / f"corpus{number}"))
    return prefixes


def megatron_dataset(sizes, split_number, sequence=SEQUENCE, mock=False, **settings):
    settings = {
        "random_seed": 1234, "reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False, **settings
    }
    config = GPTDatasetConfig(sequence_length=sequence, tokenizer=Tokenizer(), create_attention_mask=True, **settings)
    cls = MockGPTDataset if mock else GPTDataset
    return BlendedMegatronDatasetBuilder(cls, sizes, lambda: True, config).build()[split_number]


def our_samples(program, num_samples, *words, sequence=SEQUENCE, split="train"):
    _, output, _ = program.run(
        *("inspect", "data", "--print_samples", split, "--seq_length", sequence, "--num_samples", num_samples),
        *("--eod", EOD, "--print_masks", *words),
    )
    return [json.loads(line) for line in output.splitlines()]


def assert_same_samples(ours, theirs, num_samples):
    assert len(ours) == num_samples <= len(theirs)
    for i in range(num_samples):
        expected = theirs[i]
        for field in ("tokens", "labels", "loss_mask", "position_ids"):
            assert ours[i][field] == expected[field].long().tolist(), f"sample {i}: {field}"
        # Megatron's mask is true where a token may not look; ours names the document of each token.
        documents = torch.tensor(ours[i].get("document_ids", [0] * len(ours[i]["tokens"])))
        visible = torch.tril(documents[:, None] == documents[None, :])
        assert torch.equal(~visible, expected["attention_mask"][0]), f"sample {i}: attention mask"


def num_samples_for(prefix, epochs, is_last_separate, share=1.0):
    tokens = int(share * sum(len(document) for document in indexed_data.read(prefix)))
    before, per_epoch = ((epochs - 1) * tokens - 1) // SEQUENCE, (tokens - 1) // SEQUENCE
    return before + int((0.3 if is_last_separate else 0.9) * per_epoch)


@pytest.mark.parametrize("seed", [1234, 5])
@pytest.mark.parametrize("is_last_separate", [True, False])
@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_samples_are_megatrons(epochs, is_last_separate, seed, program, corpora, tmp_path):
    prefix = corpora[3]
    count = num_samples_for(prefix, epochs, is_last_separate)
    theirs = megatron_dataset(
        [count, 0, 0], 0, blend=([prefix], None), split="1,0,0", random_seed=seed, path_to_cache=str(tmp_path / "theirs")
    )
    ours = our_samples(
        *(program, count, "--data_path", prefix, "--split", "1,0,0", "--seed", seed),
        *("--data_cache_path", tmp_path / "ours"),
    )
    assert_same_samples(ours, theirs, count)
    assert_same_arrays(tmp_path / "ours", tmp_path / "theirs", 3)


def arrays(folder):
    """Name without the hash -> bytes, sorted where several data sets have an array of that name."""
    found = {}
    for path in Path(folder).glob("*.npy"):
        found.setdefault(path.name.split("-", 1)[1], []).append(path.read_bytes())
    return {name: sorted(values) for name, values in found.items()}


def assert_same_arrays(ours, theirs, num_arrays):
    a, b = arrays(ours), arrays(theirs)
    assert sorted(a) == sorted(b)
    assert sum(map(len, a.values())) == num_arrays
    for name in a:
        assert a[name] == b[name], name


@pytest.mark.parametrize("split", ["90, 7, 3", "70,20,10", "5.5/3.5/1", "80,20", "1,1,1"])
def test_splits_are_megatrons(split, program, corpora, tmp_path):
    prefix = corpora[10]
    theirs = megatron_dataset(
        [60, 12, 9], slice(None), blend=([prefix], None), split=split, path_to_cache=str(tmp_path / "theirs")
    )
    for number, (name, count) in enumerate({"train": 60, "valid": 12, "test": 9}.items()):
        if theirs[number] is None:
            continue
        ours = our_samples(
            *(program, count, "--data_path", prefix, "--split", split, "--data_cache_path", tmp_path / "ours"), split=name
        )
        assert_same_samples(ours, theirs[number], count)


@pytest.mark.parametrize(
    "flags",
    [("reset_position_ids",), ("reset_attention_mask",), ("eod_mask_loss",)]
    + [("reset_position_ids", "reset_attention_mask", "eod_mask_loss")],
)
def test_masks_and_positions_are_megatrons(flags, program, corpora, tmp_path):
    theirs = megatron_dataset(
        [40, 0, 0], 0, sequence=64, blend=([corpora[1]], None), split="1,0,0", path_to_cache=str(tmp_path / "theirs"),
        **{flag: True for flag in flags},
    )
    ours = our_samples(
        *(program, 40, "--data_path", corpora[1], "--split", "1,0,0", "--data_cache_path", tmp_path / "ours"),
        *(f"--{flag}" for flag in flags), sequence=64,
    )
    assert any(EOD in sample["tokens"] for sample in ours)
    assert_same_samples(ours, theirs, 40)


def blend_words(corpora, kind):
    if kind == "two":
        return ["0.7", corpora[0], "0.3", corpora[1]]
    if kind == "one":
        return ["4", corpora[2]]
    if kind == "eleven":  # more than eight weights: numpy adds them up in another order
        return [word for number, prefix in enumerate(corpora) for word in (str(0.1 + 0.37 * number), prefix)]
    return corpora[:3]


@pytest.mark.parametrize("split", ["1,0,0", "80, 20"])
@pytest.mark.parametrize("kind", ["two", "one", "eleven", "unweighted"])
def test_blends_are_megatrons(kind, split, program, corpora, tmp_path):
    words = blend_words(corpora, kind)
    count = 700 if kind != "unweighted" else 150
    theirs = megatron_dataset(
        [count, 0, 0], 0, blend=get_blend_from_list(words), split=split, path_to_cache=str(tmp_path / "theirs")
    )
    ours = our_samples(program, count, "--data_path", *words, "--split", split, "--data_cache_path", tmp_path / "ours")
    assert_same_samples(ours, theirs, count)
    ours_arrays, their_arrays = arrays(tmp_path / "ours"), arrays(tmp_path / "theirs")
    for name, values in ours_arrays.items():
        # Megatron builds every split of positive weight, also those of which nothing is read.
        assert values == their_arrays[name], name
    # And what Megatron built serves here: nothing is added to its folder.
    files = sorted((tmp_path / "theirs").iterdir())
    again = our_samples(program, count, "--data_path", *words, "--split", split, "--data_cache_path", tmp_path / "theirs")
    assert again == ours
    assert sorted((tmp_path / "theirs").iterdir()) == files


def test_blends_listed_in_a_file_and_for_each_split(program, corpora, tmp_path):
    words = blend_words(corpora, "two")
    listed, per_split = tmp_path / "blend.txt", tmp_path / "splits.json"
    listed.write_text("\n".join(words))
    theirs = megatron_dataset([90, 0, 0], 0, blend=get_blend_from_list(words), split="1,0,0", path_to_cache=str(tmp_path / "a"))
    ours = our_samples(program, 90, "--data_args_path", listed, "--split", "1,0,0", "--data_cache_path", tmp_path / "b")
    assert_same_samples(ours, theirs, 90)

    per_split.write_text(json.dumps({"train": words, "valid": ["1.0", corpora[4]], "test": corpora[5:7]}))
    blends = [get_blend_from_list(blend) for blend in (words, ["1.0", corpora[4]], corpora[5:7])]
    theirs = megatron_dataset([80, 20, 30], slice(None), blend_per_split=blends, path_to_cache=str(tmp_path / "c"))
    for number, (name, count) in enumerate({"train": 80, "valid": 20, "test": 30}.items()):
        for cache in ("d", "c"):  # our own, and Megatron's
            files = sorted((tmp_path / "c").iterdir())
            ours = our_samples(
                *(program, count, "--per_split_data_args_path", per_split, "--data_cache_path", tmp_path / cache), split=name
            )
            assert_same_samples(ours, theirs[number], count)
            assert sorted((tmp_path / "c").iterdir()) == files


def test_a_cache_of_megatrons_is_used_only_when_it_fits(program, corpora, tmp_path):
    prefix, cache = corpora[2], tmp_path / "cache"
    megatron_dataset([50, 0, 0], 0, blend=([prefix], None), split="1,0,0", path_to_cache=str(cache))
    assert len(list(cache.iterdir())) == 4
    words = ("--data_path", prefix, "--split", "1,0,0", "--data_cache_path", cache)
    our_samples(program, 50, *words)
    assert len(list(cache.iterdir())) == 4
    for number, other in enumerate([("--seed", 9), ("--split", "1")], 2):
        our_samples(program, 50, *words, *other)
        assert len(list(cache.iterdir())) == 4 * number


def test_mock_data_are_megatrons(program, tmp_path):
    vocabulary = 5000
    theirs = megatron_dataset([30, 6, 0], slice(None), sequence=512, mock=True, path_to_cache=str(tmp_path / "theirs"))
    for number, (name, count) in enumerate({"train": 30, "valid": 6}.items()):
        ours = our_samples(
            *(program, count, "--mock_data", "--vocab_size", vocabulary, "--data_cache_path", tmp_path / "ours"),
            split=name, sequence=512,
        )
        assert_same_samples(ours, theirs[number], count)
    for name, values in arrays(tmp_path / "ours").items():
        assert values == arrays(tmp_path / "theirs")[name], name


@pytest.mark.parametrize("vocabulary", [65498, 65499, 100_000])
def test_prepared_files_are_megatrons_byte_for_byte(vocabulary, program, tmp_path):
    rng = np.random.RandomState(vocabulary % 7)
    # Documents of several sentences, some of them empty, and documents without any.
    documents = [[rng.randint(0, vocabulary, rng.randint(0, 30)).tolist() for _ in range(rng.randint(0, 5))] for _ in range(300)]
    source = tmp_path / "texts.jsonl"
    with open(source, "w", encoding="utf-8") as file:
        for document in documents:
            print(json.dumps({"text": [" ".join(map(str, sentence)) for sentence in document]}), file=file)
    program.run(
        *("prepare", "--input", source, "--output_prefix", tmp_path / "ours", "--append_eod", "--workers", 3),
        *("--tokenizer_type", "NullTokenizer", "--vocab_size", vocabulary),
    )
    # The end of a document is the id after the others, so the vocabulary has one more.
    builder = IndexedDatasetBuilder(f"{tmp_path}/theirs.bin", dtype=DType.optimal_dtype(vocabulary + 1))
    for document in documents:
        ids = [number for sentence in document for number in sentence]
        lengths = [len(sentence) for sentence in document if sentence]
        if ids:
            ids.append(vocabulary)
            lengths[-1] += 1
        builder.add_document(ids, lengths)
    builder.finalize(f"{tmp_path}/theirs.idx")
    for ending in ("bin", "idx"):
        assert (tmp_path / f"ours_text_document.{ending}").read_bytes() == (tmp_path / f"theirs.{ending}").read_bytes()


def test_merged_files_are_megatrons_byte_for_byte(program, corpora, tmp_path):
    words = ("prepare", "merge", "--input_prefixes", *corpora[:4], "--output_prefix", tmp_path / "ours")
    program.run(*words)
    _, _, errors = program.run(*words, expected=2)
    assert "ours.bin: a file is there" in errors and "--overwrite" in errors
    program.run(*words, "--overwrite")
    builder = IndexedDatasetBuilder(f"{tmp_path}/theirs.bin", dtype=np.uint16)
    for prefix in corpora[:4]:
        builder.add_index(prefix)
    builder.finalize(f"{tmp_path}/theirs.idx")
    for ending in ("bin", "idx"):
        assert (tmp_path / f"ours.{ending}").read_bytes() == (tmp_path / f"theirs.{ending}").read_bytes()
