"""Megatron's .bin/.idx files and the sample order of its GPT data set, written only with numpy.

Nothing here knows Megalith's code: the formats are those of Megatron-LM's megatron/core/datasets/indexed_dataset.py and
gpt_dataset.py.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TYPE_CODES = {np.uint8: 1, np.int8: 2, np.int16: 3, np.int32: 4, np.int64: 5, np.uint16: 8}


def random_documents(num_documents, vocab_size, seed, longest=120):
    """Lengths from 1 to `longest`, one of them 1."""
    rng = np.random.RandomState(seed)
    lengths = rng.randint(2, longest + 1, size=num_documents)
    lengths[num_documents // 2] = 1
    return [rng.randint(0, vocab_size, size=length) for length in lengths]


def write(prefix, documents, dtype=np.uint16):
    """One sequence a document."""
    lengths = np.array([len(document) for document in documents], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * np.dtype(dtype).itemsize
    with open(f"{prefix}.bin", "wb") as file:
        for document in documents:
            file.write(np.asarray(document, dtype=dtype).tobytes())
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00")
        file.write(struct.pack("<QBQQ", 1, TYPE_CODES[dtype], len(documents), len(documents) + 1))
        file.write(lengths.tobytes())
        file.write(offsets.astype(np.int64).tobytes())
        file.write(np.arange(len(documents) + 1, dtype=np.int64).tobytes())


def read(prefix):
    """The documents of a pair of files, whatever wrote them."""
    raw = Path(f"{prefix}.idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\x00\x00", raw[:9]
    version, code, num_sequences, num_boundaries = struct.unpack_from("<QBQQ", raw, 9)
    assert version == 1, version
    dtype = {value: key for key, value in TYPE_CODES.items()}[code]
    at = 34
    lengths = np.frombuffer(raw, np.int32, num_sequences, at)
    at += 4 * num_sequences
    offsets = np.frombuffer(raw, np.int64, num_sequences, at)
    at += 8 * num_sequences
    boundaries = np.frombuffer(raw, np.int64, num_boundaries, at)
    assert at + 8 * num_boundaries == len(raw), "bytes left over"
    tokens = Path(f"{prefix}.bin").read_bytes()
    assert sum(lengths) * np.dtype(dtype).itemsize == len(tokens)
    sequences = [np.frombuffer(tokens, dtype, length, offset) for length, offset in zip(lengths, offsets)]
    return [
        np.concatenate([np.empty(0, dtype)] + sequences[first:last]) for first, last in zip(boundaries[:-1], boundaries[1:])
    ]


def gpt_samples(documents, num_samples, sequence_length, seed):
    """The first `num_samples` samples in training order, (num_samples, sequence_length + 1)."""
    lengths = np.array([len(document) for document in documents])
    tokens_per_epoch = int(lengths.sum())
    assert tokens_per_epoch > 0
    epochs = 1
    while epochs * tokens_per_epoch < num_samples * sequence_length + 1:
        epochs += 1
    is_separate, before_last = False, 0
    if epochs > 1:
        before_last = ((epochs - 1) * tokens_per_epoch - 1) // sequence_length
        from_last = num_samples - before_last
        is_separate = from_last < int(0.80 * ((tokens_per_epoch - 1) // sequence_length))

    rng = np.random.RandomState(seed)
    numbers = np.arange(len(documents), dtype=np.int32)
    if is_separate:
        most, last = np.tile(numbers, epochs - 1), numbers.copy()
        rng.shuffle(most)
        rng.shuffle(last)
        order = np.concatenate([most, last])
    else:
        order = np.tile(numbers, epochs)
        rng.shuffle(order)
    total = (epochs * tokens_per_epoch - 1) // sequence_length
    if is_separate:
        most, last = np.arange(before_last), np.arange(before_last, total)
        rng.shuffle(most)
        rng.shuffle(last)
        shuffled = np.concatenate([most, last])
    else:
        shuffled = np.arange(total)
        rng.shuffle(shuffled)

    # Samples overlap by one token: sample k is what follows token k * sequence_length of the documents in their order.
    stream = np.concatenate([documents[number] for number in order]).astype(np.int64)
    starts = shuffled[:num_samples] * sequence_length
    return np.stack([stream[start : start + sequence_length + 1] for start in starts])


def num_samples_of_an_epoch(documents, sequence_length):
    return math.floor((sum(len(document) for document in documents) - 1) / sequence_length)


@dataclass
class Data:
    prefix: Path
    documents: list

    def samples(self, num_samples, sequence_length, seed=1234):
        return gpt_samples(self.documents, num_samples, sequence_length, seed)
