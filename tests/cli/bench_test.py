"""`megalith bench`: its rows are whole, its numbers are numbers, and what cannot be measured is refused."""

import json
import math
import re
import socket
from pathlib import Path

import pytest

OPS = Path(__file__).resolve().parents[2] / "src" / "ops"

MODEL = (
    *("--num_layers", 2, "--hidden_size", 64, "--ffn_hidden_size", 96, "--num_attention_heads", 4),
    *("--num_query_groups", 2, "--vocab_size", 131, "--seq_length", 32, "--micro_batch_size", 2, "--device", "cpu"),
)
QUICK = ("--iterations", 3, "--warmup", 1)
TIMES = ("ms", "ms_p10", "ms_p90")


def bench(program, topic, *words):
    """The JSON objects that a benchmark prints."""
    _, output, _ = program.run("bench", topic, *MODEL, *QUICK, "--json", *words, timeout=120)
    rows = [json.loads(line) for line in output.splitlines()]
    assert rows, "no rows"
    for row in rows:
        assert row["benchmark"] == topic
        assert {"name", "shape", "pass", "kernels", "dtype", "device", "num_threads", "torch", *TIMES} <= set(row)
        for key, value in row.items():
            if isinstance(value, (int, float)) and not key.startswith("page_faults"):
                assert math.isfinite(value) and value > 0, f"{key} is {value} in {row}"
        assert row["ms_p10"] <= row["ms"] <= row["ms_p90"]
    return rows


def variants(rows, *keys):
    """What was measured -> its variants."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row["kernels"])
    return found


def near(value):
    return pytest.approx(value, rel=1e-9)


def test_gemm_measures_the_layers_of_a_model(program):
    rows = bench(program, "gemm", "--dtype", "fp32")
    measured = variants(rows, "name", "shape", "pass")
    # 2 x 32 tokens; 4 query and 2 KV heads of 16; gate and up of 96; a vocabulary of 131 padded to 256.
    layers = {"linear_qkv": "64x128x64", "linear_proj": "64x64x64", "linear_fc1": "64x192x64", "linear_fc2": "64x64x96"}
    layers["output_layer"] = "64x256x64"
    expected = {(*layer, step) for layer in layers.items() for step in ("forward", "dgrad", "wgrad")}
    assert set(measured) == expected
    assert all(kernels == ["fused", "reference"] for kernels in measured.values())
    assert max(row["fraction_of_best"] for row in rows) == near(1)
    for row in rows:
        m, n, k = map(int, row["shape"].split("x"))
        assert row["dtype"] == "fp32"
        assert row["tflops"] == near(2 * m * n * k / row["ms"] / 1e9)
        # What is read and written once; a weight gradient is read and written.
        moved = 4 * (m * n + m * k + n * k * (2 if row["pass"] == "wgrad" else 1))
        assert row["gb_per_s"] == near(moved / row["ms"] / 1e6)


def test_gemm_measures_latent_attention_whose_heads_do_not_divide_the_width(program):
    words = ("--hidden_size", 40, "--num_attention_heads", 6, "--group_query_attention=false", "--multi_latent_attention")
    words = (*words, "--qk_head_dim", 4, "--qk_pos_emb_head_dim", 2, "--v_head_dim", 3, "--kv_lora_rank", 12)
    words = (*words, "--position_embedding_type", "rope", "--disable_bias_linear", "--dtype", "fp32")
    shapes = {row["name"]: row["shape"] for row in bench(program, "gemm", *words, "--q_lora_rank", 10)}
    # 64 tokens; 6 heads whose queries have 4 + 2 channels, keys and values 4 + 3 beside the rotated ones.
    expected = {"linear_q_down_proj": "64x10x40", "linear_q_up_proj": "64x36x10", "linear_kv_down_proj": "64x14x40"}
    expected |= {"linear_kv_up_proj": "64x42x12", "linear_proj": "64x40x18"}
    assert {name: shapes[name] for name in expected} == expected
    direct = {row["name"]: row["shape"] for row in bench(program, "gemm", *words)}
    assert direct["linear_q_proj"] == "64x36x40" and "linear_q_up_proj" not in direct


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_gemm_measures_given_shapes(program, dtype):
    rows = bench(program, "gemm", "--shapes", "64x48x32,7x5x3", "--dtype", dtype)
    assert set(variants(rows, "shape")) == {("64x48x32",), ("7x5x3",)} and len(rows) == 2 * 3 * 2
    assert {row["dtype"] for row in rows} == {dtype}
    for fused, reference in zip(rows[::2], rows[1::2]):
        assert (fused["kernels"], reference["kernels"]) == ("fused", "reference")
        assert reference["ratio"] == 1
        assert fused["ratio"] == near(reference["ms"] / fused["ms"])


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "blockwise"])
def test_gemm_measures_eight_bits_where_a_model_has_them(program, recipe):
    rows = bench(program, "gemm", "--dtype", "bf16", "--fp8_format", "hybrid", "--fp8_recipe", recipe)
    for (name, step), kernels in variants(rows, "name", "pass").items():
        # The head is never rounded; and nothing on a CPU multiplies eight bits.
        assert kernels == ["fused", "reference"] + ["fp8 widened"] * (name != "output_layer"), (name, step)


@pytest.mark.parametrize("words", [("ops", "--fp8_format", "hybrid"), ("gemm", "--fp8_margin", 1)])
def test_eight_bits_that_a_topic_does_not_measure_are_refused(program, words):
    _, _, errors = program.run("bench", words[0], *MODEL, *QUICK, *words[1:], expected=2)
    assert words[1] in errors


def test_attention_is_measured_beside_pytorch(program):
    rows = bench(program, "attention", "--shapes", "1x33x4x2x16,2x17x3x3x8")
    measured = variants(rows, "shape", "mask", "pass")
    shapes = ("1x33x4x2x16", "2x17x3x3x8")
    assert set(measured) == {(s, m, p) for s in shapes for m in ("causal", "full") for p in ("forward", "backward")}
    assert all(kernels == ["fused", "reference", "sdpa"] for kernels in measured.values())
    assert all(row["ratio"] == 1 for row in rows if row["kernels"] == "sdpa")
    for row in rows:
        b, s, n, _, d = map(int, row["shape"].split("x"))
        pairs = s * (s + 1) / 2 if row["mask"] == "causal" else s * s
        products = 2 if row["pass"] == "forward" else 5
        assert row["tflops"] == near(products * 2 * b * n * d * pairs / row["ms"] / 1e9)


def test_attention_takes_heads_and_masks_from_the_options(program):
    rows = bench(program, "attention", "--mask", "causal")
    assert set(variants(rows, "shape", "mask")) == {("2x32x4x2x16", "causal"), ("1x128x4x2x16", "causal")}


def test_ops_cover_every_operator(program):
    rows = bench(program, "ops")
    measured = variants(rows, "name", "shape", "pass")
    assert all(kernels == ["fused", "reference"] for kernels in measured.values())
    declared = {path.stem for path in OPS.glob("*/*.h") if re.search(r"^extern const Operator<", path.read_text(), re.MULTILINE)}
    assert len(declared) >= 19, declared
    names = {name for name, _, _ in measured}
    declared.remove("activation")  # measured by its kinds
    assert declared <= names, f"no case in src/cli/bench_operator_cases.cc for {sorted(declared - names)}"
    both_ways = {"rms_norm", "add_rms_norm", "rotary", "attention", "swiglu", "linear", "embedding", "dropout"}
    both_ways |= {"layer_norm", "add_layer_norm", "gelu", "gelu_erf", "squared_relu", "geglu"}
    both_ways |= {"grouped_linear", "token_permutation", "expert_activation"}
    for name in both_ways:
        passes = {step for found, _, step in measured if found == name}
        assert passes == {"forward", "backward"}, f"{name} has {passes}"
    assert all("gb_per_s" in row for row in rows)
    forward = next(row for row in rows if (row["name"], row["pass"]) == ("swiglu", "forward"))
    element = 4 if forward["dtype"] == "fp32" else 2
    assert forward["gb_per_s"] == near(element * 3 * 64 * 96 / forward["ms"] / 1e6)


def test_moe_is_measured_beside_a_dense_mlp(program):
    rows = bench(program, "moe", "--shapes", "24x32x16x5x2,7x8x8x4x1")
    measured = variants(rows, "shape", "routing")
    assert set(measured) == {(s, r) for s in ("24x32x16x5x2", "7x8x8x4x1") for r in ("random", "uneven")}
    assert all(kernels == ["fused", "dense", "reference"] for kernels in measured.values())
    assert all(row["ratio"] == 1 for row in rows if row["kernels"] == "dense")
    for row in rows:
        t, h, f, _, k = map(int, row["shape"].split("x"))
        # Gate, up and down of each chosen expert: forward and both gradients.
        assert row["tflops"] == near(3 * 3 * 2 * t * k * h * f / row["ms"] / 1e9)


@pytest.mark.parametrize("kernels", ["fused", "reference"])
def test_train_measures_steps(program, kernels):
    (row,) = bench(program, "train", "--kernels", kernels, "--dtype", "fp32")
    assert (row["shape"], row["kernels"], row["measured_steps"], row["dtype"]) == ("2x32", kernels, 3, "fp32")
    assert row["tokens_per_s_per_device"] == near(64 * 1e3 / row["ms"])
    assert row["tokens_per_s_per_device_p10"] <= row["tokens_per_s_per_device"] <= row["tokens_per_s_per_device_p90"]
    assert 0 <= row["page_faults_per_step"] <= row["page_faults_per_step_max"]
    assert row["causal_tflops"] < row["tflops"]
    assert row["peak_allocated_bytes"] < row["peak_reserved_bytes"]
    assert 0.01 < row["start_to_first_step_s"] < 60


def test_the_table_has_a_header_and_aligned_columns(program, tmp_path):
    words = ("--shapes", "32x16x8", "--num_threads", 1, "--output_file", tmp_path / "rows.jsonl")
    _, output, _ = program.run("bench", "gemm", *MODEL, *QUICK, *words)
    header, *_, blank_and_table = output.partition("\n\n")
    for part in ("bench gemm", "CPU", "1 thread,", "torch 2."):
        assert part in header
    titles, *lines = blank_and_table.splitlines()
    assert [len(line) for line in lines] == [len(titles)] * 6, "the columns are not aligned"
    saved = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["pass"] for row in saved] == [line.split()[2] for line in lines]


REFUSED = [
    ("no topic", (), ["no topic", "gemm", "train"]),
    ("unknown topic", ("gem",), ["'gem'", "gemm"]),
    ("shape of two", ("gemm", "--shapes", "64x32"), ["64x32", "MxNxK"]),
    ("shape of words", ("gemm", "--shapes", "64xtwox3"), ["64xtwox3"]),
    ("side of zero", ("gemm", "--shapes", "64x0x3"), ["64x0x3", "positive"]),
    ("shape that ends early", ("gemm", "--shapes", "64x32x"), ["64x32x"]),
    ("too large", ("gemm", "--shapes", "200000000x200000000x16"), ["200000000x200000000x16", "smaller"]),
    ("groups do not divide", ("attention", "--shapes", "1x8x4x3x16"), ["3 KV heads", "4 query heads"]),
    ("attention needs five", ("attention", "--shapes", "1x8x4"), ["1x8x4", "BxSxNxGxD"]),
    ("scores too large", ("attention", "--shapes", "1x2000000x8x8x16"), ["1x2000000x8x8x16", "smaller"]),
    ("too few experts", ("moe", "--shapes", "8x8x8x3x2"), ["3 experts", "two more"]),
    ("unknown routing", ("moe", "--routing", "best"), ["best", "uneven"]),
    ("unknown mask", ("attention", "--mask", "diagonal"), ["diagonal", "causal"]),
    ("unknown precision", ("gemm", "--dtype", "fp8"), ["dtype", "fp8"]),
    ("no rounds", ("ops", "--iterations", "0"), ["iterations", "0"]),
    ("no such folder", ("ops", "--output_file", "nowhere/rows.jsonl"), ["output_file", "nowhere"]),
    ("option of another topic", ("ops", "--shapes", "1x2x3"), ["shapes"]),
    ("a length for training", ("train", "--train_iters", "5"), ["train_iters", "--iterations"]),
    ("a checkpoint", ("train", "--save", "here"), ["save", "benchmark"]),
    ("no such configuration", ("train", "--config", "nowhere.yaml"), ["nowhere.yaml"]),
]


@pytest.mark.parametrize("what, words, parts", REFUSED, ids=[what for what, _, _ in REFUSED])
def test_what_cannot_be_measured_is_refused(what, words, parts, program, tmp_path):
    _, output, errors = program.run("bench", *words, expected=2, timeout=60, cwd=tmp_path)
    assert not output
    for part in parts:
        assert part in errors, f"{part!r} is not in:\n{errors}"
    assert "internal error" not in errors and not list(tmp_path.iterdir())


def test_all_that_is_wrong_is_told_at_once(program):
    words = ("--shapes", "1x2,3x4x5x6", "--seq_length", 999999, "--output_file", "nowhere/rows")
    _, _, errors = program.run("bench", "gemm", *words, expected=2)
    assert errors.count("error: ") >= 4
    for part in ("1x2", "3x4x5x6", "seq_length 999999", "nowhere"):
        assert part in errors


@pytest.mark.parametrize("topic", ["ops", "gemm", "attention", "moe", "train"])
def test_help_lists_the_options(topic, program):
    _, output, _ = program.run("bench", topic, "--help")
    for part in (f"megalith bench {topic}", "--iterations", "--warmup", "--json", "--num_threads", "--device"):
        assert part in output


def test_one_product_in_primus_words(program):
    _, output, _ = program.run("benchmark", "gemm", *MODEL, *QUICK, "--json", "--dtype", "fp32", "--M", 8, "--N", 16, "--K", 32)
    assert {json.loads(line)["shape"] for line in output.splitlines()} == {"8x16x32"}
    assert "keep one of them" in program.run("bench", "gemm", "--M", 8, "--shapes", "1x1x1", expected=2)[2]


def of_ranks(program, *words):
    """The rows that two launched ranks print: one of them speaks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(2):
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        started.append(program.start("benchmark", *words, *MODEL, *QUICK, "--json", "--dtype", "fp32", environment=environment | {"OMP_NUM_THREADS": "1"}))
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert said[1][0] == ""
    return [json.loads(line) for line in said[0][0].splitlines()]


def test_collectives_of_launched_ranks(program):
    rows = of_ranks(program, "rccl", "--op", "all_reduce,alltoall", "--min-bytes", "1K", "--max-bytes", "64K", "--num-sizes", 3)
    assert [(row["collective"], row["bytes"]) for row in rows] == [
        (kind, size) for size in (1024, 8192, 65536) for kind in ("all_reduce", "all_to_all")
    ]
    for row in rows:
        assert row["algorithm_gb_per_s"] == near(row["bytes"] / row["ms"] / 1e6)
        factor = 1 if row["collective"] == "all_reduce" else 0.5
        assert row["bus_gb_per_s"] == near(factor * row["algorithm_gb_per_s"])
    rows = of_ranks(program, "strided-allgather", "--stride", 1, "--sizes-mb", 1)
    assert [(row["ranks"], row["bytes"]) for row in rows] == [("0 + 1 i", 2 << 20)]
    assert "measures ranks that talk" in program.run("bench", "rccl", *MODEL, expected=2)[2]
    assert "op has 'gossip'" in program.run("bench", "rccl", "--op", "gossip", expected=2)[2]
    for size in ("10T", "64x", "1Kx"):
        assert f"max_bytes has '{size}'" in program.run("bench", "rccl", "--max-bytes", size, expected=2)[2]
    assert "sizes_mb has 0" in program.run("bench", "strided_allgather", "--sizes-mb", 0, expected=2)[2]
