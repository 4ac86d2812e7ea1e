"""What a run leaves for those who watch it, read by the tools they use: TensorBoard's own reader, and JSON's."""

import json

import pytest
from program import read_metrics

STEPS = 4


@pytest.fixture(scope="module")
def run(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    program.run(
        *("train", "--mock_data", "--vocab_size", 97, "--num_layers", 2, "--hidden_size", 32, "--num_attention_heads", 4),
        *("--normalization", "RMSNorm", "--position_embedding_type", "rope", "--swiglu", "--disable_bias_linear"),
        *("--ffn_hidden_size", 48, "--seq_length", 24, "--max_position_embeddings", 24, "--micro_batch_size", 2),
        *("--train_iters", STEPS, "--lr", 1e-3, "--eval_iters", 1, "--eval_interval", 2, "--device", "cpu"),
        *("--tensorboard_dir", folder / "events", "--metrics_file", folder / "metrics.jsonl"),
        *("--page_file", folder / "run.html", "--log_validation_ppl_to_tensorboard"),
        *("--sample_interval", 2, "--sample_prompt_ids", "1,2", "--sample_max_new_tokens", 3),
        *("--profile", "--profile_step_start", 1, "--profile_step_end", 3),
    )
    return folder


def test_tensorboard_reads_every_step(run):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(run / "events"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"learning-rate", "batch-size", "lm loss", "lm loss vs samples", "grad-norm", "loss-scale"} <= tags
    assert {"iteration-time", "throughput", "mem-max-allocated-bytes", "lm loss validation ppl"} <= tags
    lines = read_metrics(run / "metrics.jsonl")
    assert len(lines) == STEPS
    losses = events.Scalars("lm loss")
    assert [event.step for event in losses] == [line["iteration"] for line in lines]
    # Stored as fp32, which has 24 significant bits.
    assert [event.value for event in losses] == pytest.approx([line["lm_loss"] for line in lines], rel=2**-23)
    assert [event.step for event in events.Scalars("lm loss vs samples")] == [line["consumed_samples"] for line in lines]
    assert [event.step for event in events.Scalars("lm loss validation")] == [2, STEPS]


def test_tensorboard_reads_the_samples(run):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(run / "events"))
    events.Reload()
    assert events.SummaryMetadata("sample/text_summary").plugin_data.plugin_name == "text"
    texts = events.Tensors("sample/text_summary")
    assert [event.step for event in texts] == [2, STEPS]
    for event in texts:
        (text,) = event.tensor_proto.string_val
        words = text.decode().split()
        assert words[:2] == ["1", "2"] and len(words) == 5 and text.startswith(b"    "), text


def test_the_trace_names_operators_and_collectives(run):
    (file,) = (run / "events").glob("*.pt.trace.json")
    assert file.name == "rank0.iterations_2_to_3.pt.trace.json"
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert {"ProfilerStep#2", "ProfilerStep#3", "forward F0.0", "backward B0.0", "optimizer"} <= names
    assert any(name.startswith("aten::") for name in names if name)
    assert any(name.startswith("megalith::rms_norm") for name in names if name)
    assert any(name.startswith("all_reduce dp_cp valid tokens") for name in names if name)


def test_the_page_is_complete(run):
    page = (run / "run.html").read_text(encoding="utf-8")
    assert "<h2>Samples</h2>" in page and page.count('<pre class="text"><b>1 2</b>') == 2
    assert "chip finished" in page and "<td>validation</td>" in page and page.endswith("</html>\n")
