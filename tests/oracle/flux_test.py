"""FLUX against diffusers in fp32: output, loss, every gradient, exports, and the values of a golden model."""

import json

import pytest
import torch
from compare import assert_close
from diffusers import FluxTransformer2DModel
from safetensors.torch import load_file, save_file

# Two joint blocks and three single ones of three heads, axes of unlike widths, sizes that no two tensors share.
COMMON = dict(
    in_channels=16,
    num_layers=2,
    num_single_layers=3,
    attention_head_dim=24,
    num_attention_heads=3,
    joint_attention_dim=40,
    pooled_projection_dim=20,
    axes_dims_rope=(4, 8, 12),
)
SAMPLES, TEXT, ROWS, COLUMNS = 2, 5, 3, 4


def unit(tensor, count):
    """The numbers of tests/support/module_tools.h: a function of tensor number and element, in [-1, 1)."""
    mask = (1 << 64) - 1
    values = torch.empty(count, dtype=torch.float64)
    for element in range(count):
        z = ((tensor << 32) + element + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        values[element] = (z >> 11) * 2.0**-53 * 2 - 1
    return values


def fast_unit(tensor, count):
    """The same through numpy, whose integers wrap around."""
    import numpy

    with numpy.errstate(over="ignore"):
        z = numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(((tensor << 32) + 0x9E3779B97F4A7C15) & (2**64 - 1))
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z ^= z >> numpy.uint64(31)
    return torch.from_numpy((z >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53 * 2 - 1)


def positions(rows, columns):
    grid = torch.zeros(rows, columns, 3, dtype=torch.int64)
    grid[..., 1] = torch.arange(rows)[:, None]
    grid[..., 2] = torch.arange(columns)
    return grid.reshape(-1, 3)


def inputs_of(guidance, seed=7):
    generator = torch.Generator().manual_seed(seed)
    tokens = ROWS * COLUMNS
    inputs = {
        "image": torch.randn(SAMPLES, tokens, COMMON["in_channels"], generator=generator),
        "text": torch.randn(SAMPLES, TEXT, COMMON["joint_attention_dim"], generator=generator),
        "pooled": torch.randn(SAMPLES, COMMON["pooled_projection_dim"], generator=generator),
        "timesteps": torch.tensor([0.3, 0.85]),
        "target": torch.randn(SAMPLES, tokens, COMMON["in_channels"], generator=generator),
        "image_positions": positions(ROWS, COLUMNS),
    }
    if guidance:
        inputs["guidance"] = torch.tensor([3.5, 1.0])
    return inputs


def output_of(model, inputs):
    return model(
        hidden_states=inputs["image"],
        encoder_hidden_states=inputs["text"],
        pooled_projections=inputs["pooled"],
        timestep=inputs["timesteps"],
        img_ids=inputs["image_positions"].float(),
        txt_ids=torch.zeros(inputs["text"].shape[1], 3),
        guidance=inputs.get("guidance"),
        return_dict=False,
    )[0]


@pytest.fixture(scope="module", params=[True, False], ids=["guidance", "no_guidance"])
def flux(request, tmp_path_factory):
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("flux")
    model = FluxTransformer2DModel(guidance_embeds=request.param, **COMMON).float().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.15
            parameter.copy_(1 + noise if parameter.dim() == 1 and name.endswith(".weight") else noise)
    # As a whole pipeline is stored.
    (root / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    model.save_pretrained(root / "transformer")
    inputs = inputs_of(request.param)
    save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, root / "inputs.safetensors")
    return root, model, inputs


def logits_of(program, folder, inputs_file, output, *more):
    program.run(
        *("inspect", "logits", "--load_hf", folder, "--inputs_file", inputs_file, "--output", output),
        *("--overwrite", "--device", "cpu", *more),
    )
    return load_file(output)["logits"]


def test_output_is_diffusers(flux, program, tmp_path):
    root, model, inputs = flux
    with torch.no_grad():
        expected = output_of(model, inputs)
    for folder in (root, root / "transformer"):
        assert_close(logits_of(program, folder, root / "inputs.safetensors", tmp_path / "out"), expected, "velocity")


@pytest.mark.parametrize("kernels", ["fused", "reference"])
def test_loss_and_every_gradient_are_torchs(kernels, flux, program, tmp_path):
    root, model, inputs = flux
    model.zero_grad()
    loss = (output_of(model, inputs) - inputs["target"]).square().mean()
    loss.backward()
    output = tmp_path / "gradients"
    _, text, _ = program.run(
        *("inspect", "gradients", "--load_hf", root, "--inputs_file", root / "inputs.safetensors", "--output", output),
        *("--kernels", kernels, "--device", "cpu"),
    )
    assert json.loads(text)["loss"] == pytest.approx(loss.item(), rel=1e-5)
    ours, theirs = load_file(output), dict(model.named_parameters())
    assert set(ours) == set(theirs)
    for name, parameter in theirs.items():
        assert parameter.grad.abs().max() > 0, f"{name}: the reference has no gradient, so nothing would be compared"
        # A softmax does not see what all keys have in common: what is left of such a gradient is rounding.
        if name.endswith(("to_k.bias", "add_k_proj.bias")):
            continue
        assert_close(ours[name], parameter.grad, f"gradient of {name}")


def to_single_file(weights, num_joint, num_single):
    """The names and tensors of Black Forest Labs' file, made of diffusers' (written from the published model.py)."""
    renamed = {}

    def move(old, new):
        for ending in (".weight", ".bias"):
            renamed[new + ending] = weights[old + ending]

    def join(olds, new):
        for ending in (".weight", ".bias"):
            renamed[new + ending] = torch.cat([weights[old + ending] for old in olds])

    move("x_embedder", "img_in")
    move("context_embedder", "txt_in")
    for old, new in (("timestep", "time"), ("guidance", "guidance"), ("text", "vector")):
        if f"time_text_embed.{old}_embedder.linear_1.weight" in weights:
            move(f"time_text_embed.{old}_embedder.linear_1", f"{new}_in.in_layer")
            move(f"time_text_embed.{old}_embedder.linear_2", f"{new}_in.out_layer")
    for i in range(num_joint):
        old, new = f"transformer_blocks.{i}.", f"double_blocks.{i}."
        for stream, norm, q, k, v, out, mlp, norm_q, norm_k in (
            ("img", "norm1", "to_q", "to_k", "to_v", "to_out.0", "ff", "norm_q", "norm_k"),
            (
                *("txt", "norm1_context", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "ff_context"),
                *("norm_added_q", "norm_added_k"),
            ),
        ):
            move(f"{old}{norm}.linear", f"{new}{stream}_mod.lin")
            join([f"{old}attn.{one}" for one in (q, k, v)], f"{new}{stream}_attn.qkv")
            move(f"{old}attn.{out}", f"{new}{stream}_attn.proj")
            move(f"{old}{mlp}.net.0.proj", f"{new}{stream}_mlp.0")
            move(f"{old}{mlp}.net.2", f"{new}{stream}_mlp.2")
            renamed[f"{new}{stream}_attn.norm.query_norm.scale"] = weights[f"{old}attn.{norm_q}.weight"]
            renamed[f"{new}{stream}_attn.norm.key_norm.scale"] = weights[f"{old}attn.{norm_k}.weight"]
    for i in range(num_single):
        old, new = f"single_transformer_blocks.{i}.", f"single_blocks.{i}."
        move(f"{old}norm.linear", f"{new}modulation.lin")
        join([f"{old}{one}" for one in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")], f"{new}linear1")
        move(f"{old}proj_out", f"{new}linear2")
        renamed[f"{new}norm.query_norm.scale"] = weights[f"{old}attn.norm_q.weight"]
        renamed[f"{new}norm.key_norm.scale"] = weights[f"{old}attn.norm_k.weight"]
    for ending in (".weight", ".bias"):
        scale, shift = weights["norm_out.linear" + ending].chunk(2)
        renamed["final_layer.adaLN_modulation.1" + ending] = torch.cat([shift, scale])
    move("proj_out", "final_layer.linear")
    return {name: tensor.detach().clone().contiguous() for name, tensor in renamed.items()}


def test_names_of_the_single_file_are_read(flux, program, tmp_path):
    root, model, inputs = flux
    folder = tmp_path / "single"
    folder.mkdir()
    (folder / "config.json").write_text((root / "transformer" / "config.json").read_text())
    weights = to_single_file(model.state_dict(), COMMON["num_layers"], COMMON["num_single_layers"])
    save_file(weights, folder / "diffusion_pytorch_model.safetensors")
    exported = tmp_path / "exported"
    program.run("convert", "--load_hf", folder, "--save_hf", exported, "--dtype", "fp32")
    ours, theirs = load_file(exported / "diffusion_pytorch_model.safetensors"), model.state_dict()
    assert set(ours) == set(theirs)
    for name, expected in theirs.items():
        assert torch.equal(ours[name], expected), name
    weights["double_blocks.0.img_attn.unknown.weight"] = torch.zeros(3)
    save_file(weights, folder / "diffusion_pytorch_model.safetensors")
    _, _, errors = program.run("convert", "--load_hf", folder, "--save_hf", tmp_path / "other", expected=2)
    assert "double_blocks.0.img_attn.unknown.weight" in errors


def test_export_loads_in_diffusers(flux, program, tmp_path):
    root, model, inputs = flux
    exported = tmp_path / "exported"
    program.run("convert", "--load_hf", root, "--save_hf", exported, "--dtype", "fp32")
    assert (exported / "diffusion_pytorch_model.safetensors").exists()
    again = FluxTransformer2DModel.from_pretrained(exported).eval()
    theirs = dict(model.named_parameters())
    assert set(dict(again.named_parameters())) == set(theirs)
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, theirs[name]), name
    with torch.no_grad():
        assert torch.equal(output_of(again, inputs), output_of(model, inputs))


def test_golden_values(program, tmp_path):
    assert torch.equal(fast_unit(3, 7), unit(3, 7)) and fast_unit(0, 1)[0].item() == pytest.approx(0.76662162, abs=1e-8)
    sizes = dict(
        num_layers=1,
        num_single_layers=1,
        num_attention_heads=2,
        attention_head_dim=128,
        joint_attention_dim=32,
        pooled_projection_dim=16,
        guidance_embeds=True,
    )
    model = FluxTransformer2DModel(**sizes).float().eval()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for number, name in enumerate(sorted(parameters, key=str.encode)):
            tensor = parameters[name]
            base = 1.0 if tensor.dim() == 1 and name.endswith(".weight") else 0.0
            tensor.copy_((base + 0.2 * fast_unit(number, tensor.numel())).view(tensor.shape))
    model.save_pretrained(tmp_path / "model")
    inputs = {
        "image": fast_unit(1000, 4 * 64).view(1, 4, 64).float(),
        "text": fast_unit(1001, 3 * 32).view(1, 3, 32).float(),
        "pooled": fast_unit(1002, 16).view(1, 16).float(),
        "timesteps": torch.tensor([0.5]),
        "guidance": torch.tensor([3.5]),
        "image_positions": positions(2, 2),
    }
    save_file(inputs, tmp_path / "inputs.safetensors")
    out = logits_of(program, tmp_path / "model", tmp_path / "inputs.safetensors", tmp_path / "out")[0]
    assert_close(out[0, :4], torch.tensor([1.13899, -7.80698, 11.3865, -3.04804]), "first token")
    assert_close(out[3, -2:], torch.tensor([10.7245, 5.83537]), "last token")


@pytest.mark.parametrize(
    "change, message",
    [
        (("--seq_length", 64), "seq_length is for model_type gpt"),
        (("--vocab_size", 100), "vocab_size is for model_type gpt, t5, bert, biencoder or classifier"),
        (("--image_size", 40), "image_size 40 is no multiple of 16"),
        (("--num_experts", 4), "num_experts is for model_type gpt, t5, bert or classifier"),
        (("--task", "causal_lm"), "causal_lm"),
        (("--sequence_parallel", "--tensor_model_parallel_size", 3), "sequence_parallel splits the 16 tokens of a picture"),
        (("--cfg_dropout_prob", "0.1,0.2,0.3"), "cfg_dropout_prob has 3 numbers"),
    ],
)
def test_options_of_texts_are_refused(change, message, program):
    words = ("train", "--config", "flux_535M", "--mock_data", "--dry_run", "--dry_run_world_size", 3, "--image_size", 64)
    _, _, errors = program.run(*words, *change, expected=2)
    assert message in errors
