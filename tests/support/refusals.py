"""What a command says that is refused."""

import re


def refused(program, words, parts, cwd):
    """Its errors: one of them at least, with all these parts, and nothing of an accident."""
    _, _, errors = program.run(*words, expected=2, timeout=60, cwd=cwd)
    # Names are shown as they were written, with dashes or underscores.
    for part in parts:
        assert part in errors or part.replace("_", "-") in errors, f"{program.line(words)}\n{part!r} is not in:\n{errors}"
    assert re.search(r"^(\[rank .*\] )?error: ", errors, re.MULTILINE), errors
    for forbidden in ("internal error", "terminate called", "Exception raised from", "what():"):
        assert forbidden not in errors, errors
    return errors
