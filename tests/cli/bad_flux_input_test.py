"""What FLUX cannot be trained on, or with: options of texts, sizes, data that were prepared for another run, folders."""

import json

import pytest
import torch
from refusals import refused
from safetensors.torch import save_file

SHAPE = (
    *("--model_type", "diffusion_model", "--num_joint_layers", 1, "--num_single_layers", 1, "--hidden_size", 64),
    *("--num_attention_heads", 4, "--axes_dim", "4,4,8", "--context_dim", 12, "--vec_in_dim", 6, "--in_channels", 16),
)
TRAIN = ("train", *SHAPE, "--image_size", 64, "--text_length", 5, "--micro_batch_size", 1, "--train_iters", 1, "--device", "cpu")
MOCK = (*TRAIN, "--mock_data")
TEXT = (
    *("train", "--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4, "--vocab_size", 131, "--mock_data"),
    *("--max_position_embeddings", 32, "--seq_length", 32, "--device", "cpu"),
)


def prepared(folder, samples=20, latents=(4, 8, 8), width=12, **changed):
    """A folder as `megalith prepare flux` writes it."""
    folder.mkdir()
    tensors = {
        "latents": torch.zeros(samples, *latents),
        "text_states": torch.zeros(samples, 5, width),
        "pooled_text": torch.zeros(samples, 6),
        "checksums": torch.zeros(samples, dtype=torch.int64),
    }
    shard = folder / "shard-00000.safetensors"
    save_file(tensors, shard, metadata={"captions": json.dumps([""] * samples)})
    save_file({"text_states": torch.zeros(5, width), "pooled_text": torch.zeros(6)}, folder / "empty.safetensors")
    index = {
        "format": "megalith flux 1",
        "samples": samples,
        "image_size": 64,
        "latent_shape": latents,
        "vae_latent_mode": "presampled",
        "latent_scale": 0.3611,
        "latent_shift": 0.1159,
        "text_length": 5,
        "context_dim": width,
        "vec_in_dim": 6,
        "encoders": "small",
        "shards": [{"file": shard.name, "samples": samples, "bytes": shard.stat().st_size}],
    }
    (folder / "index.json").write_text(json.dumps({**index, **changed}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flux")
    prepared(folder / "good")
    prepared(folder / "others", encoders="large")
    prepared(folder / "wide", width=16)
    prepared(folder / "channels", latents=(16, 8, 8))
    prepared(folder / "unfinished")
    (folder / "unfinished" / "index.json").unlink()
    prepared(folder / "cut")
    shard = folder / "cut" / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    prepared(folder / "damaged")
    (folder / "fill").mkdir()
    flux = {"_class_name": "FluxTransformer2DModel", "num_layers": 1, "num_single_layers": 1, "in_channels": 384}
    (folder / "fill" / "config.json").write_text(json.dumps({**flux, "out_channels": 64}))
    (folder / "other").mkdir()
    (folder / "other" / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusion3Pipeline"}))
    return folder


# what is wrong, command, parts of the message in any order
WRONG = [
    ("a sequence of tokens", (*MOCK, "--seq_length", 64), ["seq_length is for model_type gpt", "leave seq_length out"]),
    ("a vocabulary", (*MOCK, "--vocab_size", 100), ["vocab_size is for model_type gpt, t5, bert, biencoder or classifier, which is diffusion_model"]),
    ("a tokenizer", (*MOCK, "--tokenizer_type", "ByteTokenizer"), ["tokenizer_type is for model_type gpt", "leave tokenizer_type out"]),
    ("experts", (*MOCK, "--num_experts", 4), ["num_experts is for model_type gpt, t5, bert or classifier", "leave num_experts out"]),
    ("layers", (*MOCK, "--num_layers", 4, "--swiglu"), ["num_layers is for model_type gpt", "swiglu is for model_type gpt"]),
    ("a norm", (*MOCK, "--norm_epsilon", 1e-3), ["norm_epsilon is 0.001, and with model_type diffusion_model always 1e-06"]),
    ("another task", (*MOCK, "--task", "masked_lm"), ["task masked_lm with model_type diffusion_model", "leave task out"]),
    ("the task for a model of texts", (*TEXT, "--task", "flow_matching"), ["task flow_matching needs model_type diffusion_model"]),
    ("a size for a model of texts", (*TEXT, "--image_size", 64, "--cfg_dropout_prob", 0.1), ["image_size is for model_type diffusion_model", "cfg_dropout_prob is for model_type diffusion_model"]),
    ("joint blocks of a model of texts", (*TEXT, "--num_joint_layers", 2), ["num_joint_layers is for model_type diffusion_model"]),
    ("instructions", (*TRAIN, "--sft_data_path", "rows.jsonl"), ["sft_data_path"]),
    ("a size that is no multiple of 16", (*MOCK, "--image_size", 40), ["image_size 40 is no multiple of 16", "32 or 48"]),
    ("axes and heads", (*MOCK, "--axes_dim", "4,4,4"), ["axes_dim 4,4,4 has 12 channels, and a head 16", "make them equal"]),
    ("two axes", (*MOCK, "--axes_dim", "8,8"), ["axes_dim is 8,8, expected three even numbers"]),
    ("no blocks", (*MOCK, "--num_single_layers", 0), ["num_single_layers is 0: the model's shape is incomplete"]),
    ("latents in a token", (*MOCK, "--in_channels", 6), ["in_channels is 6", "multiple of 4"]),
    ("three encoders", (*MOCK, "--cfg_dropout_prob", "0.1,0.2,0.3"), ["cfg_dropout_prob has 3 numbers", "two encoders"]),
    ("heads and ranks", (*MOCK, "--tensor_model_parallel_size", 3, "--dry_run", "--dry_run_world_size", 3), ["tensor_model_parallel_size 3 does not divide num_attention_heads 4"]),
    ("a sequence that is shared", (*MOCK, "--context_parallel_size", 2, "--dry_run", "--dry_run_world_size", 2), ["context_parallel_size is 2", "no ranks share"]),
    ("tokens that are shared", (*MOCK, "--sequence_parallel", "--tensor_model_parallel_size", 2, "--dry_run", "--dry_run_world_size", 2), ["sequence_parallel splits", "the 5 of its text"]),
    ("texts during training", (*MOCK, "--sample_interval", 1, "--sample_prompt", "a cat"), ["sample_interval"]),
    ("no pictures", TRAIN, ["no pictures are named", "prepare flux"]),
    ("pictures that are not there", (*TRAIN, "--data_path", "nowhere"), ["nowhere"]),
    ("an unfinished folder", (*TRAIN, "--data_path", "unfinished"), ["unfinished", "index.json"]),
    ("another size", (*TRAIN, "--data_path", "good", "--image_size", 128), ["good was prepared with image_size 64, and the run has 128", "set --image_size 64"]),
    ("longer captions", (*TRAIN, "--data_path", "good", "--text_length", 9), ["good was prepared with text_length 5, and the run has 9"]),
    ("another T5", (*TRAIN, "--data_path", "wide"), ["wide was prepared with context_dim 16, and the run has 12", "another T5"]),
    ("another autoencoder", (*TRAIN, "--data_path", "channels"), ["channels was prepared with latent channels 16, and the run has 4"]),
    ("another mode", (*TRAIN, "--data_path", "good", "--vae_latent_mode", "resample"), ["prepared with vae_latent_mode presampled, and the run asks for resample"]),
    ("encoders that differ", (*TRAIN, "--train_data_path", "good", "--valid_data_path", "others"), ["good was prepared with small, and others with large"]),
    ("a shard that is cut", (*TRAIN, "--data_path", "cut"), ["shard-00000.safetensors"]),
    ("a sample that was changed", (*TRAIN, "--data_path", "damaged", "--split", "100,0,0"), ["shard-00000.safetensors"]),
    ("FLUX fill", ("train", "--load_hf", "fill", "--mock_data"), ["out_channels is 64 and in_channels 384", "not fill or depth"]),
    ("another pipeline", ("train", "--load_hf", "other", "--mock_data"), ["other"]),
]


@pytest.mark.parametrize("what, words, parts", WRONG, ids=[row[0] for row in WRONG])
def test_what_cannot_work_is_refused(what, words, parts, program, folder):
    refused(program, words, parts, folder)


def test_all_that_is_wrong_is_told_at_once(program, folder):
    words = (*TRAIN, "--data_path", "good", "--image_size", 40, "--seq_length", 8, "--num_experts", 2, "--axes_dim", "4,4,4")
    refused(program, words, ("image_size 40", "seq_length is for model_type gpt", "num_experts is for", "axes_dim 4,4,4"), folder)
