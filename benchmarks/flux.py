"""Training steps of a FLUX-shaped small model on this machine: Megalith beside diffusers' class in PyTorch.

The programs run in turn, several rounds, as in training.py. Ratios are of rounds: Megalith's seconds over the peer's of
the same round, their median and range. The peers:

  eager     diffusers' FluxTransformer2DModel on PyTorch as it comes: the model in the dtype, torch.optim.AdamW on its
            parameters; noise and timesteps are drawn, and the mean squared error of the velocity is learnt
  compile   the same under torch.compile

Latents and texts are made up in both; no encoder runs.

usage: flux.py --program build/megalith [--dtypes fp32 bf16] [--rounds 3] [--steps 6] [--batch 4] [--image_size 256]
       [--text_length 128] [--tiny]
"""

import argparse

import rounds

PEERS = ("eager", "compile")
SHAPE = {"num_joint_layers": 4, "num_single_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "context_dim": 1024}
TINY = {"num_joint_layers": 1, "num_single_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "context_dim": 32}
AXES = {64: (8, 28, 28), 16: (4, 6, 6)}  # by a head's channels
POOLED = 768


def shape_of(arguments):
    return TINY if arguments.tiny else SHAPE


def axes_of(shape):
    return AXES[shape["hidden_size"] // shape["num_attention_heads"]]


def make_model(arguments):
    """diffusers' class as a model that gives a loss, and a function that makes the arguments of its forward pass."""
    import types

    import torch
    from diffusers import FluxTransformer2DModel

    shape, side = shape_of(arguments), arguments.image_size // 16
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    places = torch.zeros(side, side, 3)
    places[..., 1], places[..., 2] = torch.arange(side)[:, None], torch.arange(side)
    places = places.reshape(-1, 3)

    class Flow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = FluxTransformer2DModel(
                num_layers=shape["num_joint_layers"],
                num_single_layers=shape["num_single_layers"],
                attention_head_dim=shape["hidden_size"] // shape["num_attention_heads"],
                num_attention_heads=shape["num_attention_heads"],
                joint_attention_dim=shape["context_dim"],
                pooled_projection_dim=POOLED,
                guidance_embeds=True,
                axes_dims_rope=axes_of(shape),
            )

        def forward(self, picture, noise, timestep, text, pooled, guidance):
            share = timestep[:, None, None]
            noisy = ((1 - share) * picture + share * noise).to(dtype)
            velocity = self.transformer(
                hidden_states=noisy,
                encoder_hidden_states=text,
                pooled_projections=pooled,
                timestep=timestep.to(dtype),
                img_ids=places,
                txt_ids=torch.zeros(text.shape[1], 3),
                guidance=guidance,
                return_dict=False,
            )[0]
            loss = torch.nn.functional.mse_loss(velocity.float(), noise - picture)
            return types.SimpleNamespace(loss=loss)

    def inputs():
        batch, channels = arguments.batch, 64
        return {
            "picture": torch.randn(batch, side * side, channels),
            "noise": torch.randn(batch, side * side, channels),
            "timestep": torch.rand(batch),
            "text": torch.randn(batch, arguments.text_length, shape["context_dim"]).to(dtype),
            "pooled": torch.randn(batch, POOLED).to(dtype),
            "guidance": torch.ones(batch).to(dtype),
        }

    return Flow(), inputs


def run_peer(arguments):
    import torch

    torch.manual_seed(1)
    model, make_inputs = make_model(arguments)
    model = model.train()
    if arguments.dtype == "bf16":
        model = model.bfloat16()
    rounds.train_peer(model, make_inputs, arguments.steps, weight_decay=0.01, is_compiled=arguments.peer == "compile")


def measure_peer(arguments, dtype, peer):
    words = [__file__, "--peer", peer, "--dtype", dtype, "--steps", arguments.steps, "--batch", arguments.batch]
    words += ["--image_size", arguments.image_size, "--text_length", arguments.text_length]
    return rounds.peer_seconds(words + (["--tiny"] if arguments.tiny else []))


def measure_megalith(arguments, dtype):
    shape = shape_of(arguments)
    words = [arguments.program, "train", "--model_type", "diffusion_model", "--mock_data", "--eval_iters", 0]
    words += ["--guidance_embed", "--vec_in_dim", POOLED, "--axes_dim", *axes_of(shape)]
    for name, value in shape.items():
        words += [f"--{name}", value]
    words += ["--image_size", arguments.image_size, "--text_length", arguments.text_length]
    words += ["--micro_batch_size", arguments.batch, "--train_iters", arguments.steps, "--lr", 1e-4]
    words += ["--weight_decay", 0.01, "--device", "cpu"] + (["--bf16"] if dtype == "bf16" else [])
    return rounds.megalith_seconds(words)


def row_of(arguments, dtype):
    programs = {"megalith": lambda: measure_megalith(arguments, dtype)}
    for peer in arguments.peers:
        programs[peer] = lambda peer=peer: measure_peer(arguments, dtype, peer)
    medians = rounds.medians_of(rounds.rounds_of(arguments.rounds, programs)[0])
    ours = medians["megalith"]
    cells = [dtype, rounds.spread(ours, 3)]
    for peer in arguments.peers:
        ratios = [mine / theirs for mine, theirs in zip(ours, medians[peer])]
        cells += [rounds.spread(medians[peer], 3), rounds.spread(ratios, 3)]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=rounds.ROOT / "build/megalith")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--peers", nargs="+", default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of which the first two are left out")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--image_size", type=int, default=256)
    parser.add_argument("--text_length", type=int, default=128)
    parser.add_argument("--tiny", action="store_true", help="a shape that only shows that everything runs")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        return run_peer(arguments)
    rounds.check_steps(parser, arguments)
    shape = shape_of(arguments)
    print(f"{rounds.how_it_was_run('flux.py')}\n")
    print(
        f"{shape['num_joint_layers']} joint and {shape['num_single_layers']} single blocks of {shape['hidden_size']} "
        f"channels; batch {arguments.batch}, {arguments.image_size} x {arguments.image_size} pixels, "
        f"{arguments.text_length} tokens of text, AdamW; {rounds.machine()}."
    )
    print(f"{arguments.rounds} rounds in turn, steps {rounds.LEFT_OUT + 1} to {arguments.steps} of each.\n")
    print("| dtype | Megalith, s a step | " + " | ".join(f"{peer}, s a step | time over {peer}'s" for peer in arguments.peers) + " |")
    print("| --- " * (2 + 2 * len(arguments.peers)) + "|")
    for dtype in arguments.dtypes:
        print(row_of(arguments, dtype), flush=True)
    return None


if __name__ == "__main__":
    main()
