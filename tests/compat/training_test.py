"""Other tools' scripts really train, on a processor, and other tools' readers find in the logs what they look for."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import log_patterns
import pytest
from hosts import Hosts, HostsUnavailable
from shells import shell

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ITERATIONS = 25
TINY = f"TINY=1 GPUS_PER_NODE=1 MOCK_DATA=1 TOTAL_ITERS={ITERATIONS} LOG_DIR=logs"
EXPERIMENT = f"EXP={EXAMPLES}/megatron/configs/llama3.1_8B-pretrain.yaml"
SUMMARY_LINES = ("throughput per GPU: ", "elapsed time per iteration: ", "tokens/GPU/s: ", "mem usages: ")


def check_readers(log, tokens=None, ranks=1, tail=0):
    """Each tool finds every line once. tail: lines of the launcher's own after the summary."""
    lines = log.splitlines()
    end = lines[len(lines) - len(SUMMARY_LINES) - tail : len(lines) - tail]
    assert [line[: len(start)] for line, start in zip(end, SUMMARY_LINES)] == list(SUMMARY_LINES), "\n".join(lines[-8:])
    for start in SUMMARY_LINES:
        assert sum(line.startswith(start) for line in lines) == 1, start
    iterations = Counter(re.findall(r"^ iteration +(\d+)/", log, re.MULTILINE))
    assert iterations == Counter(str(i) for i in range(1, ITERATIONS + 1))

    # CVS's old suites see the summary and the last iterations.
    seen = log_patterns.CVS_LAST_LINES - len(SUMMARY_LINES) - tail
    counts = {"throughput_per_gpu": seen + 1, "tokens_per_gpu": 1, "mem_usage": seen + 1, "elapsed_time_per_iteration": seen}
    assert {name: len(values) for name, values in log_patterns.cvs_old(log).items()} == counts
    before = log_patterns.cvs_old(log, log_patterns.CVS_BEFORE_MAY_2026)
    assert len(before["throughput_per_gpu"]) == 1 and log_patterns.cvs_old_is_complete(log)
    # Its new ones want the summary, and without one the iterations.
    figures = log_patterns.cvs_new(log)
    assert all(figures[name] is not None and figures[name] > 0 for name in log_patterns.CVS_NEW), figures
    assert log_patterns.cvs_new_is_complete(log, ITERATIONS) and not log_patterns.cvs_has_nan(log)
    fallback = log_patterns.cvs_new_from_iterations(log)
    assert fallback["elapsed_time_per_iteration"] > 0 and None not in fallback.values()
    losses = log_patterns.cvs_losses(log)
    assert [iteration for iteration, _ in losses] == list(range(1, ITERATIONS + 1)) and all(loss > 0 for _, loss in losses)
    # MAD takes the last of each, or the iterations' own.
    assert log_patterns.mad_megatron(log) == {
        "tok_per_s_per_gpu": figures["tokens_per_gpu"], "TFLOPS_per_gpu": figures["throughput_per_gpu"]
    }
    assert log_patterns.mad_primus(log)["tok_per_s_per_gpu"] > 0 and len(log_patterns.mad_primus(log)) == 2
    assert log_patterns.failures(log) == []
    if tokens is None:
        return
    # ROCm's scripts compute their summary of the same lines. Ours is of unrounded numbers: lines have one decimal.
    theirs = log_patterns.rocm_summary(log, tokens, ranks)
    assert theirs["elapsed_time_per_iteration"] == pytest.approx(figures["elapsed_time_per_iteration"], abs=0.06)
    assert theirs["tokens_per_gpu"] == pytest.approx(figures["tokens_per_gpu"], rel=0.01)
    assert theirs["mem_usage"] == pytest.approx(figures["mem_usage"], abs=1e-4)


def tokens_of_iteration(said):
    samples, length = re.search(r"TINY=1: .* (\d+) samples of (\d+) tokens", said).groups()
    return int(samples) * int(length)


ROCM_SCRIPTS = (
    "llama/train_llama2.sh",
    "llama/train_llama3.sh",
    "deepseek_v2/train_deepseekv2.sh",
    "deepseek_v3/train_deepseekv3.sh",
    "mixtral/train_mixtral_moe.sh",
)


@pytest.mark.parametrize("script", ROCM_SCRIPTS)
def test_a_script_of_rocm_trains_and_its_log_is_read(script, program, tmp_path):
    printed, said = shell(f"{TINY} TEE_OUTPUT=1 bash {EXAMPLES}/{script}", program, tmp_path)
    assert log_patterns.failures(printed + said) == []
    for log in (printed, (tmp_path / "logs/output_perf.log").read_text()):
        check_readers(log, tokens_of_iteration(said))


def test_the_log_goes_only_to_the_file(program, tmp_path):
    printed, said = shell(f"{TINY} TEE_OUTPUT=0 bash {EXAMPLES}/llama/train_llama2.sh", program, tmp_path)
    assert printed == "" and "logs/output_perf.log" in said
    check_readers((tmp_path / "logs/output_perf.log").read_text())


def test_a_script_edited_and_redirected_as_cvs_does_it(program, tmp_path):
    """It replaces the line TRAIN_LOG= with sed, and redirects the script's output to the same file."""
    script = tmp_path / "examples" / "train.sh"
    script.parent.mkdir()
    text = (EXAMPLES / "llama/train_llama3.sh").read_text()
    script.write_text(text)
    log = tmp_path / "megatron-logs/out-node0/training.log"
    log.parent.mkdir(parents=True)
    subprocess.run(["sed", "-i", f"/^TRAIN_LOG=/c\\TRAIN_LOG={log}", script], check=True)
    assert script.read_text() != text
    exports = f"export IMAGE=none LOG_DIR={tmp_path} EXP_NAME=megatron_training HF_TOKEN=hf_secret"
    variables = f"RECOMPUTE=0 SEQ_LENGTH=64 MBS=1 BS=8 TP=1 PP=1 FSDP=0 MODEL_SIZE=8 TOTAL_ITERS={ITERATIONS}.0 TE_FP8=0"
    words = f"TINY=1 GPUS_PER_NODE=1 MOCK_DATA=1 {variables} bash {script} > {log} 2>&1 &"
    shell(f"{exports}; {words} wait", program, tmp_path)
    check_readers(log.read_text())
    assert "hf_secret" not in log.read_text()


def test_primus_prints_its_banners_and_exit_line(program, tmp_path):
    words = f"TINY=1 GPUS_PER_NODE=1 {EXPERIMENT} bash {EXAMPLES}/run_pretrain.sh --train_iters {ITERATIONS}"
    printed, said = shell(words, program, tmp_path)
    assert "========== Training cluster info ==========" in printed
    assert "Launching distributed training with command: " in printed
    assert printed.splitlines()[-1] == "torchrun exited with code 0"
    check_readers(printed, tail=1)
    check_readers((tmp_path / "output/log_torchrun_pretrain_llama3.1_8B-pretrain.txt").read_text())
    assert log_patterns.failures(said) == []


CONTAINER = """#!/bin/bash
# Plays docker: takes the words of `docker run` as docker does, and runs the rest right here, with only the variables that
# were handed over.
[ "$1" = run ] || exit 9
shift
kept=(PATH="$PATH" HOME="$HOME" OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive)
while [ "${1#-}" != "$1" ]; do
  case $1 in
    --rm) shift ;;
    --workdir) cd "$2" || exit 9; shift 2 ;;
    --env) [[ $2 == *=* ]] && kept+=("$2") || kept+=("$2=${!2-}"); shift 2 ;;
    --network | --ipc | --volume | --device) shift 2 ;;
    *) echo "docker: unknown flag: $1" >&2; exit 9 ;;
  esac
done
echo "container of $1"
shift
exec env -i "${kept[@]}" "$@"
"""


def test_primus_trains_in_a_container(program, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "docker").write_text(CONTAINER)
    (tools / "docker").chmod(0o755)
    (tools / "megalith").symlink_to(program.path)
    words = f"TINY=1 GPUS_PER_NODE=1 {EXPERIMENT} bash {EXAMPLES}/run_local_pretrain.sh --train_iters {ITERATIONS}"
    printed, _ = shell(words, program, tmp_path, DOCKER_IMAGE="mine:1", PATH=f"{tools}:{os.environ['PATH']}")
    assert printed.startswith("container of mine:1\n")
    check_readers(printed, tail=1)


def test_two_ranks_train(program, tmp_path):
    words = f"{TINY} GPUS_PER_NODE=2 MODEL_SIZE=8 bash {EXAMPLES}/llama/train_llama3.sh TP=2 --explain_options"
    (tmp_path / "temporary").mkdir()
    printed, said = shell(words, program, tmp_path, TMPDIR=str(tmp_path / "temporary"))
    assert "torchrun" in said
    # They met by a secret, which is gone.
    assert re.search(r"store_secret_file:? +\S+/temporary/megalith-secret-\w{6}", said), said
    assert not list((tmp_path / "temporary").glob("megalith-*"))
    check_readers(printed, tokens_of_iteration(said), ranks=2)


def test_two_machines_train_each_started_by_hand(program, tmp_path):
    """As the guide prints it: the same line on both, with another NODE_RANK."""
    try:
        with Hosts() as hosts:
            started = []
            for node in (0, 1):
                place = f"NNODES=2 NODE_RANK={node} MASTER_ADDR={hosts.address(0)} MASTER_PORT=29517"
                environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MEGALITH": str(program.path),
                               "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
                words = f"{TINY.replace('=logs', f'=logs{node}')} TP=1 MODEL_SIZE=8 {place} bash {EXAMPLES}/llama/train_llama3.sh"
                started.append(subprocess.Popen(
                    hosts.command(node, "bash", "-c", words), cwd=tmp_path, env=environment, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                ))
            said = [process.communicate(timeout=240) for process in started]
    except HostsUnavailable as reason:
        pytest.skip(str(reason))
    assert [process.returncode for process in started] == [0, 0], "\n---\n".join(errors[-3000:] for _, errors in said)
    assert any("the interface that leads to MASTER_ADDR" in errors for _, errors in said)
    # As in Megatron-LM the last rank logs, and CVS reads the last machine's file.
    assert log_patterns.cvs_losses((tmp_path / "logs0/output_perf.log").read_text()) == []
    for log in (said[1][0], (tmp_path / "logs1/output_perf.log").read_text()):
        check_readers(log, tokens_of_iteration(said[1][1]), ranks=2)


TEXTS = [f"Book {i} begins like this, and goes on: " + "more words of it, " * (i % 7) for i in range(40)]


def test_a_prepared_data_set_is_trained_on(program, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "books.parquet")
    prepare = f"PARQUET_FILES=books.parquet TOKENIZER_TYPE=ByteTokenizer TOKENIZER_MODEL=unused APPEND_EOD=1 PYTHON={sys.executable}"
    printed, _ = shell(f"{prepare} DATASET=bookcorpus bash {EXAMPLES}/llama/prepare_dataset.sh", program, tmp_path)
    assert printed.splitlines()[-1] == "DATA_PATH=data/bookcorpus_text_document"
    # The guide's own line: its name for the same files.
    words = f'{TINY} MOCK_DATA=0 DATA_PATH="data/bookcorpus_text_sentence" DATA_CACHE_PATH=cache MODEL_SIZE=8'
    printed, said = shell(f"{words} bash {EXAMPLES}/llama/train_llama3.sh", program, tmp_path)
    check_readers(printed, tokens_of_iteration(said))
    assert list((tmp_path / "cache").iterdir()), "the samples' indices"
    losses = [loss for _, loss in log_patterns.cvs_losses(printed)]
    assert losses[-1] < losses[0], "bytes of a text are learned at once"


def test_a_log_in_torchtitans_words_is_read(program, tmp_path):
    """50 steps, as the benchmark has them; each line stands beside one of Megatron-LM's."""
    words = TINY.replace(f"={ITERATIONS}", "=50")
    printed, said = shell(f"{words} bash {EXAMPLES}/llama/train_llama3.sh --log_style torchtitan", program, tmp_path)
    read = log_patterns.cvs_torchtitan(printed)
    assert len(read["tps"]) == len(read["memory"]) == 50 and len(read["loss"]) == 2 * 50
    assert log_patterns.cvs_torchtitan_is_complete(printed, 50) and not log_patterns.cvs_torchtitan_is_complete(printed, 51)
    # MAD's figure is that of the same iterations' own lines: each is tokens over milliseconds, rounded to whole tokens.
    times = [float(ms) for ms in re.findall(log_patterns.ROCM_ELAPSED, printed)][log_patterns.MAD_MEASURED]
    expected = sum(tokens_of_iteration(said) * 1000 / ms for ms in times) / len(times)
    assert log_patterns.mad_torchtitan(printed)["tok_per_s_per_gpu"] == pytest.approx(expected, rel=0.01, abs=0.6)
    assert "TFLOPS_per_gpu" in log_patterns.mad_torchtitan(printed)


LOG = "\n".join(
    f" iteration {i}/ 5 | elapsed time per iteration (ms): {i}.0/1.0 | mem usages: 0.5 | throughput per GPU (TFLOP/s/GPU): 2.0/2.0 |"
    f" tokens per GPU (tokens/s/GPU): 9.0/9.0 | lm loss: 1.0E+00 |"
    for i in range(1, 6)
)


def test_the_readers_notice_what_is_missing():
    summary = "throughput per GPU: 2.0\nelapsed time per iteration: 3.5\ntokens/GPU/s: 8.1\nmem usages: 0.5\n"
    assert log_patterns.cvs_new(f"{LOG}\n{summary}")["elapsed_time_per_iteration"] == 3.5
    assert set(log_patterns.cvs_new(LOG).values()) == {None, 0.5}  # memory has one form in both places
    assert log_patterns.cvs_old(f"{LOG}\n{summary}" + "more\n" * 15)["tokens_per_gpu"] == []
    assert not log_patterns.cvs_new_is_complete(LOG.replace("iteration 5/", "iteration 4/"), 5)
    assert log_patterns.cvs_has_nan("mem usages: NaN") and not log_patterns.cvs_has_nan(LOG)
    assert log_patterns.rocm_summary(LOG, 14, 2)["elapsed_time_per_iteration"] == 3.5
    assert log_patterns.rocm_summary(LOG, 14, 2)["tokens_per_gpu"] == 2000
    assert log_patterns.mad_primus(LOG.replace("/9.0", "")) == {"TFLOPS_per_gpu": 2.0}
    assert log_patterns.mad_megatron(LOG) == {}
    assert log_patterns.mad_torchtitan("tps: 1,000  tflops: 2.00\n" * 40) == {"tok_per_s_per_gpu": 1000, "TFLOPS_per_gpu": 2}
    assert log_patterns.mad_torchtitan("tps: 1,000  tflops: 2.00\n" * 39) == {}
    assert log_patterns.failures("rank 3: NCCL error: unhandled") == ["NCCL error:"]


def test_the_record_of_a_run_lies_beside_its_log_and_verify_reads_it(program, tmp_path):
    """And nothing that was not asked for; another run in the folder is another start, found by its log."""
    expected = {"perf": 8, "other": 9}
    for name, iterations in expected.items():
        words = f"TINY=1 GPUS_PER_NODE=1 LOG_DIR=logs TOTAL_ITERS={iterations} EXP_NAME={name}"
        shell(f"{words} MODEL_SIZE=8 bash {EXAMPLES}/llama/train_llama3.sh", program, folder=tmp_path)
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"output_perf.log", "output_other.log", "run.json"}
    starts = json.loads((tmp_path / "logs/run.json").read_text())["starts"]
    assert [(start["exit_code"], start["last_iteration"], start["world_size"]) for start in starts] == [(0, 8, 1), (0, 9, 1)]
    words = "--config mi3xx_megatron_llama_single.json --case single_node/llama3_1_8b/mi300x --devices_per_node 1 --json"
    for name, iterations in expected.items():
        log = (tmp_path / f"logs/output_{name}.log").read_text()
        numbers = f"nnodes=1 training_iterations={iterations} batch_size={re.search(r'global batch size: +([0-9]+)', log)[1]}"
        command = f'"$MEGALITH" verify {words} --log logs/output_{name}.log --set {numbers} || [ $? = 1 ]'
        (run,) = json.loads(shell(command, program, folder=tmp_path)[0])["runs"]
        found = {f"{one['topic']} {one['check']}": (one["level"], one["found"]) for one in run["findings"]}
        assert found["communication ranks"] == ("ok", "1 (run.json)")
        assert found["communication axis dp"] == ("ok", "1 rank") and found["results exit code"] == ("ok", "0 (finished)")


def test_a_file_that_is_no_record_is_left_as_it_is(program, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/run.json").write_text("mine")
    _, said = shell(f"TINY=1 GPUS_PER_NODE=1 LOG_DIR=logs TOTAL_ITERS=5 MODEL_SIZE=8 bash {EXAMPLES}/llama/train_llama3.sh", program, folder=tmp_path)
    assert "logs/run.json is not the record of a run" in said
    assert (tmp_path / "logs/run.json").read_text() == "mine"
