"""Fine-tuning on instruction data: the loss is transformers', it falls, a resumed run has the same numbers, and sequences
are packed as plain packers would."""

import copy
import json
import re
import socket
from random import Random

import pytest
import ranks
from chats import inspected, model_with, save_tokenizer, write_rows
from program import read_metrics


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A tiny Llama with a chat template, and conversations whose answers follow from the questions."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = model_with(tmp_path_factory.mktemp("tuned") / "model", "chatml")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=272, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, bos_token_id=256, eos_token_id=257, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    random = Random(11)
    rows = []
    for _ in range(24):
        word = "".join(random.choice("abc") for _ in range(random.randrange(1, 9)))
        messages = [{"role": "user", "content": word}, {"role": "assistant", "content": word.upper()}]
        rows.append({"messages": messages * random.randrange(1, 3)})
    return folder, model, write_rows(folder.parent / "chats.jsonl", rows)


def train(program, tuned, folder, *words, **options):
    folder.mkdir(exist_ok=True)
    if "--data_cache_path" not in words:
        words += ("--data_cache_path", tuned[0].parent / "cache")
    path = folder / "metrics.jsonl"
    path.unlink(missing_ok=True)
    _, output, errors = program.run(
        *("train", "--load_hf", tuned[0], "--sft_data_path", tuned[2], "--split", "1,0,0", "--eval_iters", 0, "--device", "cpu", "--fp32"),
        *("--metrics_file", path, "--lr", 3e-3, "--lr_decay_style", "constant"),
        *words,
        **options,
    )
    return read_metrics(path), output + errors


def test_the_loss_is_that_of_transformers_over_the_answers_packed_or_not(program, tuned, tmp_path):
    import torch

    model_folder, model, rows = tuned
    samples, (totals, packs) = inspected(
        program, model_folder, [json.loads(line) for line in rows.read_text().splitlines()], "--seq_length", 256, "--enable_packed_sequences"
    )
    loss, count = 0.0, 0
    for sample in samples:
        ids, weights = torch.tensor([sample["tokens"]]), torch.tensor(sample["weights"][1:])
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double()
        loss += (torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none") * weights).sum().item()
        count += int(weights.sum())
    words = ("--train_iters", 1, "--micro_batch_size", 1)
    alone, told = train(program, tuned, tmp_path / "a", "--seq_length", 256, "--global_batch_size", len(samples), *words)
    assert ", 1 epochs in this run" in told, told
    apart = ("--seq_length", 256, "--enable_packed_sequences", "--global_batch_size", len(packs["sequences"]))
    together, told = train(program, tuned, tmp_path / "b", *apart, *words)
    assert ", 1 epochs in this run" in told, told
    assert alone[0]["loss_tokens"] == together[0]["loss_tokens"] == count == totals["tokens_in_loss"]
    # float32 sums in other orders: some units in the last place of numbers near 6.
    assert abs(alone[0]["lm_loss"] - loss / count) < 2e-5
    assert abs(together[0]["lm_loss"] - alone[0]["lm_loss"]) < 2e-5
    assert abs(together[0]["grad_norm"] - alone[0]["grad_norm"]) < 1e-4 * alone[0]["grad_norm"]
    # Without packed attention samples see those before them, and the loss is another one.
    leaking, _ = train(program, tuned, tmp_path / "c", *apart, *words, "--use_packed_attention", "false")
    assert abs(leaking[0]["lm_loss"] - alone[0]["lm_loss"]) > 1e-4


def test_fine_tuning_learns_prepares_once_and_resumes_to_the_same_numbers(program, tuned, tmp_path):
    words = ("--seq_length", 128, "--enable_packed_sequences", "--micro_batch_size", 2, "--global_batch_size", 4)
    checkpoint = ("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint", "--data_cache_path", tmp_path / "cache")
    straight, output = train(program, tuned, tmp_path / "straight", *words, "--data_cache_path", tmp_path / "cache", "--train_iters", 30)
    assert "making tokens of the rows" in output and "24 samples of conversations" in output
    assert straight[-1]["lm_loss"] < 0.6 * straight[0]["lm_loss"]
    first, output = train(program, tuned, tmp_path / "first", *words, *checkpoint, "--train_iters", 30, "--exit_interval", 12)
    assert "making tokens of the rows" not in output
    second, _ = train(program, tuned, tmp_path / "second", *words, *checkpoint, "--train_iters", 30)
    assert [line["lm_loss"] for line in first + second] == [line["lm_loss"] for line in straight]
    assert [line["loss_tokens"] for line in first + second] == [line["loss_tokens"] for line in straight]


def test_passes_are_counted_in_rows_where_batches_grow(program, tuned, tmp_path):
    words = ("--seq_length", 256, "--step_batch_size_schedule", f"0:2 {32 * 256}:32", "--num_train_epochs", 1)
    lines, _ = train(program, tuned, tmp_path / "run", *words)
    assert [line["global_batch_size"] for line in lines] == [2] * 12  # 24 rows: the batch of 32 is not reached


def test_balanced_ranks_learn_what_one_rank_learns(program, tuned, tmp_path):
    words = ("--seq_length", 128, "--enable_packed_sequences", "--micro_batch_size", 1, "--global_batch_size", 6, "--train_iters", 3)
    alone, _ = train(program, tuned, tmp_path / "alone", *words)
    together = of_ranks(program, tuned, tmp_path / "together", *words, "--balance_sequences")
    assert [line["loss_tokens"] for line in together] == [line["loss_tokens"] for line in alone]
    # float32 sums in other orders, through three steps.
    assert [line["lm_loss"] for line in together] == pytest.approx([line["lm_loss"] for line in alone], abs=1e-4)
    assert [line["grad_norm"] for line in together] == pytest.approx([line["grad_norm"] for line in alone], rel=1e-3)


def of_ranks(program, tuned, folder, *words):
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = ("train", "--load_hf", tuned[0], "--sft_data_path", tuned[2], "--split", "1,0,0", "--eval_iters", 0, "--device", "cpu", "--fp32")
    files = ("--metrics_file", folder / "metrics.jsonl", "--data_cache_path", folder / "cache")
    started = []
    for rank in range(2):
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        rates = ("--lr", 3e-3, "--lr_decay_style", "constant")
        started.append(program.start(*start, *files, *rates, *words, environment=environment | {"OMP_NUM_THREADS": "1"}))
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    return read_metrics(folder / "metrics.jsonl")


def test_options_that_do_not_go_together_are_refused(program, tuned, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}])
    start = ("train", "--load_hf", tuned[0], "--fp32", "--train_iters", 1, "--eval_iters", 0)
    for more, part in [
        (("--stage", "sft"), "stage sft without instructions"),
        (("--stage", "pretrain", "--sft_data_path", rows), "stage pretrain with sft_data_path"),
        (("--sft_data_path", rows, "--data_path", "x"), "sft_data_path and another data path"),
        (("--sft_data_path", rows, "--max_samples_per_sequence", 2), "max_samples_per_sequence without enable_packed_sequences"),
        (("--sft_data_path", rows, "--balance_sequences"), "balance_sequences is about samples of several lengths"),
        (("--sft_data_path", tmp_path / "nowhere.jsonl"), "nowhere.jsonl"),
        (("--sft_data_path", rows, "--seq_length", 8, "--split", "1,0,0", "--data_cache_path", tmp_path / "cache"), "1 of 1 samples are longer than seq_length 8"),
    ]:
        _, _, errors = program.run(*start, *more, expected=2)
        assert part in errors, errors


def test_validation_sets_by_name_have_the_losses_that_each_has_alone(program, tuned, tmp_path):
    rows = tuned[2].read_text().splitlines()
    paths = [tmp_path / name for name in ("short.jsonl", "long.jsonl")]
    paths[0].write_text("\n".join(rows[:6]) + "\n")
    paths[1].write_text("\n".join(rows[6:]) + "\n")
    start = ("--load_hf", tuned[0], "--sft_data_path", tuned[2], "--seq_length", 128, "--eval_iters", 1, "--eval_interval", 2, "--global_batch_size", 6)
    start += ("--lr", 3e-3, "--lr_decay_style", "constant", "--device", "cpu", "--fp32", "--train_iters", 4)

    def run(name, *words, expected=0):
        metrics = tmp_path / f"{name}_metrics.jsonl"
        words = (*start, "--metrics_file", metrics, "--data_cache_path", tmp_path / "cache", "--output_dir", tmp_path / name, *words)
        _, output, errors = program.run("train", *words, expected=expected)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        return [line for line in lines if line["kind"] == "evaluation"], output + errors

    names = ("--sft_valid_data_path", f"{paths[0]},{paths[1]}", "--validation_set_names", "short,long")
    both, told = run("both", *names, "--early_stopping_patience", 5, "--metric_for_best_model", "long_loss")
    assert "evaluate on validation-short: " in told
    assert [line["set"] for line in both] == ["validation-short", "validation-long"] * 2
    assert ["is_best" in line for line in both] == [False, True] * 2
    for i, path in enumerate(paths):
        alone, _ = run(path.stem, "--sft_valid_data_path", path)
        assert [line["evaluation_loss"] for line in alone] == [line["evaluation_loss"] for line in both[i::2]]
    # A part of a folder is several files, and one set.
    folder = tmp_path / "parts"
    folder.mkdir()
    for k in (0, 3):
        (folder / f"{k}.jsonl").write_text("\n".join(rows[k : k + 3]) + "\n")
    parts, _ = run("of_parts", "--sft_valid_data_path", f"{folder}[:100%],{paths[1]}", "--validation_set_names", "short,long")
    assert [line["evaluation_loss"] for line in parts] == [line["evaluation_loss"] for line in both]
    for words, part in [
        ((*names, "--early_stopping_patience", 5, "--metric_for_best_model", "f1"), "an evaluation shows short_lm_loss, long_lm_loss"),
        ((*names[:3], "short"), "validation_set_names has 1 names, and sft_valid_data_path has 2 paths"),
        (("--multiple_validation_sets",), "multiple_validation_sets is given without the sets"),
        (("--keep_best", 2, "--eval_iters", 0), "keep_best is given, and eval_iters turns evaluations off"),
        (("--greater_is_better",), "greater_is_better is given, and nothing reads it"),
        (("--freeze", "model.layers[", "--lora.enabled", "true"), "is no regular expression"),
        (("--freeze", "layers"), "no weight of the model has a name like 'layers'"),
        (("--freeze", r".*q_proj\.weight"), "which are frozen together"),
        (("--freeze", ".*"), "nothing would be trained"),
    ]:
        assert part in run("refused", *words, expected=2)[1]


def test_sets_are_mixed_by_weights_with_the_losses_that_each_has_alone(program, tuned, tmp_path):
    rows = tuned[2].read_text().splitlines()
    paths = [tmp_path / name for name in ("short.jsonl", "long.jsonl")]
    for path, part in zip(paths, (rows[:6], rows[6:]), strict=True):
        path.write_text("\n".join(part) + "\n")
    together = ("--sft_data_path", f"{paths[0]},{paths[1]}", "--seq_length", 128)
    words = (*together, "--sft_set_names", "short,long", "--micro_batch_size", 1)
    lines, told = train(program, tuned, tmp_path / "both", *words, "--global_batch_size", len(rows), "--train_iters", 1)
    assert "set short: 6 sequences a pass of 6 (1 passes), 25 % of all" in told
    for path, count in ((paths[0], 6), (paths[1], len(rows) - 6)):
        alone, _ = train(program, tuned, tmp_path / path.stem, "--sft_data_path", path, "--seq_length", 128, "--global_batch_size", count, "--train_iters", 1)
        assert abs(lines[0][f"train-{path.stem}_loss"] - alone[0]["lm_loss"]) < 2e-5
    # One row a step: a step has the loss of its row's set only, and a resumed run reads on at the next row.
    mixed = ("--sft_data_path", 3, paths[0], 1, paths[1], "--seq_length", 128, "--global_batch_size", 1)
    straight, told = train(program, tuned, tmp_path / "straight", *mixed, "--train_epochs", 2)
    assert "set short: 6 sequences a pass of 6 (1 passes), 75 % of all" in told and "set long: 2 sequences a pass of 18" in told
    assert len(straight) == 16 and re.search(r"step +1/16 +loss (\S+) .* (short|long) \1\n", told), told
    keys = [[key for key in line if key.startswith("train-")] for line in straight]
    assert all(len(found) == 1 and line[found[0]] == line["lm_loss"] for found, line in zip(keys, straight, strict=True))
    assert keys.count(["train-short_loss"]) == 12 and keys[:8].count(["train-short_loss"]) == 6
    checkpoint = ("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint", "--train_epochs", 2)
    first, _ = train(program, tuned, tmp_path / "first", *mixed, *checkpoint, "--exit_interval", 5)
    second, _ = train(program, tuned, tmp_path / "second", *mixed, *checkpoint)
    assert [line["lm_loss"] for line in first + second] == [line["lm_loss"] for line in straight]
    for more, part in [
        (("--sft_set_names", "a"), "sft_set_names has 1 names, and sft_data_path has 2 paths"),
        (("--sft_set_names", "a,a"), "sft_set_names has 'a' twice"),
        (("--sft_set_names", "a/b,c"), "sft_set_names has 'a/b' as a name"),
        (("--sft_data_path", 0.5, paths[0], "x", paths[1]), "'x' stands where the weight of"),
        (("--sft_data_path", 0, paths[0], 1, paths[1]), "'0' stands where the weight of"),
        (("--sft_data_path", 1, paths[0], 1, paths[1], "--sft_mix", "concat"), "sft_data_path has weights, and sft_mix concat"),
        (("--sft_data_path", 1, paths[0], 1, paths[1], "--sft_mix_temperature", 2), "sft_data_path has weights, and sft_mix_temperature"),
        (("--sft_mix", "concat", "--sft_mix_temperature", 2), "sft_mix_temperature is given, and sft_mix concat"),
        (("--sft_data_path", 1, paths[0], 1e-6, paths[1]), "the set long has the share 1e-06: none would be drawn"),
        (("--sft_data_path", 1, paths[0], 1, tmp_path / "nowhere.jsonl"), "nowhere.jsonl"),
    ]:
        start = ("train", "--load_hf", tuned[0], "--fp32", "--device", "cpu", "--train_iters", 1, "--eval_iters", 0, "--split", "1,0,0")
        _, _, told = program.run(*start, "--data_cache_path", tmp_path / "cache", *together, *more, expected=2)
        assert part in told, told


def test_sets_of_a_blend_have_the_losses_that_each_has_alone(program, tmp_path):
    import indexed_data
    import numpy as np

    # Rows of one token: the same loss whichever are drawn.
    for name, token in (("a", 5), ("b", 7)):
        indexed_data.write(tmp_path / name, [np.full(400, token)])
    shape = ("--num_layers", 1, "--hidden_size", 16, "--num_attention_heads", 2, "--vocab_size", 64, "--max_position_embeddings", 32)
    shape += ("--attention_dropout", 0, "--hidden_dropout", 0)
    words = ("train", *shape, "--seq_length", 16, "--global_batch_size", 4, "--train_iters", 1, "--eval_iters", 0, "--split", "1,0,0", "--device", "cpu")

    def run(*more):
        program.run(*words, "--metrics_file", tmp_path / "metrics.jsonl", *more)
        (line,) = read_metrics(tmp_path / "metrics.jsonl")
        (tmp_path / "metrics.jsonl").unlink()
        return line

    both = run("--data_path", 1, tmp_path / "a", 1, tmp_path / "b", "--data_set_names", "fives,sevens")
    alone = [run("--data_path", tmp_path / name)["lm_loss"] for name in ("a", "b")]
    assert [both["train-fives_loss"], both["train-sevens_loss"]] == pytest.approx(alone, abs=1e-6)
    assert both["lm_loss"] == pytest.approx(sum(alone) / 2, abs=1e-6) and alone[0] != pytest.approx(alone[1], abs=1e-4)


@pytest.mark.parametrize("thaw_at", [None, 1])
def test_frozen_weights_stay_or_thaw_and_the_others_move_as_in_pytorch(program, tuned, tmp_path, thaw_at):
    import torch
    from safetensors.torch import load_file

    folder, model, path = tuned
    expression = r"model\.(embed_tokens|layers\.0\.).*"
    words = ("--seq_length", 128, "--micro_batch_size", 8, "--global_batch_size", 24, "--train_iters", 3, "--weight_decay", 0, "--adam_eps", 1e-3)
    words += ("--clip_grad", 0, "--adam_beta2", 0.95, "--freeze", expression)
    words += ("--thaw_at", thaw_at) if thaw_at else ()
    checkpoint = ("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint")
    straight, _ = train(program, tuned, tmp_path / "a", *words, "--save_hf", tmp_path / "hf")
    parts = [train(program, tuned, tmp_path / "b", *words, *checkpoint, *more)[0] for more in (("--exit_interval", 1), ())]
    assert [line["lm_loss"] for part in parts for line in part] == [line["lm_loss"] for line in straight]
    if thaw_at:
        layout = ("--micro_batch_size", 6, "--use_distributed_optimizer", "--metrics_file", tmp_path / "ranks.jsonl")
        shared = ("--split", "1,0,0", "--eval_iters", 0, "--device", "cpu", "--fp32", "--lr", 3e-3, "--lr_decay_style", "constant")
        ranks.run_ranks(program, 2, "train", "--load_hf", folder, "--sft_data_path", path, *shared, *words, *layout, "--data_cache_path", tmp_path)
        for one, two in zip(straight, read_metrics(tmp_path / "ranks.jsonl"), strict=True):
            assert [two[key] for key in ("lm_loss", "grad_norm")] == pytest.approx([one[key] for key in ("lm_loss", "grad_norm")], rel=1e-4)

    samples, _ = inspected(program, folder, [json.loads(line) for line in path.read_text().splitlines()])
    theirs = copy.deepcopy(model).train()
    for name, parameter in theirs.named_parameters():
        parameter.requires_grad = re.fullmatch(expression, name) is None
    frozen = [parameter for parameter in theirs.parameters() if not parameter.requires_grad]
    optimizer = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=3e-3, betas=(0.9, 0.95), eps=1e-3, weight_decay=0)
    for line in straight:
        if thaw_at and line["iteration"] == thaw_at + 1:
            for parameter in frozen:
                parameter.requires_grad = True
            optimizer.add_param_group({"params": frozen})
        loss, count = 0.0, 0
        for sample in samples:
            ids, weights = torch.tensor([sample["tokens"]]), torch.tensor(sample["weights"][1:])
            losses = torch.nn.functional.cross_entropy(theirs(ids).logits[0, :-1], ids[0, 1:], reduction="none")
            loss, count = loss + (losses * weights).sum(), count + int(weights.sum())
        loss = loss / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert line["lm_loss"] == pytest.approx(loss.item(), abs=1e-5), line["iteration"]
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    before = model.state_dict()
    for name, value in theirs.state_dict().items():
        assert (weights[name] - value).abs().max() < 1e-4, name
        is_frozen = torch.equal(weights[name], before[name])
        assert is_frozen == (not thaw_at and bool(re.fullmatch(expression, name))), name


def test_the_rate_finder_draws_the_loss_over_the_rate_and_saves_nothing(program, tuned, tmp_path):
    words = ("--seq_length", 128, "--global_batch_size", 8, "--find_lr", "--find_lr_steps", 30, "--find_lr_min", 1e-5, "--find_lr_max", 10)
    words += ("--find_lr_file", tmp_path / "rates.svg", "--save", tmp_path / "checkpoint", "--train_iters", 5)
    words += ("--lr_warmup_iters", 100, "--loss_spike_action", "rollback")  # of the run itself
    lines, told = train(program, tuned, tmp_path / "a", *words)
    assert "find_lr leaves out save, train_iters" in told and "the loss fell fastest at a learning rate of " in told
    rates = [line["learning_rate"] for line in lines]
    assert len(rates) > 10 and all(b / a == pytest.approx(1e6 ** (1 / 29)) for a, b in zip(rates, rates[1:]))
    assert (tmp_path / "rates.svg").read_text().startswith("<svg") and not (tmp_path / "checkpoint").exists()


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
    # A rated answer is read twice: its question goes with the answer before it too.
    rated = [{**row, "label": (False, "True", 1)[i % 3]} for i, row in enumerate(rows)]
    of_rated = [length + lengths[i - 1] for i, length in enumerate(lengths)]
    samples, totals = inspected(program, folder, rated, "--seq_length", 128)
    assert totals[1]["sequences"] == [[[i, 0, length]] for i, length in enumerate(of_rated)]
    assert [sample["is_bad"] for sample in samples] == [i % 3 == 0 for i in range(len(rows))]
    # Texts go on in the next sequence.
    texts = [{"text": "x" * (length - 1)} for length in lengths]
    pieces = inspected(program, folder, texts, *words)[1][1]["sequences"]
    assert all(sum(piece[2] for piece in pack) == 64 for pack in pieces[:-1])
    assert sum(piece[2] for pack in pieces for piece in pack) == sum(lengths)
