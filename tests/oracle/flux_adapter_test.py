"""Adapters of FLUX against diffusers: what a run writes loads there and computes the same, and what diffusers writes loads here."""

import json

import pytest
import torch
from compare import assert_close
from diffusers import FluxTransformer2DModel
from diffusers.loaders import FluxLoraLoaderMixin
from flux_test import COMMON, inputs_of, logits_of, output_of
from safetensors import safe_open
from safetensors.torch import load_file, save_file

peft = pytest.importorskip("peft")

FILE = "pytorch_lora_weights.safetensors"

TRAIN = (
    *("--mock_data", "--image_size", 64, "--text_length", 5, "--lora.enabled", "true", "--lora.dim", 4, "--lora.alpha", 12),
    *("--lora.lora_B_init_method", "normal", "--micro_batch_size", 2, "--train_iters", 2, "--lr", 1e-2, "--eval_iters", 0),
    *("--fp32", "--device", "cpu"),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("flux_adapters")
    model = FluxTransformer2DModel(guidance_embeds=True, **COMMON).float().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.15
            parameter.copy_(1 + noise if parameter.dim() == 1 and name.endswith(".weight") else noise)
    (root / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    model.save_pretrained(root / "transformer")
    inputs = inputs_of(True)
    save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, root / "inputs.safetensors")
    return root, inputs


def velocity_with(root, inputs, adapters):
    """As a pipeline of diffusers loads it."""
    model = FluxTransformer2DModel.from_pretrained(root / "transformer").eval()
    state, metadata = FluxLoraLoaderMixin.lora_state_dict(adapters, weight_name=FILE, return_lora_metadata=True)
    assert all(name.startswith("transformer.") for name in state)
    model.load_lora_adapter(state, metadata=metadata, prefix="transformer")
    adapted = {name.replace(".default_0", "") for name, _ in model.named_parameters() if ".lora_" in name}
    assert adapted == {name.removeprefix("transformer.") for name in state}, "layers are left out or added"
    with torch.no_grad():
        return output_of(model, inputs)


@pytest.mark.parametrize(
    "targets, count",
    [
        ((), 2 * (6 + 2 + 4) + 3 * 5),
        (("--lora.target_modules", "to_q,proj_out"), 2 + 3 + 3 + 1),
    ],
    ids=["fused", "some"],
)
def test_what_a_run_writes_loads_in_diffusers(targets, count, base, program, tmp_path):
    root, inputs = base
    adapters = tmp_path / "adapters"
    program.run("train", "--load_hf", root, *TRAIN, *targets, "--save_adapter", adapters)
    file = adapters / FILE
    weights = load_file(file)
    downs = [name for name in weights if name.endswith(".lora_A.weight")]
    assert len(downs) == len(weights) - len(downs) == count, sorted(weights)
    with safe_open(file, "pt") as opened:
        told = json.loads(opened.metadata()["lora_adapter_metadata"])
    assert told["transformer.r"] == 4 and told["transformer.lora_alpha"] == 12
    with_adapters = velocity_with(root, inputs, adapters)
    with torch.no_grad():
        without = output_of(FluxTransformer2DModel.from_pretrained(root / "transformer").eval(), inputs)
    assert (with_adapters - without).abs().max() > 0.01, "the adapters do nothing, so nothing would be compared"
    merged = tmp_path / "merged"
    program.run("convert", "--load_hf", root, "--merge_adapter", adapters, "--save_hf", merged, "--dtype", "fp32")
    assert_close(logits_of(program, merged, root / "inputs.safetensors", tmp_path / "out"), with_adapters, "velocity")


def test_adapters_of_diffusers_are_read(base, program, tmp_path):
    root, inputs = base
    model = FluxTransformer2DModel.from_pretrained(root / "transformer").eval()
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["to_k", "to_out.0", "ff.net.2", "proj_mlp"], init_lora_weights=False)
    torch.manual_seed(5)
    model.add_adapter(config)
    model.save_lora_adapter(tmp_path / "bare")
    # As FluxPipeline.save_lora_weights() names them.
    bare = load_file(tmp_path / "bare" / FILE)
    with safe_open(tmp_path / "bare" / FILE, "pt") as opened:
        told = json.loads(opened.metadata()["lora_adapter_metadata"])
    theirs = tmp_path / "theirs"
    FluxLoraLoaderMixin.save_lora_weights(theirs, transformer_lora_layers=bare, transformer_lora_adapter_metadata=told)
    with torch.no_grad():
        expected = output_of(model, inputs)
    merged = tmp_path / "merged"
    program.run("convert", "--load_hf", root, "--merge_adapter", theirs, "--save_hf", merged, "--dtype", "fp32")
    assert_close(logits_of(program, merged, root / "inputs.safetensors", tmp_path / "out"), expected, "velocity")
    (tmp_path / "untold").mkdir()
    save_file(load_file(theirs / FILE), tmp_path / "untold" / FILE)
    words = ("convert", "--load_hf", root, "--merge_adapter", tmp_path / "untold", "--save_hf", tmp_path / "other")
    _, _, errors = program.run(*words, expected=2)
    assert "does not say what its adapters' lora_alpha is" in errors


def test_a_run_goes_on_with_its_adapters(base, program, tmp_path):
    root, _ = base
    words = ("train", "--load_hf", root, *TRAIN)
    program.run(*words, "--save_adapter", tmp_path / "first")
    program.run(*words, "--adapter", tmp_path / "first", "--lr", 0, "--save_adapter", tmp_path / "second")
    first, second = (load_file(tmp_path / name / FILE) for name in ("first", "second"))
    assert set(first) == set(second)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
