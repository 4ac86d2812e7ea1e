"""A BERT and a T5 of megatron-core, and in the files of Megatron-LM before it, are the same here, with both moments."""

import json
import shutil

import pytest
import torch
from compare import assert_close
from foreign_runs import BATCH, BEFORE, MOMENTS, MegatronRun
from megatron_core_run import PROBE, SIZES
from safetensors.torch import load_file

FORMS = ["fully_reshardable", "legacy"]
# Megatron-LM 3.0's words for those of megatron-core.
OLD = {
    "lm_head.output_layer.bias": "lm_head.bias", "output_layer.bias": "lm_head.bias", "lm_head.layer_norm": "lm_head.layernorm",
    "pooler.": "language_model.pooler.", "embedding.word": "language_model.embedding.word",
    "embedding.position": "language_model.embedding.position", "embedding.tokentype": "language_model.embedding.tokentype",
    "encoder.": "language_model.encoder.", "decoder.": "language_model.decoder.",
    "linear_qkv": "query_key_value", "self_attention.linear_proj": "self_attention.dense", "linear_fc1": "dense_h_to_4h",
    "linear_fc2": "dense_4h_to_h", "cross_attention.linear_q.": "inter_attention.query.",
    "cross_attention.linear_kv": "inter_attention.key_value", "cross_attention.linear_proj": "inter_attention.dense",
    "pre_cross_attn_layernorm": "post_attention_layernorm",
}  # fmt: skip


@pytest.fixture(scope="module")
def networks(tmp_path_factory, data):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed ('make tools' says why)")
    made = {}

    def make(name, tp):
        if (name, tp) not in made:
            made[name, tp] = MegatronRun(tmp_path_factory.mktemp(name), name, dict(tp=tp), tp > 1, FORMS, data)
        return made[name, tp]

    return make


def states_of(folder):
    return {key: load_file(folder / f"iter_{BEFORE:07}" / f"{key}.safetensors") for key in ("model", *MOMENTS)}


def assert_equal_tensors(found, expected, where):
    assert found.keys() == expected.keys(), where
    different = [name for name, value in expected.items() if not torch.equal(found[name], value)]
    assert not different, (where, different)


def old_name(name):
    sub_layer = "post_inter_attention_layernorm" if name.startswith("decoder.") else "post_attention_layernorm"
    name = name.replace("pre_mlp_layernorm", sub_layer)
    for new, old in OLD.items():
        if old not in name:
            name = name.replace(new, old)
    return name


def in_old_order(name, value, version, heads):
    """A rank's fused projection as checkpoints of that version have its rows (fix_query_key_value_ordering)."""
    matrices = 3 if "query_key_value" in name else 2 if "key_value" in name else 0
    if matrices == 0 or version >= 2:
        return value
    by_head = value.view(heads, matrices, -1, *value.shape[1:])
    return (by_head.transpose(0, 1) if version == 0 else by_head.transpose(1, 2)).reshape(value.shape).clone()


@pytest.mark.parametrize("name, tp", [("bert", 1), ("t5", 2)])
def test_a_network_of_megatron_comes_with_its_states(name, tp, program, networks, tmp_path):
    run = networks(name, tp)
    for form in FORMS:
        program.run("convert", "--load", run.folder / form, "--save", tmp_path / form)
    expected = states_of(tmp_path / FORMS[0])
    for key, tensors in states_of(tmp_path / "legacy").items():
        assert_equal_tensors(tensors, expected[key], key)
    counters = json.loads((tmp_path / "legacy" / f"iter_{BEFORE:07}" / "checkpoint.json").read_text())["train"]
    assert (counters["optimizer_step"], counters["consumed_train_samples"]) == (BEFORE, BEFORE * BATCH)
    # Its outputs, which weights in a wrong place would change.
    ids, half = ",".join(map(str, PROBE)), len(PROBE) // 2
    types = ",".join(map(str, [0] * half + [1] * half))
    more = ("--prompt_token_types", types) if name == "bert" else ("--target_ids", ",".join(map(str, PROBE[1:] + PROBE[:1])))
    words = ("--bos_token_id", PROBE[0]) if name == "t5" else ()
    output = tmp_path / "logits.safetensors"
    program.run("inspect", "logits", "--load", tmp_path / "legacy", "--prompt_ids", ids, *more, *words, "--output", output)
    for ours, theirs in zip(("logits", "sentence_logits"), run.losses):
        assert_close(load_file(output)[ours], torch.tensor(theirs)[0], f"{name}: {ours}")
    # As Megatron-LM wrote it before.
    for version in (0, 1.0, 2.0):
        old = tmp_path / f"old_{version}"
        shutil.copytree(run.folder / "legacy", old)
        for path in old.rglob("model_optim_rng.pt"):
            state = torch.load(path, weights_only=False)
            model = {old_name(key): value for key, value in state["model"].items() if isinstance(value, torch.Tensor)}
            heads = SIZES["num_attention_heads"] // tp
            state["model"] = {key: in_old_order(key, value, version, heads) for key, value in model.items()}
            state["checkpoint_version"] = version
            torch.save(state, path)
        if version == 0:  # as it was before there were versions
            del state["checkpoint_version"]
            torch.save(state, path)
        program.run("convert", "--load", old, "--save", tmp_path / f"of_{version}", "--no_save_optim")
        found = load_file(tmp_path / f"of_{version}" / f"iter_{BEFORE:07}" / "model.safetensors")
        assert_equal_tensors(found, expected["model"], version)
