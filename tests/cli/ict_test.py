"""The inverse cloze task from text to training: a biencoder finds texts, starts from a BERT, goes on to the same bits,
and what cannot work is refused."""

import json
import random

import pytest
from program import read_metrics

WORDS = [f"{a}{b}" for a in ("ba", "co", "di", "fu", "ge", "ha", "ju", "ke") for b in ("la", "mi", "no", "ru", "se", "to")]
SIZES = ("--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4, "--max_position_embeddings", 32)
COMMON = ("--seq_length", 32, "--device", "cpu", "--make_vocab_size_divisible_by", 8)
BIENCODER = ("--model_type", "biencoder", *SIZES, *COMMON, "--micro_batch_size", 16)
TRAIN = (
    *("train", *BIENCODER, "--lr", 3e-3, "--lr_warmup_iters", 5, "--train_iters", 80, "--eval_interval", 80, "--eval_iters", 4),
    *("--retriever_report_topk_accuracies", 1, 5, "--hidden_dropout", 0, "--attention_dropout", 0),
    *("--init_method_std", 0.1, "--retriever_score_scaling"),
)
MOCK = ("--mock_data", "--vocab_size", 48)


@pytest.fixture(scope="module")
def data(program, tmp_path_factory):
    """Documents of six sentences of three words that are the document's own, with titles; and a vocabulary."""
    folder = tmp_path_factory.mktemp("titled")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]) + "\n")
    rng = random.Random(3)
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as texts:
        for _ in range(200):
            own = rng.sample(WORDS, 3)
            sentences = [" ".join(rng.choices(own, k=4)).capitalize() + "." for _ in range(6)]
            print(json.dumps({"text": " ".join(sentences), "title": own[0]}), file=texts)
    tokenizer = ("--tokenizer_type", "BertWordPieceLowerCase", "--vocab_file", folder / "vocab.txt")
    program.run(
        *("prepare", "--input", folder / "texts.jsonl", "--output_prefix", folder / "texts", "--split_sentences"),
        *("--json_keys", "text", "title", *tokenizer),
    )
    files = ("--data_path", folder / "texts_text_sentence", "--split", "80,20,0", *tokenizer)
    return folder, files, ("--titles_data_path", folder / "texts_title_sentence")


def steps_of(folder):
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if "grad_norm" in line]
    return {line["iteration"]: (line["loss"], line["top1_acc"], line["grad_norm"]) for line in lines}


def train(program, folder, *words):
    return program.run(
        *(*TRAIN, *words, "--data_cache_path", folder / "cache", "--metrics_file", folder / "metrics.jsonl"),
        *("--save", folder / "checkpoint", "--load", folder / "checkpoint"),
    )


def test_texts_of_sentences_are_found_and_a_run_goes_on(program, data, tmp_path):
    _, files, titles = data
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    _, _, output = train(program, straight, *files, *titles, "--page_file", tmp_path / "page.html")
    steps = steps_of(straight)
    # A guess is right in one of 16 cases.
    assert steps[1][0] > 2 and sum(steps[i][1] for i in range(71, 81)) / 10 > 60, steps
    assert "a set is 16 samples: a microbatch of all data-parallel ranks" in output
    (evaluation,) = read_metrics(straight / "metrics.jsonl", "evaluation")
    assert evaluation["evaluation_losses"]["top1_acc"] > 5 * 100 / 16, evaluation
    assert evaluation["evaluation_losses"]["top5_acc"] >= evaluation["evaluation_losses"]["top1_acc"]
    assert "Accuracy" in (tmp_path / "page.html").read_text()
    train(program, parts, *files, *titles, "--exit_interval", 10)
    train(program, parts, *files, *titles, "--exit_interval", 14)
    assert steps_of(parts) == {i: steps[i] for i in range(1, 15)}
    # An evaluation by itself says the same things.
    _, found, _ = program.run(
        *("evaluate", "--load", straight / "checkpoint", *COMMON, *files, *titles, "--micro_batch_size", 16),
        *("--task", "ict", "--eval_iters", 4, "--retriever_report_topk_accuracies", 1, "--data_cache_path", tmp_path / "c"),
    )
    assert set(json.loads(found)) >= {"loss", "top1_acc"}


def test_made_up_texts_need_no_tokenizer(program, tmp_path):
    train(program, tmp_path, *MOCK, "--exit_interval", 2, "--biencoder_shared_query_context_model", "--ict_head_size", 8)
    assert len(steps_of(tmp_path)) == 2
    _, output, _ = program.run(
        *("inspect", "data", *MOCK, "--task", "ict", "--seq_length", 32, "--print_samples", "valid", "--num_samples", 2)
    )
    fields = ["query_tokens", "query_key_lengths", "tokens", "key_lengths", "block"]
    assert [list(json.loads(line)) for line in output.splitlines()] == [fields] * 2


def test_encoders_start_from_a_bert(program, tmp_path):
    """The BERT's own checkpoint, and its export, give the same start; another one or none gives another."""
    bert = (*SIZES, *COMMON, *MOCK, "--model_type", "bert", "--no_bias_gelu_fusion", "--micro_batch_size", 4)
    program.run(
        *("train", *bert, "--train_iters", 2, "--eval_iters", 0, "--save", tmp_path / "bert", "--save_hf", tmp_path / "hf"),
        *("--fp32",),
    )
    firsts = {}
    for name, words in {
        "ours": ("--bert_load", tmp_path / "bert"), "hf": ("--bert_load", tmp_path / "hf"), "none": (),
    }.items():
        _, _, output = train(program, tmp_path / name, *MOCK, "--no_bias_gelu_fusion", "--exit_interval", 1, *words)
        firsts[name] = steps_of(tmp_path / name)[1]
        assert ("each encoder starts from the BERT" in output) == bool(words), output
    assert firsts["ours"] == firsts["hf"] != firsts["none"], firsts
    # A trained biencoder begins another run; then there is nothing to load from a BERT.
    _, _, output = train(
        program, tmp_path / "again", *MOCK, "--no_bias_gelu_fusion", "--exit_interval", 1, "--ict_load", tmp_path / "ours/checkpoint"
    )
    assert "starting at iteration 0" in output
    for words, parts in (
        (("--bert_load", tmp_path / "bert", "--hidden_size", 64), ["its BERT is not as the encoders are", "hidden_size is 32 there and 64 here"]),
        (("--bert_load", tmp_path / "bert", "--num_layers", 1), ["num_layers is 2 there and 1 here"]),
        (("--bert_load", tmp_path / "ours/checkpoint"), ["holds another model than a BERT", "ict_load"]),
        (("--bert_load", tmp_path / "bert", "--ict_load", tmp_path / "ours/checkpoint"), ["both give the weights"]),
        (("--bert_load", tmp_path / "bert", "--model_type", "bert"), ["bert_load is for model_type biencoder"]),
    ):
        _, _, errors = program.run(*TRAIN, *MOCK, "--no_bias_gelu_fusion", "--dry_run", *words, expected=2)
        for part in parts:
            assert part in errors, errors


def test_presets_have_the_published_number_of_parameters(program):
    words = ("train", "--config", "ict_217M", "--mock_data", "--seq_length", 256, "--micro_batch_size", 32, "--dry_run")
    _, output, _ = program.run(*words)
    assert "217,890,816 parameters" in output, output
    _, output, _ = program.run(*words, "--biencoder_projection_dim", 128)
    assert "218,087,680 parameters" in output, output


DRY = (*TRAIN, *MOCK, "--dry_run")
SAMPLES = ("inspect", "data", "--task", "ict", "--print_samples", "train", "--seq_length", 32)
WRONG = [
    ("tensor parallelism", (*DRY, "--dry_run_world_size", 2, "--tensor_model_parallel_size", 2), ["tensor_model_parallel_size is 2, and model_type biencoder", "use_torch_fsdp2"]),
    ("a pipeline", (*DRY, "--dry_run_world_size", 2, "--pipeline_model_parallel_size", 2), ["pipeline_model_parallel_size is 2, and model_type biencoder"]),
    ("context parallelism", (*DRY, "--dry_run_world_size", 2, "--context_parallel_size", 2), ["context_parallel_size is 2, and model_type biencoder"]),
    ("a set of one", (*DRY, "--micro_batch_size", 1), ["task ict with a set of one sample", "raise micro_batch_size", "has 5, and a set has 1"]),
    ("k above the set", (*DRY, "--retriever_report_topk_accuracies", 1, 17), ["retriever_report_topk_accuracies has 17, and a set has 16 samples"]),
    ("experts", (*DRY, "--num_experts", 4), ["num_experts is for model_type gpt, t5, bert or classifier, which is biencoder"]),
    ("adapters", (*DRY, "--lora.enabled"), ["lora.enabled is for model_type gpt, t5, bert or diffusion_model, which is biencoder"]),
    ("an export", (*DRY, "--save_hf", "somewhere"), ["save_hf: no Hugging Face class has a model of the family biencoder"]),
    ("another task", (*DRY, "--task", "causal_lm"), ["task causal_lm with model_type biencoder", "set task to ict"]),
    ("a BERT", (*DRY, "--model_type", "bert", "--task", "ict"), ["task ict compares vectors", "set model_type to biencoder"]),
    ("a projection of a BERT", (*DRY, "--model_type", "bert", "--ict_head_size", 8), ["biencoder_projection_dim is for model_type biencoder"]),
    ("titles of made-up texts", (*DRY, "--titles_data_path", "x"), ["titles_data_path is given with mock_data"]),
    ("no BERT", (*DRY, "--bert_load", "/nowhere"), ["bert_load", "/nowhere"]),
    ("other titles", (*SAMPLES, "FILES", "--titles_data_path", "TEXTS2"), ["has 2 documents", "has 200: each needs a title", "--json_keys text title"]),
    ("no tokenizer", (*SAMPLES, "--data_path", "TEXTS2"), ["task ict needs the tokenizer that the data was made with"]),
    ("bytes", (*SAMPLES, "--data_path", "TEXTS2", "--tokenizer_type", "ByteTokenizer"), ["task ict needs [CLS], [SEP]"]),
]


@pytest.fixture(scope="module")
def two_documents(program, data):
    folder, files, _ = data
    (folder / "two.jsonl").write_text('{"text": "Bala bami. Cola comi."}\n' * 2)
    program.run("prepare", "--input", folder / "two.jsonl", "--output_prefix", folder / "two", "--split_sentences", *files[4:])
    return folder / "two_text_sentence"


@pytest.mark.parametrize("what, words, parts", WRONG, ids=[row[0] for row in WRONG])
def test_what_cannot_work_is_refused(what, words, parts, program, data, two_documents):
    named = {"FILES": data[1], "TEXTS2": (two_documents,)}
    given = [each for word in words for each in (named[word] if word in named else (word,))]
    _, _, errors = program.run(*given, expected=2)
    for part in parts:
        assert part in errors, errors
