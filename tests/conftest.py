"""Fixtures of the tests that drive the program from outside: the program itself, tiny models, token files."""

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "oracle")]

import indexed_data  # noqa: E402
from program import Program  # noqa: E402


@pytest.fixture(scope="session")
def program():
    path = Path(os.environ.get("MEGALITH_PROGRAM", TESTS.parent / "build" / "megalith")).resolve()
    if not path.exists():
        pytest.fail(f"{path} is missing: build it with 'make build', or name it with MEGALITH_PROGRAM")
    return Program(path)


class Models:
    """The tiny models of hf_models.py by name, each made when first asked for."""

    def __init__(self, root):
        self.root = root
        self.made = {}

    def __getitem__(self, name):
        import hf_models

        if name not in self.made:
            self.made[name] = hf_models.make(name, self.root / name)
        return self.made[name]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    import torch

    torch.set_num_threads(1)  # sums in threads depend on their number
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Random documents of awkward lengths, whose ids suit every tiny model."""
    prefix = tmp_path_factory.mktemp("data") / "random"
    documents = indexed_data.random_documents(num_documents=37, vocab_size=131, seed=5)
    indexed_data.write(prefix, documents)
    return indexed_data.Data(prefix, documents)
