"""Two "machines" on one: network namespaces with addresses, interfaces and host names of their own, and two cables.

    host0   eth0 10.77.0.1, fd77::1   eth1 10.78.0.1
    host1   eth0 10.77.0.2, fd77::2   eth1 10.78.0.2

What runs in one sees its own loopback interface and these two, and nothing of the network around; both know each
other's names. Packets to 10.79.0.1 come to host0 too, though no interface has that address. It takes root.
"""

import contextlib
import ipaddress
import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

NUMBERS = itertools.count()

FILES = Path("/etc/netns")  # ip(8) shows the files of a namespace's folder here in /etc of programs it runs there
LISTENING = "0A"  # of /proc/net/tcp


def ip(*words):
    subprocess.run(["ip", *words], text=True, capture_output=True, check=True)


class HostsUnavailable(Exception):
    """Why there can be no namespaces here."""


class Hosts:
    """As a context manager: the namespaces are gone at its end, with every process in them."""

    virtual_address = "10.79.0.1"

    def __init__(self):
        run = f"{os.getpid()}-{next(NUMBERS)}"
        self.names = [f"megalith-{run}-host{host}" for host in (0, 1)]

    def __enter__(self):
        missing = [program for program in ("ip", "unshare", "hostname") if shutil.which(program) is None]
        if os.geteuid() != 0 or missing:
            reason = f"{missing[0]} is not installed" if missing else "only root makes network namespaces"
            raise HostsUnavailable(reason)
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            said = getattr(error, "stderr", None) or str(error)
            raise HostsUnavailable(f"network namespaces are not permitted here: {said.strip()}") from error
        return self

    def __exit__(self, *_):
        for name in self.names:
            found = subprocess.run(["ip", "netns", "pids", name], text=True, capture_output=True, check=False)
            for pid in found.stdout.split():
                try:
                    os.kill(int(pid), 9)
                except ProcessLookupError:
                    pass
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(FILES / name, ignore_errors=True)
        with contextlib.suppress(OSError):  # others have theirs there, or it was never made
            FILES.rmdir()

    def _make(self):
        first, second = self.names
        known = "127.0.0.1 localhost\n" + "".join(f"{self.address(host)} host{host}\n" for host in (0, 1))
        for name in self.names:
            (FILES / name).mkdir(parents=True)
            (FILES / name / "hosts").write_text(known)
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for i, cable in enumerate(("eth0", "eth1")):
            ip("link", "add", cable, "netns", first, "type", "veth", "peer", "name", cable, "netns", second)
            for host, name in enumerate(self.names):
                ip("-n", name, "address", "add", f"{self.address(host, i)}/24", "dev", cable)
                if i == 0:
                    # Without the search for others that have the address, which takes seconds.
                    subprocess.run(
                        ["ip", "-n", name, "address", "add", f"{self.ipv6(host)}/64", "dev", cable, "nodad"],
                        capture_output=True,
                        check=False,
                    )
                ip("-n", name, "link", "set", cable, "up")
        for name, cable in itertools.product(self.names, ("eth0", "eth1")):
            self._await_up(name, cable)
        ip("-n", first, "route", "add", "local", self.virtual_address, "dev", "lo")
        ip("-n", second, "route", "add", self.virtual_address, "via", self.address(0))
        subprocess.run(self.command(0, "true"), text=True, capture_output=True, check=True)

    @staticmethod
    def _await_up(name, cable):
        """The kernel tells that both ends of a cable are up a little later, up to a second on a busy machine."""
        deadline = time.monotonic() + 20
        words = ["ip", "-n", name, "-o", "link", "show", "dev", cable]
        while " state UP " not in subprocess.run(words, text=True, capture_output=True, check=True).stdout:
            if time.monotonic() > deadline:
                raise OSError(f"the interface {cable} of {name} does not come up")
            time.sleep(0.02)

    @staticmethod
    def address(host, cable=0):
        return f"10.{77 + cable}.0.{host + 1}"

    @staticmethod
    def ipv6(host):
        return f"fd77::{host + 1}"

    def command(self, host, *words):
        """The same, on that host; the process that is started becomes it."""
        inside = ["ip", "netns", "exec", self.names[host]]
        rename = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"host{host}"]
        return [*inside, *rename, *(str(word) for word in words)]


class Switch:
    """A "machine" for each rank and a hub, all on one switch, whose cables can be cut: what is sent is lost, and no
    connection breaks. As a context manager, like Hosts."""

    hub = "10.80.0.254"

    def __init__(self, num_hosts):
        run = f"{os.getpid()}-{next(NUMBERS)}"
        self.names = [f"megalith-{run}-rank{host}" for host in range(num_hosts)] + [f"megalith-{run}-hub"]

    __enter__, __exit__ = Hosts.__enter__, Hosts.__exit__

    def _make(self):
        hub = self.names[-1]
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        # With an address of its own: it would have that of a port, and another when the port is cut.
        ip("-n", hub, "link", "add", "switch", "address", "02:00:00:00:00:fe", "type", "bridge", "forward_delay", "0")
        ip("-n", hub, "address", "add", f"{self.hub}/24", "dev", "switch")
        ip("-n", hub, "link", "set", "switch", "up")
        for host, name in enumerate(self.names[:-1]):
            ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"port{host}", "netns", hub)
            ip("-n", name, "address", "add", f"10.80.0.{host + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", hub, "link", "set", f"port{host}", "up")
            self.mend(host)
            Hosts._await_up(name, "eth0")
        subprocess.run(self.command(0, "true"), text=True, capture_output=True, check=True)

    def cut(self, host):
        ip("-n", self.names[-1], "link", "set", f"port{host}", "nomaster")

    def mend(self, host):
        ip("-n", self.names[-1], "link", "set", f"port{host}", "master", "switch")

    def command(self, host, *words):
        """The same there; -1 is the hub. The process that is started becomes it."""
        return ["ip", "netns", "exec", self.names[host], *(str(word) for word in words)]


def ports_listened_at(pid):
    """{(address, port)} on which a process listens, from the tables of its own network."""
    sockets = set()
    for link in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{link}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            sockets.add(target[len("socket:[") : -1])
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = open(f"/proc/{pid}/net/{table}", encoding="ascii").read().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            words = line.split()
            local, state, inode = words[1], words[3], words[9]
            if state == LISTENING and inode in sockets:
                address, port = local.split(":")
                found.add((readable(address), int(port, 16)))
    return found


def readable(address):
    """10.77.0.1 of 01004D0A: groups of four bytes, each as a number of this machine."""
    groups = [bytes.fromhex(address[i : i + 8]) for i in range(0, len(address), 8)]
    data = b"".join(group[::-1] if sys.byteorder == "little" else group for group in groups)
    found = ipaddress.ip_address(data)
    return str(getattr(found, "ipv4_mapped", None) or found)
