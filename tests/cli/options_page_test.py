"""docs/options.md is what the program prints: the reference page cannot differ from the declarations."""

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"


def test_the_reference_page_is_what_the_program_prints(program):
    _, printed, _ = program.run("inspect", "config", "--markdown")
    assert PAGE.read_text(encoding="utf-8") == printed, (
        "run: build/megalith inspect config --markdown > docs/options.md"
    )
