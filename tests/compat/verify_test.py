"""`megalith verify`: CVS's cases judged by generated logs, by a real run of the program, and what is refused."""

import json
import math
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SINGLE, NEWER, DISTRIBUTED = (
    "mi3xx_megatron_llama_single.json",
    "mi35x_megatron_llama_single.json",
    "mi3xx_megatron_llama_distributed.json",
)


def cases():
    for file in (SINGLE, NEWER, DISTRIBUTED):
        modes = json.loads((ROOT / "configs/cvs" / file).read_text())["model_params"]
        for mode, models in modes.items():
            for model, gpus in models.items():
                yield from ((file, f"{mode}/{model}/{gpu}", case) for gpu, case in gpus.items())


CASES = list(cases())


class Run:
    """A run of a case as Megatron-LM, or Primus, would log it, a tenth better than its thresholds; tests make it worse."""

    def __init__(self, file, case, iterations=20):
        self.num_nodes = 4 if file == DISTRIBUTED else 1
        results = case["result_dict"]
        self.bounds = {key: float(results.get(f"_example_{key}", value)) for key, value in results.items() if key[0] != "_"}
        self.batch = int(case["batch_size"])
        self.iterations = self.done = iterations
        self.tokens = 1.1 * self.bounds["tokens_per_gpu"]
        self.tflops = 1.1 * self.bounds.get("throughput_per_gpu", 500)
        tokens_of_step = self.batch * int(case["sequence_length"])
        self.elapsed_ms = tokens_of_step / self.tokens / (8 * self.num_nodes) * 1e3
        if "elapsed_time_per_iteration" in self.bounds:  # the stricter of the two thresholds
            self.elapsed_ms = 0.9 * self.bounds["elapsed_time_per_iteration"]
            self.tokens = tokens_of_step / self.elapsed_ms * 1e3 / 8
        self.memory = 0.8
        self.loss = lambda iteration: 12 - 0.05 * iteration
        self.is_primus = True
        self.tail = ""

    def settings(self):
        chosen = {"training_iterations": self.iterations, "nnodes": self.num_nodes, **self.bounds}
        return ["--set", *(f"{key}={value}" for key, value in chosen.items())]

    def line(self, iteration):
        slow = 5 if iteration <= 2 else 1
        pair = (lambda value: f"{value:.1f}/{value:.1f}") if self.is_primus else "{:.1f}".format
        loss = f"{self.loss(iteration):.6E}"
        tokens = f" tokens per GPU (tokens/s/GPU): {pair(self.tokens / slow)} |" if self.is_primus else ""
        return (
            f" iteration {iteration:8d}/{self.iterations:8d} | consumed samples: {iteration * self.batch:12d} |"
            f" elapsed time per iteration (ms): {pair(self.elapsed_ms * slow)} | mem usages: {self.memory:.4f} |"
            f" throughput per GPU (TFLOP/s/GPU): {pair(self.tflops / slow)} |{tokens} learning rate: 1.000000E-04 |"
            f" global batch size: {self.batch:5d} | lm loss: {loss} | loss scale: 1.0 | grad norm: 1.250 |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |"
        )

    def write(self, path):
        world = 8 * self.num_nodes
        head = f"using world size: {world}, data-parallel size: {world}, context-parallel size: 1\n"
        lines = "".join(self.line(iteration) + "\n" for iteration in range(1, self.done + 1))
        path.write_text(head + lines + self.tail)
        return path


def judge(program, file, name, run, folder, *more, expected=0):
    log = run.write(folder / "training.log")
    words = ("verify", "--config", file, "--case", name, *run.settings(), *more, "--log", log, "--json")
    verdict = json.loads(program.run(*words, expected=expected)[1])
    assert verdict["is_passed"] == (expected == 0)
    return [f"{one['topic']} {one['check']}" for one in verdict["runs"][0]["findings"] if one["level"] == "error"]


def make_slow(run):
    run.tokens, run.tflops, run.elapsed_ms = run.tokens / 2, run.tflops / 2, run.elapsed_ms * 2


def make_nan(run):
    falling = run.loss
    run.loss = lambda iteration: math.nan if iteration == 9 else falling(iteration)


def make_killed(run):
    run.done, run.tail = 12, run.line(13)[:70]


def make_hungry(run):
    run.memory, run.bounds["mem_usage"] = 0.97, 0.9


# how a run goes wrong -> (what makes it so, errors that every case has then)
WRONGS = {
    "good": (lambda run: None, []),
    "rising loss": (
        lambda run: setattr(run, "loss", lambda iteration: 9 + 0.05 * iteration),
        ["convergence lm loss falls", "convergence last lm loss"],
    ),
    "NaN": (make_nan, ["convergence finite"]),
    "short": (lambda run: (setattr(run, "iterations", 6), setattr(run, "done", 6)), ["convergence lm loss"]),
    "slow": (make_slow, None),
    "killed": (make_killed, ["results iterations"]),
    "too much memory": (make_hungry, ["performance mem_usage"]),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_twelve_cases_are_judged(wrong, program, tmp_path):
    assert len(CASES) == 12
    make, expected = WRONGS[wrong]
    for file, name, case in CASES:
        run = Run(file, case)
        make(run)
        errors = [f"performance {key}" for key in ("throughput_per_gpu", "tokens_per_gpu", "elapsed_time_per_iteration") if key in run.bounds]
        errors = errors if expected is None else expected
        assert judge(program, file, name, run, tmp_path, expected=1 if errors else 0) == errors, (file, name)


def test_a_log_of_megatron_without_tokens_is_judged_too(program, tmp_path):
    run = Run(SINGLE, CASES[0][2])
    run.is_primus = False
    assert judge(program, SINGLE, CASES[0][1], run, tmp_path) == []
    make_slow(run)
    assert "performance tokens_per_gpu" in judge(program, SINGLE, CASES[0][1], run, tmp_path, expected=1)


def test_several_single_nodes_are_as_many_runs(program, tmp_path):
    file, name, case = CASES[0]
    run = Run(file, case)
    (tmp_path / "b").mkdir()
    logs = [run.write(tmp_path / "training.log"), run.write(tmp_path / "b" / "training.log")]
    words = ("verify", "--config", file, "--case", name, *run.settings(), "--set", "nnodes=2", "--log", *logs, "--json")
    assert len(json.loads(program.run(*words)[1])["runs"]) == 2
    program.run(*words[:-2], "--json", expected=2)  # one log of two
    make_slow(run)
    run.write(logs[1])
    assert [one["is_passed"] for one in json.loads(program.run(*words, expected=1)[1])["runs"]] == [True, False]


def test_logs_are_looked_for_where_cvs_writes_them(program, tmp_path):
    file, name, case = CASES[0]
    run = Run(file, case)
    folder = tmp_path / "logs/megatron-logs/out-node0"
    folder.mkdir(parents=True)
    run.write(folder / "training.log")
    words = ("verify", "--config", file, "--case", name, *run.settings(), f"log_dir={tmp_path}/logs")
    assert program.run(*words)[1].endswith("verdict: passed\n")


def test_upstream_fails_a_time_below_its_threshold(program, tmp_path):
    file, name, case = next(one for one in CASES if "elapsed_time_per_iteration" in one[2]["result_dict"])
    run = Run(file, case)
    run.tail = f"throughput per GPU: {run.tflops}\nelapsed time per iteration: {run.elapsed_ms}\ntokens/GPU/s: {run.tokens:.6f}\nmem usages: 0.8\n"
    assert judge(program, file, name, run, tmp_path) == []
    errors = judge(program, file, name, run, tmp_path, "--compare", "cvs", expected=1)
    assert errors == ["performance elapsed_time_per_iteration"]


def test_junit_is_read_back(program, tmp_path):
    file, name, case = CASES[0]
    run = Run(file, case)
    make_slow(run)
    report, page = tmp_path / "report.xml", tmp_path / "report.html"
    errors = judge(program, file, name, run, tmp_path, "--junit", report, "--page", page, expected=1)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    found = suite.findall("testcase")
    failures = [one for one in found if one.find("failure") is not None]
    assert [f"{one.get('classname')} {one.get('name')}" for one in failures] == [f"verify.{error}" for error in errors]
    assert (int(suite.get("tests")), int(suite.get("failures"))) == (len(found), len(errors))
    assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped")) > 0
    assert len({(one.get("classname"), one.get("name")) for one in found}) == len(found), "names of test cases repeat"
    assert "expected at least" in failures[0].find("failure").get("message")
    text = page.read_text()
    assert "<svg" in text and "failed" in text and "tokens_per_gpu" in text
    # Written again, but not over a file of somebody else.
    judge(program, file, name, run, tmp_path, "--junit", report, expected=1)
    report.write_text("mine")
    _, _, message = program.run("verify", "--config", file, "--junit", report, "--log", "x", expected=2)
    assert "a file is there, and this program did not write it for that" in message and report.read_text() == "mine"


CASE = ("--config", SINGLE, "--case", "single_node/llama3_1_8b/mi300x")
REAL = (
    *("--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4, "--vocab_size", 131, "--max_position_embeddings", 64),
    *("--seq_length", 32, "--mock_data", "--device", "cpu", "--global_batch_size", 4, "--eval_iters", 0, "--lr", 0.003),
)
# A case for it: what CVS's file says otherwise is replaced.
REAL_CASE = ("nnodes=1", "training_iterations=12", "batch_size=4", "micro_batch_size=1", "sequence_length=32", "throughput_per_gpu=1e-9")


@pytest.fixture(scope="module")
def real_run(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("real") / "run"
    output = program.run("train", *REAL, "--train_iters", 12, "--output_dir", folder, "--log_format", "megatron")[1]
    (folder / "training.log").write_text(output)
    return folder


def kernel_says(folder, script):
    """The environment in which this is dmesg: what else this machine does is not the run's."""
    folder.mkdir()
    (folder / "dmesg").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "dmesg").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_the_kernels_messages_of_that_time_count(program, real_run, tmp_path):
    record = json.loads((real_run / "run.json").read_text())["starts"][-1]
    for number, (time, passes) in enumerate(((record["begin"], False), ("2001-01-01T00:00:00.000Z", True))):
        kernel = kernel_says(tmp_path / str(number), f"echo '{time[:19]},123456+00:00 amdgpu: GPU reset begin!'")
        words = ("--devices_per_node", 1, "--run", real_run, "--set", *REAL_CASE, "tokens_per_gpu=1", "elapsed_time_per_iteration=1e6")
        _, output, _ = program.run("verify", *CASE, *words, environment=kernel, expected=0 if passes else 1)
        assert ("kernel log, gpu_reset" in output) != passes


def test_a_real_run_is_judged_by_its_folder_and_by_its_log(program, real_run, tmp_path):
    kernel = kernel_says(tmp_path / "bin", "exit 1")
    common = ("verify", "--config", SINGLE, "--case", "single_node/llama3_1_8b/mi300x", "--devices_per_node", 1)
    bounds = ("tokens_per_gpu=1", "elapsed_time_per_iteration=1e6", "mem_usage=1")
    # The log rounds the TFLOP/s of this model to 0.0.
    for source, wrong in ((("--run", real_run), []), (("--log", real_run / "training.log"), ["performance throughput_per_gpu"])):
        output = program.run(*common, *source, "--json", "--set", *REAL_CASE, *bounds, expected=1 if wrong else 0, environment=kernel)[1]
        found = {f"{one['topic']} {one['check']}": one for one in json.loads(output)["runs"][0]["findings"]}
        assert [name for name, one in found.items() if one["level"] == "error"] == wrong
        assert found["communication ranks"]["found"] == "1 (run.json)"
        assert found["results exit code"]["found"] == "0 (finished)"
        assert found["results iterations"]["found"] == "12"
        assert found["convergence lm loss falls"]["level"] == "ok"
    _, output, _ = program.run(*common, "--run", real_run, "--set", *REAL_CASE, "tokens_per_gpu=1e12", expected=1, environment=kernel)
    assert re.search(r"error +tokens_per_gpu +[\d.]+ tokens/s, expected at least 1e\+12 tokens/s\n +-> ", output)
    record = json.loads((real_run / "run.json").read_text())["starts"][-1]
    assert record["axes"] == {axis: 1 for axis in ("tp", "cp", "dp", "pp", "etp", "ep", "edp")} and record["exit_code"] == 0


def test_the_device_and_the_model_choose_the_case_or_the_choices_are_listed(program, real_run):
    words = ("verify", "--config", SINGLE, "--run", real_run, "--set", *REAL_CASE)
    _, _, message = program.run(*words, expected=2)
    assert "none of the cases" in message and "of 2 layers" in message
    assert "choose one with --case: single_node/llama3_1_70b/mi300x, " in message


# A docker that has one image, runs what is executed "inside" here, and writes down its words.
DOCKER = """#!/bin/sh
state={state}
echo "docker $*" >> $state/words
case $1 in
  image) [ -e $state/image ] ;;
  pull) touch $state/image ;;
  ps) [ -e $state/up ] && echo megatron_llama3.1_310; true ;;
  run) touch $state/up; echo 0123456789ab ;;
  rm) rm -f $state/up; echo $3 ;;
  exec)
    shift
    while [ "$1" = -e ]; do
      case $2 in *=*) export "$2" ;; esac
      shift 2
    done
    shift
    if [ "$1" = df ]; then echo 137438953472; elif [ "$1" = test ]; then [ ! -e $state/lost ]; else exec "$@"; fi ;;
esac
"""
# The script of an image: it logs what it was told, and a good run.
SCRIPT = """#!/bin/sh
env | sort > {state}/environment
cat {state}/log
exit $(cat {state}/exit_code)
"""


@pytest.fixture
def docker(tmp_path):
    state, root = tmp_path / "state", tmp_path / "root"
    for folder in (state, root / "examples/llama", root / "build", tmp_path / "bin"):
        folder.mkdir(parents=True)
    for path, text in ((tmp_path / "bin/docker", DOCKER), (root / "examples/llama/train_llama3.sh", SCRIPT), (root / "build/megalith", "")):
        path.write_text(text.replace("{state}", str(state)))
        path.chmod(0o755)
    (state / "exit_code").write_text("0")
    (tmp_path / "token").write_text("hf_secret\n")
    return state


def launched(program, docker, run, engine="docker", expected=0):
    """(the levels of the findings by their names, all that the program said)"""
    folder = docker.parent
    run.write(docker / "log")
    own = json.loads((ROOT / "configs/cvs" / SINGLE).read_text())
    own["config"]["container_config"] = {"device_list": ["/dev/null"], "volume_dict": {str(folder): str(folder)}}
    own["config"].update(log_dir=f"{folder}/logs", hf_token_file=f"{folder}/token", megatron_root=f"{folder}/root")
    (folder / "own.json").write_text(json.dumps(own))
    path = {"PATH": f"{folder}/bin:/usr/bin:/bin"}
    words = ("verify", "--config", folder / "own.json", "--case", "single_node/llama3_1_8b/mi300x", *run.settings(), "--launch", engine, "--json")
    _, output, errors = program.run(*words, expected=expected, environment=path)
    findings = json.loads(output)["runs"][0]["findings"]
    return {f"{one['topic']} {one['check']}": one["level"] for one in findings}, output + errors


def good_8b():
    return Run(SINGLE, next(case for _, name, case in CASES if name == "single_node/llama3_1_8b/mi300x"))


def test_a_launch_is_recorded_and_judged(program, docker):
    run = good_8b()
    levels, said = launched(program, docker, run)
    for step in ("host /dev/null", "image", "start", "up", "inside", "/dev/shm", "program", "script"):
        assert levels[f"containers {step}"] == "ok", levels
    assert levels["performance tokens_per_gpu"] == "ok" and "containers stale container" not in levels
    environment = (docker / "environment").read_text()
    for variable in ("MBS=2", "BS=128", "TE_FP8=1", f"TOTAL_ITERS={run.iterations}", "MODEL_SIZE=8", "MOCK_DATA=1", "HF_TOKEN=hf_secret"):
        assert f"{variable}\n" in environment
    words = (docker / "words").read_text()
    assert "hf_secret" not in said + words
    assert not (docker / "up").exists() and words.splitlines()[-1] == "docker rm -f megatron_llama3.1_310"
    log = docker.parent / "logs/megatron-logs/out-node0/training.log"
    assert log.read_text() == (docker / "log").read_text()


def test_a_launch_that_fails_is_told_by_its_step(program, docker):
    (docker / "lost").touch()
    levels, _ = launched(program, docker, good_8b(), expected=1)
    assert levels["containers inside /dev/null"] == "error" and levels["results iterations"] == "error"
    assert not (docker / "up").exists()
    (docker / "lost").unlink()
    (docker / "up").touch()  # somebody's old container of that name
    (docker / "exit_code").write_text("1")
    run = good_8b()
    run.done = 12
    levels, _ = launched(program, docker, run, expected=1)
    assert levels["containers stale container"] == "ok"
    assert levels["containers script"] == levels["results iterations"] == "error" and levels["convergence finite"] == "ok"


def test_a_launch_without_a_container_runs_the_script_here(program, docker):
    levels, _ = launched(program, docker, good_8b(), engine="none")
    assert levels["containers script"] == "ok" and not (docker / "words").exists()
    assert "TP=1\n" in (docker / "environment").read_text()


# What the launch runs in a container, and what its script runs.
IN_IMAGE = ("bash", "sh", "sleep", "test", "df", "ls", "env", "sort", "cat")
# Two hierarchies of control groups at once are more than some engines take; the older one is enough.
ONE_HIERARCHY = "umount /sys/fs/cgroup/unified 2>/dev/null; exec \"$@\""


def make_image(folder, state):
    """A root folder with this machine's shell, and a trainer that logs a good run."""
    for place in ("tmp", "etc", "usr/bin", "usr/lib", "usr/lib64", "workspace/Megatron-LM/examples/llama"):
        (folder / place).mkdir(parents=True)
    for place in ("bin", "lib", "lib64"):
        (folder / place).symlink_to(f"usr/{place}")
    (folder / "etc/group").write_text("root:x:0:\nvideo:x:44:\n")
    (folder / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    for name in IN_IMAGE:
        path = Path(shutil.which(name)).resolve()
        shutil.copy(path, folder / "usr/bin" / name)
        libraries = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+)", libraries):
            (folder / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, folder / library[1:])
    script = folder / "workspace/Megatron-LM/examples/llama/train_llama3.sh"
    script.write_text(SCRIPT.replace("{state}", str(state)))


@pytest.fixture
def podman(docker):
    """(words in front of the program, its environment), or the reason why no container runs here."""
    if not shutil.which("podman") or os.geteuid() != 0:
        pytest.skip("needs podman, and to be root")
    folder = docker.parent
    (folder / "containers.conf").write_text(
        '[containers]\ncgroups = "disabled"\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nstop_timeout = 1\n'
    )
    (folder / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n')
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    environment |= {"CONTAINERS_CONF": f"{folder}/containers.conf", "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf"}
    make_image(folder / "image", docker)
    front = ["unshare", "--mount", "sh", "-c", ONE_HIERARCHY, "sh"]
    for words in (
        ["sh", "-c", f"tar -C {folder}/image -c . | podman import - localhost/trainer:test"],
        ["podman", "run", "--rm", "--privileged", "--network", "host", "localhost/trainer:test", "test", "-e", "/bin/sh"],
    ):
        tried = subprocess.run([*front, *words], env=environment, capture_output=True, text=True, timeout=60)
        if tried.returncode != 0:
            pytest.skip(f"podman cannot run a container here: {tried.stderr.strip()[-200:]}")
    return front, environment


def test_a_container_really_runs_and_is_removed(program, docker, podman):
    front, environment = podman
    folder, run = docker.parent, good_8b()
    run.write(docker / "log")
    own = json.loads((ROOT / "configs/cvs" / SINGLE).read_text())
    own["config"]["container_config"] = {"device_list": ["/dev/null"], "volume_dict": {str(folder): str(folder)}}
    own["config"].update(log_dir=f"{folder}/logs", hf_token_file=f"{folder}/token", shm_size="64M", container_image="localhost/trainer:test")
    (folder / "own.json").write_text(json.dumps(own))
    words = ["verify", "--config", folder / "own.json", "--case", "single_node/llama3_1_8b/mi300x", *run.settings(), "--launch", "podman", "--json"]
    done = subprocess.run(
        [*front, program.path, *map(str, words)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    levels = {f"{one['topic']} {one['check']}": one["level"] for one in json.loads(done.stdout)["runs"][0]["findings"]}
    for step in ("host /dev/null", "image", "start", "up", "inside", "/dev/shm", "script"):
        assert levels[f"containers {step}"] == "ok", levels
    assert levels["containers program"] == "warning", "the image has no megalith"
    written = (docker / "environment").read_text()
    for variable in ("MBS=2", "TE_FP8=1", "HF_TOKEN=hf_secret"):
        assert f"{variable}\n" in written
    assert "hf_secret" not in done.stdout + done.stderr
    left = subprocess.run([*front, "podman", "ps", "-a", "--format", "{{.Names}}"], env=environment, capture_output=True, text=True)
    assert left.stdout == ""


RESOLVED = ("--set", "nnodes=1", "training_iterations=20")
# what is wrong, words, parts of the message
REFUSED = [
    ("no file", ("--log", "good.log"), ["takes one file of CVS, and 0 are given"]),
    ("a file that is not there", ("--config", "mi4.json"), ["mi4.json: no such file", SINGLE]),
    ("not JSON", ("--config", "broken.json"), ["broken.json:2:1: not valid JSON"]),
    ("no cases", ("--config", "empty.json"), ['has no object "model_params"']),
    ("unresolved", (*CASE, "--log", "good.log"), ["nnodes, training_iterations still have <changeme>", "--set nnodes=4 training_iterations=30"]),
    ("unknown case", ("--config", SINGLE, "--case", "single_node/llama4/mi300x", *RESOLVED, "--log", "good.log"), ["no such case", "single_node/llama3_1_8b/mi325"]),
    ("unknown precision", (*CASE, *RESOLVED, "precision=FP4", "--log", "good.log"), ["precision is FP4", "TE_FP8"]),
    ("unknown NIC", (*CASE, *RESOLVED, "nic_type=intel", "--log", "good.log"), ["nic_type is intel", "ainic, thor2 or cx7"]),
    ("one node that is several", (*CASE, *RESOLVED, "distributed_training=True", "--log", "good.log"), ["distributed_training is True, and nnodes is 1"]),
    ("unknown name", (*CASE, *RESOLVED, "batchsize=3", "--log", "good.log"), ["did you mean batch_size?"]),
    ("no number", (*CASE, *RESOLVED, "tokens_per_gpu=fast", "--log", "good.log"), ["tokens_per_gpu is", "fast", "expected a number above 0"]),
    ("no log", (*CASE, *RESOLVED, "log_dir=nowhere"), ["none lies in nowhere/megatron-logs/out-node0/training.log"]),
    ("a log that is not there", (*CASE, *RESOLVED, "--log", "other.log"), ["other.log"]),
    ("an empty log", (*CASE, *RESOLVED, "--log", "empty.log"), ["empty.log is empty"]),
    ("a log without iterations", (*CASE, *RESOLVED, "--log", "words.log"), ["no line of an iteration", "--log_format megatron"]),
    ("a log of other iterations", (*CASE, "--set", "nnodes=1", "training_iterations=50", "--log", "good.log"), ["of another run", "20 iterations", "training_iterations is 50"]),
    ("a log of another batch", (*CASE, *RESOLVED, "batch_size=64", "--log", "good.log"), ["of another run", "global batch size is 128"]),
    ("a log without its beginning", (*CASE, *RESOLVED, "--log", "cut.log"), ["cut.log is cut", "1 to 4"]),
    ("a list that is no text", ("--config", "list.json", "--log", "good.log"), ["config.nnodes is [1]", "expected a text"]),
    ("no objects", ("--config", "flat.json", "--log", "good.log"), ["single_node.llama3_1_8b is no object"]),
    ("not a switch", (*CASE, *RESOLVED, "verify_network_errors=perhaps", "--log", "good.log"), ["verify_network_errors is", "True or False"]),
    ("a setting without a value", (*CASE, "--set", "nnodes", "--log", "good.log"), ["nnodes"]),
    ("several files", (*CASE, "--config", NEWER, "--log", "good.log"), ["takes one file of CVS, and 2 are given"]),
    ("log and run", (*CASE, *RESOLVED, "--log", "good.log", "--run", "."), ["two of --log, --run and --launch are given"]),
    ("no folder of a run", (*CASE, *RESOLVED, "--run", "."), ["not the folder of a run"]),
    ("a node that is none", (*CASE, *RESOLVED, "--launch", "none", "--node_rank", 1), ["this is node 1, and nnodes is 1"]),
    ("log and launch", (*CASE, *RESOLVED, "--log", "good.log", "--launch", "docker"), ["two of --log, --run and --launch are given"]),
    ("an unknown comparison", (*CASE, *RESOLVED, "--log", "good.log", "--compare", "mlperf"), ["compare", "mlperf"]),
]


@pytest.mark.parametrize("what, words, parts", REFUSED, ids=[row[0] for row in REFUSED])
def test_bad_input_is_refused(what, words, parts, program, tmp_path):
    case = next(case for _, name, case in CASES if name == "single_node/llama3_1_8b/mi300x")
    whole = Run(SINGLE, case).write(tmp_path / "good.log").read_text()
    (tmp_path / "cut.log").write_text(whole[whole.index(" iteration        5/") :])
    (tmp_path / "empty.log").write_text("\n")
    (tmp_path / "words.log").write_text("hello\n")
    (tmp_path / "broken.json").write_text('{"config": \n}')
    (tmp_path / "list.json").write_text('{"config": {"nnodes": [1]}, "model_params": {}}')
    (tmp_path / "flat.json").write_text('{"config": {}, "model_params": {"single_node": {"llama3_1_8b": "x"}}}')
    (tmp_path / "empty.json").write_text('{"config": {}}')
    _, output, message = program.run("verify", *words, cwd=tmp_path, expected=2)
    assert not output and "error: " in message
    for part in parts:
        assert part in message, message
