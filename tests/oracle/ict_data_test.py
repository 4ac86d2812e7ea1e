"""ICT's data set against a reading of Stanford's Megatron in NumPy, with one difference: a sample's random numbers are
RandomState(seed + its number)'s, where Stanford's come from one stream in the order of reads.

And the index that `embed --blocks` makes against transformers' MegatronBertModel on the blocks of that reading."""

import json

import numpy as np
import pytest
import torch
from transformers import MegatronBertConfig, MegatronBertModel

SEQUENCE, LONG = 64, 512
WORDS = [f"w{i}" for i in range(300)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
PAD, CLS, SEP = (PIECES.index(name) for name in ("[PAD]", "[CLS]", "[SEP]"))


class Mt19937_64:
    """std::mt19937_64: NumPy's MT19937 has words of 32 bits."""

    def __init__(self, seed):
        self.state = [seed]
        for i in range(1, 312):
            last = self.state[-1]
            self.state.append((6364136223846793005 * (last ^ (last >> 62)) + i) % 2**64)
        self.position = 312

    def next(self):
        if self.position == 312:
            for i in range(312):
                joined = (self.state[i] & ~0x7FFFFFFF) | (self.state[(i + 1) % 312] & 0x7FFFFFFF)
                twisted = (joined >> 1) ^ (0xB5026F5AA96619E9 if joined & 1 else 0)
                self.state[i] = self.state[(i + 156) % 312] ^ twisted
            self.position = 0
        x = self.state[self.position]
        self.position += 1
        x ^= (x >> 29) & 0x5555555555555555
        x ^= (x << 17) & 0x71D67FFFEDA60000
        x ^= (x << 37) & 0xFFF7EEE000000000
        return (x & (2**64 - 1)) ^ ((x & (2**64 - 1)) >> 43)


def blocks_of(documents, title_lengths, first, num_samples, min_sentences, seed):
    """build_blocks_mapping: rows (first sentence, end, document, number in its epoch), shuffled.

    documents: of a split, as lists of (number of the sentence, its length); first: number of the first of them.
    """
    rows = []
    while len(rows) < num_samples:
        block = 0
        for place, sentences in enumerate(documents):
            lengths = [length for _, length in sentences]
            if len(lengths) < min_sentences or any(length > LONG for length in lengths):
                continue
            target, begin, length = SEQUENCE - 3 - title_lengths[first + place], 0, 0
            for i, (number, size) in enumerate(sentences):
                length += size
                left = len(sentences) - i - 1
                if left == 0 or (length >= target and left >= min_sentences and i + 1 - begin >= min_sentences):
                    rows.append((sentences[begin][0], number + 1, first + place, block))
                    begin, length, block = i + 1, 0, block + 1
    generator = Mt19937_64(seed + 1)
    for i in range(len(rows) - 1, 0, -1):
        j = generator.next() % (i + 1)
        rows[i], rows[j] = rows[j], rows[i]
    return rows


def sample_of(row, index, sentences, titles, in_block, seed):
    random = np.random.RandomState((seed + index) % 2**32)
    block = [sentences[i] for i in range(row[0], row[1])]
    chosen = random.randint(0, len(block))
    query = block[chosen] if random.random_sample() < in_block else block.pop(chosen)
    flat = [token for sentence in block for token in sentence]
    if titles is None:
        text = [CLS, *flat[: SEQUENCE - 2], SEP]
    else:
        title = titles[row[2]]
        text = [CLS, *title, SEP, *flat[: SEQUENCE - 3 - len(title)], SEP]
    query = [CLS, *query[: SEQUENCE - 2], SEP]
    padded = [tokens + [PAD] * (SEQUENCE - len(tokens)) for tokens in (query, text)]
    return {
        "query_tokens": padded[0], "query_key_lengths": len(query), "tokens": padded[1], "key_lengths": len(text),
        "block": list(row),
    }


@pytest.fixture(scope="module")
def corpus(program, tmp_path_factory):
    """Texts of 0 to 9 sentences with titles, prepared by the program itself; and what they hold."""
    folder = tmp_path_factory.mktemp("titled")
    (folder / "vocab.txt").write_text("\n".join([*PIECES, "."]) + "\n")
    rng = np.random.RandomState(5)
    stop = len(PIECES)
    documents, titles = [], []
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as file:
        for number in range(60):
            lengths = [20, 600, 30] if number == 30 else rng.randint(2, 30, size=rng.randint(1, 10)).tolist()
            words = [rng.randint(0, len(WORDS), size=length) for length in lengths]
            title = rng.randint(0, len(WORDS), size=rng.randint(1, 8))
            text = " ".join(" ".join(WORDS[i] for i in sentence).capitalize() + "." for sentence in words)
            print(json.dumps({"text": text, "title": " ".join(WORDS[i] for i in title)}), file=file)
            documents.append([[5 + i for i in sentence] + [stop] for sentence in words])
            titles.append([5 + i for i in title])
    tokenizer = ("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", folder / "vocab.txt")
    program.run(
        *("prepare", "--input", folder / "texts.jsonl", "--output_prefix", folder / "wiki", "--split_sentences"),
        *("--json_keys", "text", "title", *tokenizer),
    )
    return folder, tokenizer, documents, titles


def our_samples(program, corpus, count, *words):
    _, output, _ = program.run(
        *("inspect", "data", "--task", "ict", "--print_samples", "train", "--seq_length", SEQUENCE, "--num_samples", count),
        *("--data_path", corpus[0] / "wiki_text_sentence", *corpus[1], *words),
    )
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize(
    "split, in_block, single, titled, seed, count",
    [
        ("1,0,0", 0.1, False, True, 1234, 60), ("1,0,0", 0.5, True, True, 7, 300), ("80,20,0", 0, False, False, 99, 100),
        ("1,0,0", 1, True, False, 2**32 - 20, 60),
    ],
)
def test_samples_are_those_of_the_reading(split, in_block, single, titled, seed, count, program, corpus, tmp_path):
    folder, _, documents, titles = corpus
    prefix = folder / "wiki_title_sentence"
    words = ["--split", split, "--query_in_block_prob", in_block, "--seed", seed, "--data_cache_path", tmp_path]
    if single:
        words.append("--use_one_sent_docs")
    if titled:
        words += ["--titles_data_path", prefix]
    numbered, sentences = [], []
    for document in documents:
        numbered.append([(len(sentences) + i, len(sentence)) for i, sentence in enumerate(document)])
        sentences += document
    used = numbered[: {"1,0,0": 60, "80,20,0": 48}[split]]
    lengths = [len(title) if titled else 0 for title in titles]
    rows = blocks_of(used, lengths, 0, count, 1 if single else 2, seed)
    ours = our_samples(program, corpus, count, *words)
    assert len(ours) == count
    for i, sample in enumerate(ours):
        assert sample == sample_of(rows[i], i, sentences, titles if titled else None, in_block, seed), f"sample {i}"
    # Read again, from the files that the first reading left.
    assert our_samples(program, corpus, 5, *words, "--total_samples", count) == ours[:5]


def test_other_splits_keep_their_titles(program, corpus, tmp_path):
    folder, _, documents, titles = corpus
    words = ("--split", "50,50,0", "--titles_data_path", folder / "wiki_title_sentence", "--data_cache_path", tmp_path)
    _, output, _ = program.run(
        *("inspect", "data", "--task", "ict", "--print_samples", "valid", "--seq_length", SEQUENCE, "--num_samples", 20),
        *("--data_path", folder / "wiki_text_sentence", *corpus[1], *words),
    )
    for sample in map(json.loads, output.splitlines()):
        document = sample["block"][2]
        assert document >= 30
        assert sample["tokens"][1 : 1 + len(titles[document])] == titles[document]


@pytest.fixture(scope="module")
def bert(program, corpus, tmp_path_factory):
    """(transformers' network, a biencoder that starts from it and does not learn)"""
    torch.set_num_threads(1)
    torch.manual_seed(4)
    folder = tmp_path_factory.mktemp("bert")
    # Beside the pieces: a point, and the two ids that the tokenizer adds for beginning and end.
    sizes = dict(vocab_size=len(PIECES) + 3, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    config = MegatronBertConfig(
        **sizes, max_position_embeddings=SEQUENCE, initializer_range=0.2, layer_norm_eps=1e-5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    network = MegatronBertModel(config).eval()
    network.save_pretrained(folder / "hf")
    program.run(
        *("train", "--model_type", "biencoder", "--bert_load", folder / "hf", "--save", folder / "saved", *corpus[1], "--mock_data"),
        *("--num_layers", 2, "--hidden_size", 32, "--ffn_hidden_size", 64, "--num_attention_heads", 4, "--no_bias_gelu_fusion"),
        *("--max_position_embeddings", SEQUENCE, "--seq_length", SEQUENCE, "--make_vocab_size_divisible_by", 1, "--micro_batch_size", 2),
        *("--train_iters", 1, "--eval_iters", 0, "--lr", 0, "--min_lr", 0, "--weight_decay", 0, "--device", "cpu"),
    )
    return network, folder / "saved"


def first_states(network, texts):
    with torch.no_grad():
        return np.stack([network(torch.tensor([text])).last_hidden_state[0, 0].numpy() for text in texts])


@pytest.mark.parametrize("single, titled", [(False, True), (True, False)])
def test_an_index_has_the_vectors_of_the_blocks(single, titled, program, corpus, bert, tmp_path):
    folder, _, documents, titles = corpus
    numbered, sentences = [], []
    for document in documents:
        numbered.append([(len(sentences) + i, len(sentence)) for i, sentence in enumerate(document)])
        sentences += document
    lengths = [len(title) if titled else 0 for title in titles]
    rows = sorted(blocks_of(numbered, lengths, 0, 1, 1 if single else 2, 1234), key=lambda row: row[3])
    texts = [sample_of(row, 0, sentences, titles if titled else None, 1, 0) for row in rows]
    expected = first_states(bert[0], [text["tokens"][: text["key_lengths"]] for text in texts])
    words = ["--titles_data_path", folder / "wiki_title_sentence"] if titled else []
    _, output, _ = program.run(
        *("embed", "--load", bert[1], "--blocks", "--data_path", folder / "wiki_text_sentence", *words, "--seq_length", SEQUENCE),
        *(["--use_one_sent_docs"] if single else []), *("--data_cache_path", tmp_path, "--device", "cpu", "--indexer_batch_size", 7),
        *("--embedding_path", tmp_path / "vectors.npy", "--block_data_path", tmp_path / "blocks.jsonl", "--query", "w3 w4 w5", "--top_k", 4),
    )
    places = [json.loads(line) for line in (tmp_path / "blocks.jsonl").read_text().splitlines()]
    assert places == [{"block": row[3], "document": row[2], "sentences": [row[0], row[1]]} for row in rows]
    vectors = np.load(tmp_path / "vectors.npy")
    assert vectors.shape == expected.shape and np.abs(expected).max() > 1
    assert np.abs(vectors - expected).max() < 1e-5 * np.abs(expected).max()
    scores = expected @ first_states(bert[0], [[CLS, 5 + 3, 5 + 4, 5 + 5, SEP]])[0]
    best = np.argsort(-scores)[:4]
    printed = [line.split() for line in output.splitlines()[1:]]
    assert [int(line[2]) for line in printed] == best.tolist()
    assert np.abs(np.array([float(line[0]) for line in printed]) - scores[best]).max() < 1e-3
