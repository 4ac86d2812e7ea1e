"""Answers to files of prompts and to conversations: transformers' greedy tokens, several rows at a time; chat's answers are
those of generate; wrong input costs exit code 2 and writes nothing."""

import json

import hf_models
import pytest
import torch
from chats import TOOLS, model_with
from ranks import run_ranks

FAMILIES = ("llama", "gemma2", "gpt_oss", "mixtral", "deepseek_v3", "llama4")
NEW = 8


def rows_of(random):
    lengths = [int(length) for length in torch.randint(1, 30, (7,), generator=random)]
    return [{"id": i, "prompt_ids": torch.randint(0, 120, (n,), generator=random).tolist()} for i, n in enumerate(lengths)]


def greedy(model, ids, new=NEW):
    with torch.no_grad():
        for _ in range(new):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            ids = [*ids, int(logits.argmax())]
    return ids[-new:]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_answered_as_transformers_continues_each(name, program, models, tmp_path):
    model = models[name]
    rows = rows_of(torch.Generator().manual_seed(5))
    source, output = tmp_path / "rows.jsonl", tmp_path / "new" / "answers.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    program.run(
        *("generate", "--load_hf", model.folder, "--input", source, "--output", output, "--batch_rows", 3, "--temperature", 0),
        *("--max_new_tokens", NEW, "--ignore_eos", "--device", "cpu"),
    )
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [answer["id"] for answer in answers] == list(range(len(rows)))
    for row, answer in zip(rows, answers, strict=True):
        assert answer["answer"] == greedy(model.reference, row["prompt_ids"])
        assert (answer["finish_reason"], answer["prompt_tokens"], answer["completion_tokens"]) == ("length", len(row["prompt_ids"]), NEW)


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = model_with(tmp_path_factory.mktemp("talker") / "model", "chatml")
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=265, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=2048, bos_token_id=256, eos_token_id=257, tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float().eval()
    model.save_pretrained(folder)
    return folder, model, AutoTokenizer.from_pretrained(folder)


def expected_answer(talker, messages, tools=None, new=12):
    _, model, tokenizer = talker
    ids = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
    answer = greedy(model, list(ids), new)
    ends = {257, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    kept = next((i for i, token in enumerate(answer) if token in ends), len(answer))
    return tokenizer.decode(answer[:kept], skip_special_tokens=True)


SAMPLING = ("--temperature", 0, "--max_new_tokens", 12, "--device", "cpu")


def test_a_conversation_is_answered_by_the_template(program, talker, tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
    file = tmp_path / "talk.json"
    for tools in (None, TOOLS):
        file.write_text(json.dumps(messages if tools is None else {"messages": messages, "tools": tools}))
        _, text, _ = program.run("generate", "--load_hf", talker[0], "--messages", file, *SAMPLING)
        assert text == expected_answer(talker, messages, tools) + "\n"
    file.write_text(json.dumps(messages))
    with file.open() as stdin:
        _, text, _ = program.run("generate", "--load_hf", talker[0], "--messages", "-", *SAMPLING, stdin=stdin.fileno())
    assert text == expected_answer(talker, messages) + "\n"
    stop = expected_answer(talker, messages)[3:5]
    _, text, _ = program.run("generate", "--load_hf", talker[0], "--messages", file, *SAMPLING, f"--stop={stop}")
    assert text == expected_answer(talker, messages).split(stop)[0] + "\n"


def test_chat_goes_on_with_a_conversation(program, talker, tmp_path):
    lines = ["Hello", "How are\\", "you?", "/undo", "And now", "/save " + str(tmp_path / "talk.json"), "/system Be rude.", "Hello", "/nonsense"]
    source = tmp_path / "lines"
    source.write_text("\n".join(lines) + "\n")
    with source.open() as stdin:
        _, text, _ = program.run("chat", "--load_hf", talker[0], "--system", "Be brief.", *SAMPLING, stdin=stdin.fileno())
    messages, expected = [{"role": "system", "content": "Be brief."}], ""

    def turn(content):
        messages.append({"role": "user", "content": content})
        messages.append({"role": "assistant", "content": expected_answer(talker, messages)})
        return messages[-1]["content"] + "\n"

    expected += turn("Hello") + turn("How are\nyou?")
    del messages[-2:]
    expected += turn("And now")
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert saved == {"messages": messages}
    expected += f"{len(messages)} messages in {tmp_path / 'talk.json'}\n"
    messages = [{"role": "system", "content": "Be rude."}]
    expected += turn("Hello") + "/nonsense is no command; /help lists them. Begin a message with a blank to send it.\n"
    assert text == expected


def test_a_conversation_that_was_handed_over_is_answered_again(program, talker, tmp_path):
    messages = [{"role": "user", "content": "Hello"}]
    file, source = tmp_path / "talk.json", tmp_path / "lines"
    file.write_text(json.dumps(messages))
    source.write_text("/retry\n")
    with source.open() as stdin:
        _, text, _ = program.run("chat", "--load_hf", talker[0], "--messages", file, *SAMPLING, stdin=stdin.fileno())
    assert text == 2 * (expected_answer(talker, messages) + "\n")


def test_ranks_talk_as_one(program, talker, tmp_path):
    messages, rows = tmp_path / "talk.json", tmp_path / "rows.jsonl"
    messages.write_text(json.dumps([{"role": "user", "content": "Hello"}]))
    rows.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "Hello"}], "id": "b"}\n{"prompt": "some more"}\n')
    for words in (("chat", "--messages", messages), ("generate", "--input", rows)):
        words = (*words, "--load_hf", talker[0], *SAMPLING)
        alone = program.run(*words)[1]
        assert len(alone) > 5
        for axis in ("tensor", "pipeline"):
            both = run_ranks(program, 2, *words, f"--{axis}_model_parallel_size", 2)
            assert both.stdout == alone


WRONG = {
    "several of prompt": [{"prompt": "a", "messages": []}],
    "none of prompt": [{"id": 3}],
    "has a key 'temperature'": [{"prompt": "a", "temperature": 0.3}],
    "has a key 'answer'": [{"prompt": "a", "answer": "b"}],
    "has no role": [{"messages": [{"content": "a"}]}],
    "has no content": [{"messages": [{"role": "user"}]}],
    "the prompt is empty": [{"prompt": ""}],
    "outside the model's vocabulary": [{"prompt_ids": [1, 5000]}],
    "exceed max_position_embeddings": [{"prompt_ids": [1] * 2040}],
    "is no object": [["a"]],
    ":2: the row has none": [{"prompt": "a"}, {}],
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_rows_are_refused(words, program, talker, tmp_path):
    source, output = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in WRONG[words]))
    _, _, errors = program.run("generate", "--load_hf", talker[0], "--input", source, "--output", output, *SAMPLING, expected=2)
    assert words in errors
    assert not output.exists()


WRONG_OPTIONS = {
    "no prompt given": (),
    "several prompts given": ("--prompt", "a", "--messages", "m.json"),
    "output is given, and this model writes text": ("--prompt", "a", "--output", "x.jsonl"),
    "num_samples is for one prompt": ("--input", "rows.jsonl", "--num_samples", 2),
    "batch_rows is given without input": ("--prompt", "a", "--batch_rows", 2),
    "stop is a text, and print_ids shows ids": ("--prompt", "a", "--print_ids", "--stop", "b"),
    "cannot open": ("--messages", "nowhere.json"),
}


@pytest.mark.parametrize("words", WRONG_OPTIONS)
def test_wrong_options_are_refused(words, program, talker):
    _, _, errors = program.run("generate", "--load_hf", talker[0], *WRONG_OPTIONS[words], expected=2)
    assert words in errors


def test_a_model_without_a_template_cannot_chat(program, models):
    _, _, errors = program.run("chat", "--load_hf", models["llama"].folder, expected=2)
    assert "none was found" in errors or "chat template" in errors
    _, _, errors = program.run("chat", "--load_hf", models["llama"].folder, "--messages", "-", expected=2)
    assert "where chat reads what you say" in errors
