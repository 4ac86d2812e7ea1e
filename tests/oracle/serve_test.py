"""`megalith serve` as its clients see it: openai's package, lm-evaluation-harness, and plain HTTP. transformers is the judge."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import chats
import pytest
import ranks
import shells
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

DOCS = Path(__file__).resolve().parents[2] / "docs"
TURN = ["<think>", "I look it up.", "</think>", "<tool_call>", '{"name": "weather", ', '"arguments": {"city": "Oslo"}}', "</tool_call>"]
LLAMA = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=512, tie_word_embeddings=False, initializer_range=0.2,
)  # fmt: skip


def save(model, folder, more_tokens=()):
    chats.model_with(folder, "chatml")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(more_tokens))
    tokenizer.save_pretrained(folder)
    model.to(torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, model, tokenizer) of a Llama of bytes."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("served") / "tiny"
    folder.mkdir()
    tokenizer = AutoTokenizer.from_pretrained(chats.save_tokenizer(folder))
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=tokenizer.eos_token_id, **LLAMA)).eval()
    return save(model, folder), model, AutoTokenizer.from_pretrained(folder)


def make_caller(folder):
    """A model that answers every question with the pieces of TURN, each the consequence of the one before."""
    folder.mkdir()
    tokenizer = AutoTokenizer.from_pretrained(chats.save_tokenizer(folder))
    tokenizer.add_tokens(TURN)
    size = len(tokenizer)
    config = LlamaConfig(vocab_size=size, hidden_size=-(-size // 8) * 8, **{k: v for k, v in LLAMA.items() if k != "hidden_size"})
    model = LlamaForCausalLM(config)
    chain = [tokenizer.convert_tokens_to_ids(token) for token in ["Ċ", *TURN, "<|im_end|>"]]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size, config.hidden_size))
        model.lm_head.weight.zero_()
        for before, after in zip(chain, chain[1:]):
            model.lm_head.weight[after, before] = 1
    return save(model, folder, TURN)


class Server:
    def __init__(self, process, others=()):
        self.process, self.others = process, others
        line = process.stdout.readline()
        found = re.fullmatch(r"serving (\S+) at (http://127\.0\.0\.1:(\d+))\n", line)
        if not found:
            raise AssertionError(line + process.stderr.read())
        self.name, self.url, self.port = found[1], found[2], int(found[3])

    def ask(self, method, path, body=None, **headers):
        """(status, text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body if isinstance(body, (str, bytes, type(None))) else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def metric(self, name):
        return float(re.search(rf"^{re.escape(name)} (\S+)$", self.ask("GET", "/metrics")[1], re.MULTILINE)[1])

    def client(self, key="none"):
        openai = pytest.importorskip("openai", reason="openai is not installed ('make tools' says why)")
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=60)

    def stop(self):
        """Standard error of all ranks."""
        self.process.send_signal(signal.SIGTERM)
        ends = [process.communicate(timeout=60)[1] for process in (self.process, *self.others)]
        assert [process.returncode for process in (self.process, *self.others)] == [0] * len(ends), ends
        return ends


@contextlib.contextmanager
def serving(program, folder, *words, num_ranks=1):
    port = ranks.free_port()
    words = ("serve", "--load_hf", folder, "--port", 0, "--device", "cpu", *words)
    environments = [ranks.environment_of(rank, num_ranks, port) if num_ranks > 1 else {} for rank in range(num_ranks)]
    processes = [program.start(*words, environment=environment) for environment in environments]
    try:
        server = Server(processes[0], processes[1:])
        yield server
        if processes[0].poll() is None:
            server.stop()
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def server(program, tiny):
    with serving(program, tiny[0]) as one:
        yield one


def greedy(tiny, prompt, most, is_chat=False):
    """(new ids, text)"""
    _, model, tokenizer = tiny
    ends = tokenizer.convert_tokens_to_ids(["</s>", "<|im_end|>"] if is_chat else ["</s>"])
    ids = tokenizer(prompt, return_tensors="pt").input_ids if isinstance(prompt, str) else torch.tensor([prompt])
    with torch.no_grad():
        new = model.generate(ids, max_new_tokens=most, do_sample=False, pad_token_id=0, eos_token_id=ends)[0, ids.shape[1] :].tolist()
    return new, tokenizer.decode(new, skip_special_tokens=True)


def likelihoods(tiny, ids):
    """(tokens, v) log-probabilities of what follows each id"""
    with torch.no_grad():
        return torch.log_softmax(tiny[1](torch.tensor([ids])).logits[0].double(), -1)


def test_completions_are_those_of_transformers(tiny, server):
    client = server.client()
    assert [model.id for model in client.models.list()] == [server.name] == ["tiny"]
    prompts = ["The whale", "a", "Größe und so weiter, auf und ab"]
    expected = [greedy(tiny, prompt, 24)[1] for prompt in prompts]
    answer = client.completions.create(model="tiny", prompt=prompts, max_tokens=24, temperature=0)
    assert [choice.text for choice in answer.choices] == expected
    assert answer.usage.prompt_tokens == sum(len(tiny[2](prompt).input_ids) for prompt in prompts)
    # Together, as ids, as a stream, ended by a text.
    ids = [tiny[2](prompt).input_ids for prompt in prompts]
    assert [choice.text for choice in client.completions.create(model="tiny", prompt=ids, max_tokens=24, temperature=0).choices] == expected
    parts = ["", "", ""]
    stream = client.completions.create(model="tiny", prompt=ids, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        for choice in chunk.choices:
            parts[choice.index] += choice.text
    assert parts == expected and chunk.usage.completion_tokens == answer.usage.completion_tokens
    stop = expected[0][9:12]
    ended = client.completions.create(model="tiny", prompt=prompts[0], max_tokens=24, temperature=0, stop=[stop]).choices[0]
    assert (ended.text, ended.finish_reason) == (expected[0][: expected[0].find(stop)], "stop")


def test_logprobs_are_those_of_transformers(tiny, server):
    prompt = tiny[2]("Call me Ishmael.").input_ids
    new, _ = greedy(tiny, prompt, 5)
    expected = likelihoods(tiny, prompt + new)
    options = dict(model="tiny", prompt=prompt, temperature=0, logprobs=3, echo=True)
    for most in (0, 5):
        choice = server.client().completions.create(max_tokens=most, **options).choices[0]
        ids = prompt + new[:most]
        assert choice.logprobs.token_logprobs[0] is None and len(choice.logprobs.tokens) == len(ids)
        for i in range(1, len(ids)):
            # fp32 through two layers, and its logarithms.
            assert choice.logprobs.token_logprobs[i] == pytest.approx(expected[i - 1, ids[i]].item(), abs=2e-4)
            assert max(choice.logprobs.top_logprobs[i].values()) == pytest.approx(expected[i - 1].max().item(), abs=2e-4)
    messages = [{"role": "user", "content": "hello"}]
    prompt = tiny[2].apply_chat_template(messages, add_generation_prompt=True)
    new, text = greedy(tiny, prompt, 6, is_chat=True)
    expected = likelihoods(tiny, prompt + new)
    answer = server.client().chat.completions.create(
        model="tiny", messages=messages, max_completion_tokens=6, temperature=0, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].message.content == text and answer.usage.prompt_tokens == len(prompt)
    for i, token in enumerate(answer.choices[0].logprobs.content):
        assert token.logprob == pytest.approx(expected[len(prompt) - 1 + i, new[i]].item(), abs=2e-4)
        assert [top.logprob for top in token.top_logprobs] == pytest.approx(expected[len(prompt) - 1 + i].topk(2).values.tolist(), abs=2e-4)


def test_sampling_follows_the_request(tiny, server):
    client = server.client()
    ask = lambda **more: [choice.text for choice in client.completions.create(model="tiny", prompt="x", max_tokens=12, **more).choices]  # noqa: E731
    first = ask(seed=7, n=3)
    assert first == ask(seed=7, n=3) and len(set(first)) == 3
    assert ask(extra_body={"top_k": 1}) == [greedy(tiny, "x", 12)[1]]
    wanted = tiny[2]("q").input_ids[0]
    assert ask(temperature=0, logit_bias={str(wanted): 100}) == ["q" * 12]
    assert ask(temperature=0, logit_bias={str(wanted): 100}, frequency_penalty=2, presence_penalty=2)[0].startswith("q")


def test_reasoning_and_calls_of_tools_are_taken_apart(program, tmp_path):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "time", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
        {"role": "user", "content": "In Oslo?"},
    ]
    with serving(program, make_caller(tmp_path / "caller"), "--served_model_name", "caller") as server:
        client = server.client()
        options = dict(model="caller", messages=messages, temperature=0, tools=chats.TOOLS)
        choice = client.chat.completions.create(**options).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        assert choice.message.reasoning_content == "I look it up."
        function = choice.message.tool_calls[0].function
        assert (function.name, json.loads(function.arguments)) == ("weather", {"city": "Oslo"})
        deltas = [choice for chunk in client.chat.completions.create(stream=True, **options) for choice in chunk.choices]
        assert "".join(getattr(one.delta, "reasoning_content", None) or "" for one in deltas) == "I look it up."
        assert [call.function.arguments for one in deltas for call in one.delta.tool_calls or []] == ['{"city":"Oslo"}']
        assert not any(one.delta.content for one in deltas) and deltas[-1].finish_reason == "tool_calls"
        untold = client.chat.completions.create(tool_choice="none", **options).choices[0]
        assert untold.message.content == "".join(TURN[3:]) and untold.finish_reason == "stop"


LONG = "x" * 600
WRONG_COMPLETIONS = [
    ("", "request"), ("[]", "JSON object"), ("{", "request"), ({}, "prompt is missing"), ({"prompt": 5}, "prompt"), ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt is empty"), ({"prompt": ""}, "prompt is empty"), ({"prompt": ["a", 1]}, "prompt"), ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [[1], "a"]}, "prompt"), ({"prompt": [1.5]}, "prompt"), ({"prompt": [-1]}, "vocabulary"), ({"prompt": [99999]}, "vocabulary"),
    ({"prompt": LONG}, "exceed"), ({"prompt": "a", "max_tokens": 512}, "exceed"), ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "max_tokens": "5"}, "max_tokens"), ({"prompt": "a", "max_tokens": 1e300}, "max_tokens"),
    ({"prompt": "a", "temperature": -1}, "temperature"), ({"prompt": "a", "temperature": True}, "temperature"),
    ({"prompt": "a", "top_p": 0}, "top_p"), ({"prompt": "a", "top_k": -2}, "top_k"), ({"prompt": "a", "seed": 0.5}, "seed"),
    ({"prompt": "a", "n": 0}, "n is 0"), ({"prompt": ["a"] * 100, "n": 100}, "more than"), ({"prompt": "a", "best_of": 4}, "best_of"),
    ({"prompt": "a", "suffix": "b"}, "suffix"), ({"prompt": "a", "logprobs": 21}, "logprobs"), ({"prompt": "a", "logprobs": True}, "logprobs"),
    ({"prompt": "a", "echo": "yes"}, "echo"), ({"prompt": "a", "stop": [1]}, "stop"), ({"prompt": "a", "stop": ""}, "stop"),
    ({"prompt": "a", "stop": ["b"] * 17}, "stop"), ({"prompt": "a", "presence_penalty": 3}, "presence_penalty"),
    ({"prompt": "a", "logit_bias": {"a": 1}}, "logit_bias"), ({"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"99999": 1}}, "logit_bias"), ({"prompt": "a", "logit_bias": [1]}, "logit_bias"),
    ({"prompt": "a", "stream_options": {}}, "stream_options"), ({"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ({"prompt": "a", "max_token": 5}, "unknown field max_token"), ({"prompt": "a", "use_beam_search": True}, "use_beam_search"),
]  # fmt: skip
HELLO = [{"role": "user", "content": "hello"}]
WRONG_CHATS = [
    ({}, "messages is missing"), ({"messages": []}, "messages"), ({"messages": "hello"}, "messages"), ({"messages": ["hello"]}, "message 1"),
    ({"messages": [{"content": "a"}]}, "role"), ({"messages": [{"role": "user"}]}, "content"), ({"messages": [{"role": "king", "content": "a"}]}, "king"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
    ({"messages": [{"role": "user", "content": "a", "weight": 1}]}, "weight"), ({"messages": [{"role": "user", "content": 5}]}, "content"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]}, "arguments"),
    ({"messages": HELLO, "tools": {}}, "tools"), ({"messages": HELLO, "tools": [{"type": "web"}]}, "tool"),
    ({"messages": HELLO, "tool_choice": "required", "tools": chats.TOOLS}, "tool_choice"), ({"messages": HELLO, "functions": []}, "functions"),
    ({"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format"), ({"messages": HELLO, "top_logprobs": 2}, "logprobs"),
    ({"messages": HELLO, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"), ({"messages": HELLO, "modalities": ["audio"]}, "modalities"),
    ({"messages": [{"role": "user", "content": LONG}]}, "exceed"),
]  # fmt: skip
WRONG_MEGATRON = [
    ({}, "prompts"), ({"prompts": "a"}, "prompts"), ({"prompts": []}, "prompts"), ({"prompts": ["a"], "max_len": 5}, "tokens_to_generate"),
    ({"sentences": ["a"]}, "prompts"), ({"prompts": ["a"], "beam_width": 2}, "beam"), ({"prompts": ["a"], "tokens_to_generate": 0}, "logprobs"),
    ({"prompts": ["a"], "top_k": 2, "top_p": 0.5}, "top_k"), ({"prompts": ["a"], "top_p_decay": 0.5}, "top_p_decay"), ({"prompts": [""]}, "empty"),
]  # fmt: skip


def test_wrong_requests_are_refused_with_the_reason(server):
    wrong = [("POST", "/v1/completions", *row) for row in WRONG_COMPLETIONS] + [("PUT", "/api", *row) for row in WRONG_MEGATRON]
    wrong += [("POST", "/v1/chat/completions", *row) for row in WRONG_CHATS] + [("POST", "/v1/embeddings", {"input": "a"}, "writes text")]
    for method, path, body, named in wrong:
        status, text = server.ask(method, path, body)
        assert status == 400, (path, body, status, text)
        error = json.loads(text)["error"]
        assert named in error["message"] and error["type"] == "invalid_request_error" and {"param", "code"} < set(error), (body, error)
    assert server.ask("POST", "/v1/completions", {"model": "gpt-4", "prompt": "a"})[0] == 404
    assert [server.ask(*words)[0] for words in (("GET", "/v1/completions"), ("POST", "/health"), ("HEAD", "/api"), ("GET", "/v2"))] == [405, 405, 405, 404]
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Length", str(17 << 20))
    connection.endheaders()
    assert connection.getresponse().status == 413
    # Fields of OpenAI's that have no effect here.
    accepted = {"user": "me", "store": False, "metadata": {}, "service_tier": "auto", "suffix": None, "best_of": 1}
    assert server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, **accepted})[0] == 200
    assert server.ask("POST", "/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, "parallel_tool_calls": True})[0] == 200
    import openai

    with pytest.raises(openai.BadRequestError, match="exceed"):
        server.client().completions.create(model="tiny", prompt="a", max_tokens=5000)


def test_megatrons_interface(tiny, server):
    body = {"prompts": ["The whale", "a"], "tokens_to_generate": 8, "top_k": 1, "logprobs": True, "random_seed": 3}
    status, text = server.ask("PUT", "/api", body, **{"Content-Type": "application/json"})
    answer = json.loads(text)
    assert status == 200
    for i, prompt in enumerate(body["prompts"]):
        ids = tiny[2](prompt).input_ids
        new, written = greedy(tiny, prompt, 8)
        expected = likelihoods(tiny, ids + new)
        assert answer["text"][i] == prompt + written and len(answer["segments"][i]) == len(ids + new)
        assert answer["logprobs"][i] == pytest.approx([expected[j, id].item() for j, id in enumerate((ids + new)[1:])], abs=2e-4)
    newline = tiny[2]("\n").input_ids[0]
    status, text = server.ask("PUT", "/api", {"prompts": ["a"], "stop_on_eol": True, "tokens_to_generate": 40, "stop_token": newline})
    assert status == 200 and json.loads(text)["logprobs"] is None


def test_clients_that_leave_and_servers_that_stop(program, tiny):
    with serving(program, tiny[0], "--max_batch_rows", 1, "--max_queued", 1, "--request_timeout", 3) as server:
        long = {"prompt": "a", "max_tokens": 500, "temperature": 0, "logit_bias": {str(tiny[2].eos_token_id): -100}}
        for stream in (True, False):
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            connection.request("POST", "/v1/completions", json.dumps({**long, "n": 20, "stream": stream}))
            while server.metric("megalith_sequences_running") == 0:
                time.sleep(0.02)
            connection.close()
            start = time.monotonic()
            while server.metric("megalith_sequences_running") > 0:
                assert time.monotonic() - start < 2.5
                time.sleep(0.02)
        assert "status=\"499\"" in server.ask("GET", "/metrics")[1]
        # One runs for longer than it may, one waits, and there is no room for a third.
        statuses = []
        asks = [threading.Thread(target=lambda: statuses.append(server.ask("POST", "/v1/completions", {**long, "n": 128})[0])) for _ in range(3)]
        for i, ask in enumerate(asks):
            ask.start()
            time.sleep(0.3)
        for ask in asks:
            ask.join()
        assert statuses == [503, 504, 504]
        while server.metric("megalith_sequences_running") > 0:  # the last of them leaves at the end of its step
            time.sleep(0.01)
        # What runs may end, and what comes is refused.
        ask = threading.Thread(target=lambda: statuses.append(server.ask("POST", "/v1/completions", long)[0]))
        ask.start()
        while server.metric("megalith_sequences_running") == 0 and ask.is_alive():
            time.sleep(0.01)
        server.stop()
        ask.join()
        assert statuses[-1] == 200


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_two_ranks_answer_as_one_and_ask_for_the_key(program, tiny, tmp_path, layout):
    (tmp_path / "key").write_text("secret\n")
    words = (f"--{layout}_model_parallel_size", 2, "--api_key_file", tmp_path / "key")
    with serving(program, tiny[0], *words, num_ranks=2) as server:
        import openai

        assert [server.ask("GET", path)[0] for path in ("/health", "/v1/models", "/metrics", "/nowhere")] == [200, 401, 401, 401]
        with pytest.raises(openai.AuthenticationError):
            server.client("secre").models.list()
        client = server.client("secret")
        prompts = ["The whale", "a", "hello hello", "x"]
        time.sleep(1.5)  # an idle round
        answer = client.completions.create(model="tiny", prompt=prompts, max_tokens=20, temperature=0)
        assert [choice.text for choice in answer.choices] == [greedy(tiny, prompt, 20)[1] for prompt in prompts]
        with client.completions.create(model="tiny", prompt="a", max_tokens=400, stream=True, seed=1) as stream:
            next(iter(stream))  # and leaves
        messages = [{"role": "user", "content": "hello"}]
        prompt = tiny[2].apply_chat_template(messages, add_generation_prompt=True)
        chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, temperature=0)
        assert chat.choices[0].message.content == greedy(tiny, prompt, 8, is_chat=True)[1]


def test_vectors_are_those_of_embed(program, tmp_path):
    import numpy as np
    from embed_test import BERT, WORDS, tokenizer_of_words
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    folder = tmp_path / "bert"
    BertModel(BertConfig(**BERT)).save_pretrained(folder)
    tokenizer_of_words().save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), WORDS))}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    texts = ["the whale swims", "bread is made"]
    program.run("embed", "--load_hf", folder, "--text", *texts, "--output", tmp_path / "vectors.npy", "--device", "cpu")
    with serving(program, folder) as server:
        for form in ("float", "base64"):  # openai's client asks for the latter by itself
            data = server.client().embeddings.create(model="bert", input=texts, encoding_format=form).data
            vectors = np.array([np.frombuffer(__import__("base64").b64decode(one.embedding), "f4") if form == "base64" else one.embedding for one in data])
            np.testing.assert_allclose(vectors, np.load(tmp_path / "vectors.npy"), atol=1e-6)
        wrong = [("/v1/completions", {"prompt": "a"}), ("/v1/embeddings", {"input": ""}), ("/v1/embeddings", {"input": "a", "dimensions": 3})]
        wrong += [("/v1/embeddings", {"input": "the " * 60}), ("/v1/embeddings", {"input": [[999]]}), ("/v1/embeddings", {"input": "a", "encoding_format": "hex"})]
        assert [server.ask("POST", *words)[0] for words in wrong[1:]] == [200] + [400] * 4
        assert server.ask("POST", *wrong[0])[0] == 400


TASKS = {
    "choices": "output_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_choice: '{{choices}}'\ndoc_to_target: '{{gold}}'\n"
    "metric_list: [{metric: acc}, {metric: acc_norm}]\n",
    "answers": "output_type: generate_until\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{answer}}'\n"
    "generation_kwargs: {until: ['e', ' '], max_gen_toks: 12, do_sample: false, temperature: 0.0}\nmetric_list: [{metric: exact_match}]\n",
}


def test_lm_evaluation_harness_gives_the_numbers_of_its_own_backend(tiny, server, tmp_path):
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed ('make tools' says why)")
    from lm_eval.tasks import TaskManager

    rows = [{"q": f"Question {i}: what comes after {'ab' * i}?", "choices": [" a", " bb", f" {i}"], "gold": i % 3, "answer": "a"} for i in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, lines in TASKS.items():
        shared = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}\ntest_split: test\n"
        (tmp_path / f"{name}.yaml").write_text(shared + lines)
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    evaluate = lambda backend, /, **arguments: lm_eval.simple_evaluate(  # noqa: E731
        backend, model_args=arguments, tasks=list(TASKS), task_manager=tasks, log_samples=True, bootstrap_iters=0, batch_size=3, device="cpu"
    )
    os.environ["HF_DATASETS_CACHE"] = str(tmp_path / "cache")
    theirs = evaluate("hf", pretrained=str(tiny[0]), dtype="float32")
    ours = evaluate("local-completions", model="tiny", tokenizer=str(tiny[0]), tokenizer_backend="huggingface", base_url=server.url + "/v1/completions",
                    num_concurrent=2, max_length=512)  # fmt: skip
    assert ours["results"]["choices"]["acc,none"] == theirs["results"]["choices"]["acc,none"]
    assert ours["results"]["choices"]["acc_norm,none"] == theirs["results"]["choices"]["acc_norm,none"]
    for name in TASKS:
        for mine, other in zip(ours["samples"][name], theirs["samples"][name], strict=True):
            assert mine["doc"] == other["doc"]
            for (of_mine,), (of_other,) in zip(mine["resps"], other["resps"], strict=True):
                if name == "answers":
                    assert of_mine == of_other
                else:
                    assert float(of_mine[0]) == pytest.approx(float(of_other[0]), abs=1e-3) and of_mine[1] == of_other[1]


def test_the_page_shows_what_happens(program, server, tmp_path):
    """Blocks of docs/serving.md that speak to a server, with this one's address."""
    page = (DOCS / "serving.md").read_text()
    blocks = re.findall(r"^```sh\n# not run: needs the server\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        command = block.replace("http://127.0.0.1:8000", server.url).replace("MODEL", "tiny")
        output, _ = shells.shell("set -e\n" + command, program, tmp_path)
        assert output and '"error"' not in output, (command, output)
