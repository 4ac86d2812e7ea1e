"""Training steps of BERT-base and T5-base on this machine: Megalith beside Hugging Face's classes in PyTorch.

The programs run in turn, several rounds, as in training.py. Ratios are of rounds: Megalith's seconds over the peer's of
the same round, their median and range. The peers are those of training.py:

  eager     transformers on PyTorch as they come: the model in the dtype, torch.optim.AdamW on its parameters
  compile   the same under torch.compile

Every row is full, with 15 % of a BERT's tokens masked and its sentences labelled; a T5 reads and writes both lengths.

usage: encoders.py --program build/megalith [--models bert_base t5_base] [--dtypes fp32 bf16] [--rounds 3] [--steps 6]
       [--batch 8] [--sequence 128] [--decoder_sequence 64] [--tiny]
"""

import argparse

import rounds

PEERS = ("eager", "compile")
# transformers' names, and ours, of a shape that shows in a second that everything runs.
TINY = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128, "vocab_size": 512}


def make_model(arguments):
    """The published shape in transformers, and a function that makes the arguments of its forward pass."""
    import torch
    import transformers

    def tokens(length, size):
        return torch.randint(size, (arguments.batch, length))

    if arguments.model.startswith("bert"):
        sizes = {}
        if arguments.tiny:
            sizes = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=512)
        config = transformers.BertConfig(**sizes)

        def bert_inputs():
            ids, length = tokens(arguments.sequence, config.vocab_size), arguments.sequence
            is_masked = torch.rand(ids.shape) < 0.15
            is_masked[:, 0] = True
            return {
                "input_ids": ids,
                "token_type_ids": (torch.arange(length) >= length // 2).long().expand(ids.shape),
                "labels": torch.where(is_masked, ids, -100),
                "next_sentence_label": torch.randint(2, (arguments.batch,)),
            }

        return transformers.BertForPreTraining(config), bert_inputs
    sizes = dict(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, vocab_size=32128)
    if arguments.tiny:
        sizes = dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=512)
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, use_cache=False)
    return transformers.T5ForConditionalGeneration(config), lambda: {
        "input_ids": tokens(arguments.sequence, config.vocab_size),
        "labels": tokens(arguments.decoder_sequence, config.vocab_size),
    }


def run_peer(arguments):
    import torch

    torch.manual_seed(1)
    model, make_inputs = make_model(arguments)
    model = model.train()
    if arguments.dtype == "bf16":
        model = model.bfloat16()
    rounds.train_peer(model, make_inputs, arguments.steps, weight_decay=0.01, is_compiled=arguments.peer == "compile")


def measure_peer(arguments, model, dtype, peer):
    words = [__file__, "--peer", peer, "--model", model, "--dtype", dtype, "--steps", arguments.steps]
    words += ["--batch", arguments.batch, "--sequence", arguments.sequence]
    words += ["--decoder_sequence", arguments.decoder_sequence] + (["--tiny"] if arguments.tiny else [])
    return rounds.peer_seconds(words)


def measure_megalith(arguments, model, dtype):
    words = [arguments.program, "train", "--config", rounds.ROOT / f"configs/models/{model}.yaml", "--mock_data"]
    words += ["--eval_iters", 0, "--micro_batch_size", arguments.batch, "--seq_length", arguments.sequence]
    words += ["--train_iters", arguments.steps, "--lr", 1e-4, "--weight_decay", 0.01, "--device", "cpu"]
    words += ["--short_seq_prob", 0]  # full rows, as the peers' are
    words += ["--bf16"] if dtype == "bf16" else []
    words += ["--decoder_seq_length", arguments.decoder_sequence] if model.startswith("t5") else []
    for name, value in TINY.items() if arguments.tiny else ():
        words += [f"--{name}", value]
    words += ["--decoder_num_layers", 2, "--kv_channels", 16] if arguments.tiny and model.startswith("t5") else []
    return rounds.megalith_seconds(words)


def row_of(arguments, model, dtype):
    programs = {"megalith": lambda: measure_megalith(arguments, model, dtype)}
    for peer in arguments.peers:
        programs[peer] = lambda peer=peer: measure_peer(arguments, model, dtype, peer)
    medians = rounds.medians_of(rounds.rounds_of(arguments.rounds, programs)[0])
    ours = medians["megalith"]
    cells = [model, dtype, rounds.spread(ours, 3)]
    for peer in arguments.peers:
        ratios = [mine / theirs for mine, theirs in zip(ours, medians[peer])]
        cells += [rounds.spread(medians[peer], 3), rounds.spread(ratios, 3)]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=rounds.ROOT / "build/megalith")
    parser.add_argument("--models", nargs="+", default=["bert_base", "t5_base"])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--peers", nargs="+", default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of which the first two are left out")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--decoder_sequence", type=int, default=64)
    parser.add_argument("--tiny", action="store_true", help="a shape that only shows that everything runs")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        return run_peer(arguments)
    rounds.check_steps(parser, arguments)
    print(f"{rounds.how_it_was_run('encoders.py')}\n")
    lengths = f"{arguments.sequence} tokens (T5: {arguments.decoder_sequence} more for the decoder)"
    print(f"Batch {arguments.batch}, {lengths}, AdamW; {rounds.machine()}.")
    print(f"{arguments.rounds} rounds in turn, steps {rounds.LEFT_OUT + 1} to {arguments.steps} of each.\n")
    print("| model | dtype | Megalith, s a step | " + " | ".join(f"{peer}, s a step | time over {peer}'s" for peer in arguments.peers) + " |")
    print("| --- " * (3 + 2 * len(arguments.peers)) + "|")
    for model in arguments.models:
        for dtype in arguments.dtypes:
            print(row_of(arguments, model, dtype), flush=True)
    return None


if __name__ == "__main__":
    main()
