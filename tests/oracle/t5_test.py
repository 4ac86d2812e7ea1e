"""T5 in both versions against Hugging Face transformers, in fp32: logits, loss, every gradient, greedy tokens, exports."""

import json

import hf_models
import pytest
import torch
from compare import TOLERANCE, assert_close, relative_difference
from safetensors.torch import load_file
from transformers import T5Config, T5ForConditionalGeneration

ENCODER_IDS = [5, 17, 130, 4, 42, 99, 2, 64, 7, 7, 88, 31, 120, 3, 55, 18, 76, 101, 9, 23, 1]
TARGET_IDS = [12, 90, 4, 33, 129, 66, 7, 81, 2, 45, 60, 118, 1]
START = 0

# Heads that are wider together than d_model, another number of layers in each stack, buckets that distances share.
COMMON = dict(
    vocab_size=131,
    d_model=64,
    d_kv=24,
    d_ff=112,
    num_layers=3,
    num_decoder_layers=2,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=14,
    # Large enough to be seen: the usual 1e-6 disappears in the rounding.
    layer_norm_epsilon=3e-3,
    dropout_rate=0.0,
    pad_token_id=START,
    decoder_start_token_id=START,
    eos_token_id=1,
)
VERSIONS = {
    "v1.0": dict(feed_forward_proj="relu", tie_word_embeddings=True),
    "v1.1": dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    # Neither as published: ReLU with an output of its own, gates with a tied one.
    "relu_untied": dict(feed_forward_proj="relu", tie_word_embeddings=False),
    "gated_tied": dict(feed_forward_proj="gated-gelu", tie_word_embeddings=True),
}


def make(folder, version):
    generator = torch.Generator().manual_seed(sum(version.encode()))
    config = T5Config(**COMMON, **VERSIONS[version])
    model = T5ForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * hf_models.WEIGHT_STD
            # As T5 itself begins: scores are not scaled, so queries are small. Larger ones saturate the softmax, and
            # float32's roundings in gradients are then some 1e-3 on both sides.
            if key.endswith("Attention.q.weight"):
                noise *= COMMON["d_kv"] ** -0.5
            parameter.copy_(1 + noise if key.endswith("layer_norm.weight") else noise)
    model.save_pretrained(folder, safe_serialization=True)
    return hf_models.Model(folder, model)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("t5")
    return {version: make(root / version, version) for version in VERSIONS}


def reference_logits(model):
    decoder = torch.tensor([[START, *TARGET_IDS[:-1]]])
    return model(input_ids=torch.tensor([ENCODER_IDS]), decoder_input_ids=decoder, use_cache=False).logits[0]


def ids(values):
    return ",".join(map(str, values))


def logits_of(program, folder, output, *more):
    program.run(
        *("inspect", "logits", "--load_hf", folder, "--prompt_ids", ids(ENCODER_IDS), "--target_ids", ids(TARGET_IDS)),
        *("--output", output, "--overwrite", "--device", "cpu", *more),
    )
    return load_file(output)["logits"]


@pytest.mark.parametrize("version", VERSIONS)
def test_logits_match_transformers(version, program, t5, tmp_path):
    with torch.no_grad():
        expected = reference_logits(t5[version].reference)
    assert_close(logits_of(program, t5[version].folder, tmp_path / "logits"), expected, f"{version}: logits")


@pytest.mark.parametrize("kernels", ["fused", "reference"])
@pytest.mark.parametrize("version", VERSIONS)
def test_loss_and_every_gradient_match_torch(version, kernels, program, t5, tmp_path):
    model = t5[version].reference
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(reference_logits(model), torch.tensor(TARGET_IDS))
    loss.backward()
    output = tmp_path / "gradients"
    _, text, _ = program.run(
        *("inspect", "gradients", "--load_hf", t5[version].folder, "--prompt_ids", ids(ENCODER_IDS)),
        *("--target_ids", ids(TARGET_IDS), "--output", output, "--kernels", kernels, "--device", "cpu"),
    )
    assert json.loads(text)["lm loss"] == pytest.approx(loss.item(), rel=1e-5)
    ours, theirs = load_file(output), dict(model.named_parameters())
    assert set(ours) == set(theirs)
    for key, parameter in theirs.items():
        assert parameter.grad.abs().max() > 0, f"{key}: the reference has no gradient, so nothing would be compared"
        assert_close(ours[key], parameter.grad, f"{version}: gradient of {key}")


@pytest.mark.parametrize("version", VERSIONS)
def test_greedy_tokens_are_those_of_generate(version, program, t5):
    model = t5[version].reference
    expected = model.generate(
        torch.tensor([ENCODER_IDS]), max_new_tokens=20, min_new_tokens=20, do_sample=False, num_beams=1, eos_token_id=None
    )[0].tolist()
    assert expected[0] == START
    _, text, _ = program.run(
        *("generate", "--load_hf", t5[version].folder, "--prompt_ids", ids(ENCODER_IDS), "--max_new_tokens", 20),
        *("--temperature", 0, "--ignore_eos", "--print_ids", "--device", "cpu"),
    )
    assert [int(word) for word in text.replace(",", " ").split()] == expected[1:]


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
def test_exported_model_is_the_one_that_was_loaded(version, program, t5, tmp_path):
    exported = tmp_path / "exported"
    program.run(
        *("train", "--load_hf", t5[version].folder, "--train_iters", 0, "--mock_data", "--decoder_seq_length", 8, "--eval_iters", 0),
        *("--save_hf", exported, "--device", "cpu"),
    )
    again = T5ForConditionalGeneration.from_pretrained(exported, dtype=torch.float32, attn_implementation="eager").eval()
    theirs = dict(t5[version].reference.named_parameters())
    ours = dict(again.named_parameters())
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), key
    with torch.no_grad():
        assert torch.equal(reference_logits(again), reference_logits(t5[version].reference))


ENCODER, DECODER = "encoder.block.1.layer.", "decoder.block.1.layer."
TABLE = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def scaled(key, factor):
    def change(weights):
        weights[key] = weights[key] * factor

    return change


def swapped(first, second):
    def change(weights):
        weights[first], weights[second] = weights[second], weights[first]

    return change


MISTAKES = {
    "no positions in the encoder": scaled("encoder." + TABLE, 0),
    "no positions in the decoder": scaled("decoder." + TABLE, 0),
    "the stacks' positions exchanged": swapped("encoder." + TABLE, "decoder." + TABLE),
    "keys for queries in the encoder": swapped(ENCODER + "0.SelfAttention.q.weight", ENCODER + "0.SelfAttention.k.weight"),
    "keys for values of the memory": swapped(DECODER + "1.EncDecAttention.k.weight", DECODER + "1.EncDecAttention.v.weight"),
    "attention to the memory for that to itself": swapped(
        DECODER + "0.SelfAttention.o.weight", DECODER + "1.EncDecAttention.o.weight"
    ),
    "the memory is not read": scaled(DECODER + "1.EncDecAttention.o.weight", 0),
    "scores divided by the root of the channels": scaled(DECODER + "1.EncDecAttention.q.weight", 24**-0.5),
    "norms exchanged": swapped(DECODER + "1.layer_norm.weight", DECODER + "2.layer_norm.weight"),
    "last norms exchanged": swapped("encoder.final_layer_norm.weight", "decoder.final_layer_norm.weight"),
    "no MLP": scaled(ENCODER + "1.DenseReluDense.wo.weight", 0),
    "gate for up": swapped(DECODER + "2.DenseReluDense.wi_0.weight", DECODER + "2.DenseReluDense.wi_1.weight"),
    "output scaled": scaled("lm_head.weight", 64**-0.5),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_notices(mistake, program, t5, tmp_path):
    with torch.no_grad():
        expected = reference_logits(t5["v1.1"].reference)
    folder = hf_models.changed_copy(t5["v1.1"].folder, tmp_path / "model", change_weights=MISTAKES[mistake])
    assert relative_difference(logits_of(program, folder, tmp_path / "logits"), expected) > 30 * TOLERANCE


def change_of_config(**keys):
    return lambda config: config.update(keys)


@pytest.mark.parametrize(
    "change",
    [
        change_of_config(relative_attention_max_distance=40),
        change_of_config(layer_norm_epsilon=1e-6),
        change_of_config(scale_decoder_outputs=True),
        change_of_config(decoder_start_token_id=9),
    ],
    ids=["max_distance", "epsilon", "scale", "start"],
)
def test_the_comparison_notices_a_key(change, program, t5, tmp_path):
    with torch.no_grad():
        expected = reference_logits(t5["v1.1"].reference)
    folder = hf_models.changed_copy(t5["v1.1"].folder, tmp_path / "model", change_config=change)
    assert relative_difference(logits_of(program, folder, tmp_path / "logits"), expected) > 10 * TOLERANCE


def test_what_cannot_be_honoured_is_refused(program, t5, tmp_path):
    def refusal(name, change, *arguments):
        folder = hf_models.changed_copy(t5["v1.1"].folder, tmp_path / name, change_config=change)
        _, _, text = program.run(
            *("inspect", "logits", "--load_hf", folder, "--output", tmp_path / "logits", "--prompt_ids", "3,4"),
            *("--device", "cpu", *arguments),
            expected=2,
        )
        return text

    assert "gated-silu" in refusal("silu", change_of_config(feed_forward_proj="gated-silu"), "--target_ids", "5")
    assert "target_ids is not given" in refusal("alone", change_of_config())
    text = refusal("rope", change_of_config(), "--target_ids", "5", "--position_embedding_type", "rope")
    assert "position_embedding_type" in text
