"""What docs/notebook.ipynb shows was made by the cells that it holds, and says nothing of the machine."""

import base64
import json
import re
import sys
from runpy import run_path
from types import SimpleNamespace

import plain_words
from run_notebook import NOTEBOOK, SOURCE, code_cells, hash_of_source

import dapo

TEXT = NOTEBOOK.read_text()
HELD = json.loads(TEXT)


def test_the_outputs_are_those_of_the_cells():
    assert HELD["metadata"][SOURCE] == hash_of_source(HELD), "run: make notebook"
    counts = [cell["execution_count"] for cell in code_cells(HELD)]
    assert counts == list(range(1, len(counts) + 1))


def test_names_of_the_package_are_there():
    used = set(re.findall(r"\bdapo\.(\w+)", "\n".join(cell["source"] for cell in HELD["cells"])))
    assert {"train", "check", "resume"} <= used
    assert used <= set(dir(dapo))
    for cell in code_cells(HELD):
        compile(cell["source"], "notebook", "exec")


def test_a_reader_sees_a_curve_and_an_answer_that_became_right():
    shown = [output for cell in code_cells(HELD) for output in cell["outputs"]]
    (picture,) = [output["data"]["image/png"] for output in shown if "image/png" in output.get("data", {})]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert len(base64.b64decode(picture)) < 60_000
    assert len(TEXT) < 100_000
    said = "".join(output.get("text", "") for output in shown)
    assert re.search(r"step 0, wrong: .*\nstep 20, right: ", said)


def test_nothing_of_the_machine_or_of_libraries_is_shown():
    assert not re.findall(r"/(?:tmp|home|root|work|Users)/|site-packages|Warning|\"stderr\"|Traceback", TEXT)


def test_words_are_plain(tmp_path):
    page = tmp_path / "notebook.md"
    page.write_text("\n\n".join(cell["source"] for cell in HELD["cells"] if cell["cell_type"] == "markdown"))
    assert not plain_words.of_page(page)


def test_the_page_of_the_site_shows_outputs(monkeypatch):
    for name in ("mkdocs", "mkdocs.structure", "mkdocs.structure.files"):  # in another environment
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(File=None, Files=None))
    page = run_path(str(NOTEBOOK.parents[1] / "website/hooks.py"))["notebook_page"](TEXT, "notebook.ipynb")
    assert 'src="data:image/png;base64,iVBOR' in page
    assert "<b>The recipe is good.</b>" in page
    assert "```text\nstep 0, wrong: " in page
