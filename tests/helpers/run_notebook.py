"""Execute docs/notebook.ipynb and keep what its cells show: ``make notebook``.

nbclient and ipykernel are in an environment of their own, ``.venv-notebook``; the cells run in ``.venv``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs/notebook.ipynb"
SOURCE = "executed"
"""Key of the notebook's metadata: hash of the cells that made the outputs."""


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of a notebook that hold a program."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def hash_of_source(notebook: dict[str, Any]) -> str:
    """Return a hash of all programs of a notebook."""
    return hashlib.sha256(json.dumps([cell["source"] for cell in code_cells(notebook)]).encode()).hexdigest()[:16]


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with the outputs of its cells, executed in an empty folder."""
    import nbformat
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient

    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{libraries}", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        kernel = KernelManager(kernel_name="python3")
        kernel.kernel_spec.argv[0] = str(ROOT / ".venv/bin/python")
        filled = nbformat.from_dict(notebook)
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(filled, km=kernel, timeout=900, resources=resources, record_timing=False)
        client.execute(env={**os.environ, **environment})
        made = json.loads(json.dumps(filled).replace(f"{folder}/", ""))
    cells = notebook["cells"]
    for cell, ran in zip(cells, made["cells"], strict=True):
        if cell["cell_type"] == "code":
            cell["outputs"] = [_shown(output) for output in ran["outputs"]]
            cell["execution_count"] = ran["execution_count"]
    notebook["metadata"][SOURCE] = hash_of_source(notebook)
    return notebook


def _shown(output: dict[str, Any]) -> dict[str, Any]:
    """Return an output in one form: a picture, else the page that an object of dapo makes of itself, else text.

    Raises:
        SystemExit: a cell wrote to stderr, which no reader should see.
    """
    if output.get("name") == "stderr":
        raise SystemExit(f"a cell wrote to stderr: {output['text']}")
    if "data" in output:
        data = output["data"]
        coloured = "font-family:Menlo" in data.get("text/html", "")  # a console's text with its colours
        kinds = ["image/png", "text/plain"] if coloured else ["image/png", "text/html", "text/plain"]
        best = next(kind for kind in kinds if kind in data)
        text = data[best] if best == "image/png" else "\n".join(line.rstrip() for line in data[best].splitlines())
        output = {**output, "data": {best: text}, "metadata": {}}
    return output


if __name__ == "__main__":
    done = executed(json.loads(NOTEBOOK.read_text()))
    NOTEBOOK.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n")
    print(f"{NOTEBOOK.relative_to(ROOT)}: {NOTEBOOK.stat().st_size / 1000:.0f} kB")
