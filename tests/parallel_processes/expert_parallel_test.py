"""Mixtures of experts as processes over Gloo: experts spread over ranks train, save, export, generate and evaluate as one
process with all of them."""

import json

import pytest
from program import read_json_lines, read_metrics
from ranks import rank_environment, run_ranks

STEPS = 6
MACHINE = ("--device", "cpu", "--num_threads", 1, "--fp32", "--distributed_timeout_minutes", 1)
MODEL = (
    *("--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4, "--vocab_size", 131, "--swiglu"),
    *("--max_position_embeddings", 32, "--normalization", "RMSNorm", "--position_embedding_type", "rope"),
    *("--disable_bias_linear", "--untie_embeddings_and_output_weights", "--hidden_dropout", 0),
    *("--attention_dropout", 0, "--num_experts", 8, "--moe_router_topk", 2),
)
MIXTRAL = (
    *("--ffn_hidden_size", 24, "--group_query_attention", "--num_query_groups", 2),
    *("--moe_router_load_balancing_type", "aux_loss", "--moe_aux_loss_coeff", 0.02, "--moe_z_loss_coeff", 0.01),
)
PREDICTION = ("--mtp_num_layers", 1)
DEEPSEEK = (
    *("--ffn_hidden_size", 48, "--moe_ffn_hidden_size", 24, "--moe_shared_expert_intermediate_size", 24),
    *("--multi_latent_attention", "--qk_layernorm", "--q_lora_rank", 12, "--kv_lora_rank", 12, "--qk_head_dim", 8),
    *("--qk_pos_emb_head_dim", 4, "--v_head_dim", 8, "--moe_layer_freq", "[0,1]", "--moe_router_dtype", "fp32"),
    *("--moe_router_score_function", "sigmoid", "--moe_router_num_groups", 4, "--moe_router_group_topk", 1),
    *("--moe_router_topk_scaling_factor", 2.5, "--moe_router_enable_expert_bias"),
    *("--moe_router_bias_update_rate", 0.001, "--moe_router_load_balancing_type", "seq_aux_loss"),
    *("--moe_aux_loss_coeff", 0.01, *PREDICTION),
)
FAMILIES = {"mixtral": MIXTRAL, "deepseek": DEEPSEEK}
TRAINING = (
    *("--mock_data", "--seq_length", 16, "--micro_batch_size", 2, "--global_batch_size", 8, "--lr", 3e-3),
    *("--lr_decay_style", "constant", "--num_workers", 0, "--eval_iters", 0, "--train_iters", STEPS),
)

EP2 = ("--expert_model_parallel_size", 2)
TP2 = ("--tensor_model_parallel_size", 2)
TP2_EP2 = (*TP2, *EP2, "--expert_tensor_parallel_size", 1)
ALLGATHER, ALLTOALL = (("--moe_token_dispatcher_type", name) for name in ("allgather", "alltoall"))
EP4_ZERO = ("--expert_model_parallel_size", 4, "--use_distributed_optimizer")
# What processes add is their transport: layouts/rows.txt has both families in each of these on threads.
LAYOUTS = {
    "ep2_alltoall": ("mixtral", 2, (*EP2, *ALLTOALL)),
    "ep2_allgather": ("deepseek", 2, (*EP2, *ALLGATHER)),
    "tp2_sp_ep2": ("deepseek", 2, (*TP2_EP2, "--sequence_parallel", *ALLTOALL)),
    "tp2_dp2_ep2": ("mixtral", 4, (*TP2, *EP2, *ALLTOALL)),
    "ep2_pp2": ("deepseek", 4, (*EP2, "--pipeline_model_parallel_size", 2, *ALLTOALL)),
    "ep4_zero_alltoall": ("deepseek", 4, (*EP4_ZERO, *ALLTOALL)),
    "ep4_zero_allgather": ("mixtral", 4, (*EP4_ZERO, *ALLGATHER)),
}


def train_words(family, folder, *more):
    folder.mkdir(exist_ok=True)
    words = ("train", *MODEL, *FAMILIES[family], *TRAINING, *MACHINE, "--metrics_file", folder / "metrics.jsonl")
    return (*words, "--data_cache_path", folder / "cache", *more)


def curve(folder):
    return {line["iteration"]: line for line in read_metrics(folder / "metrics.jsonl")}


def assert_same_curve(found, expected):
    """All losses and the gradient norm to rounding, the tokens of every expert exactly."""
    assert sorted(found) == sorted(expected)
    for iteration, line in expected.items():
        names = [name for name in line if name.endswith("loss")] + ["grad_norm"]
        ours = found[iteration]
        # Only the order of sums differs: fp32 keeps 24 bits, and six steps do not make 1e-5 of that.
        assert [ours[name] for name in names] == pytest.approx([line[name] for name in names], rel=1e-5), iteration
        assert ours["expert_tokens"] == line["expert_tokens"], iteration


@pytest.fixture(scope="module")
def alone(program, tmp_path_factory):
    """The curve of one process for each family, and its model in Hugging Face's form."""
    found = {}
    terms = {"mixtral": {"load_balancing_loss", "z_loss"}, "deepseek": {"seq_load_balancing_loss", "mtp_1_loss"}}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        program.run(*train_words(family, folder, "--save_hf", folder / "hf"))
        lines = curve(folder)
        assert sorted(lines) == list(range(1, STEPS + 1)) and lines[STEPS]["lm_loss"] < lines[1]["lm_loss"]
        assert terms[family] < set(lines[1])
        # DeepSeek-V3's first layer is dense, and its prediction module has experts too: 128 tokens, two experts each.
        layers = {"mixtral": ["0", "1"], "deepseek": ["1", "2"]}[family]
        assert sorted(lines[1]["expert_tokens"]) == layers and "expert_dropped_share" not in lines[1]
        assert all(sum(tokens) == 256 and len(tokens) == 8 for tokens in lines[1]["expert_tokens"].values())
        found[family] = (lines, folder / "hf")
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_trains_as_one_process(layout, alone, program, tmp_path):
    family, num_ranks, options = LAYOUTS[layout]
    run_ranks(program, num_ranks, *train_words(family, tmp_path, *options))
    assert_same_curve(curve(tmp_path), alone[family][0])


def test_what_the_capacity_drops_is_told(program, tmp_path):
    """A step has one microbatch, so that the loads tell how many choices are beyond the limit."""
    options = ("--moe_expert_capacity_factor", 0.75, "--micro_batch_size", 8)
    program.run(*train_words("mixtral", tmp_path / "one", *options))
    run_ranks(program, 2, *train_words("mixtral", tmp_path / "tp2", *options, *TP2_EP2, "--sequence_parallel"))
    limit = 24  # three quarters of 8 x 16 tokens, two choices each, over 8 experts
    expected = curve(tmp_path / "one")
    for line in expected.values():
        loads = [tokens for layer in line["expert_tokens"].values() for tokens in layer]
        dropped = sum(max(tokens - limit, 0) for tokens in loads)
        assert dropped > 0 and line["expert_dropped_share"] == dropped / sum(loads)
    assert_same_curve(curve(tmp_path / "tp2"), expected)
    shares = [[line["expert_dropped_share"] for line in curve(tmp_path / name).values()] for name in ("one", "tp2")]
    assert shares[0] == shares[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_of_spread_experts_goes_on_elsewhere(family, alone, program, tmp_path):
    expected, _ = alone[family]
    saved = tmp_path / "saved"
    run_ranks(program, 2, *train_words(family, tmp_path / "ep2", *EP2, "--save", saved, "--exit_interval", 3))
    program.run(*train_words(family, tmp_path / "one", "--load", saved))
    # How tokens travel is no property of the weights.
    run_ranks(program, 2, *train_words(family, tmp_path / "tp2", *TP2, *ALLTOALL, "--load", saved))
    assert_same_curve(curve(tmp_path / "ep2"), {i: expected[i] for i in (1, 2, 3)})
    for name in ("one", "tp2"):
        assert_same_curve(curve(tmp_path / name), {i: expected[i] for i in (4, 5, 6)})


def load_words(family, alone):
    """A model's file does not ask for prediction modules, so the command does."""
    return ("--load_hf", alone[family][1], *(PREDICTION if family == "deepseek" else ()), *MACHINE)


@pytest.mark.parametrize("family", FAMILIES)
def test_export_is_byte_for_byte_the_same(family, alone, program, tmp_path):
    words = ("train", *load_words(family, alone), "--mock_data", "--skip_train", "--eval_iters", 0)
    words = (*words, "--micro_batch_size", 2, "--global_batch_size", 8, "--data_cache_path", tmp_path / "cache")
    program.run(*words, "--save_hf", tmp_path / "one")
    trained = (alone[family][1] / "model.safetensors").read_bytes()
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == trained, "what was read is not what is written"
    run_ranks(program, 2, *words, *EP2, "--save_hf", tmp_path / "ep2")
    run_ranks(program, 4, *words, *TP2, *EP2, "--save_hf", tmp_path / "tp2_ep2")
    for name in ("model.safetensors", "config.json"):
        expected = (tmp_path / "one" / name).read_bytes()
        for layout in ("ep2", "tp2_ep2"):
            assert (tmp_path / layout / name).read_bytes() == expected, f"{layout} {name}"


WITHOUT_SPLIT_SEQUENCES = {"ep2": EP2, "tp2": TP2, "tp2_ep2": TP2_EP2}


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_is_the_same_and_printed_once(family, alone, program):
    words = ("generate", *load_words(family, alone), "--prompt_ids", "3,7,9", "--print_ids", "--ignore_eos")
    words = (*words, "--max_new_tokens", 12, "--num_samples", 2)
    _, expected, _ = program.run(*words)
    assert [len(line.split()) for line in expected.splitlines()] == [12, 12]
    for name, layout in WITHOUT_SPLIT_SEQUENCES.items():
        assert run_ranks(program, 2, *words, *layout).stdout == expected, name


@pytest.mark.parametrize("family", FAMILIES)
def test_evaluation_is_the_same(family, alone, program, data, tmp_path):
    words = ("evaluate", *load_words(family, alone), "--data_path", data.prefix, "--split", "100,0,0", "--eval_iters", 3)
    words = (*words, "--data_cache_path", tmp_path / "cache", "--micro_batch_size", 1, "--global_batch_size", 4)
    _, output, _ = program.run(*words, "--losses_file", tmp_path / "one")
    expected, lines = json.loads(output), read_json_lines(tmp_path / "one")
    assert len(lines) == 12
    for name, layout in WITHOUT_SPLIT_SEQUENCES.items():
        found = json.loads(run_ranks(program, 2, *words, *layout, "--losses_file", tmp_path / name).stdout)
        assert found["tokens"] == expected["tokens"] and found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        for ours, theirs in zip(read_json_lines(tmp_path / name), lines, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6), name


REFUSED = {
    "experts": (3, ("--expert_model_parallel_size", 3), "3 does not divide num_experts 8", "a divisor of 8"),
    "ranks": (3, EP2, "does not divide the 3 rank(s) started", "start 2 ranks"),
    "width": (4, (*EP2, "--expert_tensor_parallel_size", 2, "--ffn_hidden_size", 23), "23", "a divisor of 23"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_layouts_that_do_not_divide_are_refused(case, program, tmp_path):
    world_size, options, what, remedy = REFUSED[case]
    words = train_words("mixtral", tmp_path, "--global_batch_size", 24, *options)
    _, _, errors = program.run(*words, environment=rank_environment(0, world_size), expected=2, timeout=240)
    assert what in errors and remedy in errors, errors


def test_generation_refuses_ranks_without_work(alone, program):
    words = ("generate", *load_words("mixtral", alone), "--prompt_ids", "3", "--print_ids", *EP2)
    _, _, errors = program.run(*words, environment=rank_environment(1, 4), expected=2, timeout=240)
    assert "4 ranks were started, and the model to generate with lies on 2" in errors and "start 2 ranks" in errors
