"""megalith doctor: what it finds on this machine, in places that are made bad, and between ranks that are launched."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

TOPICS = ["devices", "memory", "versions", "ports", "shared memory", "NUMA", "limits", "disk", "environment", "collectives"]
LEVELS = ["ok", "note", "warning", "error"]
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_receive", "barrier"]
# Small, so that the tests do not depend on the disk.
QUICK = ("--device", "cpu", "--disk_probe_mib", 1)
MODEL = (
    *("--num_layers", 2, "--hidden_size", 64, "--num_attention_heads", 4, "--vocab_size", 131, "--seq_length", 32),
    *("--max_position_embeddings", 64, "--mock_data", "--fp32"),
)
LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
READ_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "TMPDIR", "HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name in LAUNCH_VARIABLES + READ_VARIABLES or name.startswith(("OMPI_", "SLURM_", "PMIX_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def examine(program, *words, expected=None, **options):
    """(exit code, the JSON object); a free port unless the environment names one."""
    options["environment"] = {"MASTER_PORT": str(free_port()), **options.get("environment", {})}
    code, output, errors = program.run("doctor", "--json", *QUICK, *words, expected=expected, **options)
    report = json.loads(output)
    check_consistency(code, report)
    return code, report


def check_consistency(code, report):
    findings = [finding for topic in report["topics"].values() for finding in topic]
    assert list(report["topics"]) == TOPICS
    assert {finding["level"] for finding in findings} <= set(LEVELS)
    for level in LEVELS[1:]:
        assert report[f"num_{level}s"] == sum(finding["level"] == level for finding in findings)
    assert report["level"] == max((finding["level"] for finding in findings), key=LEVELS.index)
    assert code == (1 if report["num_errors"] else 0), report
    for finding in findings:
        assert finding["found"] and finding["check"]
        assert finding["remedy"] or finding["level"] not in ("warning", "error"), finding


def find(report, topic, check, level=None):
    found = [finding for finding in report["topics"][topic] if finding["check"] == check and level in (None, finding["level"])]
    assert found, (check, level, report["topics"][topic])
    return found[0]


def test_every_topic_has_findings_and_the_exit_code_follows(program, tmp_path):
    code, report = examine(program, cwd=tmp_path)
    for topic in TOPICS:
        assert report["topics"][topic], topic
    assert find(report, "devices", "processor")["level"] == "ok"
    assert find(report, "versions", "torch")["level"] == "ok"
    # How many functions run our kernels, LibTorch's calls and the references on the device of a run.
    assert "own kernel" in find(report, "versions", "operators")["found"]
    kernels = find(report, "versions", "kernels")
    assert kernels["level"] == "ok" and ("compiled for" in kernels["found"] or "none for GPUs" in kernels["found"])
    assert find(report, "disk", "current folder")["found"].startswith(str(tmp_path))
    assert find(report, "limits", "ptrace")["level"] in ("ok", "note")
    assert find(report, "ports", "firewall")["level"] in ("ok", "note")
    assert report["speeds"] == []
    assert find(report, "collectives", "collectives")["level"] == "note"
    assert not list(tmp_path.iterdir()), "something is left behind"
    # The same, for people.
    list_code, output, _ = program.run("doctor", *QUICK, expected=None, cwd=tmp_path, environment={"MASTER_PORT": str(free_port())})
    assert list_code == code
    lines = output.splitlines()
    assert [line for line in lines if line in TOPICS] == TOPICS
    assert any(line.startswith("  ok       processor ") for line in lines), output
    assert lines[-1].endswith("notes") or lines[-1].endswith("1 note")


def test_a_port_in_use_is_found(program):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        _, report = examine(program, environment={"MASTER_PORT": str(port)})
        finding = find(report, "ports", "port", "warning")
        assert str(port) in finding["found"] and "MASTER_PORT" in finding["remedy"]
        # Ranks that are launched cannot do without it.
        launched = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        code, report = examine(program, "--no_collectives", environment=launched)
        assert code == 1 and str(port) in find(report, "ports", "port", "error")["found"]
    _, report = examine(program, environment={"MASTER_PORT": str(port)})
    assert "is free" in find(report, "ports", "port", "ok")["found"]


def test_an_interface_that_is_not_there_is_found(program):
    code, report = examine(program, environment={"GLOO_SOCKET_IFNAME": "nosuch0"})
    assert code == 1
    finding = find(report, "ports", "variables", "error")
    assert "GLOO_SOCKET_IFNAME" in finding["found"] and "nosuch0" in finding["found"]
    # Which is nothing to a run on CPUs.
    _, report = examine(program, environment={"NCCL_SOCKET_IFNAME": "nosuch0"})
    assert "nosuch0" in find(report, "ports", "variables", "warning")["found"]


def test_an_address_that_nobody_knows_is_found(program):
    _, report = examine(program, environment={"MASTER_ADDR": "no-such-host.invalid"})
    assert "no-such-host.invalid" in find(report, "ports", "MASTER_ADDR", "warning")["found"]


def test_a_folder_that_cannot_be_written_is_found(program, tmp_path):
    (tmp_path / "file").write_text("")
    code, report = examine(program, "--save", tmp_path / "file" / "checkpoints", "--data_cache_path", tmp_path / "cache")
    assert code == 1
    finding = find(report, "disk", "save", "error")
    assert str(tmp_path / "file") in finding["found"]
    assert find(report, "disk", "data_cache_path")["level"] != "error"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_variables_of_a_launch_that_contradict_are_found(program):
    code, report = examine(program, environment={"RANK": "3", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"})
    assert code == 1
    assert "rank 3 of 2" in find(report, "environment", "launch", "error")["found"]
    code, report = examine(program, environment={"RANK": "many", "WORLD_SIZE": "2"})
    assert code == 1 and "RANK" in find(report, "environment", "launch", "error")["found"]


def test_variables_that_slow_a_run_are_found(program):
    _, report = examine(program, environment={"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring"})
    assert find(report, "environment", "NCCL_P2P_DISABLE")["level"] == "warning"
    assert "NCCL_ALGO=Ring" in find(report, "environment", "variables that are set")["found"]


def test_a_model_is_held_against_the_memory_that_is_there(program):
    _, report = examine(program, *MODEL)
    assert "rank 0 of 1 takes about" in find(report, "memory", "model", "ok")["found"]
    # 400 billion parameters at 16 bytes fit nowhere; nothing is allocated for them.
    large = ("--num_layers", 126, "--hidden_size", 16384, "--num_attention_heads", 128, "--vocab_size", 128256)
    code, report = examine(program, *large, "--seq_length", 32, "--max_position_embeddings", 64, "--mock_data")
    assert code == 1 and "GiB" in find(report, "memory", "model", "error")["found"].replace("TiB", "GiB")
    # A layout for more ranks than there are is looked at as one of them.
    _, report = examine(program, *MODEL, "--tensor_model_parallel_size", 2, "--pipeline_model_parallel_size", 2)
    assert "rank 0 of 4" in find(report, "memory", "model")["found"]


def test_the_health_benchmarks_are_measured_here(program):
    code, output, _ = program.run("doctor", "--json", "--bench", *QUICK, expected=None, environment={"MASTER_PORT": str(free_port())})
    report = json.loads(output)
    assert list(report["topics"]) == [*TOPICS[:-1], "speed", TOPICS[-1]]
    assert code == (1 if report["num_errors"] else 0)
    names = [row["benchmark"] for row in report["speeds"]]
    assert names == [finding["check"] for finding in report["topics"]["speed"]]
    assert [name for name in names if name.startswith("memory")] == [f"memory {name}" for name in ("copy", "scale", "add", "triad", "dot")]
    assert sum(name.startswith("matrix product") for name in names) == 2
    for row in report["speeds"]:
        assert row["measured"] > 0 and row["unit"] in ("GB/s", "TFLOP/s") and row["expected"] is None, row
    # Nothing below a kilobyte a second, or above what any processor does: a unit that is wrong would show.
    assert all(1e-6 < row["measured"] < 1e4 for row in report["speeds"]), report["speeds"]


@pytest.fixture
def hub(monkeypatch):
    import hub_server

    hub = hub_server.Hub()
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_HOME", "/nonexistent")
    yield hub
    hub.close()


def test_the_hub_is_asked_whether_it_takes_the_token(program, hub):
    import hub_server

    _, report = examine(program)
    assert not hub.log, "nobody asked"
    _, report = examine(program, "--hub")
    assert "answers" in find(report, "environment", "hub", "ok")["found"]
    assert "none" in find(report, "environment", "hub token", "note")["found"]
    code, report = examine(program, "--hub", environment={"HF_TOKEN": hub_server.TOKEN})
    assert find(report, "environment", "hub token", "ok")["found"] == "that of HF_TOKEN is taken: it is tester's"
    code, report = examine(program, "--hub", environment={"HF_TOKEN": "hf_wrongwrongwrong"})
    assert code == 1 and "is refused" in find(report, "environment", "hub token", "error")["found"]
    assert "hf_wrong" not in json.dumps(report)
    hub.close()
    code, report = examine(program, "--hub")
    assert code == 1 and "cannot be reached" in find(report, "environment", "hub", "error")["found"]
    _, report = examine(program, "--hub", environment={"HF_HUB_OFFLINE": "1"})
    assert "HF_HUB_OFFLINE" in find(report, "environment", "hub", "note")["found"]


def test_wrong_input_ends_with_2(program):
    for words in (("--num-layer", 2), ("--disk_probe_mib", 0), ("--config", "nowhere.yaml"), (*MODEL, "--num_attention_heads", 5)):
        _, output, errors = program.run("doctor", *words, expected=2)
        assert not output and "error: " in errors, errors


def test_help_names_the_options(program):
    _, output, _ = program.run("doctor", "--help")
    for word in ("usage: megalith doctor", "--parallel", "--json", "--bench", "--hub", "collectives", "largest_message_mib", "num_layers"):
        assert word in output, word
    _, output, _ = program.run("--help")
    assert "\n  doctor " in output


def test_one_process_talks_to_itself_when_asked(program):
    code, report = examine(program, "--collectives", "--largest_message_mib", 0)
    for check in COLLECTIVES:
        assert find(report, "collectives", check)["level"] == "ok"
    assert report["bandwidth"] == []
    assert report["world_size"] == 1


def clean(report, num_ranks):
    assert report["world_size"] == num_ranks
    for check in COLLECTIVES:
        assert find(report, "collectives", check)["level"] == "ok"
    assert f"the same on {num_ranks} ranks" in find(report, "collectives", "agreement", "ok")["found"]
    sizes = {row["bytes"] for row in report["bandwidth"]}
    # 1 KiB, 16 KiB, 256 KiB, each rounded up to whole floats for every rank.
    assert len(sizes) == 3 and all(0 <= size - wanted < 64 for size, wanted in zip(sorted(sizes), (1024, 16384, 262144)))
    assert {row["collective"] for row in report["bandwidth"]} == set(COLLECTIVES) - {"barrier"}
    for row in report["bandwidth"]:
        assert row["seconds"] > 0
        assert row["algorithm_bytes_per_s"] == pytest.approx(row["bytes"] / row["seconds"])
        factor = {"all_reduce": 2 * (num_ranks - 1) / num_ranks, "broadcast": 1, "send_receive": 1}
        expected = factor.get(row["collective"], (num_ranks - 1) / num_ranks)
        assert row["bus_bytes_per_s"] == pytest.approx(expected * row["algorithm_bytes_per_s"])


LAUNCHED = ("doctor", "--json", *QUICK, "--largest_message_mib", 1, "--distributed_timeout_minutes", 2)


@pytest.mark.parametrize("launcher, bench", [("torchrun", ("--bench",)), ("mpirun", ())])
def test_launched_ranks_check_their_collectives(launcher, bench, program):
    if launcher == "torchrun":
        pytest.importorskip("torch")
        start = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node=2"]
    else:
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed")
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
    process = subprocess.run([*start, *program.command(*LAUNCHED, *bench)], text=True, capture_output=True, timeout=240)
    report = json.loads(process.stdout)  # one rank speaks
    clean(report, 2)
    if bench:  # the largest message of the table is one of the benchmarks
        all_reduce = report["speeds"][-1]
        assert all_reduce["benchmark"] == "all_reduce of 256 KiB, 2 ranks, bus"
        largest = max((row for row in report["bandwidth"] if row["collective"] == "all_reduce"), key=lambda row: row["bytes"])
        assert all_reduce["measured"] == pytest.approx(largest["bus_bytes_per_s"] / 1e9)
        assert find(report, "speed", all_reduce["benchmark"], "ok")
    # Launchers make their own code of the ranks'.
    assert (process.returncode == 0) == (report["num_errors"] == 0), process.stderr


def start_ranks(program, words_of_ranks, environment_of_ranks):
    port = str(free_port())
    processes = []
    for rank, (words, more) in enumerate(zip(words_of_ranks, environment_of_ranks)):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(len(words_of_ranks)), "LOCAL_RANK": str(rank)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", **more}
        processes.append(program.start(*words, environment=environment))
    try:
        return [(process.communicate(timeout=240), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_findings_of_other_ranks_are_named_by_the_first(program):
    bad = {"CUDA_LAUNCH_BLOCKING": "1"}
    done = start_ranks(program, [LAUNCHED] * 3, [{}, bad, bad])
    assert [output for (output, _), _ in done[1:]] == ["", ""]
    report = json.loads(done[0][0][0])
    clean(report, 3)
    finding = find(report, "environment", "CUDA_LAUNCH_BLOCKING", "warning")
    assert "(2 of 3 ranks: host " in finding["found"] and "rank 1-2)" in finding["found"]
    assert len({code for _, code in done}) == 1


def test_groups_of_nodes_are_measured_and_listed(program, tmp_path):
    """Primus's word: two ranks that are each the first of their machine."""
    words = ("preflight", "--no_bench", "--json", *QUICK, "--largest_message_mib", 1, "--distributed_timeout_minutes", 2)
    machine = {"LOCAL_RANK": "0"}
    done = start_ranks(program, [(*words, "--dump-path", tmp_path)] * 2, [machine] * 2)
    report = json.loads(done[0][0][0])
    for check in ("all_reduce, 2 nodes", "all_to_all, 2 nodes", "send_receive, ring of 2 nodes"):
        assert "GB/s from rank 0 on" in find(report, "collectives", check, "ok")["found"]
    assert find(report, "collectives", "node_groups", "note")["found"] == "no group of 4 machines: there are 2"
    passing, failing = ((tmp_path / f"{name}_nodes.txt").read_text().split() for name in ("passing", "failing"))
    host = socket.gethostname()
    assert (passing or failing) == [host, host] and (failing == []) == (report["num_errors"] == 0)
    assert "ring of 2 nodes" in (tmp_path / "report.md").read_text()


def test_the_report_of_one_machine_names_what_fails(program, tmp_path):
    program.run("doctor", "node_smoke", *QUICK, "--dump-path", tmp_path, "--save", "/proc/nowhere", expected=1)
    assert (tmp_path / "failing_nodes.txt").read_text() == f"{socket.gethostname()}\n"
    assert "/proc/nowhere" in (tmp_path / "report.md").read_text()
    assert "node_groups has 'one'" in program.run("doctor", "--node_groups", "one", expected=2)[2]


def test_ranks_that_were_asked_for_different_things_are_named(program):
    done = start_ranks(program, [LAUNCHED, (*LAUNCHED, "--lr", "3e-4")], [{}, {}])
    report = json.loads(done[0][0][0])
    found = find(report, "collectives", "agreement", "error")["found"]
    assert "lr: 0.0003 on rank 1, its default on rank 0" in found, found
    assert [code for _, code in done] == [1, 1]


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_folder_of_indices_that_is_not_the_same_everywhere_is_said(program, tmp_path, is_shared):
    # A relative path is another folder in each rank's current one, as a local disk is on each machine.
    folders = [tmp_path / "a", tmp_path / ("a" if is_shared else "b")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    port = str(free_port())
    processes = []
    for rank, folder in enumerate(folders):
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
        environment |= {"MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        words = ("doctor", "--json", *QUICK, "--largest_message_mib", 0, "--data_cache_path", "cache")
        processes.append(program.start(*words, environment=environment, cwd=folder))
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    finding = find(json.loads(outputs[0]), "disk", "data_cache_path of all nodes", "ok" if is_shared else "warning")
    if is_shared:
        assert "all 2 ranks see" in finding["found"]
    else:
        assert "not seen by rank 1 (" in finding["found"] and "--data_cache_path" in finding["remedy"]
    assert not [path for folder in folders for path in folder.iterdir()], "something is left behind"


def test_a_rank_that_does_not_come_is_said(program):
    words = ("doctor", *QUICK, "--distributed_timeout_minutes", "0.05")
    environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    environment["MASTER_PORT"] = str(free_port())
    code, output, _ = program.run(*words, expected=1, environment=environment, timeout=120)
    assert "error    world" in output and "did not" in output, output


def cpu_seconds(process):
    fields = open(f"/proc/{process.pid}/stat", encoding="utf-8").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_rank_that_stops_in_a_collective_is_said_and_the_findings_are_kept(program):
    # Starting takes half a second of a processor, checking some seconds.
    words = ("doctor", *QUICK, "--distributed_timeout_minutes", "0.2", "--largest_message_mib", 64)
    port = str(free_port())
    processes = []
    for rank in range(2):
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
        environment |= {"MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        processes.append(program.start(*words, environment=environment))
    try:
        end = time.monotonic() + 240
        while cpu_seconds(processes[1]) < 1.2:
            assert time.monotonic() < end and processes[1].poll() is None
            time.sleep(0.01)
        processes[1].send_signal(signal.SIGSTOP)
        output, errors = processes[0].communicate(timeout=240)
        assert processes[0].returncode == 1, errors
        assert "\n  error    world " in output and "rank 1" in errors, output + errors
        assert "\n  ok       processor " in output
    finally:
        for process in processes:
            process.kill()
            process.wait()
