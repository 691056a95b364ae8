"""Pages, docstrings and messages use the field's words and short sentences."""

from __future__ import annotations

import subprocess

import pytest
from plain_words import ROOT, of_module, of_page, problems


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("not a git checkout, so the tracked files are unknown")
    return problems()


def test_no_file_has_a_problem(found):
    shown = "\n".join(f"{name}: {problem}" for name, one in found.items() for problem in one)
    assert not shown, f"{shown}\n`python tests/helpers/plain_words.py FILE` lists them"


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_each_kind_of_problem_is_seen(tmp_path):
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text(
        "# The card\n\nA card. Long " + "word " * 30 + "end.\n\n- `x` is told\n\n    card\n\n```\ncard\n```\n| card |\n"
    )
    assert [problem.split(":")[0] for problem in of_page(page)] == ["'card'", "32 words, 30 at most", "'is told'"]
    module.write_text(
        'def f():\n    """Whoever asks.\n\n    Seldom.\n    """\n    raise ValueError("here may stand: a model card")\n'
    )
    assert [problem.split(":")[1].strip() for problem in of_module(module)] == [
        "begins with 'Whoever'",
        "'Whoever'",
        "'Seldom'",
        "'here may stand'",
    ]
