#!/usr/bin/env python3
"""Registers, shared memory and spills of every GPU kernel, as ptxas tells them, for every default architecture.

usage: registers.py check|write NVCC SOURCE

`check` compares with SOURCE/tests/gpu_kernels/registers.txt, so that a change of a kernel shows what it costs; `write` writes
that file. Where another nvcc compiles, other numbers are right: only spills are looked at. A kernel may spill when SPILLS says
why.
"""

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ARCHITECTURES = ("80", "90", "100")  # cmake/Gpu.cmake has them, too
TABLE = "tests/gpu_kernels/registers.txt"
WIDTH = 84  # of the column of names
SPILLS = {
    "rms_norm_gradients<RowKind<double, 0, false>>": "doubles are for tests",
    "activate_experts_backward<ErfGelu, false, double, 1>": "doubles are for tests",
    "activate_experts_backward<Silu, true, double, 1>": "doubles are for tests",
}
ENTRY = re.compile(
    r"Compiling entry function '(\S+)' for 'sm_\w+'\n"
    r"(?:.*\n)*?\s+\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
    r".*Used (\d+) registers(?:.*?, (\d+) bytes smem)?"
)


def version_of(nvcc):
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"release .*, V([\d.]+)", said)[1]


def demangled(names):
    said = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = [re.sub(r"\(anonymous namespace\)::|megalith::ops::gpu::|^void ", "", name) for name in said.splitlines()]
    return [name[: name.index("(")].replace("> >", ">>") for name in short]


def kernels_of(nvcc, source, file, architecture, folder):
    """Kernel -> (registers, shared bytes, spilled bytes) of one file for one architecture."""
    target = f"arch=compute_{architecture},code=sm_{architecture}"
    command = [nvcc, "-std=c++20", "-O2", "-DNDEBUG", f"-gencode={target}", f"-I{source}/src", "-Xptxas", "-v"]
    result = Path(folder) / f"{file.parent.name}.{architecture}.o"
    done = subprocess.run([*command, "-c", str(file), "-o", str(result)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"error: {file} does not compile for sm_{architecture}:\n{done.stdout}{done.stderr}")
    found = ENTRY.findall(done.stdout + done.stderr)
    if not found:
        raise SystemExit(f"error: ptxas names no kernel of {file}")
    names = demangled([entry[0] for entry in found])
    return {
        f"{file.parent.name}: {name}": (int(registers), int(shared or 0), max(int(stored), int(loaded)))
        for name, (_, stored, loaded, registers, shared) in zip(names, found)
    }


def measure(nvcc, source):
    """The lines of the table."""
    files = sorted((source / "src/ops").glob("*/gpu.cu"))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        jobs = {
            architecture: [pool.submit(kernels_of, nvcc, source, file, architecture, folder) for file in files]
            for architecture in ARCHITECTURES
        }
        numbers = {architecture: {k: v for job in own for k, v in job.result().items()} for architecture, own in jobs.items()}
    lines = []
    for kernel in sorted(numbers[ARCHITECTURES[0]]):
        cells = [f"{r:3} {shared:5} {spilled:3}" for r, shared, spilled in (numbers[a][kernel] for a in ARCHITECTURES)]
        lines.append(f"{kernel:<{WIDTH}} {'   '.join(cells)}")
    return lines


def header(version):
    return [
        "# What each GPU kernel takes of a chip: registers of a thread, bytes of shared memory of a block that are fixed, bytes",
        "# of registers that are spilled to memory. scripts/gpu/registers.py compares, and writes this file.",
        f"# nvcc {version}",
        f"# {'':<{WIDTH - 2}} {'   '.join(f'{chr(32) * 6}sm_{a:<4}' for a in ARCHITECTURES)}".rstrip(),
    ]


def spills(lines):
    """Kernels that spill without a reason."""
    for line in lines:
        kernel, *numbers = line.rsplit(maxsplit=3 * len(ARCHITECTURES))
        if any(int(spilled) > 0 for spilled in numbers[2::3]) and kernel.partition(": ")[2] not in SPILLS:
            yield kernel


def main(mode, nvcc, source):
    version, lines = version_of(nvcc), measure(nvcc, source)
    wrong = [f"{kernel} spills registers; SPILLS of scripts/gpu/registers.py gives no reason" for kernel in spills(lines)]
    table = source / TABLE
    if mode == "write":
        table.write_text("\n".join(header(version) + lines) + "\n", encoding="utf-8")
    else:
        known = table.read_text(encoding="utf-8").splitlines()
        if f"# nvcc {version}" not in known:
            print(f"registers: the table is that of another nvcc than {version}; only spills were looked at")
        else:
            before, now = set(known) - set(header(version)), set(lines)
            wrong += [f"- {line}" for line in sorted(before - now)] + [f"+ {line}" for line in sorted(now - before)]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        raise SystemExit(f"error: run 'scripts/gpu/registers.py write {nvcc} .' when this is what was meant")
    print(f"registers: {len(lines)} kernels for sm_{', sm_'.join(ARCHITECTURES)} by nvcc {version}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
