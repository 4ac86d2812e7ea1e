"""Preference optimization (DPO, KTO) against TRL, and against a plain reading of its formula on transformers' models: losses
and rewards of ten steps, all weights or adapters, the reference ahead or on the fly, packed or not; and what a resumed run
does."""

import copy
import json
import math
from random import Random

import pytest
import torch
from chats import model_with, write_rows
from program import read_metrics

# A large eps: else Adam's first step is the sign of each gradient, also of those that are nothing but rounding.
STEPS, PAIRS, BETA, LR, EPS = 10, 12, 0.3, 3e-3, 1e-3
NAMES = ("dpo_loss", "chosen_reward", "rejected_reward", "reward_margin", "reward_accuracy")


@pytest.fixture(scope="module")
def tuned(program, tmp_path_factory):
    """A tiny Llama with a chat template, pairs of answers, and the tokens that the program makes of them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = model_with(tmp_path_factory.mktemp("dpo") / "model", "chatml")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=272, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, bos_token_id=256, eos_token_id=257, tie_word_embeddings=False, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    random = Random(3)

    def word():
        return "".join(random.choice("abcdef") for _ in range(random.randrange(1, 9)))

    rows = []
    for _ in range(PAIRS):
        question = [{"role": "user", "content": word()}]
        rows.append({"prompt": question, **{key: [{"role": "assistant", "content": word()}] for key in ("chosen", "rejected")}})
    path = write_rows(folder.parent / "pairs.jsonl", rows)
    _, output, _ = program.run("inspect", "sft", "--load_hf", folder, "--sft_data_path", path, "--json", "--samples", PAIRS)
    samples = [json.loads(line) for line in output.split("\n")[:PAIRS]]
    begins = [folder_tokens(program, folder, rows, key) for key in ("chosen", "rejected")]
    sequences = []
    for i, sample in enumerate(samples):
        cut = begins[0][i]
        assert len(sample["tokens"]) == cut + begins[1][i]
        parts = [(sample["tokens"][:cut], sample["weights"][:cut]), (sample["tokens"][cut:], sample["weights"][cut:])]
        sequences += [(torch.tensor([ids]), torch.tensor(weights[1:])) for ids, weights in parts]
    return folder, model, path, sequences


def folder_tokens(program, folder, rows, key):
    """Lengths of the conversations with one of the answers, from transformers."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [len(tokenizer.apply_chat_template(row["prompt"] + row[key])) for row in rows]


def log_probs(model, sequences):
    """Each answer's sum over its tokens."""
    sums = []
    for ids, weights in sequences:
        logits = model(ids).logits[0, :-1]
        sums.append((logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0] * weights).sum())
    return torch.stack(sums).view(-1, 2)


def plain_loop(model, reference, sequences, steps=STEPS):
    parameters = [p for p in model.parameters() if p.requires_grad]
    # Norms are not decayed.
    groups = [{"params": [p for p in parameters if p.dim() > 1]}, {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=EPS, weight_decay=0.1)
    with torch.no_grad():
        expected = log_probs(reference, sequences)
    history = []
    for _ in range(steps):
        rewards = BETA * (log_probs(model, sequences) - expected)
        margin = rewards[:, 0] - rewards[:, 1]
        loss = -torch.nn.functional.logsigmoid(margin).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        history.append([loss.item(), *rewards.mean(0).tolist(), margin.mean().item(), (margin > 0).double().mean().item(), norm.item()])
    return history


def train(program, tuned, folder, *words, sequence=160, batch=PAIRS, cache=None, expected=0, steps=STEPS, rows=None):
    folder.mkdir(exist_ok=True)
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    _, output, errors = program.run(
        *("train", "--load_hf", tuned[0], "--sft_data_path", rows or tuned[2], "--split", "1,0,0", "--loss", "dpo", "--dpo_beta", BETA),
        *("--seq_length", sequence, "--micro_batch_size", 2, "--global_batch_size", batch, "--train_iters", steps, "--fp32"),
        *("--lr", LR, "--lr_decay_style", "constant", "--weight_decay", 0.1, "--clip_grad", 1.0, "--adam_beta2", 0.95, "--adam_eps", EPS),
        *("--eval_iters", 0, "--metrics_file", metrics, "--device", "cpu", "--data_cache_path", cache or folder / "cache"),
        *words,
        expected=expected,
    )
    return (read_metrics(metrics) if metrics.exists() else []), output + errors


def check(lines, history):
    assert len(lines) == len(history)
    for line, (*values, norm) in zip(lines, history, strict=True):
        # Before anything has moved the margins are rounding, and so is their sign.
        num = 4 if abs(values[3]) < 1e-5 else 5
        found = [line[name] for name in NAMES[:num]]
        assert found == pytest.approx(values[:num], abs=1e-4), f"iteration {line['iteration']}"
        assert line["grad_norm"] == pytest.approx(norm, rel=1e-3)


def test_all_weights_are_trained_as_the_formula_says(program, tuned, tmp_path):
    _, model, _, sequences = tuned
    history = plain_loop(copy.deepcopy(model).train(), model, sequences)
    assert history[0][0] == pytest.approx(math.log(2)) and history[-1][0] < 0.5
    cache = tmp_path / "cache"
    lines, output = train(program, tuned, tmp_path / "a", cache=cache)
    check(lines, history)
    assert "reads the 12 pairs" in output and "loss_tokens" not in lines[0]
    # Several pairs in a sequence; what the reference says is there already.
    words = ("--enable_packed_sequences", "--max_samples_per_sequence", 3, "--micro_batch_size", 1)
    packed, output = train(program, tuned, tmp_path / "b", *words, sequence=512, batch=4, cache=cache)
    check(packed, history)
    assert "reads the 12 pairs" not in output
    # A run that goes on from a checkpoint has the same numbers, and the reference of its beginning.
    words = ("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint")
    first, _ = train(program, tuned, tmp_path / "c", *words, "--exit_interval", 4, cache=cache)
    second, output = train(program, tuned, tmp_path / "d", *words, cache=cache)
    assert [line["dpo_loss"] for line in first + second] == [line["dpo_loss"] for line in lines] and len(first) == 4
    for path in cache.glob("*reference*"):
        path.unlink()
    _, output = train(program, tuned, tmp_path / "d", *words, cache=cache, expected=2, steps=STEPS + 1)
    assert "what the model that training began with says of the pairs" in output


@pytest.mark.parametrize("reference", ["ahead", "on_the_fly"])
def test_adapters_are_compared_with_the_model_without_them(reference, program, tuned, tmp_path):
    peft = pytest.importorskip("peft")
    _, model, _, sequences = tuned
    torch.manual_seed(7)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(copy.deepcopy(model), config).train()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.05)
    theirs.save_pretrained(tmp_path / "adapter")
    history = plain_loop(theirs, model, sequences)
    assert abs(history[0][3]) > 1e-2, "the adapters begin with something, so the reference is not what is trained"
    lines, _ = train(program, tuned, tmp_path / "a", "--adapter", tmp_path / "adapter", "--dpo_reference", reference)
    check(lines, history)


@pytest.mark.parametrize("adapts", [False, True], ids=["all_weights", "adapters"])
def test_ten_steps_equal_those_of_trl(adapts, program, tuned, tmp_path):
    peft, trl = pytest.importorskip("peft"), pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import AutoTokenizer

    folder, model, _, _ = tuned
    random = Random(5)
    # Texts, whose answers both end with the end token: of a chat, TRL takes what the template writes after that too.
    rows = [{key: "".join(random.choices("abcdef", k=random.randrange(1, 9))) for key in ("prompt", "chosen", "rejected")} for _ in range(PAIRS)]
    words, theirs = [], copy.deepcopy(model)
    if adapts:
        torch.manual_seed(8)
        theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
        theirs.save_pretrained(tmp_path / "adapter")
        words = ["--adapter", tmp_path / "adapter"]
    options = trl.DPOConfig(
        output_dir=str(tmp_path / "trl"), beta=BETA, max_steps=STEPS, per_device_train_batch_size=PAIRS, learning_rate=LR, lr_scheduler_type="constant",
        adam_beta2=0.95, adam_epsilon=EPS, weight_decay=0.1, max_grad_norm=1.0, logging_steps=1, save_strategy="no", report_to="none", max_length=None,
        bf16=False, gradient_checkpointing=False, use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    pairs, tokenizer = Dataset.from_list(rows), AutoTokenizer.from_pretrained(folder)
    # The reference of adapters is the model without them.
    reference = None if adapts else copy.deepcopy(model)
    trainer = trl.DPOTrainer(theirs, reference, args=options, train_dataset=pairs, processing_class=tokenizer)
    trainer.train()
    names = ("loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "grad_norm")
    history = [[line[name] for name in names] for line in trainer.state.log_history if "loss" in line]
    lines, _ = train(program, tuned, tmp_path / "a", *words, rows=write_rows(tmp_path / "texts.jsonl", rows))
    check(lines, history)


@pytest.mark.parametrize("adapts", [False, True], ids=["all_weights", "adapters"])
def test_ten_steps_of_kto_equal_those_of_trl(adapts, program, tuned, tmp_path):
    peft, trl = pytest.importorskip("peft"), pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import AutoTokenizer

    folder, model, _, _ = tuned
    random = Random(6)
    rows = [{key: "".join(random.choices("abcdef", k=random.randrange(1, 9))) for key in ("prompt", "completion")} for _ in range(PAIRS)]
    rows = [{**row, "label": i % 6 > 0} for i, row in enumerate(rows)]
    words, theirs = [], copy.deepcopy(model)
    if adapts:
        torch.manual_seed(8)
        theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
        theirs.save_pretrained(tmp_path / "adapter")
        words = ["--adapter", tmp_path / "adapter", "--dpo_reference", "on_the_fly"]
    options = trl.KTOConfig(
        output_dir=str(tmp_path / "trl"), beta=BETA, max_steps=STEPS, per_device_train_batch_size=PAIRS, learning_rate=LR, lr_scheduler_type="constant",
        adam_beta2=0.95, adam_epsilon=EPS, weight_decay=0.1, max_grad_norm=1.0, logging_steps=1, save_strategy="no", report_to="none", max_length=None,
        bf16=False, gradient_checkpointing=False, use_cpu=True, disable_tqdm=True, desirable_weight=0.75, undesirable_weight=1.5,
    )  # fmt: skip
    reference = None if adapts else copy.deepcopy(model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = trl.KTOTrainer(theirs, reference, args=options, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.train()
    history = [line for line in trainer.state.log_history if "loss" in line]
    assert len(history) == STEPS and history[-1]["kl"] > 1e-2, "the KL estimate stays 0, so a wrong one would pass"
    words += ["--loss", "kto", "--kto_desirable_weight", 0.75, "--kto_undesirable_weight", 1.5]
    path = write_rows(tmp_path / "rated.jsonl", rows)
    lines, _ = train(program, tuned, tmp_path / "a", *words, rows=path)
    names = {"kto_loss": "loss", "chosen_reward": "rewards/chosen", "rejected_reward": "rewards/rejected", "kl": "kl"}
    for ours, expected in zip(lines, history, strict=True):
        for name, other in names.items():
            assert ours[name] == pytest.approx(expected[other], abs=1e-4), (ours["iteration"], name)
        assert ours["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
    # Several answers in a sequence, microbatches, and a resumed run are the same run.
    packed = ("--enable_packed_sequences", "--max_samples_per_sequence", 3, "--micro_batch_size", 1, "--save", tmp_path / "c", "--load", tmp_path / "c")
    parts = [train(program, tuned, tmp_path / "b", *words, *packed, *more, rows=path, sequence=512, batch=4)[0] for more in (("--exit_interval", 4), ())]
    assert [len(part) for part in parts] == [4, STEPS - 4]
    for ours, expected in zip(parts[0] + parts[1], lines, strict=True):
        assert [ours[name] for name in names] == pytest.approx([expected[name] for name in names], abs=1e-4)


def test_dropout_is_left_out_and_the_line_has_the_rewards(program, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"{i}=", "chosen": "4", "rejected": "55"} for i in range(4)])
    words = ("--num_layers", 1, "--hidden_size", 32, "--num_attention_heads", 2, "--max_position_embeddings", 32, "--seq_length", 32)
    words += ("--sft_data_path", rows, "--split", "1,0,0", "--loss", "dpo", "--global_batch_size", 4, "--train_iters", 2, "--lr", 1e-2)
    words += ("--num_train_epochs", 3)
    _, output, errors = program.run("train", "--tokenizer_type", "ByteTokenizer", *words, "--eval_iters", 0, "--log_interval", 1, "--device", "cpu")
    assert "hidden_dropout 0.1 of the model is left out" in output + errors
    assert "train_epochs 3 gives way to train_iters 2" in output + errors, "as in Hugging Face's Trainer"
    lines = [line for line in (output + errors).splitlines() if "step " in line and "/2 " in line]
    assert len(lines) == 2 and "loss 0.6931" in lines[0], lines
    assert all(f" {word} " in lines[1] for word in ("chosen", "rejected", "margin", "acc")), lines


def test_what_does_not_go_together_is_refused(program, tuned, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"prompt": "q", "completion": "a"}] * 3)
    rated = write_rows(tmp_path / "rated.jsonl", [{"prompt": "q", "completion": "a", "label": False}] * 3)
    start = ("train", "--load_hf", tuned[0], "--fp32", "--train_iters", 1, "--eval_iters", 0, "--split", "1,0,0", "--seq_length", 64)
    for words, part in [
        (("--loss", "dpo"), "loss dpo without pairs of answers"),
        (("--loss", "dpo", "--sft_data_path", rows), "loss is dpo, and"),
        (("--sft_data_path", rated), "holds rated answers, and loss is next_token"),
        (("--sft_data_path", rated, "--loss", "dpo"), "loss is dpo, and"),
        (("--sft_data_path", rows, "--loss", "kto"), "loss is kto, and"),
        (("--sft_data_path", rows, "--kto_desirable_weight", 2), "and loss is not kto"),
        (("--sft_data_path", tuned[2]), "holds pairs of answers, and loss is next_token"),
        (("--loss", "dpo", "--sft_data_path", tuned[2], "--dpo_reference", "on_the_fly"), "dpo_reference on_the_fly trains all weights"),
        (
            ("--loss", "dpo", "--sft_data_path", tuned[2], "--lora.enabled", "true", "--lora.use_dora", "true"),
            "loss is dpo, and lora.use_dora is on",
        ),
        (("--loss", "dpo", "--sft_data_path", tuned[2], "--seq_length", 8), "12 of 12 samples are longer than seq_length 8"),
    ]:
        _, _, errors = program.run(*start, *words, "--data_cache_path", tmp_path / "cache", expected=2)
        assert part in errors, errors
