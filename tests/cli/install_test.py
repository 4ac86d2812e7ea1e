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


LOCKED = sorted([*(ROOT / "scripts/locked").glob("*.txt"), *(ROOT / "tests/oracle/locked").glob("*.txt")])


@pytest.mark.parametrize("file", LOCKED, ids=lambda file: file.stem)
def test_what_pip_brings_has_one_version_and_hashes(file):
    wanted = file.read_text().replace("\\\n", " ").splitlines()
    wanted = [line for line in wanted if not line.startswith("#")]
    assert wanted
    for line in wanted:
        assert re.fullmatch(r"[a-z0-9._-]+==[^\s;]+( ; [^#]*?)?( +--hash=sha256:[0-9a-f]{64})+", line), line[:100]


def test_the_lists_have_what_the_scripts_ask_for():
    locked = {file: set(re.findall(r"^([a-z0-9._-]+==[^ ]+) ", file.read_text(), re.MULTILINE)) for file in LOCKED}
    torch = re.search(r"^default_version=(.*)$", (ROOT / "scripts/setup_torch.sh").read_text(), re.MULTILINE)[1]
    cuda = re.search(r"^GPU_TORCH_VERSION \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert f"torch=={torch}" in locked[ROOT / "scripts/locked/torch.txt"]
    assert f"torch=={cuda}" in locked[ROOT / "scripts/locked/torch_cuda.txt"]
    for file in [ROOT / "tests/oracle/requirements.txt", *(ROOT / "tests/oracle/no_deps").glob("*.txt")]:
        own = {name.lower().replace("_", "-") for name in re.findall(r"^([\w.-]+)[=>]=", file.read_text(), re.MULTILINE)}
        found = locked[ROOT / "tests/oracle/locked" / file.name]
        assert own <= {entry.split("==")[0] for entry in found}, file
        assert set(re.findall(r"^([\w.-]+==\S+)$", file.read_text(), re.MULTILINE)) <= found, file


def test_hashes_are_asked_for_where_they_can_hold(tmp_path):
    def asked(**environment):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        words = [ROOT / "scripts/hashes_hold.sh", sys.executable, "torch"]
        done = subprocess.run(words, env={**clean, "PIP_CONFIG_FILE": os.devnull, **environment}, capture_output=True, text=True)
        return done.returncode == 0, done.stderr

    assert asked(PACKAGE_HASHES="always", PIP_INDEX_URL="file:///srv") == (True, "")
    for settings in ({"PACKAGE_HASHES": "never"}, {"PIP_INDEX_URL": "file:///srv"}, {"PIP_FIND_LINKS": str(tmp_path)}):
        is_asked, said = asked(**settings)
        assert not is_asked and "checks no hashes" in said, (settings, said)


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
