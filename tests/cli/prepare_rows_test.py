"""Parquet, Arrow, CSV and folders: the tokens are those of the same texts as JSON lines."""

import csv
import gzip
import json

import pytest

pa = pytest.importorskip("pyarrow")
import pyarrow.feather  # noqa: E402
import pyarrow.parquet  # noqa: E402

TEXTS = ["one", "two lines\nand \"quotes\", commas", "", "ünïcödé 漢字 \u0001 \\ tab\t.", "x" * 70_000, *map(str, range(600))]


@pytest.fixture(scope="module")
def prepare(program):
    def run(folder, *words, expected=0, output="out"):
        command = ("prepare", *words, "--output_prefix", folder / output, "--tokenizer_type", "ByteTokenizer", "--append_eod")
        _, text, errors = program.run(*command, expected=expected)
        return errors if expected else (folder / f"{output}_text_document.bin").read_bytes()

    return run


@pytest.fixture(scope="module")
def expected(prepare, tmp_path_factory):
    folder = tmp_path_factory.mktemp("expected")
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return prepare(folder, "--input", folder / "in.jsonl")


def table(texts=TEXTS, kind=pa.string()):
    return pa.table({"id": list(range(len(texts))), "text": pa.array(texts, kind), "more": [{"a": 1}] * len(texts)})


def write_csv(path, opener, delimiter):
    with opener(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(TEXTS))


WRITERS = {
    "groups.parquet": lambda path: pa.parquet.write_table(table(), path, row_group_size=100),
    "zstd.parquet": lambda path: pa.parquet.write_table(table(), path, compression="zstd"),
    "large.parquet": lambda path: pa.parquet.write_table(table(kind=pa.large_string()), path, use_dictionary=False),
    "words.parquet": lambda path: pa.parquet.write_table(table(kind=pa.dictionary(pa.int32(), pa.string())), path),
    "no_ending": lambda path: pa.parquet.write_table(table(), path),
    "file.feather": lambda path: pa.feather.write_feather(table(), path, chunksize=50),
    "stream.arrow": lambda path: [
        (writer.write_table(table(), 64), writer.close()) for writer in [pa.ipc.new_stream(str(path), table().schema)]
    ],
    "rows.csv": lambda path: write_csv(path, open, ","),
    "rows.tsv": lambda path: write_csv(path, open, "\t"),
    "rows.csv.gz": lambda path: write_csv(path, gzip.open, ","),
}


@pytest.mark.parametrize("name", WRITERS)
def test_rows_give_the_tokens_of_json_lines(name, prepare, expected, tmp_path):
    WRITERS[name](tmp_path / name)
    assert prepare(tmp_path, "--input", tmp_path / name) == expected


def test_a_missing_text_is_an_empty_document(prepare, tmp_path):
    pa.parquet.write_table(table(["a", None, "b"]), tmp_path / "in.parquet")
    assert list(memoryview(prepare(tmp_path, "--input", tmp_path / "in.parquet")).cast("H")) == [97, 256, 98, 256]


def test_a_folder_stands_for_the_texts_in_it(prepare, tmp_path):
    folder = tmp_path / "set"
    (folder / "b").mkdir(parents=True)
    pa.parquet.write_table(table(["two"]), folder / "b" / "data-00000.parquet")
    (folder / "a.jsonl").write_text('{"text": "one"}\n')
    (folder / "dataset_info.json").write_text("{}")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "hidden.jsonl").write_text('{"text": "hidden"}\n')
    tokens = list(memoryview(prepare(tmp_path, "--input", folder)).cast("H"))
    assert tokens == [*b"one", 256, *b"two", 256]
    (tmp_path / "empty").mkdir()
    assert "holds no texts" in prepare(tmp_path, "--input", tmp_path / "empty", expected=2, output="none")


def test_several_columns_are_several_outputs(prepare, program, tmp_path):
    pa.parquet.write_table(pa.table({"title": ["t"], "text": ["body"]}), tmp_path / "in.parquet")
    prepare(tmp_path, "--input", tmp_path / "in.parquet", "--json_keys", "text", "title")
    assert (tmp_path / "out_title_document.bin").read_bytes()[:2] == b"t\0"


def test_finished_outputs_are_kept_and_not_replaced(program, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "{name}"}}\n')
    words = ("prepare", "--tokenizer_type", "ByteTokenizer", "--output_prefix", tmp_path / "out", "--input")
    output = tmp_path / "out_text_document.bin"
    program.run(*words, tmp_path / "a.jsonl")
    assert "nothing was made anew" in program.run(*words, tmp_path / "a.jsonl")[1]
    errors = program.run(*words, tmp_path / "b.jsonl", expected=2)[2]
    assert "is there already, made from other inputs" in errors and "a.jsonl" in errors and "--overwrite" in errors
    assert output.read_bytes() == b"a\0"
    program.run(*words, tmp_path / "b.jsonl", "--overwrite")
    assert output.read_bytes() == b"b\0"
    # The same words may stand for other texts where they come from standard input.
    with open(tmp_path / "a.jsonl", "rb") as file:
        program.run(*words, "-", "--overwrite", stdin=file)
        assert "another standard input" in program.run(*words, "-", stdin=file, expected=2)[2]


@pytest.mark.parametrize(
    "content, words, parts",
    [
        (table(), ("--json_keys", "body"), ["no column 'body', but: id, text, more", "--json_keys NAME"]),
        (table(), ("--json_keys", "more"), ["column 'more' holds struct<a: int64>, not text", "there are: id, text, more"]),
        (table(), ("--plain_text",), ["holds rows, and plain_text is given"]),
        (b"PAR1 and then nothing of a table", (), ["in.parquet: "]),
    ],
    ids=["missing column", "column of another kind", "as plain text", "damaged"],
)
def test_what_is_refused(content, words, parts, prepare, tmp_path):
    file = tmp_path / "in.parquet"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        pa.parquet.write_table(content, file)
    errors = prepare(tmp_path, "--input", file, *words, expected=2)
    assert all(part in errors for part in parts), errors


TINY = (
    *("--num_layers", 1, "--hidden_size", 32, "--num_attention_heads", 4, "--max_position_embeddings", 32),
    *("--seq_length", 32, "--train_iters", 3, "--eval_iters", 0, "--split", "100,0,0", "--device", "cpu"),
    *("--tokenizer_type", "ByteTokenizer"),
)


def test_training_makes_tokens_of_texts_once(prepare, program, tmp_path):
    pa.parquet.write_table(table(), tmp_path / "in.parquet")
    prepare(tmp_path, "--input", tmp_path / "in.parquet")

    def losses(path, name):
        metrics = tmp_path / f"{name}.jsonl"
        _, _, errors = program.run("train", *TINY, "--data_path", path, "--metrics_file", metrics)
        found = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [line["lm_loss"] for line in found if "lm_loss" in line], "making tokens" in errors

    expected = losses(tmp_path / "out_text_document", "prepared")
    assert len(expected[0]) == 3
    assert losses(tmp_path / "in.parquet", "first") == (expected[0], True)
    assert losses(tmp_path / "in.parquet", "second") == (expected[0], False)
    # Other texts under the same name are other tokens.
    pa.parquet.write_table(table(TEXTS[:300]), tmp_path / "in.parquet")
    assert losses(tmp_path / "in.parquet", "third")[1]


def test_processes_that_start_together_make_tokens_once(program, tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": "x" * 1000}) + "\n" for _ in range(20_000)))
    words = ("train", *TINY, "--data_path", tmp_path / "in.jsonl")
    ranks = [program.start(*words) for _ in range(3)]
    texts = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], texts
    assert sum("making tokens" in text for text in texts) == 1


def test_texts_need_a_tokenizer(program, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    words = [word for word in TINY if word not in ("--tokenizer_type", "ByteTokenizer")]
    _, _, errors = program.run("train", *words, "--vocab_size", 300, "--data_path", tmp_path / "in.jsonl", expected=2)
    assert "names texts, and no tokenizer is named" in errors


def test_a_cut_table_is_refused(prepare, tmp_path):
    write_csv(tmp_path / "rows.csv", open, ",")
    with open(tmp_path / "rows.csv", "a", encoding="utf-8") as file:
        file.write("1,2,3,4\n")
    assert "rows.csv: " in prepare(tmp_path, "--input", tmp_path / "rows.csv", expected=2)


def test_a_quote_that_is_never_closed_is_an_error_with_its_line(prepare, tmp_path):
    good = 'id,text\n1,"two\nlines with ""quotes"""\n2,a"b\n'
    for name, rest in {"short": "", "long": "more, and more\n" * 2_000_000}.items():
        (tmp_path / "rows.csv").write_text(good + '3,"never closed\n4,b\n' + rest)
        errors = prepare(tmp_path, "--input", tmp_path / "rows.csv", expected=2, output=name)
        assert "rows.csv: line 5: " in errors and "never closed" in errors, errors
    with gzip.open(tmp_path / "rows.tsv.gz", "wt") as file:
        file.write('text\nx\n"never\n')
    assert "line 3: a quote opens here" in prepare(tmp_path, "--input", tmp_path / "rows.tsv.gz", expected=2, output="none")
    (tmp_path / "rows.csv").write_text(good + '3,"closed"')
    assert prepare(tmp_path, "--input", tmp_path / "rows.csv", output="good").count(b"\0\1") == 3


def test_a_row_of_a_table_may_have_megabytes_and_has_a_bound(prepare, tmp_path):
    (tmp_path / "rows.csv").write_text('text\n"' + "x\n" * 1_500_000 + '"\n')
    assert len(prepare(tmp_path, "--input", tmp_path / "rows.csv")) == 2 * 3_000_001
    (tmp_path / "rows.csv").write_text("text\na\n" + "x" * 40_000_000 + "\n")
    assert "line 3: the row that begins here is longer than 16 MiB" in prepare(
        tmp_path, "--input", tmp_path / "rows.csv", expected=2, output="none"
    )
    pa.parquet.write_table(table(["x" * 20_000_000]), tmp_path / "in.parquet")
    assert len(prepare(tmp_path, "--input", tmp_path / "in.parquet", output="cell")) == 2 * 20_000_001


def test_a_folder_says_what_it_skipped(prepare, program, tmp_path):
    folder = tmp_path / "set"
    (folder / "more").mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"text": "one"}\n')
    for name in ("info.json", "more/other.JSON", "README", ".hidden.txt", "more/page.html"):
        (folder / name).write_text("{}")
    _, _, notes = program.run("prepare", "--input", folder, "--output_prefix", tmp_path / "out", "--tokenizer_type", "ByteTokenizer")
    assert f"the folder {folder}: 5 files skipped, by their endings: 1 .html, 2 .json, 1 hidden, 1 without an ending" in notes
    (folder / "a.jsonl").unlink()
    assert "no texts in the folder" in prepare(tmp_path, "--input", folder, expected=2, output="none")


def test_data_of_another_tokenizer_are_refused(prepare, program, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "1 2 3 4 5 6 7 8 9 10 11 12"}\n' * 40)
    words = [word for word in TINY if word not in ("--tokenizer_type", "ByteTokenizer")]
    words += ["--seq_length", 8, "--data_path", tmp_path / "out_text_document"]
    null = ("--tokenizer_type", "NullTokenizer", "--vocab_size", 256)
    program.run("prepare", "--input", tmp_path / "in.jsonl", "--output_prefix", tmp_path / "out", *null)
    told = "was prepared with another tokenizer (NullTokenizer(256) of 257 ids) than this run has (ByteTokenizer of 257 ids)"
    other = ("--tokenizer_type", "ByteTokenizer")
    for more in ((), ("--dry_run",)):
        errors = program.run("train", *words, *other, *more, expected=2)[2]
        assert told in errors and "--allow_other_tokenizer" in errors, errors
    program.run("train", *words, *other, "--allow_other_tokenizer", "--train_iters", 1, "--save", tmp_path / "saved")
    evaluation = ("evaluate", "--load", tmp_path / "saved", "--data_path", tmp_path / "out_text_document", "--split", "100,0,0")
    evaluation += ("--eval_split", "train", "--eval_iters", 1, "--device", "cpu", *other)
    assert told in program.run(*evaluation, expected=2)[2]
    program.run(*evaluation, "--allow_other_tokenizer")
    assert told in program.run("doctor", *words, *other, expected=None)[1]
    assert "another tokenizer" not in program.run("doctor", *words, *null, expected=None)[1]
    program.run("train", *words, *null, "--dry_run")
    program.run("train", *words, "--vocab_size", 257, "--dry_run")  # no tokenizer: nothing is compared


def test_data_of_different_tokenizers_are_not_merged(program, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "1 2 3"}\n')
    for name, *tokenizer in (("bytes", "ByteTokenizer"), ("ids", "NullTokenizer", "--vocab_size", 256)):
        words = ("prepare", "--input", tmp_path / "in.jsonl", "--output_prefix", tmp_path / name, "--tokenizer_type", *tokenizer)
        program.run(*words)
    both = [tmp_path / f"{name}_text_document" for name in ("bytes", "ids")]
    told = f"{both[0]} and {both[1]} were prepared with different tokenizers (ByteTokenizer of 257 ids, and NullTokenizer(256) of 257 ids)"
    merge = ("prepare", "merge", "--data_path", *both, "--output_prefix", tmp_path / "all")
    errors = program.run(*merge, expected=2)[2]
    assert told in errors and "--allow_other_tokenizer" in errors
    program.run(*merge, "--allow_other_tokenizer")
    assert told in program.run("inspect", "data", *both)[2]
    assert "different tokenizers" not in program.run("inspect", "data", both[0], tmp_path / "all")[2]
