"""What MkDocs needs to make a site of docs/: pages for files elsewhere in the repository, and for the notebook.

Pages of docs/ link to what lies beside docs/ (recipes, results of benchmarks), so that the links work in a checkout.
Here each such file becomes a page under ``repository/``, and links to it are turned there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md")
PICTURES = {".png", ".svg"}
LANGUAGES = {".yaml": "yaml", ".py": "python", ".toml": "toml", ".json": "json", ".Dockerfile": "docker"}
LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>[^)#\s]+)(?P<rest>(?:#[^)\s]*)?)\)")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"<t[dh][^>]*>.*?</t[dh]>", re.DOTALL)
KEY = re.compile(r"<code>([^<\s]+)</code>")
BEHIND = "---\nsearch: {boost: 0.2}\n---\n\n"  # what docs/ says of a word is found first
LEFT_OUT = "---\nsearch: {exclude: true}\n---\n\n"  # logs and results of benchmarks
FURTHER = "Further pages"


def on_config(config: Any) -> Any:
    """Pages that the navigation does not name stand at its end, so that none is lost."""
    named = set(_named(config.nav))
    pages = sorted(path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md"))
    if left := [page for page in pages if page not in named]:
        config.nav = [*config.nav, {FURTHER: left}]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made of files outside of docs/, and of the notebook."""
    docs = Path(config.docs_dir)
    for notebook in docs.glob("*.ipynb"):
        name = f"{notebook.stem}.md"
        files.append(File.generated(config, name, content=notebook_page(notebook.read_text(), notebook.name)))
    open_ = [ROOT / name for name in ALWAYS]
    for page in docs.rglob("*.md"):
        open_ += outside(page, docs)
    done: set[Path] = set()
    while open_:
        path = open_.pop()
        if path in done:
            continue
        done.add(path)
        files.append(repository_file(path, config))
        if path.suffix == ".md":
            open_ += outside(path, docs)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links to files outside of docs/ and to the notebook to their pages; a page's name becomes its title."""
    docs = Path(config.docs_dir)
    at = page.file.src_uri
    page.meta["tags"] = config.extra["searched"].get(at, [])
    lies = ROOT / at.removeprefix("repository/") if at.startswith("repository/") else docs / at

    def turned(match: re.Match[str]) -> str:
        target = _resolved(lies, match["target"])
        if target is None:
            return match[0]
        text = match["text"]
        if (
            text == target.name
            and target.suffix == ".md"
            and (title := TITLE.search(target.read_text(encoding="utf-8")))
        ):
            text = title[1]
        return f"[{text}]({_relative(at, _uri(target, docs))}{match['rest']})"

    return _outside_code(markdown, lambda text: LINK.sub(turned, text))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Marks keys in tables, so that none is broken: a table that is too wide scrolls."""
    return CELL.sub(lambda cell: KEY.sub(r'<code class="key">\1</code>', cell[0]), html)


def outside(page: Path, docs: Path) -> Iterator[Path]:
    """Files outside of ``docs`` to which a page links."""
    for match in LINK.finditer(_outside_code(page.read_text(encoding="utf-8"), lambda text: text, drop=True)):
        target = _resolved(page, match["target"])
        if target is not None and _leaves(target, docs):
            yield target


def repository_file(path: Path, config: Any) -> File:
    """A file of the repository in the site: pictures as they are, Markdown as a page, others as a listing."""
    uri = _uri(path, Path(config.docs_dir))
    if path.suffix in PICTURES:
        return File.generated(config, uri, abs_src_path=str(path))
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        text = f"# {path.relative_to(ROOT)}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"
    head = LEFT_OUT if path.is_relative_to(ROOT / "benchmarks") else BEHIND
    return File.generated(config, uri, content=head + text)


def notebook_page(text: str, name: str) -> str:
    """A notebook's cells and what they show as a page, with the notebook itself to be saved."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", ())]
    title, *rest = parts
    head, _, tail = title.partition("\n")
    return "\n\n".join([head, f'<a href="{name}" download>Save this page as a notebook</a>', tail.strip(), *rest])


def _output(output: dict[str, Any]) -> str:
    """What a cell shows: a picture, HTML or text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        return f'<img alt="What the cell above draws" src="data:image/png;base64,{"".join(data["image/png"].split())}">'
    if "text/html" in data:
        return f"<div>{data['text/html']}</div>"
    return f"```text\n{data['text/plain'].strip()}\n```"


def _named(nav: Any) -> Iterator[str]:
    for entry in nav if isinstance(nav, list) else nav.values():
        if isinstance(entry, str):
            yield entry
        else:
            yield from _named(entry)


def _resolved(page: Path, target: str) -> Path | None:
    if "://" in target or target.startswith(("/", "mailto:")):
        return None
    path = Path(
        os.path.normpath(page.parent / unquote(target))
    )  # links stay as they are called: recipes/, not dapo/recipes/
    return path if path.is_file() and path.is_relative_to(ROOT) else None


def _leaves(path: Path, docs: Path) -> bool:
    return not path.is_relative_to(docs)


def _uri(path: Path, docs: Path) -> str:
    if not _leaves(path, docs):
        return path.relative_to(docs).with_suffix(".md" if path.suffix == ".ipynb" else path.suffix).as_posix()
    suffix = "" if path.suffix == ".md" or path.suffix in PICTURES else ".md"
    return f"repository/{path.relative_to(ROOT).as_posix()}{suffix}"


def _relative(page: str, target: str) -> str:
    return "../" * page.count("/") + target


def _outside_code(markdown: str, change: Any, drop: bool = False) -> str:
    parts, end = [], 0
    for fence in FENCED.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), "" if drop else fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])
