"""Published chat templates against transformers' apply_chat_template: texts, ids, and what counts in the loss.

The templates are read from the packages that carry them (TRL's, copies of those on the hub, and its variants of them with
generation marks), and from MEGALITH_CHAT_TEMPLATES, a folder of more .jinja files.
"""

import importlib.util
import json
import os
from pathlib import Path
from random import Random

import pytest
from chats import TOOLS, conversation, inspected, save_tokenizer

FAMILIES = ["llama3", "llama3_1", "llama3_2", "qwen2_5", "qwen3", "deepseekv3", "deepseek_r1_distill"]
ENDS = {"llama": "<|eot_id|>", "qwen": "<|im_end|>", "deepseek": "<｜end▁of▁sentence｜>"}
SPECIALS = [
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    *("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", "<|end|>", "<|endoftext|>", "<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"),
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|USER_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    *("[INST]", "[/INST]", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
]  # fmt: skip


def shipped(name):
    package = importlib.util.find_spec("trl")
    path = Path(package.origin).parent / "chat_templates" / f"{name}.jinja" if package else None
    if path is None or not path.exists():
        pytest.skip("TRL, which carries the published templates, is not installed")
    return path


def all_templates():
    folder = os.environ.get("MEGALITH_CHAT_TEMPLATES")
    return FAMILIES + [f"{name}_training" for name in FAMILIES if not name.startswith("llama3_")] + sorted(Path(folder).glob("*.jinja") if folder else [])


def model_with(folder, template):
    from transformers import AutoTokenizer

    save_tokenizer(folder, SPECIALS)
    (folder / "chat_template.jinja").write_bytes(template.read_bytes())
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("template", all_templates(), ids=lambda template: Path(template).stem)
def test_texts_and_ids_equal_those_of_transformers(program, tmp_path, template):
    folder = tmp_path / "model"
    theirs = model_with(folder, template if isinstance(template, Path) else shipped(template))
    random = Random(Path(template).stem)
    rows, texts, ids = [], ([], []), ([], [])
    for _ in range(150):
        # Not every template takes calls of tools, or arguments that are no text.
        row = {"messages": conversation(random, calls=random.random() < 0.5), "tools": random.choice([None, None, TOOLS])}
        try:
            made = [theirs.apply_chat_template(row["messages"], tools=row["tools"], tokenize=False, add_generation_prompt=prompt) for prompt in (False, True)]
        except Exception:
            continue
        rows.append(row)
        for prompt, text in enumerate(made):
            texts[prompt].append(text)
            ids[prompt].append(theirs(text, add_special_tokens=False)["input_ids"])
    assert len(rows) >= 50
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for prompt, words in enumerate(([], ["--add_generation_prompt"])):
        for expected, form in ((texts[prompt], ["--json_strings"]), (ids[prompt], [])):
            _, output, _ = program.run("inspect", "tokenizer", "--tokenizer_model", folder, "--chat_file", path, *form, *words)
            assert [json.loads(line) for line in output.split("\n")[:-1]] == expected


def answered(random, count):
    rows = [{"messages": conversation(random, calls=False)} for _ in range(count)]
    return [row for row in rows if row["messages"][-1]["role"] == "assistant"]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_counts_is_the_answers_and_their_ends(program, tmp_path, name):
    folder = tmp_path / "model"
    model_with(folder, shipped(name))
    rows = answered(Random(name), 100)
    samples, _ = inspected(program, folder, rows)
    end = next(end for family, end in ENDS.items() if name.startswith(family))
    for row, sample in zip(rows, samples, strict=True):
        answers = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        *parts, rest = sample["text_in_loss"].split(end)
        if name.startswith(("deepseek", "qwen3")):  # thoughts are written otherwise, or not at all
            parts, answers = ([text.split("</think>")[-1] for text in texts] for texts in (parts, answers))
        assert rest == "" and [part.strip() for part in parts] == [answer.strip() for answer in answers]


# What the marks of TRL's variants take besides the answer and its end, before and after it.
BESIDES = {"llama3": {""}, "qwen2_5": {"\n"}, "deepseekv3": {"<｜Assistant｜>"}}


@pytest.mark.parametrize("name", sorted(BESIDES))
def test_masks_equal_those_of_the_variants_with_marks(program, tmp_path, name):
    theirs = model_with(tmp_path / "marked", shipped(f"{name}_training"))
    model_with(tmp_path / "published", shipped(name))
    rows = answered(Random(name), 60)
    samples, _ = inspected(program, tmp_path / "published", rows)
    marked, _ = inspected(program, tmp_path / "marked", rows)
    for row, sample, of_marked in zip(rows, samples, marked, strict=True):
        expected = theirs.apply_chat_template(row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        assert sample["tokens"] == expected["input_ids"] and sample["weights"] == of_marked["weights"]
        pairs = list(zip(sample["tokens"], sample["weights"], expected["assistant_masks"], strict=True))
        assert all(mark for _, weight, mark in pairs if weight)
        assert {theirs.decode(token) for token, weight, mark in pairs if mark and not weight} <= BESIDES[name]
        assert (name == "llama3") == (sample["weights"] == expected["assistant_masks"])


# TRL marks more than the answer and its end, which a model never writes, or which the prompt for an answer says already.
AFTER_THE_END = {"\n"}
OF_THE_PROMPT = {"cue": {"<think>", "\n", "<", "t", "h", "i", "n", "k", ">"}, "gptoss": {"<|start|>", *"assistant"}, "deepseek": {"<｜Assistant｜>"}}
MORE = {
    **dict.fromkeys(("cohere", "cohere2", "gemma", "gemma3", "idefics3", "smolvlm"), set()),
    **dict.fromkeys(("lfm2", "lfm2_v2", "qwen2_5_vl", "qwen3", "qwen3_instruct_2507", "qwen3_vl"), AFTER_THE_END),
    **dict.fromkeys(("nemotron_3_nano", "nemotron_3_ultra", "qwen3_5_think", "qwen3_6", "qwen3_8"), AFTER_THE_END | OF_THE_PROMPT["cue"]),
    **dict.fromkeys(("phi3", "phi3_5"), {"\n", "</s>"}),  # the text's own end, after all turns
    "qwen3_5_nothink": AFTER_THE_END | {*"<think></think>"},
    "gptoss": OF_THE_PROMPT["gptoss"],
    "deepseek_r1_distill": OF_THE_PROMPT["deepseek"],
}


@pytest.mark.parametrize("name", sorted(MORE))
def test_masks_differ_from_trls_marks_by_what_a_model_does_not_write(program, tmp_path, name):
    theirs = model_with(tmp_path / "marked", shipped(f"{name}_training"))
    model_with(tmp_path / "published", shipped(name))
    rows = answered(Random(name), 40)
    expected = []
    for row in list(rows):
        try:
            expected.append(theirs.apply_chat_template(row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True))
        except Exception:  # some take no system
            rows.remove(row)
    samples, _ = inspected(program, tmp_path / "published", rows)
    # Some marked templates keep earlier thoughts, which the published ones drop.
    both = [(sample, mask) for sample, mask in zip(samples, expected, strict=True) if sample["tokens"] == mask["input_ids"]]
    assert len(both) >= 4
    for sample, mask in both:
        pairs = list(zip(sample["tokens"], sample["weights"], mask["assistant_masks"], strict=True))
        assert all(mark for _, weight, mark in pairs if weight)
        assert {theirs.decode(token) for token, weight, mark in pairs if mark and not weight} <= MORE[name]
        assert MORE[name] or sample["weights"] == mask["assistant_masks"]


# What each of two equal answers learns, the last one in the second place.
TURNS = {
    "gptoss": ["<|channel|>final<|message|>a<|end|>", "<|channel|>final<|message|>a<|return|>"],
    "glm4moe": ["\n<think></think>\na<|user|>"] * 2,
    "phi3": ["a<|end|>"] * 2,
    "phi3_5": ["a<|end|>"] * 2,
    "cohere": ["a<|END_OF_TURN_TOKEN|>"] * 2,
    "cohere2": ["a<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"] * 2,
    "qwen3": ["a<|im_end|>", "<think>\n\n</think>\n\na<|im_end|>"],
}


def turns(*contents):
    return [{"role": role, "content": content} for role, content in zip(("user", "assistant") * len(contents), contents, strict=False)]


@pytest.mark.parametrize("name", sorted(TURNS))
def test_every_answer_learns_its_beginning_and_its_end(program, tmp_path, name):
    model_with(tmp_path / "model", shipped(name))
    sample = inspected(program, tmp_path / "model", [{"messages": turns("q", "a", "r", "a")}])[0][0]
    assert sample["text_in_loss"] == "".join(TURNS[name])


def test_glm_learns_the_ends_that_trl_writes(program, tmp_path):
    theirs = model_with(tmp_path / "marked", shipped("glm4moe_training"))
    model_with(tmp_path / "published", shipped("glm4moe"))
    rows = [{"messages": turns(*contents)} for contents in (("q", "a"), ("q", "a", "r", "b c"))]
    samples, _ = inspected(program, tmp_path / "published", rows)
    for row, sample in zip(rows, samples, strict=True):
        expected = theirs.apply_chat_template(row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        assert sample["tokens"] == expected["input_ids"] and sample["weights"] == expected["assistant_masks"]


@pytest.mark.parametrize("name", ["qwen3", "qwen2_5", "llama3_1"])
def test_a_call_the_tools_answer_and_an_answer(program, tmp_path, name):
    theirs = model_with(tmp_path / "model", shipped(name))
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "time", "arguments": {"x": 1}}}]}
    messages = [*turns("q"), call, {"role": "tool", "content": "7"}, {"role": "assistant", "content": "a"}]
    sample = inspected(program, tmp_path / "model", [{"messages": messages, "tools": TOOLS}])[0][0]
    assert sample["tokens"] == theirs.apply_chat_template(messages, tools=TOOLS, tokenize=True)
    end = next(end for family, end in ENDS.items() if name.startswith(family))
    called, answered, rest = sample["text_in_loss"].replace("<|eom_id|>", end).split(end)
    assert "time" in called and answered.split("</think>")[-1].strip() == "a" and rest == ""
