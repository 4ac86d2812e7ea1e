"""Sequence classifiers against Hugging Face transformers in fp32: predictions and measures, training, both ways of files."""

import copy
import json

import hf_models
import pytest
import torch
from compare import assert_close
from embed_test import BERT, LLAMA, WORDS, tokenizer_of_words
from program import read_metrics
from ranks import run_ranks
from tokenizers import processors
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

NAMES = ["no", "perhaps", "yes"]
LABELS = dict(id2label=dict(enumerate(NAMES)), label2id={name: i for i, name in enumerate(NAMES)})
PAIRS = [
    ("the whale swims in the cold sea", "a whale", "yes"),
    ("a ship", "far from any sea", "no"),
    ("who is poor", "being loved", "perhaps"),
    ("bread is made of the sea", "bread", "no"),
    ("any ship in the sea", "the ship is far from bread", "yes"),
    ("loved bread", "poor bread is cold bread", "yes"),
    ("who", "a who", "no"),
]
STEPS, LR = 5, 1e-3
PAD = dict(pad_token_id=0)

MODELS = {
    "llama": lambda: LlamaForSequenceClassification(LlamaConfig(**LLAMA, **LABELS, **PAD)),
    "bert": lambda: BertForSequenceClassification(BertConfig(**BERT, **LABELS)),
    "bert_regression": lambda: BertForSequenceClassification(BertConfig(**BERT, num_labels=1)),
    "llama_base": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, **PAD)),
    "bert_base": lambda: BertForMaskedLM(BertConfig(**BERT)),
}


def tokenizer_for(name):
    tokenizer = tokenizer_of_words()
    if name.startswith("llama"):  # a beginning in front of each text, as Llama's own
        tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A", "[CLS] $A [CLS] $B", [("[CLS]", 2)])
    return tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, model) by name, each made when first asked for."""
    torch.set_num_threads(1)
    root, found = tmp_path_factory.mktemp("classifiers"), {}

    def get(name):
        if name not in found:
            generator = torch.Generator().manual_seed(sum(name.encode()))
            model = MODELS[name]().float().eval()
            with torch.no_grad():
                for key, parameter in model.named_parameters():
                    noise = torch.randn(parameter.shape, generator=generator) * hf_models.WEIGHT_STD
                    parameter.copy_(1 + noise if "norm" in key.lower() and key.endswith("weight") else noise)
            model.save_pretrained(root / name)
            tokenizer_for(name).save(str(root / name / "tokenizer.json"))
            (root / name / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
            found[name] = root / name, model
        return found[name]

    return get


def rows_for(name):
    """Labels are names, or for a regression numbers."""
    number = {"no": 0.25, "perhaps": 1.5, "yes": 4}
    return [(a, b, number[label] if "regression" in name else label) for a, b, label in PAIRS]


def write_rows(path, rows):
    lines = [json.dumps({"premise": a, "hypothesis": b, "label": label, "idx": i}) for i, (a, b, label) in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def encoded(name, rows):
    """What transformers is given: a padded batch, and the labels."""
    tokenizer = tokenizer_for(name)
    tokenizer.enable_padding()
    batch = tokenizer.encode_batch([(a, b) for a, b, _ in rows])
    inputs = {
        key: torch.tensor([getattr(one, of) for one in batch])
        for key, of in (("input_ids", "ids"), ("attention_mask", "attention_mask"), ("token_type_ids", "type_ids"))
    }
    if name.startswith("llama"):
        del inputs["token_type_ids"]
    labels = [label if isinstance(label, float | int) else NAMES.index(label) for *_, label in rows]
    return {**inputs, "labels": torch.tensor(labels, dtype=torch.float if "regression" in name else torch.long)}


def evaluate(program, folder, rows, output, *words, **options):
    _, out, err = program.run(
        *("evaluate", "--load_hf", folder, "--valid_data_path", rows, "--eval_split", "valid", "--seq_length", 32, "--fp32"),
        *("--micro_batch_size", 2, "--global_batch_size", 4, "--eval_iters", 2, "--predictions_file", output),
        *("--overwrite", "--device", "cpu", *words),
        **options,
    )
    return (json.loads(out), [json.loads(line) for line in output.read_text().splitlines()]) if out else err


@pytest.mark.parametrize("name", ["llama", "bert", "bert_regression"])
def test_predictions_and_measures_match_transformers(name, program, made, tmp_path):
    folder, model = made(name)
    rows = rows_for(name)
    measured, told = evaluate(program, folder, write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "told.jsonl")
    inputs = encoded(name, rows)
    with torch.no_grad():
        expected = model(**inputs)
    assert len(told) == len(rows) and measured["samples"] == len(rows)
    words = ("--load_hf", folder, "--train_data_path", tmp_path / "rows.jsonl", "--seq_length", 32, "--fp32", "--device", "cpu")
    assert "train split are shuffled" in program.run("evaluate", *words, "--predictions_file", tmp_path / "other.jsonl", expected=2)[2]
    assert measured["loss"] == pytest.approx(expected.loss.item(), rel=1e-4)
    if "regression" in name:
        assert_close([line["value"] for line in told], expected.logits.squeeze(1), name)
        correlation = torch.corrcoef(torch.stack([expected.logits.squeeze(1), inputs["labels"]]))[0, 1].item()
        assert measured["pearson correlation"] == pytest.approx(correlation, rel=1e-3)
        return
    assert_close([line["logits"] for line in told], expected.logits, name)
    stages = tmp_path / "stages.jsonl"
    words = ("--load_hf", folder, "--valid_data_path", tmp_path / "rows.jsonl", "--seq_length", 32, "--fp32", "--device", "cpu")
    words += ("--micro_batch_size", 2, "--global_batch_size", 4, "--eval_iters", 2, "--pipeline_model_parallel_size", 3)
    run_ranks(program, 3, "evaluate", *words, "--predictions_file", stages)
    assert_close([json.loads(line)["logits"] for line in stages.read_text().splitlines()], expected.logits, name)
    is_of = expected.logits.argmax(1)
    assert [line["label"] for line in told] == [NAMES[i] for i in is_of]
    assert measured["accuracy"] == pytest.approx(100 * is_of.eq(inputs["labels"]).float().mean().item())


def train(program, folder, *words, expected=0):
    return program.run(
        *("train", "--load_hf", folder, "--fp32", "--seq_length", 32, "--eval_iters", 0, "--device", "cpu", *words),
        expected=expected,
    )


@pytest.mark.parametrize("name", ["llama", "bert", "bert_regression"])
def test_five_steps_and_the_export_match_transformers(name, program, made, tmp_path):
    folder, reference = made(name)
    rows = write_rows(tmp_path / "rows.jsonl", rows_for(name))
    exported, count = tmp_path / "exported", len(PAIRS) - 1
    batch = write_rows(tmp_path / "batch.jsonl", rows_for(name)[:count])  # every step reads all of it
    train(
        program, folder, "--train_data_path", batch, "--micro_batch_size", 2, "--global_batch_size", count,
        *("--train_iters", STEPS, "--lr", LR, "--lr_decay_style", "constant", "--weight_decay", 0, "--clip_grad", 1),
        *("--adam_beta1", 0.9, "--adam_beta2", 0.95, "--adam_eps", 1e-6, "--save_hf", exported),
        *("--metrics_file", tmp_path / "metrics.jsonl"),
    )  # fmt: skip
    model, inputs = copy.deepcopy(reference).train(), encoded(name, rows_for(name)[:count])
    optimizer = torch.optim.AdamW(model.parameters(), LR, betas=(0.9, 0.95), eps=1e-6, weight_decay=0)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert len(lines) == STEPS
    for line in lines:
        result = model(**inputs)
        optimizer.zero_grad()
        result.loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        assert line["mse_loss" if "regression" in name else "class_loss"] == pytest.approx(result.loss.item(), rel=2e-4, abs=1e-5), line["iteration"]
        assert line["grad_norm"] == pytest.approx(norm.item(), rel=1e-3), line["iteration"]
        if "regression" not in name:
            right = result.logits.argmax(1).eq(inputs["labels"]).float().mean().item()
            assert line["accuracy"] == pytest.approx(100 * right), line["iteration"]
    again = AutoModelForSequenceClassification.from_pretrained(exported, dtype=torch.float32).eval()
    assert type(again) is type(reference) and again.config.id2label == reference.config.id2label
    assert again.config.num_labels == reference.config.num_labels
    _, told = evaluate(program, exported, rows, tmp_path / "told.jsonl")
    with torch.no_grad():
        logits = again(**encoded(name, rows_for(name))).logits
    assert_close([line.get("logits", [line.get("value")]) for line in told], logits, name)
    # Adam makes visible steps of the rounding of small gradients.
    assert_close(logits, model.eval()(**encoded(name, rows_for(name))).logits, name, tolerance=2e-2)


@pytest.mark.parametrize("name", ["llama_base", "bert_base"])
def test_head_is_put_on_a_model_that_has_another(name, program, made, tmp_path):
    folder, base = made(name)
    rows = write_rows(tmp_path / "rows.jsonl", rows_for(name))
    kind = ("--kind", "classifier", "--num_labels", 3, "--label_names", ",".join(NAMES))
    words = (*kind, "--train_data_path", rows, "--micro_batch_size", 1, "--global_batch_size", 1)
    _, _, err = train(program, folder, *words, "--train_iters", 0, "--save_hf", tmp_path / "exported")
    head = "score.weight" if "llama" in name else "classifier.weight"
    assert f"does not hold this run's {head}: it begins afresh" in err
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    assert again.config.id2label == LABELS["id2label"] and again.config.label2id == LABELS["label2id"]
    parameters = dict(again.named_parameters())
    for key, value in base.named_parameters():
        if not key.startswith(("lm_head.", "cls.")):
            assert torch.equal(parameters[key], value), key
    # An evaluation would measure a head that nothing has trained.
    err = evaluate(program, folder, rows, tmp_path / "told.jsonl", *kind, expected=2)
    assert "config.json names no ForSequenceClassification: a training run begins that head anew" in err
    for option, message in {
        "--lora.enabled=true": "lora.enabled is for model_type",
        "--mtp_num_layers=1": "mtp_num_layers is for model_type",
        "--eod_mask_loss": "eod_mask_loss is for model_type",
        "--task=causal_lm": "task causal_lm with model_type classifier, which predicts no tokens",
        "--num_labels=2": "label_names has 3, and num_labels is 2",
    }.items():
        assert message in train(program, folder, *words, "--train_iters", 1, option, expected=2)[2], option
    words = ("generate", "--load_hf", tmp_path / "exported", "--prompt_ids", "1,2", "--print_ids", "--device", "cpu")
    assert "a classifier tells the class of a text: it cannot write one" in program.run(*words, expected=2)[2]
    words = ("chat", "--load_hf", tmp_path / "exported", "--device", "cpu")
    assert "chat needs a model that writes text" in program.run(*words, expected=2)[2]


def test_broken_rows_are_named_by_file_and_line(program, made, tmp_path):
    folder, _ = made("llama")
    rows = tmp_path / "rows.csv"
    rows.write_text("idx,sentence,label\n0,a ship,yes\n1,,no\n2,bread,maybe\n")
    _, _, err = train(program, folder, "--train_data_path", rows, "--train_iters", 1, expected=2)
    assert f"{rows}:2: sentence is empty" in err or f"{rows}:2" in err
    assert 'label is "maybe", expected one of no, perhaps, yes' in err and f"{rows}:3" in err
