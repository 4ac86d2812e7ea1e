"""Instruction data: which tokens count in the loss, how samples are packed, and what is refused."""

import json
from random import Random

import pytest
from chats import TOOLS, conversation, inspected, model_with, save_tokenizer, write_rows
from hub_server import Hub

ENDS = {"chatml": "<|im_end|>", "headers": "<|end_turn|>", "instructions": "</s>", "marked": "<|end_turn|>", "selected": "</s>", "turns": "<|end_turn|>"}


def answered(random, count):
    rows = [{"messages": conversation(random, calls=False)} for _ in range(count)]
    return [row for row in rows if any(message["role"] == "assistant" for message in row["messages"])]


@pytest.mark.parametrize("template", sorted(ENDS))
def test_what_counts_is_the_answers_and_their_ends(program, tmp_path, template):
    folder = model_with(tmp_path / "model", template)
    random = Random(template)
    rows = [{"messages": conversation(random, calls=False)} for _ in range(150)]
    rows = [row for row in rows if row["messages"][-1]["role"] == "assistant"]
    # It writes the system's message only at the last question, if no answer follows: an error without this.
    words = ["--sft_drop_system"] if template == "selected" else []
    samples, (totals,) = inspected(program, folder, rows, *words)
    end = ENDS[template]
    for row, sample in zip(rows, samples, strict=True):
        answers = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        if template == "turns":
            answers = [answer.split("</think>")[-1] for answer in answers]
        parts = sample["text_in_loss"].split(end)
        assert parts[-1] == "" and len(parts) == len(answers) + 1, (sample, answers)
        assert [part.strip() for part in parts[:-1]] == [answer.strip() for answer in answers]
    assert totals["samples"] == len(rows) and totals["tokens_in_loss"] == sum(sum(sample["weights"]) for sample in samples)


def test_masks_equal_those_that_a_template_with_marks_gives_in_transformers(program, tmp_path):
    from transformers import AutoTokenizer

    folder = model_with(tmp_path / "model", "marked")
    theirs = AutoTokenizer.from_pretrained(folder)
    random = Random(7)
    rows = answered(random, 60)
    samples, _ = inspected(program, folder, rows)
    for row, sample in zip(rows, samples, strict=True):
        expected = theirs.apply_chat_template(row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        assert sample["tokens"] == expected["input_ids"] and sample["weights"] == expected["assistant_masks"]


def test_an_answer_that_begins_like_more_of_the_prompt_counts_whole(program, tmp_path):
    folder = save_tokenizer(tmp_path / "model")
    # What makes the model answer says more than the conversation: the answer may begin with it, with a part of it, or not.
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ '<|User|>' + message.content if message.role == 'user' else '<|Assistant|>' + message.content + '</s>' }}"
        "{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>{% endif %}"
    )
    answers = ["<b>", "<thin ice", "a", "<think>b"]
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]} for answer in answers]
    samples, _ = inspected(program, folder, rows)
    assert [sample["text_in_loss"] for sample in samples] == ["<b></s>", "<thin ice</s>", "a</s>", "b</s>"]


def test_share_gpt_rows_are_conversations(program, tmp_path):
    folder = model_with(tmp_path / "model", "chatml")
    ours = [{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}]
    share_gpt = [{"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}]
    assert inspected(program, folder, ours)[0][0]["tokens"] == inspected(program, folder, share_gpt)[0][0]["tokens"]
    whole = inspected(program, folder, ours, "--train_on_input")[0][0]
    assert set(whole["weights"]) == {1}


def test_a_part_of_the_rows_is_read_as_datasets_writes_it(program, tmp_path):
    folder = model_with(tmp_path / "model", "chatml")
    rows = [{"prompt": f"q{i}", "completion": f"a{i}"} for i in range(10)]
    (tmp_path / "set").mkdir()
    for name, part in (("a-test", rows[:4]), ("b-test", rows[4:7]), ("c-train", rows[7:])):
        write_rows(tmp_path / "set" / f"{name}.jsonl", part)

    def read(path, expected=0):
        words = ("--load_hf", folder, "--sft_data_path", path, "--json", "--samples", 10)
        _, printed, errors = program.run("inspect", "sft", *words, expected=expected)
        return [json.loads(line)["text_in_loss"][1] for line in printed.splitlines()[:-1] if "text_in_loss" in line], errors

    whole, files = tmp_path / "set", tmp_path / "set" / "a-test.jsonl"
    for path, digits in ((f"{files}[1:3]", "12"), (f"{whole}[2:6]", "2345"), (f"{whole}[75%:]", "89"), (f"{whole}[c[:1]]", "7"), (f"{whole}[c]", "789")):
        assert "".join(read(path)[0]) == digits, path
    assert "no row of the 10 is in this part" in read(f"{whole}[100%:]", expected=2)[1]


def test_rows_of_squad_are_primuss_line_and_messages_are_chatml(program, tmp_path):
    folder = model_with(tmp_path / "model", "headers")
    rows = [{"context": " c", "question": "q? ", "answers": {"text": ["a", "b"], "answer_start": [3, 9]}}]
    sample = inspected(program, folder, rows, "--sft_conversation_format", "squad")[0][0]
    assert sample["text"] == "Context: c Question: q? Answer: a</s>" and sample["text_in_loss"] == " a</s>"
    # By Alpaca's words the context is the input, as Dolly's is.
    assert "### Input:\n c\n" in inspected(program, folder, rows)[0][0]["text"]
    chat = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}]
    sample = inspected(program, folder, chat, "--sft_conversation_format", "messages")[0][0]
    assert sample["text"] == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    assert sample["text_in_loss"].startswith("a<|im_end|>")


def test_alpaca_rows_have_its_words_and_only_the_output_counts(program, tmp_path):
    folder = save_tokenizer(tmp_path / "model")
    rows = [{"instruction": "Add.", "input": "1 2", "output": "3"}, {"instruction": "Greet.", "input": "", "output": " Hi\n"}]
    samples, _ = inspected(program, folder, rows)
    intro = "Below is an instruction that describes a task"
    with_input = (
        f"{intro}, paired with an input that provides further context. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n3</s>"
    )
    without = f"{intro}. Write a response that appropriately completes the request.\n\n### Instruction:\nGreet.\n\n### Response:\n Hi\n</s>"
    assert [sample["text"] for sample in samples] == [with_input, without]
    assert [sample["text_in_loss"] for sample in samples] == ["3</s>", " Hi\n</s>"]
    # As axolotl's AlpacaPrompter writes them.
    system = with_input.split("\n")[0]
    marked = {"alpaca_chat": f"SYSTEM: {system}\nUSER: Add.\n1 2\nASSISTANT:3</s>", "alpaca_phi": f"<|system|>\n{system}<|end|>\n<|user|>\nAdd.<|end|>1 2<|assistant|>3</s>"}
    for form, text in marked.items():
        (sample,), _ = inspected(program, folder, rows[:1], "--sft_conversation_format", form)
        assert sample["text"] == text and sample["text_in_loss"] == "3</s>"


def test_prompts_texts_and_columns(program, tmp_path):
    folder = save_tokenizer(tmp_path / "model")
    samples, _ = inspected(program, folder, [{"prompt": "2+2=", "completion": "4"}])
    assert samples[0]["text"] == "2+2=4</s>" and samples[0]["text_in_loss"] == "4</s>"
    assert inspected(program, folder, [{"text": "ab"}])[0][0]["text_in_loss"] == "ab</s>"
    assert inspected(program, folder, [{"text": "ab", "input": "cd"}], "--sft_column", "input")[0][0]["text"] == "cd</s>"
    listed = folder / "rows.json"
    listed.write_text(json.dumps([{"text": "ab"}, {"text": "c"}], indent=1))
    _, output, _ = program.run("inspect", "sft", "--load_hf", folder, "--sft_data_path", listed, "--samples", 2)
    assert f"{listed}:2: 2 tokens" in output and "⟦c</s>⟧" in output and "2 samples of texts: 5 tokens" in output


def test_lists_are_read_item_by_item(program, tmp_path):
    folder = save_tokenizer(tmp_path / "model")
    listed = tmp_path / "rows.json"
    words = ("inspect", "sft", "--load_hf", folder, "--sft_data_path", listed, "--samples", 3, "--sft_ignore_keys", "more")
    texts = ["a]b,[{", 'a quote " and \\', "c" * 200_000]
    for indent in (None, 2):
        listed.write_text("\n " + json.dumps([{"text": text, "more": [[1], {"a": "]"}]} for text in texts], indent=indent) + "\n")
        output = program.run(*words)[1]
        assert "⟦a]b,[{</s>⟧" in output and "3 samples of texts" in output
    damaged = {
        '[{"text": "a"}': "rows.json: the JSON list does not end, behind item 0",
        '[{"text": "a"},': "rows.json: the JSON list does not end, behind item 1",
        '[{"text": "a"},]': "rows.json: the JSON list lacks an item, behind item 1",
        '[{"text": "a"}] {': "rows.json: the JSON list goes on behind its end, behind item 1",
        '[{"text": "a"} {"text": "b"}]': "rows.json:1",
        "[]": "has no rows",
    }
    for text, told in damaged.items():
        listed.write_text(text)
        assert told in program.run(*words, expected=2)[2]


def test_other_names_of_questions_and_answers(program, tmp_path):
    folder = save_tokenizer(tmp_path / "model")
    usual = inspected(program, folder, [{"instruction": "Add.", "output": "3"}])[0][0]["tokens"]
    for row in ({"instruction": "Add.", "response": "3"}, {"question": "Add.", "answer": "3"}):
        assert inspected(program, folder, [row])[0][0]["tokens"] == usual


def test_tables_hold_conversations(program, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.feather
    import pyarrow.parquet

    folder = model_with(tmp_path / "model", "chatml")
    random = Random(5)
    rows = answered(random, 300)
    expected, _ = inspected(program, folder, rows)
    # As data sets have it: columns that say nothing, members that are missing, numbers, and a binary column.
    table = pa.table(
        {
            "id": list(range(len(rows))),
            "messages": [[{**message, "name": None, "score": 0.5} for message in row["messages"]] for row in rows],
            "source": pa.array([None if i % 2 else "web" for i in range(len(rows))]),
            "image": pa.array([b"\xff\x00"] * len(rows)),
        }
    )
    share_gpt = pa.table(
        {"conversations": [[{"from": m["role"].replace("user", "human"), "value": m["content"]} for m in row["messages"]] for row in rows]}
    )
    pa.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=70)
    pa.parquet.write_table(share_gpt, tmp_path / "share.parquet")
    pa.feather.write_feather(table, tmp_path / "rows.feather", chunksize=50)
    for name in ("rows.parquet", "share.parquet", "rows.feather"):
        words = ("--sft_data_path", tmp_path / name, "--json", "--samples", len(rows), "--sft_ignore_keys", "image,score")
        _, output, _ = program.run("inspect", "sft", "--load_hf", folder, *words)
        samples = [json.loads(line) for line in output.split("\n")[: len(rows)]]
        assert [sample["tokens"] for sample in samples] == [sample["tokens"] for sample in expected], name
        assert [sample["weights"] for sample in samples] == [sample["weights"] for sample in expected], name
    (tmp_path / "rows.csv").write_text('question,answer\n2+2,4\n"a, b",c\n')
    _, output, _ = program.run("inspect", "sft", "--load_hf", folder, "--sft_data_path", tmp_path / "rows.csv", "--json")
    assert json.loads(output.split("\n")[1])["samples"] == 2


def test_pairs_of_answers_are_two_sequences_that_begin_with_the_question(program, tmp_path):
    folder = model_with(tmp_path / "model", "chatml")
    plain = {"prompt": "2+2=", "chosen": "4", "rejected": "55"}
    sample = inspected(program, folder, [plain])[0][0]
    assert sample["text"] == "2+2=4</s>2+2=55</s>" and sample["text_in_loss"] == "4</s>55</s>"
    user, good, bad = ({"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "good"), ("assistant", "bad")))
    whole = inspected(program, folder, [{"chosen": [user, good], "rejected": [user, bad]}])[0][0]
    assert whole["text_in_loss"] == "good<|im_end|>bad<|im_end|>"
    for row in (
        {"prompt": [user], "chosen": [good], "rejected": [bad]},
        {"prompt": "q", "chosen": [good], "rejected": [bad]},
        {"prompt": "q", "chosen": [user, good], "rejected": [user, bad]},
    ):
        assert inspected(program, folder, [row])[0][0]["tokens"] == whole["tokens"]
    # The system's words are of the question, also where both answers repeat the rest of it.
    system = {"role": "system", "content": "s"}
    whole = inspected(program, folder, [{"chosen": [system, user, good], "rejected": [system, user, bad]}])[0][0]
    for row in (
        {"system": "s", "chosen": [user, good], "rejected": [user, bad]},
        {"system": "s", "prompt": "q", "chosen": [system, user, good], "rejected": [user, bad]},
        {"prompt": [system, user], "chosen": [user, good], "rejected": [user, bad]},
    ):
        assert inspected(program, folder, [row])[0][0]["tokens"] == whole["tokens"]
    # Answers that both have are of the question.
    longer = inspected(program, folder, [{"chosen": [user, good, user, good], "rejected": [user, good, user, bad]}])[0][0]
    assert longer["text_in_loss"] == "good<|im_end|>bad<|im_end|>"


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def share(speaker, value, **more):
    return {"from": speaker, "value": value, **more}


CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "x"}}}
SYSTEM, USER, REPLY = say("system", "s"), say("user", "q"), say("assistant", "a")
CALLED = {"messages": [USER, say("assistant", "", tool_calls=[CALL]), say("tool", "7"), REPLY], "tools": TOOLS}
SHARED_CALL = [share("human", "q"), share("function_call", json.dumps(CALL["function"])), share("observation", "7"), share("gpt", "a")]
# Rows in the keys of other trainers, and what they mean.
SAME_ROWS = [
    ({"conversations": [share("human", "q"), share("gpt", "a")], "system": "s", "id": 7}, {"messages": [SYSTEM, USER, REPLY]}),
    ({"prompt": [SYSTEM, USER], "completion": [REPLY]}, {"messages": [SYSTEM, USER, REPLY]}),
    ({"prompt": "q", "prompt_id": "x", "messages": [USER, REPLY], "category": "y"}, {"messages": [USER, REPLY]}),
    ({**CALLED, "tools": json.dumps(TOOLS)}, CALLED),
    ({"messages": json.dumps(CALLED["messages"]), "tools": TOOLS}, CALLED),
    ({"conversations": SHARED_CALL, "tools": json.dumps([tool["function"] for tool in TOOLS])}, CALLED),
    ({"messages": [USER, REPLY], "tools": "[]"}, {"messages": [USER, REPLY]}),
    ({"conversations": [{"from": "human", "content": "q"}, {**share("gpt", "a"), **REPLY}]}, {"messages": [USER, REPLY]}),
    ({**CALLED, "parallel_tool_calls": False}, CALLED),
    # OpenAI's older calls, and members without a value, as in Parquet files.
    (
        {
            "messages": [USER, say("assistant", None, function_call={**CALL["function"], "arguments": '{"city": "x"}'}), say("function", "7", name="weather"), REPLY],
            "functions": [tool["function"] for tool in TOOLS],
        },
        CALLED,
    ),
    (
        {"messages": [{**USER, "tool_calls": None, "function_call": None}, {**REPLY, "tool_calls": [], "name": None}], "functions": None, "tools": []},
        {"messages": [USER, REPLY]},
    ),
]  # fmt: skip


def test_rows_of_other_trainers_are_what_they_mean(program, tmp_path):
    folder = model_with(tmp_path / "model", "chatml")
    samples, _ = inspected(program, folder, [row for pair in SAME_ROWS for row in pair])
    for (row, _), theirs, ours in zip(SAME_ROWS, samples[::2], samples[1::2], strict=True):
        assert (theirs["tokens"], theirs["weights"]) == (ours["tokens"], ours["weights"]), row
    # Instructions: Dolly's, Orca's, LLaMA-Factory's.
    rows = [
        {"instruction": "Add.", "context": "1 2", "response": "3", "category": "x"},
        {"id": "1", "system_prompt": "Be brief.", "question": "Add.", "response": "3"},
        {"instruction": "Add.", "input": "", "output": "3", "text": "Below is … Add. … 3"},
    ]
    samples, _ = inspected(program, folder, rows)
    assert "### Input:\n1 2\n" in samples[0]["text"]
    assert samples[1]["text"] == "Be brief.\n\n### Instruction:\nAdd.\n\n### Response:\n3</s>"
    history = {"instruction": "r", "output": "b", "system": "s", "history": [["q", "a"]]}
    chat = {"messages": [SYSTEM, USER, REPLY, say("user", "r"), say("assistant", "b")]}
    sample = inspected(program, folder, [history], "--sft_conversation_format", "chat_template")[0][0]
    assert sample["tokens"] == inspected(program, folder, [chat])[0][0]["tokens"]
    # Pairs: LLaMA-Factory's two forms, hh-rlhf's without a prompt.
    shared = {"conversations": [share("human", "q")], "chosen": share("gpt", "a"), "rejected": share("gpt", "b")}
    usual = {"prompt": [USER], "chosen": [REPLY], "rejected": [say("assistant", "b")], "score_chosen": 1.5}
    theirs, ours = inspected(program, folder, [shared, usual])[0]
    assert (theirs["tokens"], theirs["weights"]) == (ours["tokens"], ours["weights"])
    # OpenAI's preferences.
    more = say("assistant", "", tool_calls=[CALL])
    theirs = {"input": {"messages": [USER], "tools": TOOLS, "parallel_tool_calls": False}, "preferred_output": [more], "non_preferred_output": [REPLY]}
    ours = {"prompt": [USER], "tools": TOOLS, "chosen": [more], "rejected": [REPLY]}
    theirs, ours = inspected(program, folder, [theirs, ours])[0]
    assert (theirs["tokens"], theirs["weights"]) == (ours["tokens"], ours["weights"])
    rows = [{"chosen": "\n\nHuman: q\n\nAssistant: ab", "rejected": "\n\nHuman: q\n\nAssistant: cd"}, {"instruction": "q", "chosen": "a", "rejected": "b"}]
    samples, _ = inspected(program, folder, rows)
    assert [sample["text_in_loss"] for sample in samples] == [" ab</s> cd</s>", "a</s>b</s>"]
    assert "### Instruction:\nq\n" in samples[1]["text"]


def test_pairs_without_a_prompt_are_divided_as_trl_does(program, tmp_path):
    trl = pytest.importorskip("trl")
    folder = save_tokenizer(tmp_path / "model")
    rows = [{"chosen": f"Human: {i} Assistant:{a}", "rejected": f"Human: {i} Assistant:{b}"} for i, (a, b) in enumerate([(" x", " y"), ("x", "y"), (" äx", " äy")])]
    samples, _ = inspected(program, folder, rows)
    for row, sample in zip(rows, samples, strict=True):
        theirs = trl.extract_prompt(row)
        assert sample["text_in_loss"] == "".join(theirs[key] + "</s>" for key in ("chosen", "rejected"))


def test_answers_that_are_marked_are_not_learned(program, tmp_path):
    folder = model_with(tmp_path / "model", "chatml")
    more = [say("user", "r"), say("assistant", "b")]
    rows = [{"messages": [USER, {**REPLY, **mark}, *more]} for mark in ({"weight": 0}, {"train": False}, {"loss": False}, {"loss_weight": 0.0}, {"weight": 1})]
    rows.append({"conversations": [share("human", "q", weight=0), share("gpt", "a", weight=0), share("human", "r", weight=0), share("gpt", "b", weight=1)]})
    samples, _ = inspected(program, folder, rows)
    assert [sample["text_in_loss"] for sample in samples] == ["b<|im_end|>"] * 4 + ["a<|im_end|>b<|im_end|>", "b<|im_end|>"]
    assert inspected(program, folder, rows[4:5], "--mask_history")[0][0]["text_in_loss"] == "b<|im_end|>"


# Each row, and what its error says.
UNREAD = [
    ({"messages": [USER, REPLY], "images": ["x.png"]}, "nothing reads images of the row"),
    ({"messages": [USER, say("assistant", "a", reasoning_content="t")]}, "reads no reasoning_content of the assistant's message"),
    ({"messages": [USER, say("assistant", "a", weight=0.5)]}, "a message's weight is 0.5"),
    ({"messages": [say("user", "q", train=True), REPLY]}, "the user's message is marked as one that is learned"),
    ({"messages": [USER, REPLY], "tools": "weather"}, "tools is no list"),
    ({"messages": [USER, REPLY], "chat_template_kwargs": {"enable_thinking": False}}, "reads no variable enable_thinking"),
    ({"messages": [USER, REPLY], "chat_template_kwargs": '{"enable_thinking": false}'}, "reads no variable enable_thinking"),
    ({"text": "a", "label": False}, "label rates an answer, and the row has texts"),
    ({"chosen": "a", "rejected": "b", "kto_tag": True}, "kto_tag rates an answer, and the row has pairs of answers"),
    ({"prompt": "q", "completion": "a", "system": "s"}, "--sft_conversation_format chat_template"),
    ({"instruction": "q", "output": "a", "response": "b"}, "nothing reads response of the row"),
    ({"text": "t", "target": "u"}, "nothing reads target of the row"),
    ({"conversations": [share("human", "q"), share("function_call", "x")]}, "function_call"),
    ({"prompt": "q", "completion": "a", "label": "good"}, "label is \"good\", and rates an answer"),
    ({"prompt": "q", "completion": "a", "label": 0.5}, "label is 0.5, and rates an answer"),
    ({"prompt": "q", "completion": None}, "its keys: prompt, completion without a value"),
    ({"query": "q", "response": "a"}, "--sft_rename_keys reads other names as these"),
    ({"messages": [say("user", 3), REPLY]}, "the content of the user's message is 3"),
    ({"messages": [say("user", {"text": "q"}), REPLY]}, "the content of the user's message is {\"text\":\"q\"}"),
    ({"messages": [say("user", ["q"]), REPLY]}, "the content of the user's message has a part without a type"),
    ({"messages": [say("user", [{"type": "image", "image": "x.png"}]), REPLY]}, "has a part of type image, which is not read"),
    ({"messages": [USER, say("assistant", [{"type": "tool_use", "input": {}}])]}, "has a part of type tool_use, which is not read"),
    ({"messages": [USER, say("assistant", None, function_call={"arguments": "{}"})]}, "function_call is no call of a function"),
    ({"messages": [USER, say("assistant", None, function_call=CALL["function"], tool_calls=[CALL])]}, "a message has function_call and tool_calls"),
    ({**CALLED, "functions": [TOOLS[0]["function"]]}, "the row has functions and tools"),
    ({"messages": [USER, REPLY], "functions": ["f"]}, "functions holds what is no object"),
    ({"messages": [USER, REPLY], "parallel_tool_calls": "no"}, 'parallel_tool_calls is "no"'),
    ({"messages": [USER, say("assistant", "", tool_calls=[CALL, CALL])], "tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls is false, and message 2 has 2 calls"),
    ({"input": {"messages": [USER], "seed": 1}, "preferred_output": [REPLY], "non_preferred_output": [say("assistant", "b")]}, "nothing reads input.seed of the row"),
    ({"input": {"prompt": "q"}, "preferred_output": [REPLY], "non_preferred_output": [REPLY]}, "input is no object with messages"),
    ({"input": {"messages": [USER]}, "preferred_output": [REPLY], "non_preferred_output": None}, "the row has no non_preferred_output"),
    ({"input": {"messages": [USER]}, "prompt": "q", "preferred_output": [REPLY], "non_preferred_output": [REPLY]}, "the row has prompt and prompt"),
    ({"messages": [USER, say("assistant", "")]}, "the answer in message 2 is empty"),
    ({"prompt": "q", "completion": ""}, "the answer is empty"),
    ({"prompt": "q", "chosen": "", "rejected": "a"}, "the answer is empty"),
    ({"input_ids": [1, 2], "labels": [-100]}, "labels has 1 numbers, and input_ids 2"),
    ({"input_ids": [1, 2], "labels": []}, "labels has 0 numbers, and input_ids 2"),
    ({"input_ids": [1, 99999]}, "input_ids holds 99999, and the vocabulary has"),
    ({"input_ids": [1, 2, 3], "labels": [-100, 3, 4]}, "labels has 3 at 1, and input_ids 2"),
    ({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "attention_mask is 0 at 1, between tokens"),
    ({"input_ids": [1, 2, 3], "labels": [1, 2, 3], "attention_mask": [1, 1, 0]}, "attention_mask is 0 at 2, and labels 3"),
    ({"input_ids": [1, 2], "completion_mask": [0, 2]}, "completion_mask holds 2"),
    ({"input_ids": [1, "2"]}, 'input_ids holds "2"'),
    ({"input_ids": []}, "input_ids has no token"),
    ({"input_ids": [1, 2], "position_ids": [0, 1]}, "nothing reads position_ids of the row"),
    ({"input_ids": [1, 2], "label": True}, "label rates an answer, and the row has tokens"),
    ({"messages": [USER, REPLY], "tools": ["{}"]}, "tools holds what is no object"),
    ({"messages": [USER, say("assistant", "a", weight="0")]}, "a message's weight is \"0\""),
    ({"conversations": ["q", "a"]}, "a message is no object"),
    ({"conversation": [{"input": "q", "output": "a"}]}, "a message has no role"),
    ({"messages": [USER, say("system", "s"), REPLY]}, "message 2 is the system's after the user's"),
    ({"question": "2+2", "answer": 4}, "answer is 4, expected a text"),
    ({"system": ["s"], "messages": [USER, REPLY]}, "system is [\"s\"], expected a text"),
    ({"instruction": "q", "output": "a", "history": [["x", "y"]]}, "the row has a history, and is written without a chat template"),
    ({"instruction": "q", "output": "a", "history": [["x"]]}, "history is no list of [question, answer]"),
    ({"prompt": "q", "chosen": "a", "rejected": [REPLY]}, "chosen is no list"),
    ({"prompt": "q", "chosen": "a", "rejected": "a"}, "chosen and rejected are the same text"),
    ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": 0.5}, "nothing reads margin of the row"),
    ({"messages": [USER, REPLY, USER], "label": True}, "ends with the user's message"),
    ({"messages": [USER, REPLY], "label": True, "kto_tag": False}, "nothing reads kto_tag of the row"),
    ({"prompt": "q", "completions": ["a", "b"], "labels": [True, False]}, "keys of no form"),
    ({"conversations": [share("human", "q"), share("gpt", "a", content="b")]}, "a message has value and content, which differ"),
    ({"conversations": [share("human", "q", role="assistant"), share("gpt", "a")]}, "a message has from and role, which differ"),
    ({"messages": [USER, {**REPLY, "value": 3}]}, "reads no value of the assistant's message"),
]  # fmt: skip


def test_what_nothing_reads_is_named(program, tmp_path):
    folder = model_with(tmp_path / "model", "chatml")
    path = folder / "rows.jsonl"
    words = ("inspect", "sft", "--load_hf", folder, "--sft_data_path", path, "--samples", 1)
    for begin in range(0, len(UNREAD), 20):  # as many are told
        part_of_all = UNREAD[begin : begin + 20]
        write_rows(path, [row for row, _ in part_of_all])
        _, _, errors = program.run(*words, expected=2)
        for i, (_, part) in enumerate(part_of_all):
            assert any(f"rows.jsonl:{i + 1}" in line and part in line for line in errors.replace("\n  ", " ").split("\n")), (i, part, errors)
    # Passed over when asked for, and bad rows left out up to a number, which is told.
    write_rows(path, [{"messages": [USER, REPLY], "images": ["x"]}] + [row for row, _ in UNREAD[2:5]])
    _, output, _ = program.run(*words, "--sft_ignore_keys", "images", "--skip_bad_rows", 3)
    assert "1 sample of conversations" in output and "3 rows left out by skip_bad_rows" in output
    assert all(f"left out: {path}:{line}: " in output for line in (2, 3, 4))
    program.run(*words, "--sft_ignore_keys", "images", "--skip_bad_rows", 2, expected=2)


def test_rows_of_tokens_are_learned_as_they_stand(program, tmp_path):
    folder = model_with(tmp_path / "model", "chatml")
    random = Random(11)
    chats = [{"messages": conversation(random, calls=False)[:2] + [REPLY]} for _ in range(12)]
    chats = [row for row in chats if row["messages"][1]["role"] == "user"] + [{"messages": [USER, REPLY]}]
    samples, _ = inspected(program, folder, chats)
    rows = []
    for i, sample in enumerate(samples):
        ids, weights = sample["tokens"], sample["weights"]
        labels = [token if weight else -100 for token, weight in zip(ids, weights, strict=True)]
        padded = {"input_ids": [0] * 2 + ids + [0] * 3, "attention_mask": [0] * 2 + [1] * len(ids) + [0] * 3}
        rows.append(
            (
                {"input_ids": ids, "labels": labels, "length": len(ids)},
                {**padded, "labels": [-100] * 2 + labels + [-100] * 3},
                {"input_ids": ids, "completion_mask": weights},
                {"input_ids": ids, "completion_mask": [1] * len(ids), "assistant_masks": [bool(weight) for weight in weights]},
            )[i % 4]
        )
    made, (totals,) = inspected(program, folder, rows)
    assert [(sample["tokens"], sample["weights"]) for sample in made] == [(sample["tokens"], sample["weights"]) for sample in samples]
    assert totals["tokens_in_loss"] == sum(sum(sample["weights"]) for sample in samples)
    whole = inspected(program, folder, [{"input_ids": [1, 2, 3]}])[0][0]
    assert (whole["form"], whole["tokens"], whole["weights"]) == ("tokens", [1, 2, 3], [1, 1, 1])


def test_words_that_a_template_drops_are_errors(program, tmp_path):
    folder = save_tokenizer(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{% if message.role == 'user' %}<|User|>{{ message.content }}{% elif message.role == 'assistant' %}"
        "<|Assistant|>{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% else %}{{ message.content }}{% endif %}</s>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|Assistant|>{% endif %}"
    )
    called = [USER, say("assistant", "wait", tool_calls=[CALL]), say("tool", "7"), REPLY]
    rows = [{"messages": [SYSTEM, USER, REPLY]}, {"messages": called}, {"messages": [*called[:2], say("tool", ""), REPLY]}]
    path = write_rows(folder / "rows.jsonl", rows)
    words = ("inspect", "sft", "--load_hf", folder, "--sft_data_path", path, "--samples", 0)
    _, _, errors = program.run(*words, expected=2)
    assert "rows.jsonl:1: the template" in errors and "writes nothing of the system's words in message 1" in errors and "--sft_drop_system" in errors
    assert "rows.jsonl:2: the template" in errors and "writes nothing of the tool's words in message 3" in errors
    _, output, _ = program.run(*words, "--sft_drop_system", "--skip_bad_rows", 1)
    assert "2 samples of conversations" in output and "1 row left out by skip_bad_rows" in output
    assert "not learned: words beside calls of tools, once" in output


def test_what_a_template_passes_over_is_told_with_its_count(program, tmp_path):
    folder = save_tokenizer(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ '<|User|>' if message.role == 'user' else '' if message.role == 'assistant' else message.name }}"
        "{{ message.content }}{% endfor %}{{ tools | length if tools else '' }}"
    )
    named = [say("user", "q", name="Ann"), say("assistant", "a", name="Bob", tools=[1]), say("user", "r", name="Ann"), say("assistant", "b")]
    path = write_rows(folder / "rows.jsonl", [{"messages": named}, {"messages": [USER, REPLY, say("tool", "7", name="time"), REPLY]}])
    words = ("inspect", "sft", "--load_hf", folder, "--sft_data_path", path, "--samples", 0)
    _, output, _ = program.run(*words)
    lines = output.splitlines()
    assert [line for line in lines if line.startswith("not learned: ")] == [
        f"not learned: {what}, which the chat template does not read there"
        for what in ("name of the assistant's message, once", "name of the user's message, 2 times", "tools of the assistant's message, once")
    ]
    # Three are before a question's special token, which is their end; one is before the tool's words.
    assert "1 answer learned without an end, of which the chat template writes none" in output
    _, output, _ = program.run(*words, "--sft_ignore_keys", "name,tools")
    assert "not learned" not in output


def test_prepared_files_are_what_a_start_makes_and_are_refused_by_another_reader(program, tmp_path):
    folder = model_with(tmp_path / "model", "chatml")
    random = Random(9)
    rows = [{"messages": conversation(random, calls=False)} for _ in range(40)]
    rows = [row for row in rows if row["messages"][-1]["role"] == "assistant"]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    words = ("prepare", "--sft", "--input", path, "--output_prefix", tmp_path / "made" / "set", "--load_hf", folder)
    _, output, _ = program.run(*words)
    assert f"{len(rows)} samples of conversations" in output
    samples, _ = inspected(program, folder, rows)
    tokens, starts = read_sequences(tmp_path / "made" / "set")
    mask, mask_starts = read_sequences(tmp_path / "made" / "set_mask")
    assert starts == mask_starts and len(starts) == len(rows) + 1
    for sample, begin, end in zip(samples, starts, starts[1:], strict=False):
        assert tokens[begin:end] == sample["tokens"] and mask[begin:end] == sample["weights"]
    _, _, errors = program.run(*words, expected=2)
    assert "set.json: a file is there" in errors and "--overwrite" in errors
    program.run(*words, "--overwrite")
    train = ("--sft_data_path", tmp_path / "made" / "set", "--split", "1,0,0", "--num_layers", 1, "--hidden_size", 16)
    train += ("--num_attention_heads", 2, "--seq_length", 512, "--max_position_embeddings", 512, "--global_batch_size", 1)
    train += ("--train_iters", 1, "--eval_iters", 0, "--device", "cpu")
    _, output, errors = program.run("train", "--tokenizer_model", folder, *train)
    assert "making tokens" not in output + errors
    _, _, errors = program.run("train", "--tokenizer_model", folder, *train, "--train_on_input", expected=2)
    assert "was prepared otherwise" in errors and "train_on_input" in errors
    other = model_with(tmp_path / "other", "headers")
    _, _, errors = program.run("train", "--tokenizer_model", other, *train, expected=2)
    assert "was prepared otherwise" in errors and "another chat template" in errors


def read_sequences(prefix):
    """Megatron's files, read by their format: the numbers, and where sequences begin."""
    import struct

    data = prefix.with_suffix(".idx").read_bytes()
    assert data[:9] == b"MMIDIDX\0\0"
    _, code, count, _ = struct.unpack_from("<QBQQ", data, 9)
    lengths = struct.unpack_from(f"<{count}i", data, 34)
    form = {1: "B", 4: "i", 7: "f", 8: "H"}[code]
    values = prefix.with_suffix(".bin").read_bytes()
    numbers = list(struct.unpack(f"<{len(values) // struct.calcsize(form)}{form}", values))
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    return numbers, starts


QUESTION, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CHAT = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}]
BAD = [
    ("a row without the keys of a form", CHAT + [{"question": "q"}], (), ["rows.jsonl:2", "keys of no form", "question"]),
    ("two roles in a row", [{"messages": [{"role": "user", "content": "q"}] * 2}], (), ["rows.jsonl:1", "message 2 is the user's after the user's"]),
    ("an answer first", [{"messages": [{"role": "assistant", "content": "a"}]}], (), ["message 1 is the assistant's after nothing"]),
    ("an unknown role", [{"messages": [{"role": "oracle", "content": "q"}]}], (), ["role 'oracle' is not known"]),
    ("a message without content", [{"messages": [{"role": "user"}]}], (), ["the user's message has no content"]),
    ("an answer of nothing", [{"messages": [QUESTION, {"role": "assistant", "content": None, "tool_calls": None}]}], (), ["the assistant's message has no content"]),
    ("conversations that are no list", [{"conversations": "hi"}], (), ["rows.jsonl:1", "conversations is no list"]),
    ("an empty prompt and completion", [{"prompt": [], "completion": []}], (), ["rows.jsonl:1", "the row has no message"]),
    ("a system in SQuAD's line", [{"question": "q", "answer": "a", "system": "s"}], ("--sft_conversation_format", "squad"), ["the row has a system"]),
    ("messages that are no list", [{"messages": "hi"}], (), ["rows.jsonl:1", "messages is no list"]),
    ("two forms in a set", CHAT + [{"text": "t"}], (), ["rows.jsonl:2", "the row is one of texts, and those before are conversations"]),
    ("an empty set", [], (), ["the set has no rows"]),
    ("no row that can be used", [{"question": "q"}], ("--skip_bad_rows", 5), ["no row can be used, and skip_bad_rows left out 1 row: ", "rows.jsonl:1: the row has the keys of no form"]),
    ("no answers", [{"messages": [{"role": "user", "content": "q"}]}], (), ["rows.jsonl:1: nothing of the row is learned"]),
    ("answers that are all marked", CHAT + [{"messages": [QUESTION, {**ANSWER, "weight": 0}]}], (), ["rows.jsonl:2: nothing of the row is learned"]),
    ("tokens that are all masked", [{"input_ids": [1, 2], "labels": [-100, -100]}], (), ["rows.jsonl:1: nothing of the row is learned"]),
    ("texts of nothing", [{"text": ""}], (), ["no token of the 1 rows counts"]),
    ("tokens with all in the loss", [{"input_ids": [1, 2]}], ("--train_on_input",), ["the row says itself"]),
    ("no questions", [{"prompt": "", "completion": "a"}], (), ["every token of the 1 rows counts"]),
    ("Alpaca's words for conversations", CHAT, ("--sft_conversation_format", "alpaca"), ["alpaca is for instructions"]),
    ("a sample that is too long", CHAT, ("--seq_length", 10), ["rows.jsonl:1", "seq_length is 10", "--truncate"]),
    ("a pair with one answer", [{"prompt": "q", "chosen": "a"}], (), ["rows.jsonl:1", "keys of no form", "prompt, chosen"]),
    ("a pair without a question", [{"chosen": "a", "rejected": "b"}], (), ["which begin differently, and no prompt"]),
    ("a pair of equal answers", [{"prompt": "q", "chosen": [ANSWER], "rejected": [ANSWER]}], (), ["the same conversation"]),
    ("a pair that ends with a question", [{"prompt": "q", "chosen": [ANSWER, QUESTION], "rejected": [ANSWER]}], (), ["chosen ends with the user's"]),
    ("pairs with all in the loss", [{"prompt": "q", "chosen": "a", "rejected": "b"}], ("--train_on_input",), ["train_on_input with pairs"]),
    ("a column that is not there", CHAT, ("--sft_column", "body"), ["the row has no body"]),
]  # fmt: skip


@pytest.mark.parametrize("name, rows, words, parts", BAD, ids=[row[0] for row in BAD])
def test_bad_rows_are_named_with_their_place(program, tmp_path, name, rows, words, parts):
    folder = model_with(tmp_path / "model", "chatml")
    path = write_rows(folder / "rows.jsonl", rows)
    _, _, errors = program.run("inspect", "sft", "--load_hf", folder, "--sft_data_path", path, *words, expected=2)
    for part in parts:
        assert part in errors, errors


def test_weights_behind_a_licence_are_named_with_its_page_and_the_variable(program, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", CHAT)
    server = Hub()
    try:
        server.add("org/model", {"config.json": b"{}", "model.safetensors": b"weights"}, ("model.safetensors",))
        server.gated.add("org/model")
        hub = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": server.endpoint, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "", "no_proxy": "*"}
        words = ("train", "--load_hf", "org/model", "--sft_data_path", rows, "--lora.enabled", "true", "--train_iters", 1)
        _, _, errors = program.run(*words, expected=2, environment=hub)
    finally:
        server.close()
    for part in ("org/model", f"{server.endpoint}/org/model", "licence", "HF_TOKEN"):
        assert part in errors


def test_bad_templates_are_refused(program, tmp_path):
    folder = save_tokenizer(tmp_path / "model")
    rows = write_rows(tmp_path / "rows.jsonl", CHAT)
    words = ("inspect", "sft", "--load_hf", folder, "--sft_data_path", rows)
    _, _, errors = program.run(*words, expected=2)
    assert "has no chat template" in errors and "Instruct" in errors
    (folder / "chat_template.jinja").write_text("{{ bos_token }}\n{% include 'x' %}")
    _, _, errors = program.run(*words, expected=2)
    assert "chat_template.jinja:2: the statement 'include' is not known here" in errors
