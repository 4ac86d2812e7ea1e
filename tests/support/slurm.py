"""A Slurm of two nodes on the hosts of hosts.py: Debian's own daemons, with every file below a temporary folder."""

import os
import secrets
import shutil
import subprocess
import time

DAEMONS = ("slurmctld", "slurmd", "munged", "srun", "sbatch")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=host0({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge{host}/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SwitchType=switch/none
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
DebugFlags=NO_CONF_HASH
SlurmdParameters=config_overrides
NodeName=host0 NodeAddr={address} CPUs=4 State=UNKNOWN
NodeName=host1 NodeAddr={other_address} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=host0,host1 Default=YES State=UP MaxTime=INFINITE
"""


class SlurmUnavailable(Exception):
    """Why there can be no Slurm here."""


class Slurm:
    """As a context manager: the daemons have ended with it."""

    def __init__(self, hosts, folder):
        self.hosts, self.folder = hosts, folder
        self.daemons = []

    def __enter__(self):
        missing = [program for program in DAEMONS if shutil.which(program) is None]
        if missing:
            raise SlurmUnavailable(f"{missing[0]} is not installed (packages slurmctld, slurmd, slurm-client, munge)")
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.daemons):
            process.terminate()
        for process in self.daemons:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self):
        key = secrets.token_bytes(128)
        (self.folder / "state").mkdir()
        for host in (0, 1):
            munge = self.folder / f"munge{host}"
            munge.mkdir(mode=0o700)
            (munge / "key").write_bytes(key)
            (munge / "key").chmod(0o600)
            (self.folder / f"spool.host{host}").mkdir()
            configuration = self.folder / f"host{host}"
            configuration.mkdir()
            addresses = {"address": self.hosts.address(0), "other_address": self.hosts.address(1)}
            text = CONFIGURATION.format(folder=self.folder, host=host, **addresses)
            (configuration / "slurm.conf").write_text(text)
            # Nothing here needs control groups; this version only touches none when told to use the old kind.
            (configuration / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
            files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            options = [f"--{option}={munge / name}" for option, name in files.items()]
            # Each host has its own, as a credential may be shown to a daemon once only.
            self._daemon(host, f"munged{host}", "munged", "--foreground", "--force", *options)
        self._wait(lambda: all((self.folder / f"munge{host}" / "socket").exists() for host in (0, 1)), "munged")
        self._daemon(0, "slurmctld", "slurmctld", "-D")
        for host in (0, 1):
            self._daemon(host, f"slurmd{host}", "slurmd", "-D", "-N", f"host{host}")
        self._wait(lambda: self.run("sinfo", "-h", "-o", "%t %D").stdout.strip() == "idle 2", "Slurm")

    def _daemon(self, host, name, *words):
        with open(self.folder / f"{name}.out", "wb") as out:
            command = self.hosts.command(host, *words)
            self.daemons.append(subprocess.Popen(command, env=self.environment(host), stdout=out, stderr=out))

    def _wait(self, is_ready, what):
        end = time.monotonic() + 60
        while not is_ready():
            if time.monotonic() > end or any(process.poll() is not None for process in self.daemons):
                said = [f"{path.name}: {path.read_text()[-1000:]}" for path in sorted(self.folder.glob("*.out"))]
                raise SlurmUnavailable(f"{what} did not start:\n" + "\n".join(said))
            time.sleep(0.1)

    def environment(self, host=0):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return clean | {"SLURM_CONF": str(self.folder / f"host{host}" / "slurm.conf")}

    def run(self, *words, timeout=120):
        """A command of Slurm's on host 0."""
        return subprocess.run(
            self.hosts.command(0, *words),
            env=self.environment(),
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
