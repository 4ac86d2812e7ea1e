"""Cases as rows of a text file: columns between bars, a `#` before a comment."""

import shlex


def words_of(column, names, where):
    """A command line; $NAME stands for several words."""
    words = []
    for word in shlex.split(column):
        if word.startswith("$") and word[1:] not in names:
            raise ValueError(f"{where}: nothing is called {word}")
        words += map(str, names[word[1:]]) if word.startswith("$") else [word]
    return words


def read_rows(path, num_columns, splits=(), names={}):
    """Every row as a list of its columns; those in `splits` as lists of words. A row that is malformed, or has the name of
    another one, is an error, and so is a file without rows."""
    rows, seen = [], set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{path}:{number}"
        columns = [column.strip() for column in line.split("|")]
        if len(columns) != num_columns or not columns[0] or columns[0] in seen:
            raise ValueError(f"{where}: expected {num_columns} columns, the first a name of its own: {line}")
        seen.add(columns[0])
        rows.append([words_of(column, names, where) if i in splits else column for i, column in enumerate(columns)])
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows
