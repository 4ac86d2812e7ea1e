"""Says what torch an interpreter has: folder, version and site-packages, or nothing. Imports nothing, so it is quick.

usage: locate_torch.py                 prints  VERSION <tab> FOLDER <tab> SITE   (nothing when there is no torch)
       locate_torch.py FOLDER          the same for a LibTorch folder (include/, lib/); SITE is empty
"""

import importlib.util
import os
import re
import sys


def version_of(folder):
    """The version that the folder's headers state, or None."""
    for header in ("torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"):
        try:
            with open(os.path.join(folder, "include", header), encoding="utf-8") as file:
                numbers = re.findall(r"#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", file.read())
        except OSError:
            continue
        if len(numbers) == 3:
            return ".".join(numbers)
    return None


def main():
    site = ""
    if len(sys.argv) > 1:
        folder = sys.argv[1]
    else:
        found = importlib.util.find_spec("torch")
        if found is None or found.origin is None:
            return
        folder = os.path.dirname(found.origin)
        site = os.path.dirname(folder)
    version = version_of(folder)
    if version:
        print(version, os.path.realpath(folder), site, sep="\t")


if __name__ == "__main__":
    main()
