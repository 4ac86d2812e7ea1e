"""Megatron-LM's T5 against megatron-core's, in fp32: logits, loss and every gradient of a model that trained two steps."""

import contextlib
import copy
import json
import warnings

import pytest
import torch
from compare import assert_close
from safetensors.torch import load_file

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed ('make tools' says why)")
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.T5 import t5_spec
    from megatron.core.models.T5.t5_model import T5Model
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

HIDDEN, HEADS, FFN, VOCABULARY, POSITIONS, START = 48, 4, 80, 160, 40, 3
ENCODER_LAYERS, DECODER_LAYERS = 3, 2
ENCODER_IDS = [5, 17, 130, 4, 42, 99, 2, 64, 7, 7, 88, 31, 120, 3, 55, 18, 76, 101, 9, 23, 1]
TARGET_IDS = [12, 90, 4, 33, 129, 66, 7, 81, 2, 45, 60, 118, 1]
# Flags of pretrain_t5.sh at another size; weights large enough to be seen.
FLAGS = (
    *("--model_type", "t5", "--encoder_num_layers", ENCODER_LAYERS, "--decoder_num_layers", DECODER_LAYERS),
    *("--hidden_size", HIDDEN, "--num_attention_heads", HEADS, "--ffn_hidden_size", FFN, "--vocab_size", VOCABULARY),
    *("--encoder_seq_length", 32, "--decoder_seq_length", 16, "--max_position_embeddings", POSITIONS),
    *("--init_method_std", 0.2, "--attention_dropout", 0, "--hidden_dropout", 0, "--bos_token_id", START),
)


@pytest.fixture(scope="module", params=["tanh", "erf"])
def trained(request, program, tmp_path_factory):
    """A checkpoint whose norms and biases have moved, and megatron-core's model with its weights."""
    folder = tmp_path_factory.mktemp("megatron_t5") / "checkpoint"
    program.run(
        *("train", *FLAGS, "--bias_gelu_fusion", "true" if request.param == "tanh" else "false", "--mock_data"),
        *("--micro_batch_size", 2, "--train_iters", 2, "--lr", 0.03, "--eval_iters", 0, "--save", folder, "--device", "cpu"),
    )
    model = make_model(has_tanh=request.param == "tanh")
    weights = load_file(folder / "iter_0000002" / "model.safetensors")
    with torch.no_grad():
        found = dict(our_views(dict(model.named_parameters())))
        assert set(found) == set(weights)
        for name, view in found.items():
            view.copy_(weights[name].view_as(view))
    return folder, model


def make_model(has_tanh):
    """One rank's, on the CPU: what asks for a GPU there is the place of a buffer, and dropout's random numbers."""
    torch.set_num_threads(1)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        torch.cuda.current_device = lambda: "cpu"
        tensor_parallel.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
    config = TransformerConfig(
        num_layers=DECODER_LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        ffn_hidden_size=FFN,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bias_activation_fusion=has_tanh,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )
    of_encoder = copy.deepcopy(config)
    of_encoder.num_layers = ENCODER_LAYERS

    def stack(layer, count):
        return TransformerBlockSubmodules([layer] * count, layer_norm=t5_spec.LNImpl)

    return T5Model(
        config=config,
        encoder_config=of_encoder,
        transformer_encoder_layer_spec=stack(t5_spec.encoder_model_with_local_spec(), ENCODER_LAYERS),
        transformer_decoder_layer_spec=stack(t5_spec.decoder_model_with_local_spec(), DECODER_LAYERS),
        vocab_size=VOCABULARY,
        max_sequence_length=POSITIONS,
        parallel_output=False,
        share_embeddings_and_output_weights=True,
    ).float()


def our_views(theirs):
    """Our names with the parts of megatron-core's tensors, whose fused projections have each head's parts in a row."""
    yield "shared.weight", theirs["embedding.word_embeddings.weight"]
    yield "shared_position_embeddings.weight", theirs["embedding.position_embeddings.weight"]
    yield "lm_head.bias", theirs["lm_head.output_layer.bias"]
    for stack, count in (("encoder", ENCODER_LAYERS), ("decoder", DECODER_LAYERS)):
        for kind in ("weight", "bias"):
            yield f"{stack}.final_layer_norm.{kind}", theirs[f"{stack}.final_layernorm.{kind}"]
            for layer in range(count):
                yield from layer_views(theirs, stack, layer, kind)


def layer_views(theirs, stack, layer, kind):
    ours, prefix = f"{stack}.block.{layer}.layer.", f"{stack}.layers.{layer}."

    def parts(name, count):
        tensor = theirs[f"{prefix}{name}.{kind}"]
        return tensor.view(HEADS, count, HIDDEN // HEADS, *tensor.shape[1:]).unbind(1)

    for letter, view in zip("qkv", parts("self_attention.linear_qkv", 3)):
        yield f"{ours}0.SelfAttention.{letter}.{kind}", view
    yield f"{ours}0.SelfAttention.o.{kind}", theirs[f"{prefix}self_attention.linear_proj.{kind}"]
    yield f"{ours}0.layer_norm.{kind}", theirs[f"{prefix}input_layernorm.{kind}"]
    mlp = 1
    if stack == "decoder":
        mlp = 2
        yield f"{ours}1.EncDecAttention.q.{kind}", theirs[f"{prefix}cross_attention.linear_q.{kind}"]
        for letter, view in zip("kv", parts("cross_attention.linear_kv", 2)):
            yield f"{ours}1.EncDecAttention.{letter}.{kind}", view
        yield f"{ours}1.EncDecAttention.o.{kind}", theirs[f"{prefix}cross_attention.linear_proj.{kind}"]
        yield f"{ours}1.layer_norm.{kind}", theirs[f"{prefix}pre_cross_attn_layernorm.{kind}"]
    yield f"{ours}{mlp}.layer_norm.{kind}", theirs[f"{prefix}pre_mlp_layernorm.{kind}"]
    yield f"{ours}{mlp}.DenseReluDense.wi.{kind}", theirs[f"{prefix}mlp.linear_fc1.{kind}"]
    yield f"{ours}{mlp}.DenseReluDense.wo.{kind}", theirs[f"{prefix}mlp.linear_fc2.{kind}"]


def reference_logits(model):
    read, written = torch.tensor([ENCODER_IDS]), torch.tensor([[START, *TARGET_IDS[:-1]]])
    s, t = read.shape[1], written.shape[1]
    seen = torch.zeros(1, 1, 1, s, dtype=torch.bool)  # true is what is masked
    return model(
        encoder_input_ids=read,
        decoder_input_ids=written,
        encoder_attn_mask=seen.expand(1, 1, s, s),
        decoder_attn_mask=torch.ones(1, 1, t, t).triu(1).bool(),
        encoder_decoder_attn_mask=seen.expand(1, 1, t, s),
    )[0]


def pair(output):
    ids = (",".join(map(str, values)) for values in (ENCODER_IDS, TARGET_IDS))
    return "--prompt_ids", next(ids), "--target_ids", next(ids), "--output", output


def test_logits_are_megatron_cores(trained, program, tmp_path):
    folder, model = trained
    with torch.no_grad():
        expected = reference_logits(model)
    program.run("inspect", "logits", "--load", folder, *pair(tmp_path / "logits"), "--device", "cpu")
    assert_close(load_file(tmp_path / "logits")["logits"], expected, "logits")


def test_loss_and_every_gradient_are_megatron_cores(trained, program, tmp_path):
    folder, model = trained
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(reference_logits(model), torch.tensor(TARGET_IDS))
    loss.backward()
    _, text, _ = program.run(
        *("inspect", "gradients", "--load", folder, *pair(tmp_path / "gradients"), "--device", "cpu"),
    )
    assert json.loads(text)["lm loss"] == pytest.approx(loss.item(), rel=1e-5)
    ours = load_file(tmp_path / "gradients")
    theirs = dict(our_views({name: parameter.grad for name, parameter in model.named_parameters()}))
    assert set(ours) == set(theirs)
    largest = max(gradient.abs().max() for gradient in theirs.values())
    for name, gradient in theirs.items():
        if name.endswith(".k.bias"):  # one vector on all keys changes no softmax: rounding
            assert ours[name].abs().max() < 1e-4 * largest, name
            continue
        assert gradient.abs().max() > 0, f"{name}: the reference has no gradient, so nothing would be compared"
        assert_close(ours[name], gradient.reshape(ours[name].shape), f"gradient of {name}")
