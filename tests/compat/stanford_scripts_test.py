"""The scripts of Stanford's Megatron-LM: upstream's words, and toys that train, save and go on."""

import json
import re
import shlex
from pathlib import Path

import pytest
from shells import shell

ROOT = Path(__file__).resolve().parents[2]
FLAGS = dict(
    [part.strip() for part in line.split(" | ")]
    for line in (ROOT / "tests/compat/stanford_flags.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)
SCRIPTS = list(FLAGS)
# What a script leaves out of a dry run without files: where data is divided, and when a checkpoint is written.
WITH_FILES = {"split", "save_interval", "tokenizer_type", "vocab_extra_ids"}


def options_of(name, program, *words):
    """What every option is that has not its default, in a dry run of a script."""
    printed, _ = shell(f"DRY_RUN=json bash {ROOT}/examples/{name}.sh {shlex.join(words)}", program, ROOT)
    return json.loads(printed)["options"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_upstream_says(name, program):
    """Upstream's own words after it change nothing."""
    own = options_of(name, program)
    words = FLAGS[name]
    if name == "pretrain_ict":  # a tokenizer whose file is not there, and more places than a set of 32 texts has
        words = words.replace(" --tokenizer-type BertWordPieceLowerCase", "").replace(" 5 10 20 100 ", " 5 10 20 ")
    added = options_of(name, program, *shlex.split(words))
    assert {key: value for key, value in added.items() if own.get(key) != value} == {
        key: added[key] for key in WITH_FILES & added.keys() - own.keys()
    }, name
    assert own.keys() <= added.keys()


def test_another_word_behind_a_script_would_be_seen(program):
    assert options_of("pretrain_gpt", program)["lr"] != options_of("pretrain_gpt", program, "--lr", "0.5")["lr"] == "0.5"


@pytest.mark.parametrize("name", FLAGS)
def test_no_flag_of_upstream_is_unknown(name, program):
    """Whatever else is wrong with them for a model of another kind."""
    words = [*shlex.split(FLAGS[name]), "--data-path", "d", "--vocab-file", "v", "--merge-file", "m"]
    words += ["--save", "s", "--load", "s"]
    words += ["--bert-load", "b", "--titles-data-path", "t"] if name == "pretrain_ict" else []
    command = shlex.join(["train", "--dry_run", *words])
    _, said = shell(f'"$MEGALITH" {command}; test $? -le 2', program, ROOT)
    assert "unknown option" not in said and "Did you mean" not in said, said


def iterations_of(printed):
    """Each iteration's losses and whether it was skipped."""
    losses, skipped = r"\| (\w+ loss): ([0-9.E+-]+)", r"skipped iterations: +(\d+)"
    return {
        int(number): (dict(re.findall(losses, line)), re.search(skipped, line)[1])
        for number, line in re.findall(r"^ iteration +(\d+)/ +\d+ (\|.*)$", printed, re.MULTILINE)
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_toy_of_a_script_trains(name, program, tmp_path):
    printed, said = shell(f"TINY=1 GPUS_PER_NODE=1 bash {ROOT}/examples/{name}.sh", program, tmp_path)
    assert "DATA_PATH is not set: the toy takes made-up data" in said and "TINY=1: 10 steps" in said
    iterations = iterations_of(printed)
    assert list(iterations) == list(range(1, 11))
    for losses, skipped in iterations.values():
        expected = {"lm loss", "sop loss"} if "bert" in name else {"lm loss"}
        assert "ict" in name or set(losses) == expected, losses
        assert all(0 < float(loss) < 20 for loss in losses.values()) and skipped == "0"


def test_a_toy_of_two_ranks_trains(program, tmp_path):
    """The layout stays where as many ranks are there."""
    script = f"{ROOT}/examples/pretrain_bert_distributed_with_mp.sh --pipeline_model_parallel_size 1"
    printed, said = shell(f"TINY=1 GPUS_PER_NODE=2 bash {script}", program, tmp_path)
    assert len(iterations_of(printed)) == 10
    assert "torchrun" in said and re.search(r"layout +2 ranks.*tensor", said), said


WORDS = [f"{a}{b}" for a in ("ba", "co", "di", "fu", "ge") for b in ("la", "mi", "no", "ru", "se", "to")]


@pytest.fixture(scope="module")
def sentences(program, tmp_path_factory):
    """Documents of several sentences, and the vocabulary that they were prepared with."""
    folder = tmp_path_factory.mktemp("sentences")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
    (folder / "bert-vocab.txt").write_text("\n".join(tokens) + "\n")
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as texts:
        for number in range(120):
            sentence = " ".join(WORDS[(number + i) % len(WORDS)] for i in range(9))
            print(json.dumps({"text": " ".join([f"{sentence.capitalize()}."] * 6)}), file=texts)
    prepare = "--tokenizer-type BertWordPieceLowerCase --vocab-file bert-vocab.txt --split-sentences --json-keys text"
    shell(f'"$MEGALITH" prepare --input texts.jsonl --output-prefix my {prepare}', program, folder)
    return folder


def test_a_script_trains_on_sentences_and_goes_on_from_its_folder(program, sentences):
    script = f"TINY=1 DATA_PATH=my_text_sentence CHECKPOINT_PATH=checkpoints bash {ROOT}/examples/pretrain_bert.sh"
    printed, said = shell(f"{script} --split 9,1,0", program, sentences)
    assert "DATA_PATH=my_text_sentence: --data_path my_text_sentence" in said
    assert "CHECKPOINT_PATH=checkpoints: --save checkpoints --load checkpoints" in said
    assert list(iterations_of(printed)) == list(range(1, 11))
    printed, _ = shell(f"{script} --split 9,1,0 --train_iters 12", program, sentences)
    assert list(iterations_of(printed)) == [11, 12]


BAD_INPUT = [
    ("no data", "bash examples/pretrain_bert.sh", ["DATA_PATH is not set", "prepare --split_sentences", "MOCK_DATA=1"]),
    ("no text", "MOCK_DATA=0 bash examples/pretrain_gpt.sh", ["DATA_PATH is not set", "'megalith prepare'"]),
    (
        "files that are not there",
        "DATA_PATH=a/b bash examples/pretrain_gpt.sh",
        ["there is no a/b.idx", "VOCAB_FILE=gpt2-vocab.json: there is no such file", "MERGE_FILE=gpt2-merges.txt"],
    ),
    ("a merge file for word pieces", "MOCK_DATA=1 bash examples/pretrain_bert.sh MERGE_FILE=m", ["MERGE_FILE", "pretrain_gpt"]),
    ("ROCm's words", "MOCK_DATA=1 bash examples/pretrain_bert.sh MBS=2", ["MBS", "type --micro_batch_size instead"]),
    ("a batch that does not divide", "DRY_RUN=1 bash examples/pretrain_bert.sh --micro_batch_size 3", ["global_batch_size 8", "3"]),
    ("ranks that do not divide", "DRY_RUN=1 GPUS_PER_NODE=6 bash examples/pretrain_gpt_distributed_with_mp.sh", ["6"]),
]


@pytest.mark.parametrize("command, parts", [row[1:] for row in BAD_INPUT], ids=[row[0] for row in BAD_INPUT])
def test_bad_input_is_refused_in_the_users_words(command, parts, program):
    printed, said = shell(command, program, ROOT, expected=2)
    for part in parts:
        assert part in said, f"{said}\nlacks {part!r}"
    assert printed == "" and "error" in said
