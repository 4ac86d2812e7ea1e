"""Encoding speed on one thread: Megalith beside gigatoken, fastokens, Hugging Face's tokenizers and Google's sentencepiece.

Every row is one vocabulary on one text. The programs take turns, several rounds, each time with a fresh tokenizer: its first pass
over the text, and the best of two more, when its caches know the text. Times are CPU seconds, only of encoding, without reading
files or making Python lists: a shared machine lengthens these least. Ids are compared first; a peer whose ids differ is left out
of its row, with a note.

Vocabularies: Llama 3's tokenizer.model (the package llama-models) also after GPT-2's, Qwen's and DeepSeek's splits, Mistral's
SentencePiece and tekken (mistral-common), a WordPiece and a unigram trained here. Texts are the same on every machine: English and
languages made of words or of the vocabulary's own tokens, and this repository's sources.

pip install gigatoken fastokens tokenizers sentencepiece; pip install --no-deps -r tests/oracle/no_deps/tokenizers.txt
usage: tokenizer.py --program build/megalith [--rounds 5] [--rows NAME ...] [--output FILE.md]
"""

import argparse
import base64
import importlib
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
ROOT = Path(__file__).resolve().parents[1]
LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
BLANKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "llama3": [LETTERS + r"\p{N}{1,3}|" + BLANKS],
    "qwen": [LETTERS + r"\p{N}|" + BLANKS],
    "gpt2": [],  # ByteLevel's own
    "deepseek": [
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        # With the line ends themselves, as in DeepSeek's file.
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^RN\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|""".replace("RN", "\r\n")
        + r""" ?[\p{P}\p{S}]+[RN]*|\s*[RN]+|\s+(?!\S)|\s+""".replace("RN", "\r\n"),
    ],
}
WORDS = (
    "the of and to in is that it was for on are with as his they be at one have this from or had by not but some what there we can "
    "out other were all your when up use word how said an each she which do their time if will way about many then them would write "
    "like so these her long make thing see him two has look more day could go come did my sound no most number who over know water "
    "than call first people may down side been now find any new work part take get place made live where after back little only "
    "round man year came show every good me give our under name very through just form much great think say help low line before "
    "turn cause same mean differ move right boy old too does tell sentence set three want air well also play small end put home read "
    "hand port large spell add even land here must big high such follow act why ask men change went light kind off need house picture "
    "try us again animal point mother world near build self earth father head stand own page should country found answer school grow "
    "study still learn plant cover food sun four thought let keep eye never last door between city tree cross since hard start might "
    "government international development understanding nevertheless responsibility characteristics approximately communication"
).split()
NUM_BYTES = 2_000_000


def package_file(package, *path):
    spec = importlib.util.find_spec(package)
    if spec is None:
        sys.exit(f"the package {package} is missing: pip install --no-deps -r tests/oracle/no_deps/tokenizers.txt")
    return Path(spec.submodule_search_locations[0]).joinpath(*path)


def llama3_ranks():
    rows = (line.split() for line in package_file("llama_models", "llama3", "tokenizer.model").read_text().splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in rows}


def of_sentences(next_sentence, seed, num_bytes=NUM_BYTES):
    """Documents of one to three paragraphs of sentences."""
    chance = random.Random(seed)
    documents, size = [], 0
    while size < num_bytes:
        paragraphs = ["".join(next_sentence(chance) for _ in range(chance.randrange(3, 20))) for _ in range(chance.randrange(1, 4))]
        documents.append("\n\n".join(paragraphs))
        size += len(documents[-1].encode())
    return documents


def english():
    # Names and rare words, made of syllables, are a tenth: text that was never seen always has some.
    syllables = "ba con der el fi gra ho in jo ka lu men no or pre qui ra sto ter un vel wi xa yo zu ing tion ness able ism".split()

    def word(chance):
        if chance.random() < 0.1:
            return "".join(chance.choice(syllables) for _ in range(chance.randrange(2, 5)))
        return WORDS[min(int(chance.expovariate(1 / 60)), len(WORDS) - 1)]

    def sentence(chance):
        words = [word(chance) for _ in range(chance.randrange(4, 25))]
        if chance.random() < 0.2:
            words.insert(chance.randrange(len(words)), str(chance.randrange(3000)))
        return " ".join(words).capitalize() + chance.choice([".", ".", ".", "?", "!", ", however.", ' ("so").', " - don't it's."]) + " "

    return of_sentences(sentence, 1)


def code():
    text = "".join(path.read_text() for path in sorted(ROOT.glob("src/**/*.cc")))
    text = text.encode()[: 2 * NUM_BYTES].decode(errors="ignore")
    return [text[i : i + 6000] for i in range(0, len(text), 6000)]


def tokens_of(first, last):
    """Llama 3's tokens of a script, common ones first."""
    ranks = sorted(llama3_ranks().items(), key=lambda item: item[1])
    words = [token.decode(errors="replace").strip() for token, _ in ranks]
    return [word for word in words if word and all(first <= c <= last for c in word)]


def chinese():
    found = tokens_of("一", "龥")

    def sentence(chance):
        return "".join(found[int(len(found) * chance.random() ** 3)] for _ in range(chance.randrange(4, 18))) + chance.choice("，。！、")

    return of_sentences(sentence, 2)


def of_words(first, last, stops, seed):
    """Text of 40000 words, of one to three tokens each, that are as frequent as Zipf says."""
    found, chance = tokens_of(first, last), random.Random(seed)
    words = ["".join(found[int(len(found) * chance.random() ** 2)] for _ in range(chance.choice([1, 1, 2, 3]))) for _ in range(40_000)]

    def sentence(chance):
        return " ".join(words[int(len(words) ** chance.random()) - 1] for _ in range(chance.randrange(4, 18))) + chance.choice(stops)

    return of_sentences(sentence, seed)


def emoji():
    faces = [chr(c) for c in (*range(0x1F600, 0x1F64F), *range(0x1F680, 0x1F6C0), *range(0x1F90C, 0x1F9FF))]
    joined = ["👩‍👩‍👧", "👍🏽", "🇩🇪", "❤️", "👩🏾‍🚀", "1️⃣", "🏳️‍🌈"]

    def sentence(chance):
        run = "".join(chance.choice(faces if chance.random() < 0.7 else joined) for _ in range(chance.randrange(1, 12)))
        return run + " " + " ".join(chance.choices(WORDS, k=chance.randrange(0, 6))) + " "

    return of_sentences(sentence, 5)


def one_word():
    chance = random.Random(6)
    return ["".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(1_000_000))]


TEXTS = {
    "English": english,
    "code": code,
    "Chinese": chinese,
    "Arabic": lambda: of_words("ء", "ي", [". ", "، ", "؟ "], 3),
    "Devanagari": lambda: of_words("ऀ", "ॣ", ["। ", ", ", "? "], 4),
    "emoji": emoji,
    "a word of 1 MB": one_word,
}


def of_llama3(splits, folder):
    """Llama 3's vocabulary after other splits, as tokenizer.json."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    ranks = llama3_ranks()
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = dict(zip(printable, map(chr, printable)))
    symbols.update((byte, chr(256 + i)) for i, byte in enumerate(byte for byte in range(256) if byte not in symbols))
    spelled = {token: "".join(symbols[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in ranks.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted((rank, ranks[left], ranks[right], spelled[left], spelled[right]) for left, right in cuts)
    merges.sort(key=lambda merge: merge[0])
    tokenizer = Tokenizer(models.BPE({spelled[token]: rank for token, rank in ranks.items()}, [merge[3:] for merge in merges], ignore_merges=True))
    steps = [pre_tokenizers.Split(Regex(split), "isolated") for split in SPLITS[splits]]
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, by_bytes]) if steps else by_bytes
    return save(tokenizer, folder)


def word_piece(folder):
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator([*english()[:100], *code()[:50]], vocab_size=8000, show_progress=False)
    return save(tokenizer, folder)


def save(tokenizer, folder):
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def unigram(folder):
    import sentencepiece

    sentences = [line for document in english()[:150] for line in document.split(". ")] + [part for text in TEXTS["Chinese"]()[:150] for part in text.split("。")]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_prefix=str(folder / "unigram"), vocab_size=6000, hard_vocab_limit=False,
        minloglevel=2, num_threads=1, byte_fallback=True)
    return folder / "unigram.model"


# Vocabulary → a function that makes or finds its file in a folder, and the type by which Megalith opens it.
VOCABULARIES = {
    **{name: (lambda folder, name=name: of_llama3(name, folder), "HuggingFaceTokenizer") for name in SPLITS},
    "SentencePiece BPE": (lambda folder: package_file("mistral_common", "data", "tokenizer.model.v1"), "GPTSentencePieceTokenizer"),
    "SentencePiece unigram": (unigram, "GPTSentencePieceTokenizer"),
    "WordPiece": (word_piece, "HuggingFaceTokenizer"),
}
ROWS = [("llama3", text) for text in TEXTS]
ROWS += [(name, text) for name in ("SentencePiece BPE", "SentencePiece unigram") for text in ("English", "Chinese")]
ROWS += [("WordPiece", "English")]
ROWS += [(name, text) for name in ("deepseek", "qwen", "gpt2") for text in ("English", "code", "Chinese")]


def peer_gigatoken(file):
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_sentencepiece(file) if file.suffix != ".json" else gigatoken.Tokenizer.from_json(file.read_bytes())
    return lambda documents: tokenizer.encode_batch(documents, parallel=False), lambda rows: [list(row) for row in rows.tolist()]


def peer_fastokens(file):
    import fastokens
    import numpy

    tokenizer = fastokens.Tokenizer.from_file(str(file))

    def ids(result):
        flat, offsets = numpy.frombuffer(result[0], numpy.uint32), numpy.frombuffer(result[1], numpy.uint64)
        return [flat[offsets[i] : offsets[i + 1]].tolist() for i in range(len(offsets) - 1)]

    return tokenizer.encode_batch_flat, ids


def peer_tokenizers(file):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    return lambda documents: tokenizer.encode_batch_fast(documents, add_special_tokens=False), lambda rows: [row.ids for row in rows]


def peer_sentencepiece(file):
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(file))
    return lambda documents: [tokenizer.encode(document) for document in documents], lambda rows: rows


# The slow ones only where no fast one knows the vocabulary.
PEERS_OF_JSON = [["gigatoken", "fastokens"], ["tokenizers"]]


def peers_of(file, documents, expected):
    """({name: maker} of the peers with the same ids, notes on the others)."""
    peers, notes = {}, []
    for names in PEERS_OF_JSON if file.suffix == ".json" else [["sentencepiece"]]:
        for name in names if not peers else []:
            if importlib.util.find_spec(name) is None:
                notes.append(f"no {name}")
                continue
            try:
                encode, ids = globals()[f"peer_{name}"](file)
                if ids(encode(documents)) == expected:
                    peers[name] = globals()[f"peer_{name}"]
                else:
                    notes.append(f"{name}'s ids differ")
            except Exception as error:  # a peer that does not know the vocabulary says so in its own way
                notes.append(f"{name} refuses it: {str(error).splitlines()[0][:60]}")
    return peers, notes


def measure(program, vocabulary, file, documents, rounds):
    """({program: [(MB/s of the first pass, of a later one), …]}, notes)."""
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "documents.jsonl"
        texts.write_text("".join(json.dumps(document) + "\n" for document in documents))
        words = [program, "inspect", "tokenizer", "--tokenizer_type", VOCABULARIES[vocabulary][1], "--tokenizer_model", file]
        words += ["--json_strings", "--encode_file", texts]
        ours = [json.loads(line) for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()]
        peers, notes = peers_of(file, documents, ours)
        megabytes = sum(len(document.encode()) for document in documents) / 1e6
        speeds = {name: [] for name in ("megalith", *peers)}
        for _ in range(rounds):
            output = subprocess.run([*words, "--measure_rounds", "3"], capture_output=True, text=True, check=True).stdout
            seconds = json.loads(output)["cpu_seconds"]
            speeds["megalith"].append((megabytes / seconds[0], megabytes / min(seconds[1:])))
            for name, make in peers.items():
                encode, _ = make(file)
                seconds = []
                for _ in range(3):
                    start = time.process_time()
                    encode(documents)
                    seconds.append(time.process_time() - start)
                speeds[name].append((megabytes / seconds[0], megabytes / min(seconds[1:])))
        return speeds, notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build/megalith")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", nargs="*", default=[], help="only rows whose 'vocabulary, text' contains one of these")
    parser.add_argument("--output", help="write the table to this file as well")
    arguments = parser.parse_args()
    versions = [f"{name} {importlib.import_module('importlib.metadata').version(name)}"
                for name in ("gigatoken", "fastokens", "tokenizers", "sentencepiece") if importlib.util.find_spec(name)]
    lines = [f"{', '.join(versions)}; one thread, {platform.machine()}, {arguments.rounds} rounds in turn; MB per CPU second, first pass / later,"
             " medians; ratio to the better peer, median (least to most)", "",
             "| vocabulary, text | MB | Megalith | peers | first pass | later |", "| --- | --- | --- | --- | --- | --- |"]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        files, texts = {}, {}
        for vocabulary, text in ROWS:
            name = f"{vocabulary}, {text}"
            if arguments.rows and not any(part in name for part in arguments.rows):
                continue
            if vocabulary not in files:
                place = Path(folder) / vocabulary.replace(" ", "_")
                place.mkdir()
                files[vocabulary] = VOCABULARIES[vocabulary][0](place)
            documents = texts.setdefault(text, None) or TEXTS[text]()
            texts[text] = documents
            speeds, notes = measure(arguments.program, vocabulary, files[vocabulary], documents, arguments.rounds)
            size = sum(len(document.encode()) for document in documents) / 1e6

            def median(who, which):
                return statistics.median(row[which] for row in speeds[who])

            def ratio(which):
                others = [who for who in speeds if who != "megalith"]
                if not others:
                    return "no peer"
                values = [mine[which] / max(speeds[who][i][which] for who in others) for i, mine in enumerate(speeds["megalith"])]
                return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

            shown = [f"{who} {median(who, 0):.0f} / {median(who, 1):.0f}" for who in speeds if who != "megalith"]
            lines.append(f"| {name} | {size:.1f} | {median('megalith', 0):.0f} / {median('megalith', 1):.0f} | {'; '.join(shown + notes)} | {ratio(0)} | {ratio(1)} |")
            print(lines[-1], flush=True)
    if arguments.output:
        Path(arguments.output).write_text("\n".join(lines) + "\n")


main()
