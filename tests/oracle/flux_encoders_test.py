"""FLUX's frozen encoders and its sampler against diffusers and transformers: a tiny FLUX folder with every part."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

diffusers = pytest.importorskip("diffusers")
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler  # noqa: E402
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline, calculate_shift  # noqa: E402
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors  # noqa: E402
from transformers import (  # noqa: E402
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizerFast,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

CAPTIONS = ["A red boat on a lake", "", "a " * 40 + "lake", "The RED red Lake; a cat's boat!"]
WORDS = "<pad> </s> <unk> a red boat on lake the cat ' s ; !".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz';!"
TEXT_LENGTH = 24
POSITIONS = 16
VAE = dict(
    in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(16, 32, 48), layers_per_block=2, norm_num_groups=8,
    down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3, scaling_factor=0.3611,
    shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False,
)  # fmt: skip
CLIP = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=POSITIONS)
T5 = dict(
    vocab_size=len(WORDS) + 3, d_model=40, d_kv=12, d_ff=72, num_layers=3, num_heads=4, dropout_rate=0.0, is_gated_act=True,
    feed_forward_proj="gated-gelu", relative_attention_num_buckets=8, relative_attention_max_distance=14, tie_word_embeddings=False,
)  # fmt: skip


def enlarge(model):
    """Weights so large that no part can be wrong unseen."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_scale = weight.dim() == 1 and name.endswith(".weight")
            noise = torch.randn(weight.shape, generator=generator)
            fan_in = weight[0].numel() if weight.dim() > 1 else 1
            weight.copy_(1 + 0.2 * noise if is_scale else 0.2 * noise if weight.dim() == 1 else noise * fan_in**-0.5)
    return model.eval()


def clip_tokenizer(folder):
    vocab = {}
    for token in [*LETTERS, *(c + "</w>" for c in LETTERS), "bo", "at</w>", "boat</w>", "re", "red</w>", "<|startoftext|>", "<|endoftext|>"]:
        vocab.setdefault(token, len(vocab))
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\nb o\na t</w>\nbo at</w>\nr e\nre d</w>\n")
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": POSITIONS, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(vocab)


def t5_tokenizer(folder):
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    fast.save_pretrained(folder)


class Flux:
    """A FLUX folder without its transformer, and the parts as transformers and diffusers have them."""

    def __init__(self, folder):
        torch.manual_seed(1)
        self.folder = folder
        vocab_size = clip_tokenizer(folder / "tokenizer")
        t5_tokenizer(folder / "tokenizer_2")
        self.vae = enlarge(AutoencoderKL(**VAE))
        # As in the published file: the end's id is not told rightly.
        self.clip = enlarge(CLIPTextModel(CLIPTextConfig(**CLIP, vocab_size=vocab_size, eos_token_id=2, hidden_act="quick_gelu")))
        self.t5 = enlarge(T5EncoderModel(T5Config(**T5)))
        self.vae.save_pretrained(folder / "vae")
        self.clip.save_pretrained(folder / "text_encoder")
        self.t5.save_pretrained(folder / "text_encoder_2", max_shard_size="20KB")
        assert (folder / "text_encoder_2" / "model.safetensors.index.json").exists()

    def expected_texts(self, captions, length=TEXT_LENGTH):
        """What diffusers' FluxPipeline encodes."""
        pipeline = FluxPipeline(
            scheduler=None, vae=self.vae, text_encoder=self.clip, text_encoder_2=self.t5, transformer=None,
            tokenizer=CLIPTokenizerFast.from_pretrained(self.folder / "tokenizer"),
            tokenizer_2=PreTrainedTokenizerFast.from_pretrained(self.folder / "tokenizer_2"),
        )  # fmt: skip
        states, pooled, _ = pipeline.encode_prompt(captions, None, device="cpu", max_sequence_length=length)
        return states, pooled


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    torch.set_num_threads(1)
    return Flux(tmp_path_factory.mktemp("flux"))


def tool(command, request, folder, expected=0):
    path = Path(os.environ.get("MEGALITH_FLUX_TOOL", Path(__file__).parents[2] / "build" / "bin" / "flux_tool"))
    file = folder / "request.json"
    request["output"] = str(folder / "output.safetensors")
    file.write_text(json.dumps(request))
    done = subprocess.run([path, command, file], capture_output=True, text=True, timeout=120)
    assert done.returncode == expected, done.stderr
    if expected:
        return done.stderr
    # Copies, because the next call writes the same file.
    return {name: tensor.clone() for name, tensor in load_file(request["output"]).items()}, json.loads(done.stdout or "null")


def inputs(folder, **tensors):
    save_file(tensors, folder / "inputs.safetensors")
    return str(folder / "inputs.safetensors")


def pictures(size=(40, 24)):
    return torch.rand(3, 3, *size, generator=torch.Generator().manual_seed(7)) * 2 - 1


def encode(work, captions=CAPTIONS, expected=0, dtype="fp32", more=None, **parts):
    request = {"text_length": TEXT_LENGTH, "dtype": dtype, "captions": captions, **{key: str(value) for key, value in parts.items()}}
    request["inputs"] = inputs(work, **(more or {"nothing": torch.zeros(1)}))
    return tool("encode", request, work, expected)


def assert_close(ours, theirs, tolerance=1e-5):
    assert ours.shape == theirs.shape
    difference = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
    assert difference <= tolerance, f"{difference} apart, relative to the largest"


def test_encoders(flux, tmp_path):
    pixels = pictures()
    with torch.no_grad():
        posterior = flux.vae.encode(pixels).latent_dist
        latents = (posterior.mean - 0.1159) * 0.3611
        decoded = flux.vae.decode(latents / 0.3611 + 0.1159).sample
        states, pooled = flux.expected_texts(CAPTIONS)
    ours, said = encode(tmp_path, folder=flux.folder, more={"pixels": pixels, "latents": latents.contiguous()})
    assert said["latent_scale"] == 0.3611 and said["latent_shift"] == 0.1159
    assert ours["mean"].shape == (3, 4, 10, 6)
    assert_close(ours["mean"], posterior.mean)
    assert_close(ours["log_var"], posterior.logvar)
    assert_close(ours["decoded"], decoded)
    assert_close(ours["states"], states)
    assert_close(ours["pooled"], pooled)


def test_log_variance_is_bounded(flux, tmp_path):
    """diffusers holds it to [-30, 20]."""
    vae = AutoencoderKL(**VAE)
    vae.load_state_dict(flux.vae.state_dict())
    with torch.no_grad():
        vae.encoder.conv_out.weight *= 100
        theirs = vae.encode(pictures()).latent_dist.logvar
    assert theirs.min() == -30 and theirs.max() == 20
    vae.save_pretrained(tmp_path / "vae")
    ours, _ = encode(tmp_path, captions=[], folder=flux.folder, vae=tmp_path / "vae", more={"pixels": pictures()})
    assert_close(ours["log_var"], theirs)


def test_folders_of_their_own(flux, tmp_path):
    """The file of Black Forest Labs, a whole CLIP and a whole T5."""
    levels = len(VAE["block_out_channels"])

    def single_name(name):
        for theirs, single in (
            ("down_blocks", "down"), ("mid_block.resnets.0", "mid.block_1"), ("mid_block.resnets.1", "mid.block_2"),
            ("mid_block.attentions.0", "mid.attn_1"), ("group_norm", "norm"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v"),
            ("to_out.0", "proj_out"), ("resnets", "block"), ("conv_shortcut", "nin_shortcut"), ("downsamplers.0", "downsample"),
            ("upsamplers.0", "upsample"), ("conv_norm_out", "norm_out"),
        ):  # fmt: skip
            name = name.replace(theirs, single)
        for i in range(levels):
            name = name.replace(f"up_blocks.{i}.", f"up.{levels - 1 - i}.")
        return name

    weights = {}
    for name, tensor in flux.vae.state_dict().items():
        is_attention = ".attentions." in name and tensor.dim() == 2
        weights[single_name(name)] = tensor[:, :, None, None].contiguous() if is_attention else tensor
    assert "decoder.up.2.block.0.conv1.weight" in weights and "encoder.mid.attn_1.q.weight" in weights
    (tmp_path / "bfl").mkdir()
    save_file(weights, tmp_path / "bfl" / "ae.safetensors")
    (tmp_path / "bfl" / "config.json").write_text((flux.folder / "vae" / "config.json").read_text())

    whole_clip = CLIPModel(CLIPConfig(text_config=flux.clip.config.to_dict(), vision_config={"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 8, "patch_size": 8}, projection_dim=8))
    whole_clip.text_model.load_state_dict(flux.clip.text_model.state_dict())
    whole_clip.save_pretrained(tmp_path / "clip")
    clip_tokenizer_files = (flux.folder / "tokenizer").iterdir()
    for file in clip_tokenizer_files:
        (tmp_path / "clip" / file.name).write_bytes(file.read_bytes())
    whole_t5 = T5ForConditionalGeneration(T5Config(**T5))
    whole_t5.shared.load_state_dict(flux.t5.shared.state_dict())
    whole_t5.encoder.load_state_dict(flux.t5.encoder.state_dict())
    whole_t5.save_pretrained(tmp_path / "t5")
    t5_tokenizer(tmp_path / "t5")

    more = {"pixels": pictures(), "latents": torch.randn(1, 4, 4, 4)}
    of_folder, said = encode(tmp_path, folder=flux.folder, more=more)
    ours, said_of_own = encode(tmp_path, vae=tmp_path / "bfl" / "ae.safetensors", clip=tmp_path / "clip", t5=tmp_path / "t5", more=more)
    assert of_folder.keys() == ours.keys() and len(ours) == 5
    for name, tensor in ours.items():
        assert torch.equal(tensor, of_folder[name]), name
    assert said["identity"] != said_of_own["identity"]


def test_bfloat16(flux, tmp_path):
    """No further from fp32 than diffusers' own bf16 is, but for a third."""
    with torch.no_grad():
        exact = flux.vae.encode(pictures()).latent_dist.mean
        states, _ = flux.expected_texts(CAPTIONS)
    ours, _ = encode(tmp_path, folder=flux.folder, dtype="bf16", more={"pixels": pictures()})
    assert ours["mean"].dtype == ours["states"].dtype == torch.bfloat16
    vae = AutoencoderKL.from_pretrained(flux.folder / "vae", torch_dtype=torch.bfloat16)
    with torch.no_grad():
        theirs = vae.encode(pictures().bfloat16()).latent_dist.mean.float()
    assert (ours["mean"].float() - exact).norm() <= 4 / 3 * (theirs - exact).norm()
    assert (ours["states"].float() - states).norm() / states.norm() < 0.05


def test_everything_missing_is_named_at_once(flux, tmp_path):
    (tmp_path / "empty").mkdir()
    errors = encode(tmp_path, expected=2, folder=tmp_path / "empty")
    for part in ("vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"):
        assert f"{tmp_path / 'empty'} has no {part}, which is" in errors
    assert "HF_TOKEN" in errors and "licence" in errors
    # A weight that is missing, and a configuration of another width.
    weights = dict(flux.vae.state_dict())
    weights.pop("decoder.conv_in.bias")
    (tmp_path / "vae").mkdir()
    save_file(weights, tmp_path / "vae" / "diffusion_pytorch_model.safetensors")
    (tmp_path / "vae" / "config.json").write_text((flux.folder / "vae" / "config.json").read_text())
    flux.clip.save_pretrained(tmp_path / "clip")
    config = json.loads((tmp_path / "clip" / "config.json").read_text())
    (tmp_path / "clip" / "config.json").write_text(json.dumps(config | {"hidden_size": 1 << 19}))
    errors = encode(tmp_path, expected=2, folder=flux.folder, vae=tmp_path / "vae", clip=tmp_path / "clip", t5=flux.folder / "vae")
    assert "decoder.conv_in.bias" in errors
    assert " is [48], expected [524288]" in errors
    assert str(flux.folder / "vae") in errors


@pytest.mark.parametrize("name", ["dev", "schnell", "shifted"])
def test_sampler(tmp_path, name):
    settings = {
        "dev": dict(use_dynamic_shifting=True, shift=3.0, base_shift=0.5, max_shift=1.15, base_image_seq_len=256, max_image_seq_len=4096),
        "schnell": dict(use_dynamic_shifting=False, shift=1.0),
        "shifted": dict(use_dynamic_shifting=False, shift=3.0),
    }[name]
    theirs = FlowMatchEulerDiscreteScheduler(**settings)
    theirs.save_pretrained(tmp_path / "scheduler")
    for steps, tokens in ((1, 256), (4, 1024), (28, 4096), (7, 6)):
        request = {"folder": str(tmp_path), "steps": steps, "tokens": tokens, "seed": 11, "shape": [4, 6, 8]}
        ours, _ = tool("sample", request, tmp_path)
        # As the pipeline does.
        config = theirs.config
        mu = calculate_shift(tokens, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
        theirs.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
        # Two roundings of fp32 below numbers of at most 1.
        assert torch.allclose(ours["sigmas"], theirs.sigmas.double(), rtol=0, atol=2e-7)
        x = ours["noise"]
        for step in theirs.timesteps:
            x = theirs.step(torch.sin(3 * x) + step / 1000 * x, step, x, return_dict=False)[0]
        assert_close(ours["end"], x)


def test_noise_is_normal_and_of_its_seed(tmp_path):
    def noise(seed):
        request = {"folder": str(tmp_path), "steps": 1, "tokens": 4, "seed": seed, "shape": [16, 32, 32]}
        return tool("sample", request, tmp_path)[0]["noise"]

    first = noise(1)
    assert torch.equal(first, noise(1)) and not torch.equal(first, noise(2))
    # 16384 draws: five deviations of a mean and of a variance.
    assert abs(first.mean()) < 0.04 and abs(first.var() - 1) < 0.06


@pytest.mark.parametrize("guidance", [3.5, None])
def test_pictures_are_made_as_by_the_pipeline(tmp_path, guidance):
    """diffusers' own packing, positions, shift and steps around the same function of all that a model reads."""
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15)
    scheduler.save_pretrained(tmp_path / "scheduler")
    height, width, steps, channels = 64, 112, 5, 4
    text, pooled = torch.randn(1, 9, 6), torch.randn(1, 5)
    request = {
        "folder": str(tmp_path), "steps": steps, "height": height, "width": width, "seed": 5, "guidance": guidance, "channels": channels,
        "reduction": 8, "inputs": inputs(tmp_path, text=text, pooled=pooled),
    }  # fmt: skip
    ours, _ = tool("generate", request, tmp_path)
    x = FluxPipeline._pack_latents(ours["noise"], 1, channels, height // 8, width // 8)
    places = FluxPipeline._prepare_latent_image_ids(1, height // 16, width // 16, "cpu", torch.float32)
    assert places.shape == (x.shape[1], 3)
    mu = calculate_shift(x.shape[1], 256, 4096, 0.5, 1.15)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    for step in scheduler.timesteps:
        numbers = text.mean() + 2 * pooled.mean() + 3 * step / 1000 + (guidance / 7 if guidance else 0)
        of_places = places[:, 0] + 0.1 * places[:, 1] - 0.2 * places[:, 2]
        velocity = torch.sin(2 * x) + numbers + of_places[None, :, None] + 0.01 * (x.shape[1] - text.shape[1])
        x = scheduler.step(velocity, step, x, return_dict=False)[0]
    assert_close(ours["latents"], FluxPipeline._unpack_latents(x, height, width, 8))


def test_sizes_of_pictures_are_checked_at_once(tmp_path):
    request = {
        "folder": str(tmp_path), "steps": 0, "height": 100, "width": 1 << 40, "seed": 5, "guidance": -1, "channels": 4, "reduction": 8,
        "inputs": inputs(tmp_path, text=torch.randn(1, 9, 6), pooled=torch.randn(1, 5)),
    }  # fmt: skip
    errors = tool("generate", request, tmp_path, expected=2)
    for word in ("height is 100, expected a multiple of 16", "give --height 96", "width is 1099511627776", "steps is 0", "guidance is -1"):
        assert word in errors, errors
