"""What `make install`, `make bundle` and `make wheel` make works where nothing of this source tree is known."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ("train", "--config", "demo", "--num_layers", "1", "--vocab_size", "257", "--mock_data", "--seq_length", "16",
         "--train_iters", "2", "--eval_iters", "0", "--device", "cpu")
# What every Linux with a C++ compiler's runtime has.
SYSTEM = r"(linux-vdso|ld-linux[\w-]*|libc|libm|libdl|libpthread|librt|libutil|libgcc_s|libstdc\+\+)\.so"


@pytest.fixture(scope="module")
def build(program):
    folder = Path(program.path).parent
    if not (folder / "torch.env").exists():
        pytest.skip("the build folder was not made by make")
    return folder


def torch_folder(build):
    return re.search(r"TORCH_DIR='(.*)'", (build / "torch.env").read_text())[1]


def script(*words, **environment):
    done = subprocess.run(list(map(str, words)), env={**os.environ, **environment}, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_itself(folder, *words, expected=0, **environment):
    """Output and errors of a command that knows nothing of this tree."""
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_WAIT_POLICY": "passive", **environment}
    done = subprocess.run(list(map(str, words)), env=clean, capture_output=True, text=True, cwd=folder)
    assert done.returncode == expected, f"{words}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def trains(folder, *command, **environment):
    assert "llama3.1_8B" in by_itself(folder, *command, "presets", "llama3.1", **environment)
    by_itself(folder, *command, *TRAIN, "--metrics_file", "metrics.jsonl", **environment)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) >= 2


def run_path(program):
    return re.findall(r"\(RUNPATH\).*\[(.*)\]", subprocess.run(["readelf", "-dW", program], capture_output=True, text=True).stdout)


def test_an_installed_program_runs_from_any_folder(build, tmp_path):
    script("scripts/install.sh", build, ".", ROOT / ".venv", tmp_path / "prefix", "link")
    trains(tmp_path, tmp_path / "prefix/bin/megalith")
    for path in ("share/doc/megalith/docs/start.md", "share/megalith/examples", "share/megalith/LICENSE"):
        assert (tmp_path / "prefix" / path).exists()
    assert run_path(tmp_path / "prefix/bin/megalith") == ["$ORIGIN/../lib/megalith/torch:$ORIGIN/../../torch/lib"]
    # A second installation replaces the first, and touches nothing of torch's.
    script("scripts/install.sh", build, ".", ROOT / ".venv", tmp_path / "prefix", "link")
    assert (Path(torch_folder(build)) / "lib/libtorch_cpu.so").exists()


def test_a_bundle_needs_nothing(build, tmp_path):
    name = re.search(r"bundle: (\S+),", script("scripts/bundle.sh", build, ".", ROOT / ".venv", "copy", GZIP_LEVEL="1"))[1]
    subprocess.run(["tar", "-xzf", name, "-C", tmp_path], check=True)
    os.remove(name)
    (root,) = tmp_path.iterdir()
    for library in by_itself(tmp_path, "ldd", root / "bin/megalith").splitlines():
        file = library.split("=>")[-1].split()[0]
        assert file.startswith(str(root)) or re.match(SYSTEM, Path(file).name), library
    trains(tmp_path, root / "megalith", PYTHON="/bin/false")
    assert (root / "docs/start.md").exists() and (root / "configs/models/demo.yaml").exists()


def test_a_bundle_without_torch_takes_the_one_that_is_there(build, tmp_path):
    name = re.search(r"bundle: (\S+),", script("scripts/bundle.sh", build, ".", ROOT / ".venv", "none"))[1]
    assert Path(name).stat().st_size < 20e6
    subprocess.run(["tar", "-xzf", name, "-C", tmp_path], check=True)
    os.remove(name)
    (root,) = tmp_path.iterdir()
    refused = by_itself(tmp_path, root / "megalith", "--version", expected=2, PYTHON="/bin/false")
    assert "error: /bin/false has no torch" in refused and "TORCH_DIR" in refused
    (tmp_path / "other/lib").mkdir(parents=True)
    refused = by_itself(tmp_path, root / "megalith", "--version", expected=2, TORCH_DIR=str(tmp_path / "other"))
    assert "is of another kind" in refused
    trains(tmp_path, root / "megalith", TORCH_DIR=torch_folder(build))


def test_a_wheel_puts_the_program_on_the_path(build, tmp_path):
    pytest.importorskip("wheel")
    name = re.search(r"wheel: (\S+)", script("scripts/wheel.sh", build, ".", ROOT / ".venv", sys.executable))[1]
    site = tmp_path / "site"
    script(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, name)
    os.remove(name)
    metadata = next(site.glob("megalith-*.dist-info")).joinpath("METADATA").read_text()
    assert re.search(r"^Requires-Dist: torch>=\d+\.\d+\.\d+,<\d+\.\d+$", metadata, re.MULTILINE)
    # torch where pip would put it.
    os.symlink(torch_folder(build), site / "torch")
    trains(tmp_path, sys.executable, site / "bin/megalith", PYTHONPATH=str(site))
    assert "megalith 0." in by_itself(tmp_path, sys.executable, "-m", "megalith", "--version", PYTHONPATH=str(site))
