"""Ten photographs learnt by heart: a small FLUX is trained on them from nothing, and draws each from its caption and noise.

  1. The photographs are those of Debian's package mate-backgrounds (or of --photographs), cut to squares.
  2. A small autoencoder of FLUX's form, 16 channels for 8 x 8 pixels, is fitted to them with diffusers. Two small text
     encoders have random weights: they only need to tell captions apart.
  3. `megalith prepare flux`, `megalith train` and `megalith generate`.
  4. PSNR of each drawn picture to the photograph, beside what the autoencoder itself loses.

Writes photographs.png: above what was learnt, below what was drawn.

usage: flux_photographs.py --program build/megalith --folder WORK [--photographs FOLDER] [--iterations 1500] [--tiny]
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import rounds

PACKAGE = "mate-backgrounds"
INSIDE = "usr/share/backgrounds/mate/nature"
CAPTIONS = {
    "Aqua": "water, seen from above",
    "Dune": "a dune of sand",
    "FreshFlower": "a fresh flower",
    "Garden": "a garden",
    "GreenMeadow": "a green meadow under the sky",
    "LadyBird": "a ladybird on a leaf",
    "RainDrops": "drops of rain on a leaf",
    "Storm": "a storm comes",
    "TwoWings": "two wings",
    "YellowFlower": "a yellow flower",
}
TEXT_LENGTH, POSITIONS = 16, 32
LETTERS = "abcdefghijklmnopqrstuvwxyz,"
TRANSFORMER = {"num_joint_layers": 2, "num_single_layers": 4, "hidden_size": 256, "num_attention_heads": 4}
AXES = (16, 24, 24)


def fetch_photographs(folder):
    """The folder of the package's photographs, unpacked without installing it."""
    if not (folder / INSIDE).is_dir():
        subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        package = next(folder.glob(f"{PACKAGE}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return folder / INSIDE


def cut_squares(source, folder, size, count):
    """Squares of the photographs, with their captions beside them; as an array (n, 3, size, size) in [-1, 1]."""
    import numpy as np
    from PIL import Image

    folder.mkdir(exist_ok=True)
    squares = []
    for name, caption in list(CAPTIONS.items())[:count]:
        with Image.open(source / f"{name}.jpg") as picture:
            side = min(picture.size)
            left, top = (picture.width - side) // 2, (picture.height - side) // 2
            square = picture.convert("RGB").crop((left, top, left + side, top + side)).resize((size, size), Image.LANCZOS)
        square.save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text(caption)
        squares.append(np.asarray(square, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1)
    return np.stack(squares)


def fit_autoencoder(squares, folder, steps, channels):
    """diffusers' class, whose distribution is as narrow as it can be; its latents are scaled to the unit."""
    import torch
    from diffusers import AutoencoderKL

    torch.manual_seed(1)
    vae = AutoencoderKL(
        latent_channels=16, block_out_channels=channels, layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip
    pictures = torch.from_numpy(squares)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=3e-3, weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    whole, side = pictures.shape[-1], min(pictures.shape[-1], 64)
    for step in range(steps):
        # Parts of the pictures, wherever latents begin: a quarter of the work, and of a step's time.
        top, left = (8 * torch.randint((whole - side) // 8 + 1, (2,))).tolist()
        part = pictures[:, :, top : top + side, left : left + side]
        latents = vae.encode(part).latent_dist.mean
        # What training leaves of noise must not be seen.
        noisy = latents + 0.05 * latents.detach().std() * torch.randn_like(latents)
        loss = torch.nn.functional.mse_loss(vae.decode(noisy).sample, part) + 1e-4 * latents.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % max(steps // 10, 1) == 0:
            print(f"autoencoder: step {step + 1} of {steps}, mean squared error {loss.item():.5f}", file=sys.stderr, flush=True)
    with torch.no_grad():
        last = vae.encoder.conv_out
        last.weight[16:].zero_()
        last.bias[16:].fill_(-30)
        latents = vae.encode(pictures).latent_dist.mean
        decoded = vae.decode(latents).sample.clamp(-1, 1).numpy()
    vae.register_to_config(scaling_factor=1 / latents.std().item(), shift_factor=latents.mean().item())
    vae.save_pretrained(folder / "vae")
    return decoded


def make_text_encoders(folder):
    """T5 and CLIP of two layers with random weights; their tokens are letters and words of the captions."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast, T5Config, T5EncoderModel

    torch.manual_seed(2)
    vocab = {}
    for token in (*LETTERS, *(letter + "</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"):
        vocab[token] = len(vocab)
    (folder / "tokenizer").mkdir(exist_ok=True)
    (folder / "tokenizer" / "vocab.json").write_text(json.dumps(vocab))
    (folder / "tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": POSITIONS, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings))
    clip = CLIPTextConfig(
        vocab_size=len(vocab), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=POSITIONS, eos_token_id=2, initializer_range=1,
    )  # fmt: skip
    CLIPTextModel(clip).save_pretrained(folder / "text_encoder")

    words = sorted({word for caption in CAPTIONS.values() for word in caption.replace(",", " ,").split()})
    ids = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    fast.save_pretrained(folder / "tokenizer_2")
    t5 = T5Config(
        vocab_size=len(ids), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, is_gated_act=True,
        feed_forward_proj="gated-gelu", dropout_rate=0.0, tie_word_embeddings=False,
    )  # fmt: skip
    T5EncoderModel(t5).save_pretrained(folder / "text_encoder_2")


def finish_folder(folder):
    """What else a FLUX folder has: the sampler's settings and its table of contents."""
    (folder / "scheduler").mkdir(exist_ok=True)
    settings = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 1.0, "use_dynamic_shifting": False}
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(settings))
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))


def psnr(a, b):
    """In dB, of pictures in [-1, 1]."""
    import numpy as np

    return float(10 * np.log10(4 / np.mean((a - b) ** 2)))


def read_picture(path):
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(path).convert("RGB"), dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1


def write_sheet(path, *rows):
    """Rows of pictures (3, h, w), one below the other."""
    import numpy as np
    from PIL import Image

    lines = [np.concatenate([np.pad(one, ((0, 0), (2, 2), (2, 2)), constant_values=1) for one in row], axis=2) for row in rows]
    sheet = np.concatenate(lines, axis=1).transpose(1, 2, 0)
    Image.fromarray(np.uint8(np.clip(sheet * 127.5 + 128, 0, 255))).save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(rounds.ROOT / "build" / "megalith"))
    parser.add_argument("--folder", type=Path, required=True, help="for all files that are made")
    parser.add_argument("--photographs", type=Path, help=f"a folder with {', '.join(CAPTIONS)} as .jpg; default: {PACKAGE}'s")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--autoencoder_steps", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=30, help="of sampling")
    parser.add_argument("--tiny", action="store_true", help="two pictures, few steps: shows only that everything runs")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.size, arguments.autoencoder_steps, arguments.iterations, arguments.steps = 32, 3, 4, 2
    start = time.monotonic()
    work, flux = arguments.folder, arguments.folder / "flux"
    flux.mkdir(parents=True, exist_ok=True)
    squares = cut_squares(arguments.photographs or fetch_photographs(work), work / "squares", arguments.size, 2 if arguments.tiny else 10)
    decoded = fit_autoencoder(squares, flux, arguments.autoencoder_steps, (8, 8, 8, 8) if arguments.tiny else (16, 32, 64, 64))
    make_text_encoders(flux)
    finish_folder(flux)
    print(f"encoders: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    text = ["--text_length", TEXT_LENGTH]
    rounds.run([arguments.program, "prepare", "flux", "--input", work / "squares", "--output", work / "prepared", "--image_size", arguments.size,
                "--load_hf", flux, "--encoder_dtype", "float32", "--overwrite", *text])  # fmt: skip
    shape = [word for name, value in TRANSFORMER.items() for word in (f"--{name}", value)]
    words = [arguments.program, "train", "--model_type", "diffusion_model", *shape, "--axes_dim", *AXES, "--context_dim", 64, "--vec_in_dim", 64]
    words += ["--image_size", arguments.size, *text, "--data_path", work / "prepared", "--split", "100,0,0", "--eval_iters", 0]
    words += ["--micro_batch_size", len(squares), "--train_iters", arguments.iterations, "--lr", 1e-3, "--min_lr", 1e-5, "--clip_grad", 1]
    words += ["--lr_decay_style", "cosine", "--lr_warmup_fraction", 0.03, "--weight_decay", 0, "--device", "cpu"]
    words += ["--save_hf", flux / "transformer", "--overwrite", "--page_file", work / "run.html", "--metrics_file", work / "metrics.jsonl"]
    rounds.run(words)
    print(f"trained: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    drawn = []
    for number, caption in enumerate(list(CAPTIONS.values())[: len(squares)]):
        output = work / f"drawn_{number}.png"
        rounds.run([arguments.program, "generate", "--load_hf", flux, "--prompt", caption, "--steps", arguments.steps, "--height", arguments.size,
                    "--width", arguments.size, "--seed", 100 + number, "--output", output, "--device", "cpu", *text])  # fmt: skip
        drawn.append(read_picture(output))
    write_sheet(work / "photographs.png", squares, drawn)

    print(f"{rounds.how_it_was_run('flux_photographs.py')}\n\n{rounds.machine()}; {(time.monotonic() - start) / 60:.1f} minutes.\n")
    print("| photograph | drawn, PSNR | the autoencoder, PSNR |\n| --- | --- | --- |")
    for name, square, picture, ceiling in zip(CAPTIONS, squares, drawn, decoded):
        print(f"| {name} | {psnr(square, picture):.1f} dB | {psnr(square, ceiling):.1f} dB |")


if __name__ == "__main__":
    main()
