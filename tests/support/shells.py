"""Commands as pages print them, in a shell whose environment has nothing but what it needs."""

import os
import subprocess


def without_network():
    """Words before a command that leave it no network, where namespaces may be made."""
    words = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        return words if subprocess.run([*words, "true"], capture_output=True).returncode == 0 else []
    except FileNotFoundError:
        return []


NO_NETWORK = without_network()


def shell(command, program, folder, expected=0, before=(), **variables):
    """(standard output, standard error); fails unless the shell ends with that code, whatever it is if None."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "MEGALITH": str(program.path), "OMP_NUM_THREADS": "2"}
    environment.update({"OMP_WAIT_POLICY": "passive", **variables})
    environment = {name: value for name, value in environment.items() if value is not None}
    done = subprocess.run(
        [*before, "bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    if expected is not None:
        said = f"{command}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        assert done.returncode == expected, said
    return done.stdout, done.stderr
