"""Published chat templates against transformers' apply_chat_template: texts, ids, and what counts in the loss.

The templates are read from the packages that carry them (TRL's, copies of those on the hub, and its variants of them with
generation marks), and from MEGALITH_CHAT_TEMPLATES, a folder of more .jinja files.
"""

import importlib.util
import json
import os
import re
from pathlib import Path
from random import Random

import pytest
from chats import TOOLS, content, conversation, inspected, save_tokenizer, write_rows

FAMILIES = ["llama3", "llama3_1", "llama3_2", "qwen2_5", "qwen3", "deepseekv3", "deepseek_r1_distill"]
ENDS = {"llama": "<|eot_id|>", "qwen": "<|im_end|>", "deepseek": "<｜end▁of▁sentence｜>"}
SPECIALS = [
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    *("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", "<|end|>", "<|endoftext|>", "<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"),
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|USER_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    *("<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|eot|>", "<start_of_turn>", "<end_of_turn>"),
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


TOOL = {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "c"}}, "required": ["city"]}}
PARTS = {"idefics3", "llava_next", "smolvlm"}  # take no texts as content
THOUGHTS = {"gptoss": "thinking", "qwen3": "reasoning_content"}  # the key of a message's thoughts


def marked_templates():
    package = importlib.util.find_spec("trl")
    folder = Path(package.origin).parent / "chat_templates" if package else Path("/nowhere")
    return sorted(path.stem.removesuffix("_training") for path in folder.glob("*_training.jinja"))


def verdicts():
    """{(template, kind of rows): (texts that only TRL learns, texts that only we learn)}"""
    lines = [line.split(" | ") for line in Path(__file__).with_name("mask_verdicts.txt").read_text().splitlines() if not line.startswith("#")]
    return {(name, kind): ([], []) if rest == ["equal"] else (json.loads(rest[0]), json.loads(rest[1])) for name, kind, *rest in lines}


def rows_of_kind(name, kind):
    random = Random(name + kind)
    for _ in range(60):
        messages = conversation(random, calls=kind != "answers")
        has_calls = any("tool_calls" in message for message in messages)
        if messages[-1]["role"] != "assistant" or (kind != "thoughts" and (kind == "calls") != has_calls):
            continue
        if kind == "thoughts":
            for message in messages:
                if message["role"] == "assistant" and random.random() < 0.7:
                    message[THOUGHTS[name]] = content(random)
        if name in PARTS:
            messages = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
        yield {"messages": messages, "tools": [{"type": "function", "function": TOOL}] if kind != "answers" else None}


def only(tokenizer, pairs, side):
    """Texts of neighbouring tokens that one of the two masks has; the bytes of a part of a character are one mark."""
    texts, run = set(), []
    for token, *sides in [*pairs, (None, 0, 0)]:
        if sides == side:
            run.append(token)
        elif run:
            texts.add(re.sub("\ufffd+", "\ufffd", tokenizer.decode(run)))
            run = []
    return sorted(texts)


@pytest.mark.parametrize("name", marked_templates() or ["none"])
def test_masks_are_those_of_trls_marks_or_differ_as_the_table_says(program, tmp_path, name):
    theirs = model_with(tmp_path / "marked", shipped(f"{name}_training"))
    model_with(tmp_path / "published", shipped(name))
    for kind in ("answers", "calls", "thoughts") if name in THOUGHTS else ("answers", "calls"):
        rows, expected = [], []
        for row in rows_of_kind(name, kind):
            try:
                made = theirs.apply_chat_template(row["messages"], tools=row["tools"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            except Exception:  # some take no system, or no calls
                continue
            rows.append(row)
            expected.append(made)
        if (name, kind) not in verdicts():  # such a template writes no calls: we refuse them
            assert kind == "calls"
            words = ("inspect", "sft", "--load_hf", tmp_path / "marked", "--sft_data_path", write_rows(tmp_path / "rows.jsonl", rows), "--samples", 0)
            if rows:
                program.run(*words, expected=2)
            continue
        samples, _ = inspected(program, tmp_path / "marked", rows)
        published, _ = inspected(program, tmp_path / "published", rows)
        assert len(rows) >= 8, kind
        pairs = []
        for sample, mask, other in zip(samples, expected, published, strict=True):
            assert sample["tokens"][: len(mask["input_ids"])] == mask["input_ids"]
            pairs += [*zip(sample["tokens"], sample["weights"], mask["assistant_masks"], strict=False), (None, 0, 0)]
            # Some marked templates keep earlier thoughts, which the published ones drop.
            assert sample["weights"] == other["weights"] or sample["tokens"] != other["tokens"]
        found = only(theirs, pairs, [0, 1]), only(theirs, pairs, [1, 0])
        assert found == tuple(sorted(texts) for texts in verdicts()[name, kind]), (name, kind, found)


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
    # OpenAI's form, which two of them would quote as a text.
    call["tool_calls"][0]["function"]["arguments"] = '{"x": 1}'
    assert inspected(program, tmp_path / "model", [{"messages": messages, "tools": TOOLS}])[0][0] == sample


def test_calls_without_words_and_content_in_parts(program, tmp_path):
    model_with(tmp_path / "model", shipped("gptoss"))
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "time", "arguments": {"x": 1}}}]}
    messages = [*turns("q"), call, {"role": "tool", "content": "7"}, {"role": "assistant", "content": "a"}]
    for words in (None, "wait"):  # of which the template writes none: it fails, and leaves them out before an answer
        call["content"] = words
        (sample,), _ = inspected(program, tmp_path / "model", [{"messages": messages, "tools": [{"type": "function", "function": TOOL}]}])
        called = ' to=functions.time<|channel|>commentary json<|message|>{"x": 1}<|call|>'
        assert sample["text_in_loss"] == called + "<|channel|>final<|message|>a<|return|>"
    model_with(tmp_path / "texts", shipped("qwen3"))  # writes no part of a list
    path = write_rows(tmp_path / "rows.jsonl", [{"messages": turns([{"type": "text", "text": "q"}], "a")}])
    _, _, errors = program.run("inspect", "sft", "--load_hf", tmp_path / "texts", "--sft_data_path", path, expected=2)
    assert "writes nothing of a part of the user's content" in errors
