"""A trace of real processes over Gloo: collectives have their names and sizes, and are in flight while the rank computes."""

import json

from launch_test import train_words  # noqa: F401
from ranks import run_ranks

# Large enough that a bucket's sum takes milliseconds.
MODEL = ("--hidden_size", 128, "--ffn_hidden_size", 384, "--num_layers", 4, "--seq_length", 32, "--micro_batch_size", 4,
         "--global_batch_size", 8)



def test_gradients_are_summed_while_backward_computes(program, data, tmp_path):
    overlap = ("--overlap_grad_reduce", "--ddp_bucket_size", 100000)
    profile = ("--profile", "--profile_step_start", 2, "--profile_step_end", 4, "--profile_dir", tmp_path / "trace")
    run_ranks(program, 2, *train_words(data, tmp_path, *MODEL, *overlap, *profile))
    [file] = (tmp_path / "trace").glob("rank0.*.json")
    events = json.loads(file.read_text())["traceEvents"]

    # From the issue of a collective to the end of its wait, by name and size.
    begins = [event for event in events if event.get("cat") == "collective" and event["ph"] == "b"]
    ends = {event["id"]: event["ts"] for event in events if event.get("cat") == "collective" and event["ph"] == "e"}
    buckets = [(event["ts"], ends[event["id"]]) for event in begins if "dp_cp grad bucket" in event["name"]]
    assert len(buckets) >= 4
    # Gloo's own thread, while it moves and sums.
    moving = [event for event in events if event.get("ph") == "X" and event["name"] == "gloo:all_reduce"]
    products = [event for event in events if event.get("name") in ("aten::mm", "megalith::linear_wgrad_")]
    assert moving and products

    def common(a, b):
        return min(a["ts"] + a["dur"], b["ts"] + b["dur"]) - max(a["ts"], b["ts"])

    in_flight = [
        event for event in moving if any(begin <= event["ts"] and event["ts"] + event["dur"] <= end for begin, end in buckets)
    ]
    assert in_flight, "no bucket was moved between its issue and its wait"
    overlapped = [event for event in in_flight if any(common(event, product) > 0 for product in products)]
    assert overlapped, "no product was computed while a bucket was being moved"
    assert {event["tid"] for event in overlapped}.isdisjoint(product["tid"] for product in products)
