"""Streams the texts of Parquet files as JSON lines into a program's standard input.

The program is ended when a file cannot be read, so that it never takes half of the input for the whole.

usage: stream_parquet.py FILE... -- PROGRAM ARGUMENT...
"""

import json
import subprocess
import sys

import pyarrow.parquet


def lines(paths, column="text"):
    for path in paths:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024, columns=[column]):
            for text in batch.column(0).to_pylist():
                yield json.dumps({column: text or ""}, ensure_ascii=False) + "\n"


def main(arguments):
    where = arguments.index("--")
    program = subprocess.Popen(arguments[where + 1 :], stdin=subprocess.PIPE)
    try:
        for line in lines(arguments[:where]):
            # A lone surrogate is no UTF-8: it becomes a question mark.
            program.stdin.write(line.encode("utf-8", "replace"))
        program.stdin.close()
    except BrokenPipeError:
        pass  # the program says itself what it did not like
    except BaseException:
        program.kill()
        program.wait()
        raise
    return program.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
