"""Random layouts against one rank: rows of a covering array over families and options, each tried by `doctor --parallel`.

doctor trains a toy of the row's configuration in the layout and on one rank, and compares losses, the gradient's norm,
every gradient and every parameter. A row is good when they agree, refused when a rule with a message says why it cannot
be; anything else is a failure: its command is kept, and the smallest row that still fails.

What rules refuse is kept in refused.json, so that rows ask for what can be. The file is written anew by

    python3 tests/proof/layouts.py --learn SECONDS [--build FOLDER]

which asks only whether rows are refused. A clause that a rule no longer refuses is found by check_known().
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from covering import CoveringArray

REFUSED = Path(__file__).with_name("refused.json")
ROOT = Path(__file__).resolve().parents[2]

ABSENT = "-"
TIMEOUT_S = 300
DATA_RANKS = 2
MOST_RANKS = 16  # without data parallelism: doctor makes larger worlds smaller, and rows with them prove nothing more
ROWS_FOR_A_CLAUSE = 8  # random ones that a rule must refuse before its clause is believed
FAMILIES = (
    "gpt3_125M",
    "llama3.1_8B",
    "mistral_7B_v0.1",
    "qwen2.5_0.5B",
    "qwen3_0.6B",
    "qwen3_30B_A3B",
    "olmo2_1B",
    "olmo3_7B",
    "gemma2_2B",
    "gemma3_1B",
    "mixtral_8x7B_v0.1",
    "deepseek_v2_lite",
    "deepseek_v3",
    "glm4.5_air",
    "gpt_oss_20B",
    "llama4_scout_17B_16E",
    "bert_base",
    "bert_345M",
    "t5_small",
    "t5_v1.1_small",
)
ALL_LINEAR = ("--lora.target_modules", "all-linear")
AROUND = ("--lora.target_modules", "linear_qkv", "linear_proj")
# Each feature: its values, and the options of each. The first value is what a smallest row has.
FEATURES = {
    "family": {
        # A text that is read and one that is written: T5's rows have two lengths.
        name: ("--config", f"configs/models/{name}.yaml", *(("--decoder_seq_length", 128) if name.startswith("t5") else ()))
        for name in FAMILIES
    },
    "tp": {"1": (), "2": ("--tensor_model_parallel_size", 2), "4": ("--tensor_model_parallel_size", 4)},
    "sp": {ABSENT: (), "sp": ("--sequence_parallel",)},
    "pp": {"1": (), "2": ("--pipeline_model_parallel_size", 2), "4": ("--pipeline_model_parallel_size", 4)},
    "schedule": {
        ABSENT: (),
        "gpipe": ("--pp_algorithm", "gpipe"),
        "virtual": ("--num_virtual_stages_per_pipeline_rank", 2),
        "zero-bubble": ("--pp_algorithm", "zero-bubble"),
        "zbv": ("--pp_algorithm", "zbv-formatted"),
    },
    "cp": {
        "1": (),
        "p2p": ("--context_parallel_size", 2),
        "a2a": ("--context_parallel_size", 2, "--cp_comm_type", "a2a"),
        "allgather": ("--context_parallel_size", 2, "--cp_comm_type", "all_gather"),
        "both": ("--context_parallel_size", 4, "--cp_comm_type", "a2a+p2p", "--hierarchical_context_parallel_sizes", "2,2"),
    },
    "ep": {
        "1": (),
        "2": ("--expert_model_parallel_size", 2),
        "2, etp 1": ("--expert_model_parallel_size", 2, "--expert_tensor_parallel_size", 1),
    },
    "dispatcher": {ABSENT: (), "alltoall": ("--moe_token_dispatcher_type", "alltoall")},
    "capacity": {
        ABSENT: (),
        "probs": ("--moe_expert_capacity_factor", 1.25),
        "position": ("--moe_expert_capacity_factor", 1, "--moe_token_drop_policy", "position"),
    },
    "balance": {
        ABSENT: (),
        "aux": ("--moe_router_load_balancing_type", "aux_loss", "--moe_aux_loss_coeff", 0.1),
        "seq": ("--moe_router_load_balancing_type", "seq_aux_loss", "--moe_aux_loss_coeff", 0.1, "--moe_z_loss_coeff", 0.01),
    },
    "modules": {ABSENT: (), "mtp": ("--mtp_num_layers", 1)},
    "sharding": {
        ABSENT: (),
        "zero1": ("--use_distributed_optimizer",),
        "zero1 by two": ("--use_distributed_optimizer", "--num_distributed_optimizer_instances", 2),
        "fsdp": ("--use_torch_fsdp2",),
        "fsdp kept": ("--use_torch_fsdp2", "--torch_fsdp2_no_reshard_after_forward"),
    },
    "overlap": {
        ABSENT: (),
        "grad": ("--overlap_grad_reduce",),
        "both": ("--overlap_grad_reduce", "--overlap_param_gather"),
    },
    "buckets": {ABSENT: (), "many": ("--ddp_num_buckets", 7), "padded": ("--ddp_pad_buckets_for_high_nccl_busbw",)},
    "recompute": {
        ABSENT: (),
        "selective": ("--recompute_granularity", "selective"),
        "full": ("--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", 1),
        "block": ("--recompute_granularity", "full", "--recompute_method", "block", "--recompute_num_layers", 1),
        "offloaded": (
            *("--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", 1),
            *("--cpu_offloading_num_layers", 2),
        ),
    },
    "dropout": {ABSENT: (), "both": ("--hidden_dropout", 0.1, "--attention_dropout", 0.1)},
    "documents": {ABSENT: (), "apart": ("--reset_attention_mask", "--reset_position_ids")},
    "optimizer": {ABSENT: (), "sgd": ("--optimizer", "sgd"), "lion": ("--optimizer", "lion"), "adafactor": ("--optimizer", "adafactor"), "8 bits": ("--optimizer", "adam8bit"), "muon": ("--optimizer", "muon")},
    "micro": {"1": (), "2": ("--micro_batch_size", 2)},
    "mapping": {ABSENT: (), "pp inside": ("--use_tp_pp_dp_mapping",)},
    # Megatron-LM's fused layers, whose parts share one A; each linear layer for itself, as PEFT has them. Adapters of
    # experts drop nothing and have no lengths, so these two are around them.
    "adapters": {
        ABSENT: (),
        "fused": ("--lora.enabled", "true"),
        "each": ("--lora.enabled", "true", "--lora.dim", 2, *ALL_LINEAR),
        "rslora": ("--lora.enabled", "true", "--lora.dim", 2, "--lora.use_rslora", "true", *ALL_LINEAR),
        "dropped": ("--lora.enabled", "true", "--lora.dropout", 0.1, *AROUND),
        "dora": ("--lora.enabled", "true", "--lora.use_dora", "true", *AROUND),
    },
}
WITH_EXPERTS = ("qwen3_30B_A3B", "mixtral_8x7B_v0.1", "deepseek_v2_lite", "deepseek_v3", "glm4.5_air", "gpt_oss_20B", "llama4_scout_17B_16E")


def known_refusals():
    """[(rule's message, clause)] of refused.json."""
    entries = json.loads(REFUSED.read_text()) if REFUSED.exists() else []
    return [(entry["rule"], frozenset(entry["values"].items())) for entry in entries]


def known_clauses():
    """What cannot be, or would change nothing, and need not be learnt."""
    clauses = [clause for _, clause in known_refusals()]

    def never(one, value, other, values):
        clauses.extend({(one, value), (other, each)} for each in values)

    for family in FAMILIES:
        if family not in WITH_EXPERTS:
            for feature in ("ep", "dispatcher", "capacity", "balance"):
                never("family", family, feature, list(FEATURES[feature])[1:])
    for schedule in list(FEATURES["schedule"])[1:]:
        never("schedule", schedule, "pp", ["1"])
    sizes = {"tp": FEATURES["tp"], "pp": FEATURES["pp"], "cp": FEATURES["cp"]}
    for values in itertools.product(*sizes.values()):
        words = [word for name, value in zip(sizes, values) for word in sizes[name][value]]
        if ranks_of(words) > MOST_RANKS * DATA_RANKS:
            clauses.append(set(zip(sizes, values)))
    for sharding in FEATURES["sharding"]:
        if not sharding.startswith("zero1"):
            never("sharding", sharding, "overlap", ["both"])
            never("sharding", sharding, "buckets", ["padded"])
    return clauses


def values_of(features):
    return {name: list(values) for name, values in features.items()}


def ranks_of(words):
    """Ranks that a row's layout has: its sizes, times enough replicas for the experts."""

    def size(name):
        return int(words[words.index(name) + 1]) if name in words else 1

    inner = size("--tensor_model_parallel_size") * size("--context_parallel_size") * size("--pipeline_model_parallel_size")
    return inner * DATA_RANKS


class Layouts:
    """Tries rows. features: {name: {value: words}}, the first value of each being the plain one."""

    def __init__(self, program, folder, features=FEATURES, common=("--mock_data",)):
        self.program, self.folder, self.features, self.common = program, folder, features, common
        self.refusals = []  # (rule's message, clause) that were learnt

    def words(self, row):
        words = [str(word) for name, values in self.features.items() for word in values[row[name]]]
        ranks = ranks_of(words)
        return [*words, *map(str, self.common), "--dry_run_world_size", str(ranks), "--global_batch_size", str(8 * ranks)]

    def line(self, row):
        return " ".join(["build/megalith", "doctor", "--parallel", *self.words(row)])

    def try_row(self, row):
        """("good" | "refused" | "failed", what was said)."""
        command = [str(self.program), "doctor", "--parallel", *self.words(row)]
        try:
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "failed", f"no answer within {TIMEOUT_S} s"
        said = done.stdout + done.stderr
        if done.returncode == 0:
            return "good", said
        # A rule's message is an error with what to do about it.
        is_rule = re.search(r"^error: .+\n +\S", done.stderr, re.MULTILINE) and "internal error" not in said
        return ("refused" if done.returncode == 2 and is_rule else "failed"), said

    def plain(self, name):
        return next(iter(self.features[name]))

    def smallest(self, row, outcome):
        """The row with as many plain values as keep the outcome."""
        row = dict(row)
        for name in self.features:
            if row[name] == self.plain(name):
                continue
            simpler = row | {name: self.plain(name)}
            if self.try_row(simpler)[0] == outcome:
                row = simpler
        return row

    def rules_against(self, row):
        """The messages of the rules that refuse the row. What is not refused is stopped as soon as it begins."""
        command = ["stdbuf", "-oL", str(self.program), "doctor", "--parallel", *self.words(row)]
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if process.stdout.readline().startswith("layout"):
            process.kill()
            process.communicate()
            return set()
        errors = process.communicate()[1]
        return rules_of(errors) if process.returncode == 2 else set()

    def is_refused(self, row):
        return bool(self.rules_against(row))

    def clause_of(self, row, rule, random):
        """The values of a refused row for which this rule refuses it, whatever the other values are."""
        row = dict(row)
        first = next(iter(self.features))  # of the family: another one has other sizes, which are refused for themselves
        for name in self.features:
            if name != first and row[name] != self.plain(name):
                simpler = row | {name: self.plain(name)}
                if rule in self.rules_against(simpler):
                    row = simpler
        clause = {name for name in self.features if name != first and row[name] != self.plain(name)}
        in_a_row = 0
        while in_a_row < ROWS_FOR_A_CLAUSE and len(clause) < len(self.features):
            other = {name: row[name] if name in clause else random.choice(list(values)) for name, values in self.features.items()}
            if rule in self.rules_against(other):
                in_a_row += 1
                continue
            in_a_row = 0
            found = dict(row)
            for name in self.features:  # which of the differences takes the message away
                if rule not in self.rules_against(found | {name: other[name]}):
                    clause.add(name)
                else:
                    found[name] = other[name]
        return {(name, row[name]) for name in clause}

    def clauses_of(self, row, rules, random):
        """[(rule, clause)] of what refuses the row, and of its other values for which the same rules speak."""
        learnt = []
        for rule in sorted(rules):
            clause = self.clause_of(row, rule, random)
            learnt.append((rule, frozenset(clause)))
            for name, value in sorted(clause):
                for other in self.features[name]:
                    like = frozenset(clause - {(name, value)} | {(name, other)})
                    if other != value and rule in self.rules_against(self.row_of(like)):
                        learnt.append((rule, like))
        return learnt

    def row_of(self, clause):
        """The plainest row that has these values."""
        return {name: self.plain(name) for name in self.features} | dict(clause)

    def check_known(self, refusals):
        """Those of [(rule, clause)] that the program takes today."""
        return [(rule, clause) for rule, clause in refusals if not self.is_refused(self.row_of(clause))]


def rules_of(said):
    """The rules' messages without their numbers."""
    return {re.sub(r"\d+(\.\d+)?", "N", text) for text in re.findall(r"^error: (.+)", said, re.MULTILINE)}


def learn(layouts, seconds, seed=0, strength=3, clauses=()):
    """[(rule, clause)] of rows that are refused; rows that are not are stopped at once and count as covered."""
    end = time.monotonic() + seconds
    array = CoveringArray(values_of(layouts.features), strength, seed)
    for clause in clauses:
        array.forbid(clause)
    learnt = []
    while time.monotonic() < end and (row := array.next_row()) is not None:
        more = layouts.clauses_of(row, layouts.rules_against(row), array.random)
        for rule, clause in more:
            array.forbid(clause)
            learnt.append((rule, clause))
        if not more:
            array.cover(row)
    return learnt


def prove(layouts, seconds, seed=0, strength=3, say=print, most_rows=None, clauses=()):
    """Rows until every combination occurred or time is over. A summary as a dict; its "failures" is a list."""
    end = time.monotonic() + seconds
    array = CoveringArray(values_of(layouts.features), strength, seed)
    for clause in clauses:
        array.forbid(clause)
    counts = {"good": 0, "refused": 0, "failed": 0}
    failures, said_at = [], 0.0
    while time.monotonic() < end and (most_rows is None or sum(counts.values()) < most_rows):
        row = array.next_row()
        if row is None:
            break
        outcome, said = layouts.try_row(row)
        counts[outcome] += 1
        if outcome == "refused":
            for rule, clause in layouts.clauses_of(row, rules_of(said), array.random):
                layouts.refusals.append((rule, clause))
                array.forbid(clause)
            continue
        array.cover(row)
        if outcome == "failed":
            small = layouts.smallest(row, "failed")
            values = {name: value for name, value in small.items() if value != layouts.plain(name)}
            failures.append({"row": row, "command": layouts.line(row), "smallest": layouts.line(small), "values": values, "said": said[-3000:]})
            say(f"FAILED {values}\n  {layouts.line(small)}\n{said[-1500:]}")
        if time.monotonic() - said_at > 10:
            said_at = time.monotonic()
            covered = 1 - len(array.left) / array.num_combinations
            say(f"layouts: {counts['good']} agree, {counts['refused']} refused, {counts['failed']} failed; {covered:.1%} of {array.num_combinations} triples")
    asked = array.num_combinations - array.num_forbidden
    return {
        "layouts": counts["good"],
        "refused": counts["refused"],
        "rules": len({rule for rule, _ in layouts.refusals}),
        "triples": asked,
        "covered": asked - len(array.left),
        "failures": failures,
        "refusals": [{"rule": rule, "values": dict(sorted(clause))} for rule, clause in layouts.refusals],
    }


def rows_of_everything(features):
    """Every row there is: for tests of small tables."""
    names = list(features)
    return [dict(zip(names, values)) for values in itertools.product(*(features[name] for name in names))]


def main():
    parser = argparse.ArgumentParser(description="Learns what rules refuse.")
    parser.add_argument("--learn", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    prover = Layouts(options.build / "megalith", ROOT)
    gone = prover.check_known(known_refusals())
    kept = [entry for entry in known_refusals() if entry not in gone]
    known = [clause for clause in known_clauses() if clause not in [one for _, one in gone]]
    entries = list(dict.fromkeys(kept + learn(prover, options.learn, options.seed, clauses=known)))
    # A clause that contains another one says nothing more.
    entries = [one for one in entries if not any(other[1] < one[1] for other in entries)]
    entries.sort(key=lambda entry: (entry[0], sorted(entry[1])))
    rows = [{"rule": rule, "values": dict(sorted(clause))} for rule, clause in entries]
    REFUSED.write_text("[\n" + ",\n".join(" " + json.dumps(row) for row in rows) + "\n]\n")
    print(f"{len(rows)} clauses, {len(gone)} of the earlier ones are taken today")
    return 0


if __name__ == "__main__":
    sys.exit(main())
