"""Both networks called BERT against Hugging Face transformers, in fp32: logits of both heads, exports, older files."""

import copy

import hf_models
import pytest
import torch
from compare import TOLERANCE, assert_close, relative_difference
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    MegatronBertConfig,
    MegatronBertForMaskedLM,
    MegatronBertForPreTraining,
)

IDS = [5, 17, 130, 0, 42, 99, 2, 64, 7, 7, 88, 31, 120, 3, 55, 18, 76, 101, 9, 23]
TYPES = [0] * 9 + [1] * 11

# Without a padding token, whose row transformers gives no gradient; an epsilon large enough to be seen.
SIZES = dict(
    vocab_size=hf_models.VOCAB,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=48,
    initializer_range=hf_models.WEIGHT_STD,
    layer_norm_eps=3e-3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    pad_token_id=None,
)

NETWORKS = {
    "bert": lambda: BertForPreTraining(BertConfig(**SIZES)),
    "bert_untied_tanh": lambda: BertForPreTraining(
        BertConfig(**SIZES, tie_word_embeddings=False, hidden_act="gelu_new", type_vocab_size=3)
    ),
    "bert_masked": lambda: BertForMaskedLM(BertConfig(**SIZES)),
    "megatron_bert": lambda: MegatronBertForPreTraining(MegatronBertConfig(**SIZES)),
    "megatron_bert_masked": lambda: MegatronBertForMaskedLM(MegatronBertConfig(**SIZES)),
}


def is_norm(key):
    return "LayerNorm" in key or ".ln." in key


@pytest.fixture(scope="module")
def berts(tmp_path_factory):
    """The networks by name, each made when first asked for."""
    torch.set_num_threads(1)
    root, made = tmp_path_factory.mktemp("berts"), {}

    def get(name):
        if name not in made:
            generator = torch.Generator().manual_seed(sum(name.encode()))
            model = NETWORKS[name]().float().eval()
            with torch.no_grad():
                for key, parameter in model.named_parameters():
                    noise = torch.randn(parameter.shape, generator=generator) * hf_models.WEIGHT_STD
                    parameter.copy_(1 + noise if is_norm(key) and key.endswith("weight") else noise)
            model.save_pretrained(root / name, safe_serialization=True)
            made[name] = hf_models.Model(root / name, model)
        return made[name]

    return get


def logits_of(program, folder, output, types=TYPES):
    program.run(
        *("inspect", "logits", "--load_hf", folder, "--prompt_ids", ",".join(map(str, IDS)), "--output", output),
        *("--prompt_token_types", ",".join(map(str, types)), "--overwrite", "--device", "cpu"),
    )
    return load_file(output)


def reference_logits(model, types=TYPES):
    with torch.no_grad():
        output = model(torch.tensor([IDS]), token_type_ids=torch.tensor([types]))
    if hasattr(output, "logits"):
        return {"logits": output.logits[0]}
    return {"logits": output.prediction_logits[0], "sentence_logits": output.seq_relationship_logits[0]}


def assert_same_logits(ours, theirs, what):
    assert set(ours) == set(theirs), what
    for key, expected in theirs.items():
        assert_close(ours[key], expected, f"{what}: {key}")


def train(program, folder, *words):
    """Runs the program on made-up data: masked tokens, without waiting for evaluations."""
    return program.run(
        *("train", "--load_hf", folder, "--task", "masked_lm", "--mask_token_id", 4, "--mock_data", "--eval_iters", 0),
        *("--seq_length", 32, "--micro_batch_size", 2, "--global_batch_size", 2, "--device", "cpu", *words),
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_of_both_heads_match_transformers(name, program, berts, tmp_path):
    model = berts(name)
    ours = logits_of(program, model.folder, tmp_path / "logits.safetensors")
    assert_same_logits(ours, reference_logits(model.reference), name)


@pytest.mark.parametrize("name", NETWORKS)
def test_exported_model_is_the_one_that_was_loaded(name, program, berts, tmp_path):
    model = berts(name)
    train(program, model.folder, "--train_iters", 0, "--save_hf", tmp_path / "exported")
    again = type(model.reference).from_pretrained(tmp_path / "exported", dtype=torch.float32).eval()
    ours, theirs = dict(again.named_parameters()), dict(model.reference.named_parameters())
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), key
    for key, value in reference_logits(model.reference).items():
        assert torch.equal(reference_logits(again)[key], value), key


@pytest.mark.parametrize("name", ["bert", "megatron_bert"])
def test_exported_trained_model_has_equal_logits_in_transformers(name, program, berts, tmp_path):
    model, exported = berts(name), tmp_path / "exported"
    train(program, model.folder, "--train_iters", 2, "--lr", 1e-3, "--save_hf", exported)
    again = type(model.reference).from_pretrained(exported, dtype=torch.float32).eval()
    before = dict(model.reference.named_parameters())
    moved = [key for key, value in again.named_parameters() if not torch.equal(value, before[key])]
    # No sentences in this task, and one vector on all keys changes no softmax.
    still = {key for key in before if "pooler" in key or "seq_relationship" in key or "key.bias" in key}
    assert set(before) - set(moved) <= still
    assert_same_logits(logits_of(program, exported, tmp_path / "l.safetensors"), reference_logits(again), name)


def renamed_as_of_old(weights):
    for key in [key for key in weights if "LayerNorm" in key]:
        weights[key.replace("weight", "gamma").replace("bias", "beta")] = weights.pop(key)
    weights["bert.embeddings.position_ids"] = torch.arange(SIZES["max_position_embeddings"]).float().unsqueeze(0)


def test_old_names_of_norms_are_read(program, berts, tmp_path):
    model = berts("bert")
    folder = hf_models.changed_copy(model.folder, tmp_path / "old", change_weights=renamed_as_of_old)
    ours = logits_of(program, folder, tmp_path / "logits.safetensors")
    assert_same_logits(ours, reference_logits(model.reference), "gamma and beta")


def test_classifier_in_the_file_of_a_class_without_one_is_left_out(program, berts, tmp_path):
    """google-bert/bert-base-uncased is such a folder."""
    model = berts("bert")
    folder = hf_models.changed_copy(
        model.folder, tmp_path / "masked", lambda config: config.update(architectures=["BertForMaskedLM"])
    )
    ours = logits_of(program, folder, tmp_path / "logits.safetensors")
    expected = reference_logits(model.reference)
    assert_same_logits(ours, {"logits": expected["logits"]}, "BertForMaskedLM")


def test_training_begins_the_heads_of_a_model_without_heads(program, berts, tmp_path):
    reference = copy.deepcopy(berts("bert").reference.bert)
    assert isinstance(reference, BertModel)
    reference.config.architectures = ["BertModel"]
    reference.save_pretrained(tmp_path / "headless")
    _, _, err = train(program, tmp_path / "headless", "--train_iters", 0, "--save_hf", tmp_path / "exported")
    assert "does not hold this run's cls.predictions.bias: it begins afresh" in err
    again = BertForPreTraining.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    for key, value in reference.named_parameters():
        assert torch.equal(dict(again.bert.named_parameters())[key], value), key
    heads = dict(again.cls.named_parameters())
    assert torch.equal(heads["predictions.transform.LayerNorm.weight"], torch.ones(64))
    # 64 x 64 draws: their deviation is known to about 1 %.
    assert heads["predictions.transform.dense.weight"].std().item() == pytest.approx(hf_models.WEIGHT_STD, rel=0.05)
    _, _, err = program.run(
        *("inspect", "logits", "--load_hf", tmp_path / "headless", "--prompt_ids", 1, "--output", tmp_path / "l"),
        *("--device", "cpu"),
        expected=2,
    )
    assert "config.json names a class without heads: a training run begins them anew" in err


def flipped(key):
    def change(weights):
        weights[key] = weights[key].flip(0)

    return change


def exchanged(first, second):
    def change(weights):
        weights[first], weights[second] = weights[second], weights[first]

    return change


LAYER = "bert.encoder.layer.1."
CHANGES = {
    "a token's vector": flipped("bert.embeddings.word_embeddings.weight"),
    "positions": flipped("bert.embeddings.position_embeddings.weight"),
    "types exchanged": flipped("bert.embeddings.token_type_embeddings.weight"),
    "query and key": exchanged(LAYER + "attention.self.query.weight", LAYER + "attention.self.key.weight"),
    "value's bias": flipped(LAYER + "attention.self.value.bias"),
    "attention's output": flipped(LAYER + "attention.output.dense.weight"),
    "MLP's bias": flipped(LAYER + "intermediate.dense.bias"),
    "MLP's output": flipped(LAYER + "output.dense.weight"),
    "bias of the vocabulary": flipped("cls.predictions.bias"),
    "transform": flipped("cls.predictions.transform.dense.weight"),
    "transform's norm": flipped("cls.predictions.transform.LayerNorm.weight"),
}
NORMS = {
    "bert": [LAYER + "attention.output.LayerNorm.weight", LAYER + "output.LayerNorm.bias", "bert.embeddings.LayerNorm.weight"],
    "megatron_bert": [LAYER + "attention.ln.weight", LAYER + "ln.bias", "bert.encoder.ln.weight"],
}
# The norms of a layer in each other's places.
EXCHANGED_NORMS = {
    "bert": (LAYER + "attention.output.LayerNorm.weight", LAYER + "output.LayerNorm.weight"),
    "megatron_bert": (LAYER + "attention.ln.weight", LAYER + "ln.weight"),
}
SENTENCE = ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias"]


@pytest.mark.parametrize("name", NORMS)
def test_comparison_sees_every_part(name, program, berts, tmp_path):
    model = berts(name)
    expected = reference_logits(model.reference)
    changes = {**CHANGES, **{key: flipped(key) for key in [*NORMS[name], *SENTENCE]}}
    changes["norms exchanged"] = exchanged(*EXCHANGED_NORMS[name])
    for what, change in changes.items():
        folder = hf_models.changed_copy(model.folder, tmp_path / "changed", change_weights=change)
        ours = logits_of(program, folder, tmp_path / "logits.safetensors")
        head = "sentence_logits" if what in SENTENCE else "logits"
        assert relative_difference(ours[head], expected[head]) > 10 * TOLERANCE, what
    for key, value in [("hidden_act", "gelu_new"), ("layer_norm_eps", 1e-5)]:
        folder = hf_models.changed_copy(model.folder, tmp_path / "changed", lambda c: c.update({key: value}))  # noqa: B023
        ours = logits_of(program, folder, tmp_path / "logits.safetensors")
        assert relative_difference(ours["logits"], expected["logits"]) > TOLERANCE, key
    other_types = logits_of(program, model.folder, tmp_path / "logits.safetensors", [0] * len(IDS))
    assert relative_difference(other_types["logits"], expected["logits"]) > 10 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "words", "there"),
    [
        ("bert", ["--norm_placement", "pre", "--no_embedding_norm"], "holds Hugging Face's BERT"),
        ("megatron_bert", ["--norm_placement", "post_ln", "--embedding_norm"], "holds Megatron-LM's BERT"),
    ],
)
def test_weights_of_the_other_network_are_refused(name, words, there, program, berts):
    _, _, err = program.run(
        *("train", "--load_hf", berts(name).folder, "--task", "masked_lm", "--mask_token_id", 4, "--mock_data"),
        *("--train_iters", 1, "--device", "cpu", "--seq_length", 16, *words),
        expected=2,
    )
    assert there in err and "these are different networks" in err


def test_text_is_not_continued_by_a_bert(program, berts):
    _, _, err = program.run(
        *("generate", "--load_hf", berts("bert").folder, "--prompt_ids", "1,2", "--print_ids", "--device", "cpu"), expected=2
    )
    assert "a BERT fills in masked tokens: it cannot write a text from left to right" in err


def test_types_outside_the_table_are_refused(program, berts, tmp_path):
    _, _, err = program.run(
        *("inspect", "logits", "--load_hf", berts("bert").folder, "--prompt_ids", "1,2", "--prompt_token_types", "0,2"),
        *("--output", tmp_path / "logits.safetensors", "--device", "cpu"),
        expected=2,
    )
    assert "token type 2 in the data, but num_token_types is 2" in err
