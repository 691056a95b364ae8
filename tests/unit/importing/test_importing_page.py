"""docs/import.md shows what really comes out."""

from __future__ import annotations

import re
from pathlib import Path

from dapo.importing.convert import import_text
from dapo.importing.reading import Listed

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "import.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_of_the_page_are_what_comes_out() -> None:
    made = [
        import_text(BLOCKS[0][1], "run.sh"),
        import_text(BLOCKS[3][1], "dapo.yaml"),
        import_text(BLOCKS[6][1], "train.py", devices=4),
    ]
    shown = [BLOCKS[1][1] + BLOCKS[2][1], BLOCKS[4][1] + BLOCKS[5][1], BLOCKS[7][1]]
    for result, excerpt in zip(made, shown, strict=True):
        assert [line for line in excerpt.splitlines() if line not in result.text.splitlines()] == []
        told = (
            f"{len(result.reading.lines)} settings of {result.reading.title}, read from {result.reading.source.name} "
            f"({result.reading.source.form})\n"
            f"    things that mean something else here, listed at its end: {len(result.reading.said)}\n"
        )
        differing = sum(entry.kind is Listed.DIFFERS for entry in result.reading.apart)
        listed = f"    settings without a line that change what is computed there, listed at its end: {differing}\n"
        told += listed * bool(differing) + "    look at it with: dapo check mine.yaml"
        assert told in PAGE or result.system == "nemo-rl"
    assert len(BLOCKS) == 9
