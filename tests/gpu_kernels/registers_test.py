"""scripts/gpu/registers.py: what it reads of ptxas, and what it refuses. A script stands for nvcc."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/gpu/registers.py"
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then
  echo "Cuda compilation tools, release 13.0, V{version}"
  exit 0
fi
cat <<'END'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN8megalith3ops3gpu5scaleIfEEvPT_' for 'sm_90'
ptxas info    : Function properties for _ZN8megalith3ops3gpu5scaleIfEEvPT_
    0 bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, 1024 bytes smem, 384 bytes cmem[0]
END
"""


class Registers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.source = Path(folder.name)
        for path in ("src/ops/scale", "tests/gpu_kernels"):
            (self.source / path).mkdir(parents=True)
        (self.source / "src/ops/scale/gpu.cu").touch()
        self.table = self.source / "tests/gpu_kernels/registers.txt"

    def run_script(self, mode, registers=24, spilled=0, version="13.0.88"):
        nvcc = self.source / "nvcc"
        nvcc.write_text(NVCC.format(registers=registers, spilled=spilled, version=version))
        nvcc.chmod(0o755)
        return subprocess.run([sys.executable, str(SCRIPT), mode, str(nvcc), str(self.source)], capture_output=True, text=True)

    def test_a_change_must_update_the_table(self):
        self.assertEqual(self.run_script("write").returncode, 0)
        self.assertRegex(self.table.read_text(), r"\nscale: scale<float> +24  1024   0 ")
        self.assertEqual(self.run_script("check").returncode, 0)
        changed = self.run_script("check", registers=25)
        self.assertEqual(changed.returncode, 1)
        self.assertRegex(changed.stderr, r"\+ scale: scale<float> +25  1024")
        self.assertIn("registers.py write", changed.stderr)

    def test_another_compiler_has_other_numbers(self):
        self.run_script("write")
        other = self.run_script("check", registers=40, version="12.8.1")
        self.assertEqual(other.returncode, 0, other.stderr)
        self.assertIn("only spills were looked at", other.stdout)

    def test_spills_need_a_reason(self):
        for mode, version in (("write", "13.0.88"), ("check", "13.0.88"), ("check", "12.8.1")):
            done = self.run_script(mode, spilled=8, version=version)
            self.assertEqual(done.returncode, 1)
            self.assertIn("scale: scale<float> spills registers", done.stderr)

    def test_a_kernel_that_left_is_seen(self):
        self.run_script("write")
        self.table.write_text(self.table.read_text() + "scale: gone<float>  24  1024   0\n")
        self.assertIn("- scale: gone<float>", self.run_script("check").stderr)


if __name__ == "__main__":
    unittest.main()
