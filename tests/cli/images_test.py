"""docker/: the commands that run.sh makes are those of the guides, word for word; the Dockerfiles' steps do what they say.

No image is built or run here. Commands are printed, or given to stand-ins for docker, apt-get and make.
"""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
# What the guides print: container, command of run.sh, IMAGE, and the guide's line.
COMMON = (
    "--network host --ipc host --group-add video --cap-add SYS_PTRACE --security-opt seccomp=unconfined --privileged "
    "-v $HOME:$HOME"
)
GUIDES = [
    ("megatron", "pull", "rocm/megatron-lm:v25.5_py312", "docker pull rocm/megatron-lm:v25.5_py312"),
    ("megatron", "pull", "rocm/megatron-lm:v25.5_py310", "docker pull rocm/megatron-lm:v25.5_py310"),
    ("megatron", "", "rocm/megatron-lm:v25.5", "docker run -it --device /dev/dri --device /dev/kfd --device /dev/infiniband "
     f"{COMMON} -v $HOME/.ssh:/root/.ssh --shm-size 64G --name megatron_training_env rocm/megatron-lm:v25.5"),
    ("megatron", "start", "", "docker start megatron_training_env"),
    ("megatron", "exec", "", "docker exec -it megatron_training_env bash"),
    ("primus", "pull", "rocm/some:tag", "docker pull rocm/some:tag"),
    ("primus", "", "rocm/some:tag", "docker run -it --device /dev/dri --device /dev/kfd --device /dev/infiniband "
     f"{COMMON} --shm-size 128G --name primus_training_env rocm/some:tag"),
    ("primus", "start", "", "docker start primus_training_env"),
    ("primus", "exec", "", "docker exec -it primus_training_env bash"),
    ("pytorch", "pull", "rocm/pytorch-training:v25.3", "docker pull rocm/pytorch-training:v25.3"),
    ("pytorch", "", "rocm/pytorch-training:v25.3", "docker run -it --device /dev/dri --device /dev/kfd "
     f"{COMMON} -v $HOME/.ssh:/root/.ssh --shm-size 64G --name training_env rocm/pytorch-training:v25.3"),
    ("pytorch", "start", "", "docker start training_env"),
    ("pytorch", "exec", "", "docker exec -it training_env bash"),
]
# Options of `docker run` in Docker's reference that a line of ours may use, and whether a value follows.
RUN_OPTIONS = {
    **dict.fromkeys(("--device", "--network", "--ipc", "--group-add", "--cap-add", "--security-opt", "-v", "--shm-size", "--name",
                     "--gpus", "--ulimit"), True),
    **dict.fromkeys(("-it", "--rm", "--privileged"), False),
}


def run(script, *words, home="/home/me", path=None, **environment):
    """(exit code, output, errors) in an environment that has nothing else."""
    clean = {"PATH": path or "/usr/bin:/bin", "HOME": str(home), **environment}
    done = subprocess.run([str(DOCKER / script), *words], env=clean, text=True, capture_output=True, cwd="/")
    return done.returncode, done.stdout, done.stderr


def printed(*words, **options):
    code, output, errors = run("run.sh", *words, DRY_RUN="1", DOCKER="docker", **options)
    assert code == 0 and errors == "", errors
    assert output.count("\n") == 1
    return shlex.split(output)


def stand_in(folder, name, text="printf '%s\\n' \"$0\" \"$@\" >\"$RECORD\"\n"):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("container, command, image, line", GUIDES)
def test_the_command_is_the_guides_word_for_word(container, command, image, line):
    words = [container, command] if command else [container]
    variables = {"IMAGE": image} if image else {}
    expected = [word.replace("$HOME", "/home/me") for word in shlex.split(line)]
    assert printed(*words, INFINIBAND="1", **variables) == expected


def test_rdma_devices_are_handed_over_where_there_are_some():
    for container in ("megatron", "primus"):
        with_rdma, without = printed(container, INFINIBAND="1"), printed(container, INFINIBAND="0")
        assert [word for word in with_rdma if word not in without] == ["/dev/infiniband"]
        assert printed(container) == (with_rdma if os.path.isdir("/dev/infiniband") else without)
    assert "/dev/infiniband" not in printed("pytorch", INFINIBAND="1")


def test_the_image_is_ours_unless_one_is_named():
    assert printed("primus")[-1] == "megalith:rocm"
    assert printed("primus", IMAGE="mine:1")[-1] == "mine:1"
    assert printed("primus", DOCKER_IMAGE="mine:1")[-1] == "mine:1"
    assert printed("primus", IMAGE="mine:1", DOCKER_IMAGE="mine:1")[-1] == "mine:1"


def test_a_home_with_a_blank_stays_one_word():
    assert "/home/some one:/home/some one" in printed("megatron", home="/home/some one")


def test_a_container_is_started_with_the_words_that_a_dry_run_prints(tmp_path):
    record = tmp_path / "record"
    for name in ("docker", "podman"):
        folder = tmp_path / name
        stand_in(folder, name)
        code, output, errors = run("run.sh", "megatron", path=f"{folder}:/usr/bin:/bin", RECORD=str(record))
        assert (code, output, errors) == (0, "", "")
        started = record.read_text().splitlines()
        assert started[0] == str(folder / name) and started[1:] == printed("megatron")[1:]


@pytest.mark.parametrize(
    "words, environment, said",
    [
        ([], {}, "name one: megatron, primus or pytorch"),
        (["megatorn"], {}, "'megatorn': no such container"),
        (["megatron", "stop"], {}, "'stop': no such command"),
        (["megatron", "start", "now"], {}, "'now' is one word too many"),
        (["megatron", "pull"], {}, "megalith:rocm is in no registry"),
        (["megatron"], {"INFINIBAND": "yes"}, "INFINIBAND is 'yes'"),
        (["primus"], {"IMAGE": "a:1", "DOCKER_IMAGE": "b:1"}, "IMAGE is a:1, and DOCKER_IMAGE is b:1"),
        (["primus"], {"DOCKER": "no-such-docker"}, "there is no no-such-docker here"),
    ],
)
def test_wrong_words_end_with_2_and_what_to_do(words, environment, said):
    code, output, errors = run("run.sh", *words, **environment)
    assert code == 2 and output == ""
    lines = errors.splitlines()
    assert lines[0].startswith("error: ") and lines[1].startswith("  ") and said in errors, errors


@pytest.fixture
def tree(tmp_path):
    """A tree with only what the Dockerfiles' steps touch, and stand-ins for what they call."""
    tree = tmp_path / "workspace" / "Megatron-LM"
    (tree / "docker").mkdir(parents=True)
    shutil.copy(DOCKER / "setup.sh", tree / "docker")
    stand_in(tree / "scripts", "install_packages.sh", 'echo "install_packages $*" >>"$RECORD"\n')
    tools = tmp_path / "tools"
    stand_in(tools, "apt-get", 'echo "apt-get $*" >>"$RECORD"\n')
    stand_in(tools, "rm", "exit 0\n")  # of apt's lists, which are this machine's
    # `make setup` finds a torch, `make build` leaves a program.
    stand_in(tools, "make", """echo "make $* [JOBS=${JOBS-unset} TORCH_VERSION=${TORCH_VERSION-unset} index=${PIP_EXTRA_INDEX_URL-unset}]" >>"$RECORD"
mkdir -p build
echo "TORCH_DIR='$FAKE_TORCH'" >build/torch.env
if [ "$1" = build ]; then
  printf '#!/bin/bash\\necho "megalith $*" >>"$RECORD"\\n' >build/megalith
  chmod +x build/megalith
fi
""")
    (tree / "scripts" / "locate_torch.py").write_text("import os\nprint(os.environ['BASE_TORCH'], '/opt/torch', '/opt', sep='\\t')\n")
    torch = tmp_path / "torch"
    torch.mkdir()
    (tmp_path / "links").mkdir()
    return tree


def step(tree, *words, release="24.04", **environment):
    """(exit code, errors, what was called) of a step of setup.sh."""
    root = tree.parents[1]
    (root / "os-release").write_text(f'NAME="Ubuntu"\nVERSION_ID="{release}"\n')
    record = root / "record"
    record.write_text("")
    clean = {"PATH": f"{root / 'tools'}:/usr/bin:/bin", "HOME": str(root), "RECORD": str(record), "OS_RELEASE": str(root / "os-release"),
             "LINKS": str(root / "links"), "FAKE_TORCH": str(root / "torch"), "BASE_TORCH": "2.11.0", **environment}
    done = subprocess.run([str(tree / "docker/setup.sh"), *words], env=clean, text=True, capture_output=True, cwd="/")
    return done.returncode, done.stderr, record.read_text().splitlines()


@pytest.mark.parametrize("release, compiler", [("22.04", "g++-12"), ("24.04", "g++")])
def test_each_ubuntu_gets_a_compiler_that_is_new_enough(tree, release, compiler):
    code, errors, called = step(tree, "packages", release=release)
    assert code == 0, errors
    assert called[0] == "apt-get update"
    assert compiler in called[1].split() and called[1].startswith("apt-get install -y --no-install-recommends ")
    assert called[2].startswith("install_packages required ")


@pytest.mark.parametrize("flavour, version, switch", [("ROCm", "hip = '7.2'\ncuda = None", "MEGALITH_ROCM"),
                                                      ("CUDA", "hip = None\ncuda = '13.0'", "MEGALITH_CUDA")])
def test_the_program_is_built_for_the_images_gpus_and_found_under_every_name(tree, flavour, version, switch):
    root = tree.parents[1]
    (root / "torch" / "version.py").write_text(f"__version__ = '2.11.0'\n{version}\n")
    code, errors, called = step(tree, "build", flavour, JOBS="", TORCH_VERSION="", TORCH_INDEX="")
    assert code == 0, errors
    assert called[0] == "make setup [JOBS=unset TORCH_VERSION=unset index=unset]"
    assert f"-D{switch}=ON" in called[1] and called[2].startswith("megalith train --config demo")
    for name in ("Megatron-LM", "Primus", "MAD"):
        assert (root / "workspace" / name / "build" / "megalith").exists(), name
    assert (root / "links" / "megalith").resolve() == (tree / "build" / "megalith").resolve()
    _, _, called = step(tree, "build", flavour, JOBS="3", TORCH_VERSION="2.11.0", TORCH_INDEX="file:///wheels")
    assert called[0] == "make setup [JOBS=3 TORCH_VERSION=2.11.0 index=file:///wheels]"


def test_a_torch_for_other_gpus_is_refused_before_anything_is_built(tree):
    root = tree.parents[1]
    (root / "torch" / "version.py").write_text("__version__ = '2.13.0'\nhip = None\ncuda = '13.0'\n")
    code, errors, called = step(tree, "build", "ROCm")
    assert code == 2 and "this image is for ROCm" in errors and "CUDA 2.13.0" in errors and "TORCH_INDEX" in errors
    assert len(called) == 1 and called[0].startswith("make setup")
    code, errors, called = step(tree, "build", "Vulkan")
    assert code == 2 and "name ROCm or CUDA" in errors and not called


def test_an_image_for_rocm_asks_where_torch_is_before_pip_fetches_another(tree):
    root = tree.parents[1]
    (root / "torch" / "version.py").write_text("__version__ = '2.11.0'\nhip = '7.2'\ncuda = None\n")
    code, errors, called = step(tree, "build", "ROCm", BASE_TORCH="2.10.0")
    assert code == 2 and "BASE has no torch of 2.11 or newer" in errors and "TORCH_INDEX" in errors and not called
    code, errors, _ = step(tree, "build", "ROCm", BASE_TORCH="2.10.0", TORCH_INDEX="file:///wheels", TORCH_VERSION="2.11.0+rocm7.2")
    assert code == 0, errors
    (root / "torch" / "version.py").write_text("__version__ = '2.13.0'\nhip = None\ncuda = '13.0'\n")
    code, errors, _ = step(tree, "build", "CUDA", BASE_TORCH="")
    assert code == 0, f"pip's own index has builds for CUDA: {errors}"


def test_the_two_dockerfiles_differ_only_in_whose_gpus_they_are_for():
    files = {name: (DOCKER / f"Dockerfile.{name}").read_text() for name in ("rocm", "cuda")}
    commands = {
        name: [re.sub(r"\b(ROCm|CUDA)\b", "X", line) for line in text.splitlines() if not line.startswith(("#", "ARG BASE="))]
        for name, text in files.items()
    }
    assert commands["rocm"] == commands["cuda"]
    for text in files.values():
        for source in re.findall(r"^COPY (\S+)", text, re.MULTILINE):
            assert (ROOT / source).exists(), source
        assert "WORKDIR /workspace/Megatron-LM" in text
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", "build*", ".venv*"} <= set(ignored), "an image is not made of what this machine has built"


def test_requirements_bring_no_torch():
    """Neither do the packages they need, as far as this Python has them."""
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    names = [re.match(r"[\w.-]+", line)[0] for line in lines if line]
    tested = {re.match(r"[\w.-]+", line)[0] for line in (ROOT / "tests/oracle/requirements.txt").read_text().splitlines()
              if line and not line.startswith("#")}
    assert set(names) <= tested, "the tests run with what is asked for"
    reached, left = set(), list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in reached:
            continue
        reached.add(name)
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        left += [re.match(r"[\w.-]+", one)[0] for one in needed if "extra ==" not in one]
    assert {"numpy", "tokenizers"} <= reached, "the packages are not installed here: run 'make test'"
    assert not {name for name in reached if name.startswith(("torch", "nvidia", "triton"))}


def linter(name):
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return found or pytest.skip(f"{name} is not installed; 'make test' asks for it")


def test_a_linter_finds_nothing_in_the_dockerfiles():
    files = sorted(map(str, DOCKER.glob("Dockerfile.*")))
    done = subprocess.run([linter("hadolint"), "--no-color", *files], text=True, capture_output=True)
    assert len(files) == 2 and done.returncode == 0, done.stdout + done.stderr


def test_shellcheck_finds_nothing_in_the_scripts():
    files = sorted(map(str, DOCKER.glob("*.sh")))
    done = subprocess.run([linter("shellcheck"), *files], text=True, capture_output=True)
    assert len(files) == 2 and done.returncode == 0, done.stdout + done.stderr


def test_every_docker_run_that_is_shown_has_options_that_docker_knows():
    shown = [printed(name, INFINIBAND="1") for name in ("megatron", "primus", "pytorch")]
    page = (ROOT / "docs/images.md").read_text().replace("\\\n", " ")
    on_page = [shlex.split(line) for line in re.findall(r"^ *(docker run .*)$", page, re.MULTILINE)]
    assert on_page
    for words in shown + on_page:
        rest = words[2:]
        while rest and rest[0].startswith("-"):
            assert rest[0] in RUN_OPTIONS, words
            rest = rest[2 if RUN_OPTIONS[rest[0]] else 1:]
        assert rest and re.fullmatch(r"[\w./-]+:[\w.-]+", rest[0]), f"{words}: no image with a tag"
