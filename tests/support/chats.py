"""Conversations made at random, chat templates, and a small tokenizer that has their special tokens."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers import decoders as token_decoders

TEMPLATES = Path(__file__).resolve().parent.parent / "tokenizer" / "data" / "chat_templates"
SPECIALS = ["<s>", "</s>", "<|head|>", "<|end_head|>", "<|end_turn|>", "<|im_start|>", "<|im_end|>", "<|User|>", "<|Assistant|>"]
WORDS = ["hello", "what is 2+2?", "Größe", "日本語", "🦙", "don't", '"quoted"', "a\n\nb", "  ", "\t", "{{ x }}", "{% if %}", "</think>", "<b>", "'", "\\n", "1"]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "It says \"rain\" or 'sun'.", "return": {"type": "string"},
                                      "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"enum": [1, 2.5, None, True]}}}}},
    {"type": "function", "function": {"name": "time", "parameters": {}}},
]  # fmt: skip


def save_tokenizer(folder, more_specials=()):
    """A tokenizer of bytes with the special tokens of all templates."""
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = token_decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIALS, *more_specials])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def content(random):
    return " ".join(random.choice(WORDS) for _ in range(random.randrange(1, 5)))


def conversation(random, calls=True):
    messages = [{"role": "system", "content": content(random)}] if random.random() < 0.4 else []
    for _ in range(random.randrange(1, 4)):
        messages.append({"role": "user", "content": content(random)})
        if calls and random.random() < 0.3:
            arguments = {"city": content(random), "days": random.choice([1, 2.5, None, True, ["a", {"b": []}]])}
            call = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": arguments}}
            messages.append({"role": "assistant", "content": random.choice([None, "wait"]), "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": "call12345", "content": content(random)})
        messages.append({"role": "assistant", "content": content(random)})
    if random.random() < 0.2:
        messages.pop()
    return messages


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def model_with(folder, template):
    save_tokenizer(folder)
    (folder / "chat_template.jinja").write_bytes((TEMPLATES / f"{template}.jinja").read_bytes())
    return folder


def inspected(program, folder, rows, *words):
    """(samples, totals and what follows them)."""
    path = write_rows(folder / "rows.jsonl", rows)
    _, output, _ = program.run("inspect", "sft", "--load_hf", folder, "--sft_data_path", path, "--json", "--samples", len(rows), *words)
    lines = [json.loads(line) for line in output.split("\n")[:-1]]
    return lines[: len(rows)], lines[len(rows) :]
