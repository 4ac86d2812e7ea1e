"""Scripts of Megatron-LM as words of the program, with what its own examples say."""

import re

import pytest

SMALL = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32"
RUN = "--micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine --clip-grad 1.0"
# Some of what examples/{llama,mixtral,gptoss,bert,t5} pass, with toy sizes; the quotes around a split reach the program.
LLAMA = f"""{SMALL} {RUN} --use-mcore-models --group-query-attention --num-query-groups 2 --kv-channels 16 --position-embedding-type rope
    --rotary-base 1000000 --swiglu --normalization RMSNorm --attention-backend fused --apply-layernorm-1p --disable-bias-linear
    --untie-embeddings-and-output-weights --decoupled-lr 5.0e-4 --decoupled-min-lr 4.5e-5 --bf16 --grad-reduce-in-bf16
    --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc --empty-unused-memory-level 1 --fp8-format hybrid
    --fp8-amax-history-len 1024 --fp8-amax-compute-algo max --fp8-param-gather --sequence-parallel --use-distributed-optimizer
    --overlap-grad-reduce --overlap-param-gather --mock-data --tokenizer-type NullTokenizer --vocab-size 128 --tiktoken-pattern v2
    --split '99,1,0' --no-create-attention-mask-in-dataloader --no-mmap-bin-files --num-workers 1 --ckpt-format torch_dist
    --distributed-timeout-minutes 60 --exit-duration-in-mins 235 --eval-iters 32 --eval-interval 100"""
GPT_OSS = f"""{SMALL} {RUN} --no-masked-softmax-fusion --transformer-impl transformer_engine --disable-bias-linear --no-rope-fusion
    --untie-embeddings-and-output-weights --normalization RMSNorm --position-embedding-type rope --rope-type rope --rotary-percent 1.0
    --no-bias-gelu-fusion --export-force-local-attention --no-bias-dropout-fusion --quick-geglu --glu-linear-offset 1.0
    --softmax-type learnable --window-attn-skip-freq 2 --activation-func-clamp-value 7.0 --window-size 127,0 --enable-gpt-oss
    --num-experts 4 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-3 --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall --moe-ffn-hidden-size 64 --moe-router-dtype fp32 --moe-z-loss-coeff 1e-3
    --moe-permute-fusion --mock-data --tokenizer-type NullTokenizer --vocab-size 128 --bf16 --use-flash-attn
    --attention-softmax-in-fp32 --accumulate-allreduce-grads-in-fp32 --recompute-activations --moe-per-layer-logging
    --no-load-optim --no-load-rng --log-throughput"""


def resolved(program, script, words, world=8):
    words = ("--dry_run", "--dry_run_world_size", world, *words.split())
    _, output, errors = program.run(script, *words)
    return dict(re.findall(r"^(\w+): (.*?) +# ", output, re.MULTILINE)), errors


@pytest.mark.parametrize("words", [LLAMA, GPT_OSS], ids=["llama", "gpt-oss"])
def test_pretrain_gpt_takes_the_flags_of_the_examples(words, program):
    options, errors = resolved(program, "examples/../pretrain_gpt.py", words)
    assert options["mock_data"] == "true" and "unknown" not in errors
    assert ("decoupled_lr" in options) == (words is LLAMA)


def test_torchtitans_configurations_are_named_as_in_its_main(program):
    words = "--module llama3 --config llama3_8b --training.steps 500 --mock_data"
    options, _ = resolved(program, "torchtitan.train", words)
    assert (options["num_layers"], options["train_iters"], options["seq_length"]) == ("32", "500", "8192")
    for module, name, said in (
        ("llama3", "llama3_9b", "Did you mean 'llama3_8b'"),
        ("llama3", "llama3_8b_mxfp8", "not supported: MXFP8 products"),
        ("kimi_k2_7", "kimi_k2_7", "torchtitan's module kimi_k2_7 is not read"),
    ):
        assert said in program.run("train", "--module", module, f"--config={name}", "--dry_run", expected=2)[2]


def test_each_script_has_its_own_defaults(program, tmp_path):
    words = tmp_path / "vocab.txt"
    words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n")
    masked = f"{SMALL} {RUN} --mock-data --fp16 --vocab-file {words} --attention-backend auto"
    options, _ = resolved(program, "pretrain_bert.py", masked)
    assert (options["model_type"], options["tokenizer_type"]) == ("bert", "BertWordPieceLowerCase")
    # What follows wins, as in examples/t5.
    masked = masked.replace("--num-layers 2", "--encoder-num-layers 2 --decoder-num-layers 2").replace("--seq-length", "--encoder-seq-length")
    options, _ = resolved(program, "pretrain_t5.py", f"{masked} --decoder-seq-length 8 --vocab-extra-ids 10 --tokenizer-type BertWordPieceCase")
    assert (options["model_type"], options["tokenizer_type"]) == ("t5", "BertWordPieceCase")
    errors = program.run("pretrain_gpt.py", "--vocab-file", "v.json", "--merge-file", "m.txt", *f"{SMALL} {RUN} --mock-data --dry_run".split(), expected=2)[2]
    assert "v.json" in errors, "the vocabulary of GPT-2's tokenizer is opened"


def test_preprocess_data_is_prepare(program, tmp_path):
    (tmp_path / "text.jsonl").write_text('{"text": "to be"}\n')
    words = ("--input", "text.jsonl", "--output-prefix", "my", "--workers", 1, "--append-eod", "--tokenizer-type", "ByteTokenizer")
    program.run("tools/preprocess_data.py", *words, cwd=tmp_path)
    assert (tmp_path / "my_text_document.bin").exists()
