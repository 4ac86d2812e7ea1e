"""Chat templates against transformers' apply_chat_template: texts, ids, and what is refused.

The templates of tests/tokenizer/data/chat_templates are our own; together they use every construct of the published ones of Llama 2,
Llama 3, Qwen2.5, Mistral and DeepSeek, in layouts like theirs.
"""

import json
from random import Random

import pytest
from chats import TEMPLATES, TOOLS, conversation, save_tokenizer


def rendered(program, folder, path, *words):
    _, output, _ = program.run("inspect", "tokenizer", "--tokenizer_model", folder, "--chat_file", path, *words)
    return [json.loads(line) for line in output.split("\n")[:-1]]


@pytest.mark.parametrize("template", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_texts_and_ids_equal_those_of_transformers(program, tmp_path, template):
    from transformers import AutoTokenizer

    folder = save_tokenizer(tmp_path / "model")
    (folder / "chat_template.jinja").write_bytes(template.read_bytes())
    theirs = AutoTokenizer.from_pretrained(folder)
    random = Random(template.stem)
    rows = []
    for _ in range(300):
        row = {"messages": conversation(random), "tools": random.choice([None, TOOLS])}
        try:
            for prompt in (False, True):
                theirs.apply_chat_template(row["messages"], tools=row["tools"], tokenize=False, add_generation_prompt=prompt)
        except Exception:  # the template refuses it; the next test looks at that
            continue
        rows.append(row)
    assert len(rows) > 100
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for prompt in (False, True):
        words = ["--add_generation_prompt"] if prompt else []
        expected = [theirs.apply_chat_template(row["messages"], tools=row["tools"], tokenize=False, add_generation_prompt=prompt) for row in rows]
        assert rendered(program, folder, path, "--json_strings", *words) == expected
        expected = [theirs.apply_chat_template(row["messages"], tools=row["tools"], add_generation_prompt=prompt) for row in rows]
        assert rendered(program, folder, path, *words) == expected


@pytest.mark.parametrize("name", ["instructions", "selected"])
def test_what_a_template_refuses_is_refused_with_its_words(program, tmp_path, name):
    from jinja2.exceptions import TemplateError
    from transformers import AutoTokenizer

    folder = save_tokenizer(tmp_path / "model")
    (folder / "chat_template.jinja").write_bytes((TEMPLATES / f"{name}.jinja").read_bytes())
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(TemplateError) as refusal:
        AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(messages) + "\n")
    code, _, error = program.run("inspect", "tokenizer", "--tokenizer_model", folder, "--chat_file", path, expected=2)
    assert str(refusal.value) in error and "chat_template.jinja:" in error
