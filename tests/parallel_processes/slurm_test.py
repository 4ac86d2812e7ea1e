"""Under Slurm, with its real daemons: one node and two, srun, batch scripts, torchrun on each node."""

import re
import sys
import time
from pathlib import Path

import pytest
from hosts import Hosts, HostsUnavailable
from launch_test import alone, assert_same_curve, curve, train_words  # noqa: F401
from ranks import LAUNCHER_VARIABLES
from slurm import Slurm, SlurmUnavailable


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    try:
        with Hosts() as hosts, Slurm(hosts, tmp_path_factory.mktemp("slurm")) as made:
            yield made
    except (HostsUnavailable, SlurmUnavailable) as reason:
        pytest.skip(str(reason))


def checked(slurm, *words, expected=0, **variables):
    unset = [word for name in (*LAUNCHER_VARIABLES, "GLOO_SOCKET_IFNAME") for word in ("-u", name)]
    settings = [f"{name}={value}" for name, value in {"OMP_WAIT_POLICY": "passive", **variables}.items()]
    process = slurm.run("env", *unset, *settings, *words)
    assert process.returncode == expected, f"{process.stdout[-2000:]}\n{process.stderr[-4000:]}"
    return process


def test_two_tasks_on_one_node_train_as_one(alone, slurm, program, data, tmp_path):  # noqa: F811
    checked(slurm, "srun", "-N", 1, "-n", 2, *program.command(*train_words(data, tmp_path)))
    assert_same_curve(curve(tmp_path), alone)


def test_two_nodes_train_as_one(alone, slurm, program, data, tmp_path):  # noqa: F811
    """MASTER_ADDR is not set: Slurm's list of nodes says where to meet."""
    process = checked(slurm, "srun", "-N", 2, "-n", 2, *program.command(*train_words(data, tmp_path)))
    assert_same_curve(curve(tmp_path), alone)
    assert "rank 0 talks over eth0 (10.77.0.1), which leads to MASTER_ADDR" in process.stderr


BATCH = """#!/bin/sh
#SBATCH --nodes 2
#SBATCH --ntasks-per-node {tasks}
#SBATCH --output {folder}/said
{command}
echo $? > {folder}/code.new
mv {folder}/code.new {folder}/code
"""


def run_batch(slurm, folder, tasks, command):
    script = folder / "job.sh"
    script.write_text(BATCH.format(folder=folder, tasks=tasks, command=command))
    checked(slurm, "sbatch", script)
    end = time.monotonic() + 120
    while not (folder / "code").exists():
        assert time.monotonic() < end, slurm.run("squeue").stdout
        time.sleep(0.1)
    assert (folder / "code").read_text() == "0\n", (folder / "said").read_text()


def test_a_batch_script_trains_on_two_nodes(alone, slurm, program, data, tmp_path):  # noqa: F811
    words = " ".join(program.command(*train_words(data, tmp_path)))
    run_batch(slurm, tmp_path, 2, f"GLOO_SOCKET_IFNAME=eth1 srun {words}")
    assert_same_curve(curve(tmp_path), alone)


def test_a_batch_script_starts_torchrun_on_each_node(alone, slurm, program, data, tmp_path):  # noqa: F811
    pytest.importorskip("torch")
    words = " ".join(program.command(*train_words(data, tmp_path)))
    torchrun = f"{sys.executable} -m torch.distributed.run --no-python --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID"
    place = "--master-addr $MASTER_ADDR --master-port 29501 --nproc-per-node 1"
    first = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    run_batch(slurm, tmp_path, 1, f"export {first}\nsrun sh -c '{torchrun} {place} {words}'")
    assert_same_curve(curve(tmp_path), alone)


TINY = ("TINY=1", "GPUS_PER_NODE=1", "MOCK_DATA=1", "OMP_NUM_THREADS=1")


def iterations_in(said):
    return [int(number) for number in re.findall(r"^ iteration\s+(\d+)/", said, re.MULTILINE)]


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_batch_script_of_another_tool_is_submitted_as_it_stands(nodes, slurm, program, tmp_path):
    """The guide's `sbatch` line; only the number of nodes is another one. Slurm runs a copy of the script."""
    script = ROOT / "examples/deepseek_v3/train_deepseek_v3_slurm.sh"
    settings = (*TINY, "TOTAL_ITERS=25", f"LOG_DIR={tmp_path}/logs", f"MEGALITH={program.path}")
    words = ("sbatch", "--wait", f"--nodes={nodes}", f"--output={tmp_path}/said", script)
    process = slurm.run("env", "-C", tmp_path, *settings, *words)
    said = (tmp_path / "said").read_text()
    assert process.returncode == 0, f"{process.stderr}\n{said}"
    assert iterations_in(said) == list(range(1, 26)), said
    if nodes == 2:
        assert "Slurm: machine 1 of 2, which meet at " in said and "the interface that leads to MASTER_ADDR" in said, said


def test_primus_starts_a_task_on_each_machine(slurm, program, tmp_path):
    """It finds srun, the machines and the place to meet by itself."""
    experiment = ROOT / "examples/megatron/configs/llama3.1_8B-pretrain.yaml"
    settings = (*TINY, "NNODES=2", f"EXP={experiment}", "CPUS_PER_TASK=1", f"MEGALITH={program.path}")
    words = ("bash", ROOT / "examples/run_slurm_pretrain.sh", "--train_iters", 25)
    process = slurm.run("env", "-C", tmp_path, *settings, *words)
    assert process.returncode == 0, f"{process.stdout[-2000:]}\n{process.stderr[-4000:]}"
    assert iterations_in(process.stdout) == list(range(1, 26))
    assert "NODE-0(host0)" in process.stdout and "NODE-1(host1)" in process.stdout


def test_a_wrong_interface_ends_the_step_with_the_reason(slurm, program, data, tmp_path):
    words = program.command(*train_words(data, tmp_path))
    process = checked(slurm, "srun", "-N", 2, "-n", 2, *words, expected=2, GLOO_SOCKET_IFNAME="ib0")
    for host in (0, 1):
        message = f"GLOO_SOCKET_IFNAME is 'ib0': 'ib0' is not an interface of this machine; this machine (host{host}) has"
        assert message in process.stderr, process.stderr
