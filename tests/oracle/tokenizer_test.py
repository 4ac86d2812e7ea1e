"""Tokenizers against the libraries they come from: Hugging Face's tokenizers, tiktoken and sentencepiece.

Ids must be equal on every text, and so must what the ids decode to. Real vocabularies come from the packages llama-models and
mistral-common; no_deps/tokenizers.txt says which.
"""

import importlib.util
import json
from pathlib import Path
from random import Random

import pytest
import texts as corpus

COUNT = 20_000


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """(texts, file of them as JSON strings)."""
    strings = corpus.texts(COUNT)
    assert len(strings) == COUNT and len(set(strings)) > 0.9 * COUNT
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    file.write_text("".join(json.dumps(text, ensure_ascii=False) + "\n" for text in strings), encoding="utf-8")
    return strings, file


def package_file(package, *path):
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"the package {package} is not installed")
    return Path(spec.submodule_search_locations[0]).joinpath(*path)


def lines(program, *words):
    _, output, _ = program.run("inspect", "tokenizer", "--json_strings", *words)
    return [json.loads(line) for line in output.split("\n")[:-1]]


def first_difference(strings, ours, theirs):
    assert len(ours) == len(theirs)
    different = [i for i in range(len(ours)) if ours[i] != theirs[i]]
    if not different:
        return
    i = min(different, key=lambda k: len(strings[k]))
    raise AssertionError(f"{len(different)} of {len(ours)} differ; the shortest: {strings[i]!r}\n  ours   {ours[i]}\n  theirs {theirs[i]}")


def compare(program, tmp_path, sample, options, encode, decode, check_special=None):
    strings, file = sample
    theirs = [encode(text) for text in strings]
    first_difference(strings, lines(program, *options, "--encode_file", file), theirs)
    ids = tmp_path / "ids.jsonl"
    ids.write_text("".join(json.dumps(row) + "\n" for row in theirs))
    first_difference(strings, lines(program, *options, "--decode_file", ids), [decode(row) for row in theirs])
    if check_special:
        first_difference(strings, lines(program, *options, "--encode_file", file, "--add_special_tokens"), [check_special(text) for text in strings])


def test_llama3(program, sample, tmp_path):
    tiktoken = pytest.importorskip("tiktoken")
    from tiktoken.load import load_tiktoken_bpe

    model = package_file("llama_models", "llama3", "tokenizer.model")
    ranks = load_tiktoken_bpe(str(model))
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"]
    names += ["<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"]
    names += ["<|python_tag|>", "<|image|>"]
    names += [f"<|reserved_special_token_{2 + i}|>" for i in range(256 - len(names))]
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    theirs = tiktoken.Encoding("llama3", pat_str=pattern, mergeable_ranks=ranks,
                               special_tokens={name: len(ranks) + i for i, name in enumerate(names)})
    compare(program, tmp_path, sample, ["--tokenizer_type", "Llama3Tokenizer", "--tokenizer_model", model],
            lambda text: theirs.encode(text, allowed_special="all"), theirs.decode,
            lambda text: [128000] + theirs.encode(text, allowed_special="all"))
    for options in (["--tokenizer_type", "Llama3Tokenizer", "--tokenizer_model", model.parent], ["--tokenizer_model", model]):
        _, output, _ = program.run("inspect", "tokenizer", *options, "--text", "Hello, world!")
        assert json.loads(output) == [9906, 11, 1917, 0]


def test_llama4(program, sample, tmp_path):
    tiktoken = pytest.importorskip("tiktoken")
    from tiktoken.load import load_tiktoken_bpe
    from tokenizer_forms import GPT4O

    model = package_file("llama_models", "llama4", "tokenizer.model")
    theirs = tiktoken.Encoding("llama4", pat_str=GPT4O, mergeable_ranks=load_tiktoken_bpe(str(model)),
                               special_tokens={"<|begin_of_text|>": 200000, "<|python_start|>": 200016, "<|image|>": 200090, "<|reasoning_thinking_end|>": 201143})
    options = ["--tokenizer_type", "Llama3Tokenizer", "--tokenizer_model", model]
    compare(program, tmp_path, sample, options, lambda text: theirs.encode(text, allowed_special="all"), theirs.decode)
    special = "<|python_start|><|image|><|reasoning_thinking_end|>"
    _, output, _ = program.run("inspect", "tokenizer", *options, "--text", special)
    assert json.loads(output) == theirs.encode(special, allowed_special="all")


@pytest.mark.parametrize("file", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_mistral_sentencepiece(program, sample, tmp_path, file):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = package_file("mistral_common", "data", file)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    compare(program, tmp_path, sample, ["--tokenizer_type", "Llama2Tokenizer", "--tokenizer_model", model], theirs.encode, theirs.decode,
            lambda text: [1] + theirs.encode(text))


def test_mistral_tekken(program, sample, tmp_path):
    tiktoken = pytest.importorskip("tiktoken")
    import base64

    model = package_file("mistral_common", "data", "tekken_240911.json")
    data = json.loads(model.read_text(encoding="utf-8"))
    num_special, size = data["config"]["default_num_special_tokens"], data["config"]["default_vocab_size"]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in data["vocab"][: size - num_special]}
    theirs = tiktoken.Encoding("tekken", pat_str=data["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})
    compare(program, tmp_path, sample, ["--tokenizer_type", "HuggingFaceTokenizer", "--tokenizer_model", model],
            lambda text: [id + num_special for id in theirs.encode_ordinary(text)],
            lambda ids: theirs.decode([id - num_special for id in ids]))


SENTENCEPIECE_FORMS = {
    "unigram": {},
    "unigram_bytes": {"byte_fallback": True, "user_defined_symbols": ["<sep>", "日本", "number"]},
    "bpe": {"model_type": "bpe", "user_defined_symbols": ["<sep>", "the"]},
    "bpe_plain": {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True},
    "bpe_without_prefix": {"model_type": "bpe", "add_dummy_prefix": False, "normalization_rule_name": "nfkc_cf"},
    "suffix": {"model_type": "bpe", "treat_whitespace_as_suffix": True},
    "character": {"model_type": "char", "user_defined_symbols": ["<sep>"]},
    "word": {"model_type": "word"},
    "nmt": {"normalization_rule_name": "nmt_nfkc_cf", "split_by_whitespace": False},
}


@pytest.fixture(scope="module")
def trained_sentencepiece(tmp_path_factory):
    """name -> .model, trained when first asked for."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("sentencepiece")
    sentences = [text for text in corpus.texts(3000, seed=3) if "\0" not in text]

    def get(name):
        path = folder / f"{name}.model"
        if not path.exists():
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences), model_prefix=str(folder / name), vocab_size=1200, hard_vocab_limit=False,
                character_coverage=0.98, minloglevel=2, num_threads=1, max_sentence_length=100000, **SENTENCEPIECE_FORMS[name])
        return path

    return get


@pytest.mark.parametrize("name", SENTENCEPIECE_FORMS)
def test_trained_sentencepiece(program, sample, tmp_path, trained_sentencepiece, name):
    import sentencepiece

    model = trained_sentencepiece(name)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    compare(program, tmp_path, sample, ["--tokenizer_type", "GPTSentencePieceTokenizer", "--tokenizer_model", model], theirs.encode, theirs.decode)


def test_equal_scores_and_long_texts_of_unigram(program, tmp_path):
    """Cuts whose scores are equal but for rounding, user symbols, and sums that outgrow the digits of a float."""
    sentencepiece = pytest.importorskip("sentencepiece")
    protocol = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    if tuple(int(part) for part in sentencepiece.__version__.split(".")[:3]) < (0, 2, 3):
        pytest.skip("it scores user symbols in another way")
    model = protocol.ModelProto()
    model.trainer_spec.model_type = protocol.TrainerSpec.UNIGRAM
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = model.normalizer_spec.remove_extra_whitespaces = False
    blank, normal, unknown, user = -2.1716766, 1, 2, 4
    pieces = [("<unk>", 0, unknown), *((text, 0, user) for text in ("(", ")", ",", "((", "日本"))]
    pieces += [("▁" * length, length * blank, normal) for length in (1, 2, 4)]
    pieces += [("9" * length, -13 - 0.1 * length, normal) for length in (1, 4, 10)]
    pieces += [(text, -3.7 - 0.31 * i, normal) for i, text in enumerate(("a", "b", "ab", "ba", "aba", "▁a", "日", "(a"))]
    for text, score, kind in pieces:
        model.pieces.add(piece=text, score=score, type=kind)
    file = tmp_path / "made.model"
    file.write_bytes(model.SerializeToString())
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))

    random = Random(3)
    parts = ["(", "((a", ")", ",", "日本", "日", "é", " " * 4, " " * 5, "9" * 14, "9" * 7, "a", "b", "ab", "aba", " a"]
    strings = ["".join(random.choices(parts, k=random.randint(1, 40))) for _ in range(5000)]
    strings += ["".join(random.choices(parts, k=60_000)) for _ in range(3)]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps(text) + "\n" for text in strings))
    options = ["--tokenizer_type", "GPTSentencePieceTokenizer", "--tokenizer_model", file]
    compare(program, tmp_path, (strings, texts), options, theirs.encode, theirs.decode)


def charsmap_of(model):
    """The precompiled map inside a .model: field 3 (normalizer) of the model, field 2 of that."""

    def fields(data):
        at = 0

        def varint():
            nonlocal at
            value, shift = 0, 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value

        while at < len(data):
            key = varint()
            if key & 7 == 0:
                varint()
            elif key & 7 == 2:
                size = varint()
                yield key >> 3, data[at : at + size]
                at += size
            else:
                at += {1: 8, 5: 4}[key & 7]

    normalizer = [value for number, value in fields(model.read_bytes()) if number == 3][0]
    return [value for number, value in fields(normalizer) if number == 2][0]


def test_every_form_of_tokenizer_json(program, sample, tmp_path, trained_sentencepiece):
    from tokenizer_forms import forms

    strings, _ = sample
    few = strings[::8]
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps(text, ensure_ascii=False) + "\n" for text in few), encoding="utf-8")
    failures, count = [], 0
    for name, theirs in forms(corpus.texts(1500, seed=7), charsmap_of(trained_sentencepiece("unigram"))):
        folder = tmp_path / name
        folder.mkdir()
        theirs.save(str(folder / "tokenizer.json"))
        count += 1
        plain = [row.ids for row in theirs.encode_batch(few, add_special_tokens=False)]
        framed = {text: row.ids for text, row in zip(few, theirs.encode_batch(few))}
        plain_of = dict(zip(few, plain))
        try:
            compare(program, tmp_path, (few, file), ["--tokenizer_model", folder], plain_of.__getitem__,
                    lambda ids: theirs.decode(ids, skip_special_tokens=False), framed.__getitem__)
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    assert count >= 40
    assert not failures, "\n\n".join(failures)


ADDED = {"content": "<|x|>", "special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
FOLDERS = {
    "gpt2": ("gpt2", {"tokenizer_class": "GPT2Tokenizer"}, None),
    "gpt2_bos": ("gpt2", {"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": True, "pad_token": "<pad>", "add_prefix_space": True}, None),
    "gpt2_by_model": ("gpt2", None, {"model_type": "gpt2"}),
    "qwen2": ("qwen2", {"tokenizer_class": "Qwen2Tokenizer"}, None),
    "qwen2_special": (
        "qwen2",
        {"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|im_end|>", "bos_token": None,
         "additional_special_tokens": ["<|im_start|>"], "added_tokens_decoder": {"900": ADDED}},
        None,
    ),
    "qwen3_by_model": ("qwen2", None, {"model_type": "qwen3"}),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_vocab_and_merges_alone(program, sample, tmp_path, name):
    """What AutoTokenizer makes of a folder without tokenizer.json."""
    from transformers import AutoTokenizer

    kind, settings, config = FOLDERS[name]
    source = Path(__file__).parents[1] / "tokenizer" / "data" / kind / "tokenizer.json"
    whole = json.loads(source.read_text(encoding="utf-8"))
    vocab = {**whole["model"]["vocab"], **{token["content"]: token["id"] for token in whole["added_tokens"]}}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in whole["model"]["merges"]]
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges), encoding="utf-8")
    for file, content in (("tokenizer_config.json", settings), ("config.json", config)):
        if content:
            (tmp_path / file).write_text(json.dumps(content))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    strings = [text + extra for text, extra in zip(sample[0][::16], ("", "<|endoftext|> a", " <pad><|x|>b", "<|im_start|>\u0065\u0301") * COUNT)]
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps(text, ensure_ascii=False) + "\n" for text in strings), encoding="utf-8")
    backend = theirs.backend_tokenizer
    compare(
        program, tmp_path, (strings, file), ["--tokenizer_model", tmp_path],
        lambda text: backend.encode(text, add_special_tokens=False).ids,
        lambda ids: backend.decode(ids, skip_special_tokens=False),
        lambda text: backend.encode(text).ids,
    )  # fmt: skip


CLIP_SPECIAL = {"content": "<|endoftext|>", "special": True, "lstrip": False, "rstrip": False, "normalized": True, "single_word": False}


@pytest.mark.parametrize("form", ["by_class", "by_model", "flux", "tokenizer_json"])
def test_clip(program, sample, tmp_path, form):
    """CLIP's vocabulary, small: words end in </w>, texts are lower-cased, and begin and end are put around them."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import CLIPTokenizerFast

    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    learner.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner.train_from_iterator(corpus.texts(1500, seed=3), trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, end_of_word_suffix="</w>"))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]
    # The order of the published file: bytes, bytes at the end of a word, merges, special tokens.
    vocab = {}
    for token in [*alphabet, *(c + "</w>" for c in alphabet), *(merge.replace(" ", "") for merge in merges), "<|startoftext|>", "<|endoftext|>"]:
        vocab.setdefault(token, len(vocab))
    assert len(merges) > 500
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges), encoding="utf-8")
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}
    if form == "by_model":
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip_text_model"}))
    elif form == "flux":
        start = {**CLIP_SPECIAL, "content": "<|startoftext|>"}
        ends = {key: CLIP_SPECIAL for key in ("eos_token", "unk_token")} | {"pad_token": "<|endoftext|>"}
        (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": start, **ends}))
        settings["added_tokens_decoder"] = {
            str(vocab["<|startoftext|>"]): start,
            str(vocab["<|endoftext|>"]): {**CLIP_SPECIAL, "normalized": False},
        }
    if form != "by_model":
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = CLIPTokenizerFast.from_pretrained(tmp_path)
    if form == "tokenizer_json":
        theirs.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").exists() == (form == "tokenizer_json")
    strings = [text + extra for text, extra in zip(sample[0][::16], ("", "<|endoftext|> A", " It's  <|STARTOFTEXT|>b", "\tCafe\u0301 12ab") * COUNT)]
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps(text, ensure_ascii=False) + "\n" for text in strings), encoding="utf-8")
    for words, framed in (([], False), (["--add_special_tokens"], True)):
        ours = lines(program, "--tokenizer_model", tmp_path, "--encode_file", file, *words)
        first_difference(strings, ours, [theirs.backend_tokenizer.encode(text, add_special_tokens=framed).ids for text in strings])


def test_scripts_of_all_characters(program, tmp_path):
    """UnicodeScripts between every two neighbours, and at the beginning."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    theirs = Tokenizer(models.BPE(vocab={**{c: i for i, c in enumerate(sorted(alphabet))}, "ĠA": 256}, merges=[("Ġ", "A")]))
    # What a piece begins with is marked: ByteLevel puts a blank in front of each.
    theirs.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
    theirs.decoder = decoders.ByteLevel()
    theirs.save(str(tmp_path / "tokenizer.json"))
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and chr(c) not in "\r\n"]
    strings = ["".join(characters[i : i + 256]) for i in range(0, len(characters), 255)]
    file = tmp_path / "all.jsonl"
    file.write_text("".join(json.dumps(text, ensure_ascii=False) + "\n" for text in strings), encoding="utf-8")
    rows = lines(program, "--tokenizer_model", tmp_path, "--encode_file", file)
    first_difference(strings, rows, [row.ids for row in theirs.encode_batch(strings, add_special_tokens=False)])
