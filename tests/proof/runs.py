"""Whole runs in random layouts, ranks as processes: what `train` writes, beside the same run on one rank.

A row is a family, a layout and some options; every pair of values occurs. For each row:

  curve      losses, gradient norms and losses of the evaluation are those of one rank
  export     so are the weights in Hugging Face's form, or in a checkpoint where there is no such form
  moments    so is the optimizer's state, as `convert` writes it from both checkpoints
  again      resuming in the same layout goes on with the same bits, to the last byte of the export
  elsewhere  resuming in another layout goes on with the same losses
  recompute  with recomputation turned on, or off, the bits are the same
"""

import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

from covering import CoveringArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from program import read_metrics  # noqa: E402
from ranks import environment_of, free_port  # noqa: E402

STEPS, SAVED = 6, 3
TIMEOUT_S = 240
# fp32 keeps 24 bits; losses are sums of some tens of tokens. What a weight moved by is the gradient's sum, divided by
# its own size: below adam_eps, which is large here, rounding errors stay small.
CURVE_TOLERANCE = 2e-5
TENSOR_TOLERANCE = 2e-3
COMMON = (
    *("--vocab_size", 131, "--seq_length", 16, "--max_position_embeddings", 32, "--mock_data", "--device", "cpu"),
    *("--num_threads", 1, "--num_workers", 0, "--fp32", "--train_iters", STEPS, "--global_batch_size", 8),
    *("--lr", 3e-3, "--min_lr", 1e-4, "--lr_decay_style", "cosine", "--adam_eps", 1e-3, "--clip_grad", 0.5),
    *("--eval_interval", SAVED, "--eval_iters", 1, "--log_interval", 1, "--distributed_timeout_minutes", 1),
)
SIZES = ("--num_layers", 4, "--hidden_size", 32, "--num_attention_heads", 4)
NO_DROPOUT = ("--hidden_dropout", 0, "--attention_dropout", 0)
ROPE = ("--normalization", "RMSNorm", "--position_embedding_type", "rope", "--disable_bias_linear", "--swiglu")
KEYS = ("--group_query_attention", "--num_query_groups", 2)
LLAMA = (*SIZES, *ROPE, *KEYS, "--ffn_hidden_size", 48, "--untie_embeddings_and_output_weights")
EXPERTS = ("--num_experts", 4, "--moe_router_topk", 2, "--moe_router_load_balancing_type", "aux_loss", "--moe_aux_loss_coeff", 0.02)
LATENT = (
    *("--multi_latent_attention", "--qk_layernorm", "--q_lora_rank", 12, "--kv_lora_rank", 12, "--qk_head_dim", 8),
    *("--qk_pos_emb_head_dim", 4, "--v_head_dim", 8, "--moe_layer_freq", "[0,1,1,1]", "--moe_ffn_hidden_size", 24),
    *("--moe_shared_expert_intermediate_size", 24, "--moe_router_score_function", "sigmoid"),
    *("--moe_router_enable_expert_bias", "--moe_router_bias_update_rate", 0.001, "--mtp_num_layers", 1),
)
PRESET = "configs/models"
FEATURES = {
    "family": {
        "llama": LLAMA,
        "gpt": (*SIZES, "--ffn_hidden_size", 64, "--position_embedding_type", "learned_absolute"),
        "gemma3": ("--config", f"{PRESET}/gemma3_1B.yaml", *SIZES, "--num_query_groups", 2, "--kv_channels", 8, "--ffn_hidden_size", 48),
        "mixtral": (*LLAMA, *EXPERTS),
        "deepseek": (*SIZES, *ROPE, *EXPERTS, *LATENT, "--ffn_hidden_size", 48, "--untie_embeddings_and_output_weights"),
        "bert": ("--config", f"{PRESET}/bert_base.yaml", *SIZES, "--ffn_hidden_size", 48),
        "t5": ("--config", f"{PRESET}/t5_small.yaml", *SIZES, "--ffn_hidden_size", 48, "--kv_channels", 8, "--decoder_seq_length", 16),
    },
    "layout": {
        "dp2": (2,),
        "tp2": (2, "--tensor_model_parallel_size", 2),
        "tp2 sp": (2, "--tensor_model_parallel_size", 2, "--sequence_parallel"),
        "pp2": (2, "--pipeline_model_parallel_size", 2),
        "pp2 virtual": (2, "--pipeline_model_parallel_size", 2, "--num_virtual_stages_per_pipeline_rank", 2),
        "cp2": (2, "--context_parallel_size", 2),
        "cp2 a2a": (2, "--context_parallel_size", 2, "--cp_comm_type", "a2a"),
        "ep2": (2, "--expert_model_parallel_size", 2),
        "tp2 dp2": (4, "--tensor_model_parallel_size", 2),
        "tp2 pp2": (4, "--tensor_model_parallel_size", 2, "--pipeline_model_parallel_size", 2),
    },
    "elsewhere": {
        "one": (1,),
        "tp2": (2, "--tensor_model_parallel_size", 2),
        "pp2": (2, "--pipeline_model_parallel_size", 2),
        "zero1": (2, "--use_distributed_optimizer"),
    },
    "sharding": {"-": (), "zero1": ("--use_distributed_optimizer",), "fsdp": ("--use_torch_fsdp2",)},
    "dropout": {"-": NO_DROPOUT, "both": ("--hidden_dropout", 0.1, "--attention_dropout", 0.1)},
    "recompute": {
        "full": ("--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", 1),
        "selective": ("--recompute_granularity", "selective"),
    },
    "documents": {"-": (), "apart": ("--reset_attention_mask", "--reset_position_ids")},
    "micro": {"1": ("--micro_batch_size", 1), "2": ("--micro_batch_size", 2)},
    "save": {"-": (), "beside": ("--async_save",)},
}


class Refused(Exception):
    pass


class Differs(Exception):
    pass


def read_tensors(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    raw = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    begin = 8 + length
    return {
        name: (entry["dtype"], entry["shape"], raw[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def tensors_of(folder):
    found = {}
    for path in sorted(Path(folder).rglob("*.safetensors")):
        # The same names stand in a file for each state.
        found |= {(path.stem.split("-")[0], name): value for name, value in read_tensors(path).items()}
    if not found:
        raise Differs(f"there is no tensor in {folder}")
    return found


def numbers(value):
    dtype, _, data = value
    letters = {"F32": "f", "F64": "d", "I64": "q", "I32": "i"}
    if dtype not in letters:
        raise Differs(f"a tensor of dtype {dtype}, where fp32 was asked for")
    return struct.unpack(f"<{len(data) // struct.calcsize(letters[dtype])}{letters[dtype]}", data)


def compare_tensors(what, found, expected):
    if found.keys() != expected.keys():
        raise Differs(f"{what}: other tensors: {sorted(found.keys() ^ expected.keys())[:5]}")
    for name, value in expected.items():
        if found[name][:2] != value[:2]:
            raise Differs(f"{what}: {name} is {found[name][:2]}, not {value[:2]}")
        ours, theirs = numbers(found[name]), numbers(value)
        most = max((abs(x) for x in theirs if math.isfinite(x)), default=0.0)
        for i, (x, y) in enumerate(zip(ours, theirs)):
            if x != y and not abs(x - y) <= TENSOR_TOLERANCE * most + 1e-9:
                raise Differs(f"{what}: {name}, element {i}: {x}, not {y} (the largest is {most})")


def curve_of(path):
    """{iteration: {name: value}} of losses, gradient norms and evaluations."""
    found = {}
    for kind in ("step", "evaluation"):
        for line in read_metrics(path, kind):
            values = {name: value for name, value in line.items() if name.endswith("loss") or name == "grad_norm"}
            found.setdefault(line["iteration"], {}).update({f"{kind} {name}": value for name, value in values.items()})
    return found


def compare_curves(what, found, expected, tolerance):
    if found.keys() != expected.keys():
        raise Differs(f"{what}: iterations {sorted(found)}, not {sorted(expected)}")
    for iteration, values in sorted(expected.items()):
        if found[iteration].keys() != values.keys():
            raise Differs(f"{what}: iteration {iteration} tells {sorted(found[iteration])}, not {sorted(values)}")
        for name, value in values.items():
            ours = found[iteration][name]
            if ours != value and not math.isclose(ours, value, rel_tol=tolerance):
                raise Differs(f"{what}: {name} of iteration {iteration}: {ours}, not {value}")


def same_bytes(what, one, other):
    """Every file, but for what a checkpoint says of its run."""
    names = [
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "checkpoint.json")
        for folder in (one, other)
    ]
    if names[0] != names[1]:
        raise Differs(f"{what}: other files: {sorted(set(names[0]) ^ set(names[1]))[:5]}")
    for name in names[0]:
        if (one / name).read_bytes() != (other / name).read_bytes():
            raise Differs(f"{what}: {name} has other bytes")


def rule_says(errors):
    return re.search(r"^(?:\[[^\]]*\] )?error: .+\n +\S", errors, re.MULTILINE) and "internal error" not in errors


class Runs:
    def __init__(self, program, root, folder):
        self.program, self.root, self.folder = Path(program), root, folder
        self.lines = []  # commands of the row at work

    def run(self, ranks, words):
        """Starts the ranks and waits; the last words of those that did not end with 0 are thrown."""
        command = [str(self.program), *map(str, words)]
        self.lines.append(f"{ranks} rank(s): {' '.join(command)}")
        port = free_port()
        processes = []
        for rank in range(ranks):
            environment = environment_of(rank, ranks, port) if ranks > 1 else os.environ | {"OMP_NUM_THREADS": "1"}
            said = open(self.folder / f"said{rank}.txt", "w+")  # noqa: SIM115
            processes.append((subprocess.Popen(command, cwd=self.root, env=environment, stdout=said, stderr=said), said))
        end, texts, codes = time.monotonic() + TIMEOUT_S, [], []
        for process, said in processes:
            try:
                codes.append(process.wait(timeout=max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(f"none within {TIMEOUT_S} s")
                process.wait()
            said.seek(0)
            texts.append(said.read())
            said.close()
        if all(code == 0 for code in codes):
            return texts[0]
        joined = "\n".join(texts)
        if all(code == 2 for code in codes) and rule_says(joined):
            raise Refused(joined)
        raise Differs(f"exit codes {codes}\n{joined[-3000:]}")

    def words(self, row, layout, place, *more):
        parts = [value for name in ("family", "dropout", "documents", "micro", "save") for value in FEATURES[name][row[name]]]
        place.mkdir(parents=True, exist_ok=True)
        return ("train", *parts, *COMMON, *layout, *more, "--metrics_file", place / "metrics.jsonl")

    def exported(self, row, place):
        """The weights that a run has written: exported where the family can be, otherwise in the checkpoint."""
        if row["family"] != "gpt" and (place / "hf").exists():
            return place / "hf"
        return self.converted(place / "saved", place / "weights", "--no_save_optim")

    def converted(self, source, target, *more):
        self.run(1, ("convert", "--load", source, "--save", target, *more))
        return target

    def prove(self, row):
        """Raises Refused or Differs."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.lines = []
        ranks, *layout = FEATURES["layout"][row["layout"]]
        layout = (*layout, *FEATURES["sharding"][row["sharding"]])
        other_ranks, *other = FEATURES["elsewhere"][row["elsewhere"]]
        whole, one, again, elsewhere, recomputed = (self.folder / name for name in ("whole", "one", "again", "elsewhere", "recomputed"))

        def saving(place):
            hf = () if row["family"] == "gpt" else ("--save_hf", place / "hf")
            return ("--save", place / "saved", "--save_interval", SAVED, *hf)

        self.run(ranks, self.words(row, layout, whole, *saving(whole)))
        self.run(1, self.words(row, (), one, *saving(one)))
        expected = curve_of(one / "metrics.jsonl")
        if sorted(expected) != list(range(1, STEPS + 1)) or "evaluation evaluation_loss" not in expected[SAVED]:
            raise Differs(f"one rank tells {expected}")
        ours = curve_of(whole / "metrics.jsonl")
        compare_curves("curve", ours, expected, CURVE_TOLERANCE)
        compare_tensors("export", tensors_of(self.exported(row, whole)), tensors_of(self.exported(row, one)))
        moments = [tensors_of(self.converted(place / "saved", place / "moments")) for place in (whole, one)]
        compare_tensors("moments", *moments)

        later = {i: values for i, values in ours.items() if i > SAVED}
        from_half = ("--load", whole / "saved", "--ckpt_step", SAVED)
        self.run(ranks, self.words(row, layout, again, *saving(again), *from_half))
        compare_curves("again", curve_of(again / "metrics.jsonl"), later, 0)
        same_bytes("again", self.exported(row, again), self.exported(row, whole))
        self.run(other_ranks, self.words(row, other, elsewhere, *from_half))
        compare_curves("elsewhere", curve_of(elsewhere / "metrics.jsonl"), {i: expected[i] for i in later}, CURVE_TOLERANCE)
        self.run(ranks, self.words(row, (*layout, *FEATURES["recompute"][row["recompute"]]), recomputed, *saving(recomputed)))
        compare_curves("recompute", curve_of(recomputed / "metrics.jsonl"), ours, 0)
        same_bytes("recompute", self.exported(row, recomputed), self.exported(row, whole))


def prove(program, root, seconds, seed, folder, say, most_rows=None):
    """A summary as a dict; its "failures" is a list."""
    runs = Runs(program, root, folder)
    array = CoveringArray({name: list(values) for name, values in FEATURES.items()}, 2, seed)
    array.forbid({("elsewhere", "pp2"), ("family", "deepseek")})  # its module would stand in a stage of its own
    result = {"rows": 0, "runs": 0, "refused": 0, "pairs": array.num_combinations, "covered": 0, "failures": []}
    end = time.monotonic() + seconds
    while time.monotonic() < end and (most_rows is None or result["rows"] + len(result["failures"]) < most_rows):
        row = array.next_row()
        if row is None:
            break
        try:
            runs.prove(row)
        except Refused:
            result["refused"] += 1
        except Differs as difference:
            line = f"{row}\n  " + "\n  ".join(runs.lines)
            result["failures"].append({"command": line, "said": str(difference)})
            say(f"FAILED {line}\n{difference}")
        else:
            result["rows"] += 1
        array.cover(row)
        result["runs"] += len(runs.lines)
    result["covered"] = result["pairs"] - array.num_forbidden - len(array.left)
    result["pairs"] -= array.num_forbidden
    say(f"runs: {result['rows']} rows agree, {result['refused']} refused, {len(result['failures'])} failed")
    shutil.rmtree(folder, ignore_errors=True)
    return result
