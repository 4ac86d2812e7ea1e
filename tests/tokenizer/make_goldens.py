"""Writes the golden data of tokenizer_json_test.cc with Hugging Face's `tokenizers` library.

  pip install tokenizers && python tests/tokenizer/make_goldens.py

For each form of byte-level BPE a small tokenizer is trained on the sentences below and stored as tokenizer.json beside
goldens.json: texts with the ids and the decoded text that the library gives.
"""
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent / "data"
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = [
    "The quick brown fox jumps over 13 lazy dogs. It's the 2nd time that they've jumped; don't ask why.",
    "def main():\n    print('hello, world')\n\n\tfor i in range(1000):\n        total += i * 3.14\n",
    "Größe, naïve café, Ångström. 日本語のテキスト、日本の言葉。 Привет, мир! Привет ещё раз. 안녕하세요 세계",
    "🦙🦙 emoji 👩‍👩‍👧 and 🇩🇪 flags   with   many    spaces \u00a0 and\u3000wide ones",
    "SELECT * FROM t WHERE id IN (1, 22, 333, 4444); -- comment\r\n",
]
TEXTS = CORPUS + [
    "", " ", "  ", "\n", "\n\n\n", "\t \n x", " a", "a ", "Hello, world!",
    "don't DON'T I'LL we've 1234567 3.14 it'ſ", "café cafe\u0301 \u212b \ufb01 \u1112\u1161\u11ab",
    "  leading and   multiple spaces\n\n\tTab and newline \r\n end  ",
    "<|bos|>hi<|eos|> there <|eos|><|eos|>", "x<|bos|", "tool_call and tool_calls  <mask> end", "<mask>\n<mask>x",
    "a\u180eb \u0085 \u2028 \u200b \ufeffz", "٣٤٥ ⅷ ½ 七八",
    "\U00031350x \U00013A69\U00013A69 1\U0001CCF0 \U0001CC00! \u1B4E",  # new in Unicode 15 and 16 "zzzzzzzzzzzz" * 30, " " * 200 + "x", "\u0000\u0001\x7f",
    "日本語" * 40, "a\u0301\u0301\u0301 \U0001F469\u200D\U0001F680 \U0010FFFF",
]
# Handed over as bytes that are not valid UTF-8; the library sees what errors='replace' makes of them.
BROKEN = [b"ok \xff end", b"\xe2\x82", b"\xe2\x82x", b"\xed\xa0\x80", b"\xf0\x9f\x92", b"\xc0\xaf\xf5\x80", b"a\x80\x80b"]


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**options)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def forms():
    llama = Tokenizer(models.BPE(ignore_merges=True))
    llama.pre_tokenizer = pre_tokenizers.Sequence(
        [split(WORDS + r"\p{N}{1,3}" + REST), byte_level(add_prefix_space=False, use_regex=False)])
    yield "llama3", llama, True
    qwen = Tokenizer(models.BPE())
    qwen.normalizer = normalizers.NFC()
    qwen.pre_tokenizer = pre_tokenizers.Sequence(
        [split(WORDS + r"\p{N}" + REST), byte_level(add_prefix_space=False, use_regex=False)])
    yield "qwen2", qwen, True
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = byte_level(add_prefix_space=True, use_regex=True)
    yield "gpt2", gpt2, True
    deepseek = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    deepseek.normalizer = normalizers.Sequence([])
    deepseek.pre_tokenizer = pre_tokenizers.Sequence([
        split(r"[\r\n]"), split(r"\s+$"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(r"[,;]", "merged_with_previous"),
        split(r"[(]", "merged_with_next"), split(r"[.!]", "contiguous"), pre_tokenizers.Digits(individual_digits=True),
        byte_level(add_prefix_space=False, use_regex=True)])
    yield "deepseek", deepseek, False  # without the whole alphabet: unknown bytes occur


def main():
    goldens = []
    for name, tokenizer, has_alphabet in forms():
        trainer = trainers.BpeTrainer(
            vocab_size=420, special_tokens=["<|bos|>", "<|eos|>"] + ([] if has_alphabet else ["<unk>"]),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if has_alphabet else [], show_progress=False)
        tokenizer.train_from_iterator(CORPUS if has_alphabet else CORPUS[:2], trainer)
        tokenizer.add_tokens([AddedToken("tool_call", single_word=True, normalized=False),
                              AddedToken("<mask>", lstrip=True, rstrip=True, special=True),
                              AddedToken("Å", normalized=True)])
        tokenizer.decoder = decoders.ByteLevel()
        bos, eos = tokenizer.token_to_id("<|bos|>"), tokenizer.token_to_id("<|eos|>")
        template = processors.TemplateProcessing(single="<|bos|> $A" + (" <|eos|>" if name == "gpt2" else ""),
                                                 special_tokens=[("<|bos|>", bos), ("<|eos|>", eos)])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
        path = FOLDER / name / "tokenizer.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(path), pretty=False)
        if name == "gpt2":  # the spelling of merges in older files
            data = json.loads(path.read_text())
            data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
            path.write_text(json.dumps(data, ensure_ascii=False))
        (path.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|eos|>"}, "bos_token": "<|bos|>"}))
        cases = []
        for text in TEXTS + BROKEN:
            hex_text = (text if isinstance(text, bytes) else text.encode()).hex()
            clean = text.decode(errors="replace") if isinstance(text, bytes) else text
            plain = tokenizer.encode(clean, add_special_tokens=False).ids
            cases.append({"hex": hex_text, "ids": plain, "special_ids": tokenizer.encode(clean).ids,
                          "decoded": tokenizer.decode(plain, skip_special_tokens=False),
                          "decoded_skip": tokenizer.decode(plain, skip_special_tokens=True)})
        goldens.append({"name": name, "vocab_size": tokenizer.get_vocab_size(), "bos": bos, "eos": eos, "cases": cases})
    (FOLDER / "goldens.json").write_text(json.dumps(goldens))


main()
