"""tokenizer.json files of every model and of many combinations of components, trained on the spot."""

import base64
import json
import math

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def trained(tokenizer, corpus, specials=(), size=900, trainer=None, alphabet=True):
    trainer = trainer or trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def byte_level_forms(corpus):
    steps = {
        "llama3": [split(CONTRACTIONS + r"\p{N}{1,3}" + REST), byte_level()],
        "qwen2": [split(CONTRACTIONS + r"\p{N}" + REST), byte_level()],
        "gpt2": [byte_level(regex=True)],
        "roberta": [byte_level(prefix=True, regex=True)],
        "gpt4o": [split(GPT4O), byte_level()],
        "deepseek_v3": [split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK_V3), byte_level()],
        "deepseek_v2": [split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
                        split("[一-龥ࠀ-一가-퟿]+"), pre_tokenizers.Digits(individual_digits=True), byte_level()],
        "falcon": [pre_tokenizers.Punctuation("contiguous"), byte_level(regex=True), pre_tokenizers.Digits(),
                   split("[0-9][0-9][0-9]")],
        "starcoder": [pre_tokenizers.Digits(individual_digits=True), byte_level(regex=True)],
        "scripts": [pre_tokenizers.UnicodeScripts(), byte_level()],
        "words": [split(r"\w+|[^\w\s]+", "removed", True), byte_level(prefix=True)],
    }
    for name, pre in steps.items():
        tokenizer = Tokenizer(models.BPE(ignore_merges=name in ("llama3", "gpt4o")))
        if name == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        if name == "deepseek_v3":
            tokenizer.normalizer = normalizers.Sequence([])
        tokenizer.pre_tokenizer = pre[0] if len(pre) == 1 else pre_tokenizers.Sequence(pre)
        trained(tokenizer, corpus, ["<|begin_of_text|>", "<|endoftext|>"])
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens([AddedToken("number", single_word=True, normalized=False),
                              AddedToken("[MASK]", lstrip=True, rstrip=True, special=True)])
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])])
        if name == "roberta":
            tokenizer.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|begin_of_text|>", 0))
        yield name, tokenizer

    clip = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    clip.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    clip.pre_tokenizer = pre_tokenizers.Sequence([
        split(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "removed", True),
        byte_level()])
    trained(clip, corpus, trainer=trainers.BpeTrainer(
        vocab_size=1100, special_tokens=["<|startoftext|>", "<|endoftext|>"], end_of_word_suffix="</w>", show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    clip.decoder = decoders.ByteLevel()
    clip.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0))
    yield "clip", clip
    no_decoder = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    no_decoder.pre_tokenizer = byte_level(regex=True)
    yield "bpe_without_alphabet", trained(no_decoder, corpus[:40], ["<unk>"], 400, alphabet=False)
    spelled = Tokenizer(models.BPE())
    spelled.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.ByteLevel()])
    spelled.decoder = decoders.ByteLevel()
    yield "bytes_by_normalizer", trained(spelled, corpus)


def character_bpe_forms(corpus):
    def llama(normalizer, pre_tokenizer, decoder, **options):
        options = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>", **options}
        tokenizer = Tokenizer(models.BPE(**options))
        if normalizer:
            tokenizer.normalizer = normalizer
        if pre_tokenizer:
            tokenizer.pre_tokenizer = pre_tokenizer
        # Cut at blanks while training: else a whole sentence is one word.
        trained(tokenizer, [word for text in corpus for word in text.split(" ")], ["<unk>", "<s>", "</s>"] + (BYTES if options["byte_fallback"] else []),
                1500, alphabet=False)
        vocabulary = tokenizer.get_vocab()
        for byte in BYTES if options["byte_fallback"] else []:
            assert byte in vocabulary
        tokenizer.decoder = decoder
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
        return tokenizer

    def legacy_decoder():
        return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])

    legacy = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    yield "llama2", llama(legacy, None, legacy_decoder())
    yield "llama2_without_fusing", llama(legacy, None, legacy_decoder(), fuse_unk=False, byte_fallback=False)
    for scheme in ("first", "always", "never"):
        for cuts in (False, True):
            yield f"metaspace_{scheme}_{cuts}", llama(
                normalizers.Strip(right=False) if scheme == "first" and cuts else None,
                pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cuts),
                decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)]))
    prefixed = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    prefixed.pre_tokenizer = pre_tokenizers.Whitespace()
    trained(prefixed, corpus, trainer=trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"], continuing_subword_prefix="##", show_progress=False))
    prefixed.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    yield "bpe_with_prefix", prefixed
    suffixed = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    suffixed.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
    suffixed.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trained(suffixed, corpus, trainer=trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False))
    suffixed.decoder = decoders.BPEDecoder("</w>")
    yield "bpe_with_suffix", suffixed


def word_forms(corpus):
    for name, lower in (("bert_uncased", True), ("bert_cased", False)):
        bert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        bert.normalizer = normalizers.BertNormalizer(lowercase=lower)
        bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trained(bert, corpus, trainer=trainers.WordPieceTrainer(
            vocab_size=900, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
        bert.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        bert.decoder = decoders.WordPiece()
        yield name, bert
    cuts = {
        "whitespace": pre_tokenizers.Whitespace(),
        "whitespace_split": pre_tokenizers.WhitespaceSplit(),
        "delimiter": pre_tokenizers.CharDelimiterSplit("a"),
        "digits_and_punctuation": pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.Punctuation("merged_with_previous")]),
        "fixed_length": pre_tokenizers.FixedLength(3),
        "scripts": pre_tokenizers.UnicodeScripts(),
    }
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            cuts[f"split_{behavior}_{invert}"] = split(r"\s|\p{P}+", behavior, invert)
        cuts[f"punctuation_{behavior}"] = pre_tokenizers.Punctuation(behavior)
        cuts[f"text_{behavior}"] = pre_tokenizers.Split(" ", behavior)
    for name, cut in cuts.items():
        words = Tokenizer(models.WordLevel(unk_token="<unk>"))
        words.pre_tokenizer = cut
        trained(words, corpus, trainer=trainers.WordLevelTrainer(vocab_size=3000, special_tokens=["<unk>", "<pad>"], show_progress=False))
        words.decoder = decoders.CTC() if name == "whitespace" else decoders.Sequence([decoders.Fuse()])
        yield f"words_{name}", words


def unigram_forms(corpus, charsmap):
    def pieces(most=2500):
        """Frequent parts of words, with the logarithms of their shares as scores. Rounded, so that ties occur."""
        counts = {}
        for text in corpus:
            for word in text.split():
                word = "▁" + word[:40]
                for begin in range(len(word)):
                    for end in range(begin + 1, min(begin + 7, len(word)) + 1):
                        counts[word[begin:end]] = counts.get(word[begin:end], 0) + 1
        best = sorted(counts, key=lambda piece: (-counts[piece], piece))[:most]
        return [(piece, round(math.log(counts[piece] / len(counts)), 2)) for piece in best]

    def unigram(normalizer, scheme, byte_fallback=False, cuts=True):
        first = [(token, 0.0) for token in ["<pad>", "</s>", "<unk>"] + (BYTES if byte_fallback else [])]
        tokenizer = Tokenizer(models.Unigram(first + pieces(), unk_id=2, byte_fallback=byte_fallback))
        tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
        tokenizer.normalizer = normalizer
        metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cuts)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace]) if cuts else metaspace
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
        return tokenizer

    precompiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}

    def with_map(tokenizer, *steps):
        state = json.loads(tokenizer.to_str())
        state["normalizer"] = {"type": "Sequence", "normalizers": [precompiled, *steps]}
        return Tokenizer.from_str(json.dumps(state))

    yield "t5", with_map(unigram(normalizers.NFKC(), "always"), {"type": "Strip", "strip_left": False, "strip_right": True},
                         {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"})
    yield "unigram_first", with_map(unigram(normalizers.NFKC(), "first", cuts=False))
    yield "unigram_bytes", unigram(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), "always", True)
    yield "unigram_whole", unigram(normalizers.Replace("a", "A"), "never", cuts=False)


def forms(corpus, charsmap):
    yield from byte_level_forms(corpus)
    yield from character_bpe_forms(corpus)
    yield from word_forms(corpus)
    yield from unigram_forms(corpus, charsmap)
