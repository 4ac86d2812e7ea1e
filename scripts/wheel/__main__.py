"""Becomes the program, which finds torch's libraries beside this package; nothing of torch is imported."""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "megalith")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
