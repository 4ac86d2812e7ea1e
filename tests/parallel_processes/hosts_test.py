"""Two hosts with addresses of their own (network namespaces) train as one process: by hand, by torchrun, by mpirun.
What cannot work is refused before anybody waits."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from hosts import Hosts, HostsUnavailable, ports_listened_at
from launch_test import alone, assert_same_curve, clean_environment, curve, train_words, wait_for_lines  # noqa: F401

PORT = 29500  # in namespaces of their own no other process has it
NETWORK_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")


@pytest.fixture(scope="module")
def hosts():
    try:
        with Hosts() as made:
            yield made
    except HostsUnavailable as reason:
        pytest.skip(str(reason))


def rank_environment(rank, world_size=2, local_rank=0, local_world_size=1, address=Hosts.address(0), **more):
    clean = {name: value for name, value in clean_environment().items() if name not in NETWORK_VARIABLES}
    numbers = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_world_size}
    place = {"MASTER_ADDR": address, "MASTER_PORT": str(PORT), "OMP_WAIT_POLICY": "passive"}
    return clean | {name: str(number) for name, number in numbers.items()} | place | more


class Started:
    """Processes that end with the block."""

    def __init__(self):
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def add(self, command, environment):
        self.processes.append(
            subprocess.Popen(command, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        )

    def errors(self, expected=0, timeout=240):
        """What each wrote; fails unless all end with this code."""
        said = [process.communicate(timeout=timeout)[1] for process in self.processes]
        codes = [process.returncode for process in self.processes]
        assert codes == [expected] * len(codes), f"{codes}\n" + "\n---\n".join(text[-3000:] for text in said)
        return said


def start_on_both(hosts, program, words, **settings):
    started = Started()
    for rank in (0, 1):
        started.add(hosts.command(rank, *program.command(*words)), rank_environment(rank, **settings))
    return started


@pytest.mark.parametrize("variables", [{}, {"GLOO_SOCKET_IFNAME": "eth1"}], ids=["chosen", "eth1"])
def test_ranks_started_by_hand_train_as_one(variables, alone, hosts, program, data, tmp_path):  # noqa: F811
    with start_on_both(hosts, program, train_words(data, tmp_path), **variables) as started:
        said, _ = started.errors()
    assert_same_curve(curve(tmp_path), alone)
    assert ("rank 0 talks over eth0 (10.77.0.1), which leads to MASTER_ADDR" in said) == (not variables), said


LISTENERS = [
    ("10.77.0.1", {}, ["10.77.0.1"], ["10.77.0.2"]),
    ("10.77.0.1", {"GLOO_SOCKET_IFNAME": "eth1"}, ["10.77.0.1", "10.78.0.1"], ["10.78.0.2"]),
    ("fd77::1", {}, ["fd77::1"], ["fd77::2"]),
]


@pytest.mark.parametrize("address, variables, first, second", LISTENERS, ids=["chosen", "eth1", "ipv6"])
def test_ranks_listen_only_where_they_are_asked_to(address, variables, first, second, hosts, program, data, tmp_path):
    if ":" in address and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    words = train_words(data, tmp_path, steps=1_000_000)
    with start_on_both(hosts, program, words, address=address, **variables) as started:
        wait_for_lines(tmp_path / "metrics.jsonl", 2, started.processes)
        found = [ports_listened_at(process.pid) for process in started.processes]
    assert (address, PORT) in found[0]
    assert [sorted({place for place, _ in one}) for one in found] == [first, second]


def test_behind_a_virtual_address_rank_0_listens_on_all_and_says_so(hosts, program, data, tmp_path):
    settings = {"address": hosts.virtual_address, "GLOO_SOCKET_IFNAME": "eth0"}
    with start_on_both(hosts, program, train_words(data, tmp_path), **settings) as started:
        said, _ = started.errors()
    message = "MASTER_ADDR 10.79.0.1 is not an address of rank 0's machine (host0): the ranks meet at port 29500 of all"
    assert message in said, said


def test_ranks_of_one_machine_listen_on_loopback(program, data, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Started() as started:
        for rank in (0, 1):
            environment = rank_environment(rank, local_rank=rank, local_world_size=2, address="localhost")
            words = train_words(data, tmp_path, steps=1_000_000)
            started.add(program.command(*words), environment | {"MASTER_PORT": str(port)})
        wait_for_lines(tmp_path / "metrics.jsonl", 2, started.processes)
        found = [ports_listened_at(process.pid) for process in started.processes]
    assert ("127.0.0.1", port) in found[0] and found[1]
    assert {place for one in found for place, _ in one} == {"127.0.0.1"}


def test_machines_that_were_taken_for_one_find_out(alone, hosts, program, data, tmp_path):  # noqa: F811
    """LOCAL_WORLD_SIZE was forgotten: every rank believes that all are on its machine."""
    with Started() as started:
        for rank in (0, 1):
            environment = rank_environment(rank, local_rank=rank)
            del environment["LOCAL_WORLD_SIZE"]
            started.add(hosts.command(rank, *program.command(*train_words(data, tmp_path))), environment)
        started.errors()
    assert_same_curve(curve(tmp_path), alone)


REFUSED = [
    ({"GLOO_SOCKET_IFNAME": "eth7"}, "'eth7' is not an interface of this machine; this machine (host1) has lo (127.0."),
    ({"MASTER_ADDR": "127.0.0.1"}, "MASTER_ADDR is 127.0.0.1, which each machine takes for itself"),
    ({"MASTER_ADDR": "localhost"}, "which each machine takes for itself, and the 2 ranks are on several machines"),
    ({"MASTER_ADDR": "no-such-host.invalid"}, "MASTER_ADDR is 'no-such-host.invalid', and host1 knows no such host"),
    ({"MASTER_ADDR": "192.0.2.1"}, "no route leads from this machine (host1) to MASTER_ADDR 192.0.2.1"),
]


@pytest.mark.parametrize("variables, message", REFUSED, ids=["interface", "loopback", "localhost", "name", "route"])
def test_what_cannot_work_is_refused_before_anybody_is_met(variables, message, hosts, program, data, tmp_path):
    # Rank 0 would be waited for as long as ten minutes.
    command = hosts.command(1, *program.command(*train_words(data, tmp_path, "--distributed_timeout_minutes", 10)))
    process = subprocess.run(
        command, env=rank_environment(1) | variables, text=True, capture_output=True, timeout=240, check=False
    )
    assert process.returncode == 2, process.stderr
    assert "[rank 1 dp1] error: " in process.stderr and message in process.stderr, process.stderr


def test_machines_that_would_train_alone_are_refused(program, data, tmp_path):
    """A script's variables, without torchrun."""
    variables = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.77.0.1"}
    _, _, errors = program.run(*train_words(data, tmp_path), environment=variables, expected=2)
    assert "NNODES is 2 and NODE_RANK is set, but no launcher has started this process" in errors


CONTRADICTIONS = {
    "the same rank twice": ([(0, 2), (0, 2)], ["rank 0 was started twice: process ", " on host0, and process "]),
    "different worlds": ([(0, 2), (1, 4)], ["was started in a world of ", ", another rank in a world of "]),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_ranks_that_contradict_one_another_all_end_at_once(name, hosts, program, data, tmp_path):
    """As with one NODE_RANK on two machines."""
    ranks, parts = CONTRADICTIONS[name]
    with Started() as started:
        for host, (rank, world_size) in enumerate(ranks):
            words = train_words(data, tmp_path, "--distributed_timeout_minutes", 10)
            started.add(hosts.command(host, *program.command(*words)), rank_environment(rank, world_size))
            # The second one is to find the first.
            time.sleep(0.5)
        for said in started.errors(expected=2, timeout=240):
            assert all(part in said for part in parts), said
    assert not (tmp_path / "metrics.jsonl").exists()


TORCHRUN = """exec "$PYTHON" -m torch.distributed.run --no-python --nnodes "$NNODES" --node-rank "$NODE_RANK" \\
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" --nproc-per-node "$GPUS_PER_NODE" "$@"
"""


def on_each_host(hosts, script, program, words, **variables):
    """A script in the manner of the well-known ones: the same on every machine, which variables tell where it is."""
    pytest.importorskip("torch")
    clean = {name: value for name, value in clean_environment().items() if name not in NETWORK_VARIABLES}
    started = Started()
    for host in (0, 1):
        place = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": str(PORT), "NNODES": "2", "NODE_RANK": str(host)}
        own = {"PYTHON": sys.executable, "OWN_ADDRESS": hosts.address(host), "OMP_WAIT_POLICY": "passive"}
        command = hosts.command(host, "sh", "-c", script, "train.sh", *program.command(*words))
        started.add(command, clean | place | own | variables)
    return started


@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_torchrun_on_two_hosts_trains_as_one(ranks_per_host, alone, hosts, program, data, tmp_path):  # noqa: F811
    words = train_words(data, tmp_path)
    with on_each_host(hosts, TORCHRUN, program, words, GPUS_PER_NODE=str(ranks_per_host)) as started:
        started.errors()
    assert_same_curve(curve(tmp_path), alone)


ELASTIC = """exec "$PYTHON" -m torch.distributed.run --no-python --nnodes "$NNODES" --rdzv-backend c10d --rdzv-id 7 \\
  --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" --local-addr "$OWN_ADDRESS" --max-restarts 3 --nproc-per-node 1 "$@"
"""


def ranks_below(pid):
    """Process ids by RANK of the programs that a launcher has started."""
    found = {}
    for folder in os.listdir("/proc"):
        try:
            if not folder.isdigit() or open(f"/proc/{folder}/stat", encoding="ascii").read().split()[3] != str(pid):
                continue
            variables = open(f"/proc/{folder}/environ", "rb").read().split(b"\0")
            found |= {int(one[5:]): int(folder) for one in variables if one.startswith(b"RANK=")}
        except OSError:
            continue
    return found


def wait_for_pending_sigterm(pid):
    end = time.monotonic() + 240
    while time.monotonic() < end:
        lines = open(f"/proc/{pid}/status", encoding="utf-8").read().splitlines()
        pending = [int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:")]
        if pending[0] >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.01)
    raise AssertionError("the agent did not stop its rank")


def test_torchrun_brings_both_hosts_back(hosts, program, data, tmp_path):
    """Its two agents do not agree on how often they have started the ranks: only one sees its own fail."""
    steps = 120  # so many that the rank is killed before the last
    whole = tmp_path / "whole"
    whole.mkdir()
    with start_on_both(hosts, program, train_words(data, whole, steps=steps)) as started:
        started.errors()
    count = f'echo "$TORCHELASTIC_RESTART_COUNT" > "{tmp_path}/count$RANK"; exec "$@"'
    script = ELASTIC.replace('"$@"', f"sh -c '{count}' sh \"$@\"")
    saved = ("--save", tmp_path / "checkpoint", "--load", tmp_path / "checkpoint", "--save_interval", 5)
    with on_each_host(hosts, script, program, train_words(data, tmp_path, *saved, steps=steps)) as started:
        wait_for_lines(tmp_path / "metrics.jsonl", 2, started.processes)
        first, second = (ranks_below(process.pid) for process in started.processes)
        ranks = first | second
        # Held, rank 0 does not find out before its agent is told that the other machine starts anew.
        os.kill(ranks[0], signal.SIGSTOP)
        os.kill(ranks[1], signal.SIGKILL)
        wait_for_pending_sigterm(ranks[0])
        os.kill(ranks[0], signal.SIGCONT)
        started.errors(timeout=480)
    counts = {(tmp_path / f"count{rank}").read_text() for rank in (0, 1)}
    assert counts == {"0\n", "1\n"}, "the agents agree: this tests nothing"
    assert curve(tmp_path) == curve(whole)


def test_mpirun_on_two_hosts_trains_as_one(alone, hosts, program, data, tmp_path):  # noqa: F811
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    # In place of ssh: "agent 10.77.0.2 command".
    agent = tmp_path / "agent"
    agent.write_text(f'#!/bin/sh\nhost=$1\nshift\nexec ip netns exec {hosts.names[1]} sh -c "$*"\n')
    agent.chmod(0o755)
    words = [
        *("mpirun", "--allow-run-as-root", "--bind-to", "none", "--mca", "plm_rsh_agent", agent),
        *("--mca", "oob_tcp_if_include", "eth0", "--host", f"{hosts.address(0)},{hosts.address(1)}", "-np", 2),
        *("-x", f"MASTER_ADDR={hosts.address(0)}", "-x", f"MASTER_PORT={PORT}", "-x", "OMP_WAIT_POLICY"),
        *program.command(*train_words(data, tmp_path)),
    ]
    environment = {name: value for name, value in clean_environment().items() if name not in NETWORK_VARIABLES}
    with Started() as started:
        started.add(hosts.command(0, *words), environment | {"OMP_WAIT_POLICY": "passive"})
        started.errors()
    assert_same_curve(curve(tmp_path), alone)
