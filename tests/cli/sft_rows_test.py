"""Instruction data: which tokens count in the loss, how samples are packed, and what is refused."""

import json
from random import Random

import pytest
from chats import conversation, inspected, model_with, save_tokenizer, write_rows

ENDS = {"chatml": "<|im_end|>", "headers": "<|end_turn|>", "instructions": "</s>", "marked": "<|end_turn|>", "selected": "</s>", "turns": "<|end_turn|>"}


@pytest.mark.parametrize("template", sorted(ENDS))
def test_what_counts_is_the_answers_and_their_ends(program, tmp_path, template):
    folder = model_with(tmp_path / "model", template)
    random = Random(template)
    rows = [{"messages": conversation(random, calls=False)} for _ in range(150)]
    rows = [row for row in rows if row["messages"][-1]["role"] == "assistant"]
    # Some templates write what stands behind the system's message only at the last question.
    samples, (totals,) = inspected(program, folder, rows)
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
    rows = [{"messages": conversation(random, calls=False)} for _ in range(60)]
    samples, _ = inspected(program, folder, rows)
    for row, sample in zip(rows, samples, strict=True):
        expected = theirs.apply_chat_template(row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        assert sample["tokens"] == expected["input_ids"] and sample["weights"] == expected["assistant_masks"]


def test_share_gpt_rows_are_conversations(program, tmp_path):
    folder = model_with(tmp_path / "model", "chatml")
    ours = [{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}]
    share_gpt = [{"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}]
    assert inspected(program, folder, ours)[0][0]["tokens"] == inspected(program, folder, share_gpt)[0][0]["tokens"]
    whole = inspected(program, folder, ours, "--train_on_input")[0][0]
    assert set(whole["weights"]) == {1}


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


def packed(lengths, size, most):
    """torchtune's greedy packing."""
    packs, used = [], size + 1
    for i, length in enumerate(lengths):
        if used + length > size or len(packs[-1]) == most:
            packs.append([])
            used = 0
        packs[-1].append([i, 0, length])
        used += length
    return packs


def first_fit(lengths, size):
    packs = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        room = (pack for pack in packs if sum(piece[2] for piece in pack) + lengths[i] <= size)
        pack = next(room, None)
        if pack is None:
            packs.append(pack := [])
        pack.append([i, 0, lengths[i]])
    return packs


def test_packs_equal_those_of_plain_packers(program, tmp_path):
    folder = save_tokenizer(tmp_path / "model")
    random = Random(3)
    rows = [{"prompt": "q", "completion": "x" * random.randrange(1, 60)} for _ in range(200)]
    lengths = [len(row["completion"]) + 2 for row in rows]
    words = ("--seq_length", 64, "--enable_packed_sequences")
    assert inspected(program, folder, rows, *words)[1][1]["sequences"] == packed(lengths, 64, 10**9)
    assert inspected(program, folder, rows, *words, "--max_samples_per_sequence", 2)[1][1]["sequences"] == packed(lengths, 64, 2)
    assert inspected(program, folder, rows, *words, "--sft_packing", "first_fit_decreasing")[1][1]["sequences"] == first_fit(lengths, 64)
    cut = inspected(program, folder, rows, "--seq_length", 30, "--enable_packed_sequences", "--truncate")[1][1]["sequences"]
    assert cut == packed([min(length, 30) for length in lengths], 30, 10**9)
    assert inspected(program, folder, rows, "--seq_length", 64)[1][1]["sequences"] == [[[i, 0, length]] for i, length in enumerate(lengths)]
    # Texts go on in the next sequence.
    texts = [{"text": "x" * (length - 1)} for length in lengths]
    pieces = inspected(program, folder, texts, *words)[1][1]["sequences"]
    assert all(sum(piece[2] for piece in pack) == 64 for pack in pieces[:-1])
    assert sum(piece[2] for pack in pieces for piece in pack) == sum(lengths)


CHAT = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}]
BAD = [
    ("a row without the keys of a form", CHAT + [{"question": "q"}], (), ["rows.jsonl:2", "keys of no form", "question"]),
    ("two roles in a row", [{"messages": [{"role": "user", "content": "q"}] * 2}], (), ["rows.jsonl:1", "message 2 is the user's behind the user's"]),
    ("an answer first", [{"messages": [{"role": "assistant", "content": "a"}]}], (), ["message 1 is the assistant's behind nothing"]),
    ("an unknown role", [{"messages": [{"role": "oracle", "content": "q"}]}], (), ["role 'oracle' is not known"]),
    ("a message without content", [{"messages": [{"role": "user"}]}], (), ["the user's message has no content"]),
    ("messages that are no list", [{"messages": "hi"}], (), ["rows.jsonl:1", "messages is no list"]),
    ("two forms in a set", CHAT + [{"text": "t"}], (), ["rows.jsonl:2", "the row is one of texts, and those before are conversations"]),
    ("an empty set", [], (), ["the set has no rows"]),
    ("no answers", [{"messages": [{"role": "user", "content": "q"}]}], (), ["no token of the 1 rows counts"]),
    ("no questions", [{"prompt": "", "completion": "a"}], (), ["every token of the 1 rows counts"]),
    ("Alpaca's words for conversations", CHAT, ("--sft_conversation_format", "alpaca"), ["alpaca is for instructions"]),
    ("a sample that is too long", CHAT, ("--seq_length", 10), ["rows.jsonl:1", "seq_length is 10", "--truncate"]),
    ("a column that is not there", CHAT, ("--sft_column", "body"), ["the row has no body"]),
]  # fmt: skip


@pytest.mark.parametrize("name, rows, words, parts", BAD, ids=[row[0] for row in BAD])
def test_bad_rows_are_named_with_their_place(program, tmp_path, name, rows, words, parts):
    folder = model_with(tmp_path / "model", "chatml")
    path = write_rows(folder / "rows.jsonl", rows)
    _, _, errors = program.run("inspect", "sft", "--load_hf", folder, "--sft_data_path", path, *words, expected=2)
    for part in parts:
        assert part in errors, errors


def test_bad_templates_are_refused(program, tmp_path):
    folder = save_tokenizer(tmp_path / "model")
    rows = write_rows(tmp_path / "rows.jsonl", CHAT)
    words = ("inspect", "sft", "--load_hf", folder, "--sft_data_path", rows)
    _, _, errors = program.run(*words, expected=2)
    assert "has no chat template" in errors and "Instruct" in errors
    (folder / "chat_template.jinja").write_text("{{ bos_token }}\n{% include 'x' %}")
    _, _, errors = program.run(*words, expected=2)
    assert "chat_template.jinja:2: the statement 'include' is not known here" in errors
