"""Find private words, long sentences, and docstrings that do not begin with a verb.

    python tests/helpers/plain_words.py dapo/loop/trainer.py docs/tutorial.md   # every problem of these files

`tests/unit/test_plain_words.py` allows none in any page or module.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 30
"""Words of a sentence on a page or in a docstring's first paragraph."""

WORDS = {
    r"(?<!model )(?<!wild)\bcards?\b": "GPU",
    r"\bwho(?:m)?ever\b|\bnobody\b|\bsomebody\b|\banybody\b": "the thing's name",
    r"\b(?:is|are|was|were|be|been) told\b|\btells? of\b": "reported, warned, printed",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bstands? (?:in|beside|behind|here|there|still|for itself)\b": "is in, is next to",
    r"\bthe house\b|\bfloors\b|\brooms\b": "the architecture, a layer, a module",
    r"\bdear(?:er|est)?\b": "expensive",
    r"\bseldom\b": "rarely",
    r"\bbehind (?:it|them|the last)\b": "after",
    r"\bof (?:Slurm|Ray|vLLM|TRL|verl|torch)'s\b": "a Slurm job, Ray's",
    r"\bhere may stand\b": "expected one of",
    r"\bsign of life\b": "last update",
    r"\bcrew\b|\bseats?\b(?! belt)": "processes",
    r"\b(?:lives?|living) (?:elsewhere|in a process|here)\b": "runs in",
}
PROGRAM = {
    r"\bshall\b": "must, should, or the present tense",
    r"\bas there\b(?! is| are)": "as in ...",
    r"\bstood\b": "was, were",
    r"\banew\b": "again",
    r"(?<!lags )\bbehind\b(?! any| it| them| the last)": "after",
    r"\bbeside\b(?! the point)": "next to, in addition to, while",
}
"""More words that the program does not print: strings of modules, and comments and texts of its YAML files."""
OTHERS = {"dapo/loop/sampling/episodes.py", "dapo/engines/slots.py", "dapo/engines/vllm_http.py"}
"""Files whose strings still have some of these words."""
FENCE = re.compile(r"^(```+).*?^\1\s*$|<!--.*?-->", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)[^`]+\1|^ *\w+:", re.MULTILINE)  # and names of arguments
SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[(\"])")
START = re.compile(r"(?:What|Of|Whoever|Those|That|Where|Who|It|They)\b")
"""Words that no docstring begins with: its subject is a named thing, or it begins with a verb."""
GENERATED = {"docs/configuration.md", "docs/metrics.md", "docs/peers.md"}


def prose(page: str) -> Iterator[str]:
    """Yield the sentences of a page, without code, tables, headings, pictures and the addresses of links."""
    text = re.sub(r"\]\([^)]*\)", "]", FENCE.sub("", page))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if not block.startswith(("    ", "|", "#", "!", "<")) and not block.lstrip().startswith("[!["):
            yield from filter(None, SENTENCES.split(" ".join(block.split())))


def of_sentence(sentence: str) -> Iterator[str]:
    """Yield the problems of one sentence."""
    if (words := len(sentence.split())) > LONGEST:
        yield f"{words} words, {LONGEST} at most: {sentence[:60]}..."
    yield from of_words(sentence)


def of_words(text: str, words: Mapping[str, str] = WORDS) -> Iterator[str]:
    """Yield the words of a text that have a better one; names in backticks and of arguments are code."""
    plain = CODE.sub("", text)
    for pattern, better in words.items():
        for match in re.finditer(pattern, plain, re.IGNORECASE):
            yield f"{match[0]!r}: write {better}"


def of_page(path: Path) -> list[str]:
    """Return the problems of a page."""
    return [problem for sentence in prose(path.read_text()) for problem in of_sentence(sentence)]


def of_module(path: Path) -> list[str]:
    """Return the problems of a module's docstrings and messages; how docstrings begin is `without_verb`'s to say."""
    tree, found, docstrings = ast.parse(path.read_text()), [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
            if first:
                if start := START.match(first):
                    found.append(f"line {node.body[0].lineno}: begins with {start[0]!r}: write a verb or a name")
                docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
                sentences = SENTENCES.split(" ".join(first.split()))
                said = [*(p for s in sentences for p in of_sentence(s)), *of_words(rest)]
                found += [f"line {node.body[0].lineno}: {problem}" for problem in said]
    printed = PROGRAM if not path.as_posix().endswith(tuple(OTHERS)) else {}
    quiet = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)} - docstrings
    quiet = set() if "config/schema" in path.as_posix() else quiet  # texts of settings are printed
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        if is_text and len(node.value.split()) > 3:  # type: ignore[attr-defined]
            said = of_words(node.value, WORDS if id(node) in quiet else WORDS | printed)  # type: ignore[attr-defined]
            found += [f"line {node.lineno}: {problem}" for problem in said]
    return found


def of_yaml(path: Path) -> list[str]:
    """Return the problems of the lines of a recipe or a table that the program ships."""
    lines = enumerate(path.read_text().splitlines(), 1)
    return [f"line {number}: {problem}" for number, line in lines for problem in of_words(line, WORDS | PROGRAM)]


def without_verb() -> dict[str, list[str]]:
    """Return the functions whose docstring does not begin with an imperative verb (pydocstyle's D401), by file."""
    command = ["ruff", "check", "--isolated", "--select", "D401", "--output-format", "json", "dapo", "examples"]
    tool = Path(sys.executable).with_name("ruff")
    done = subprocess.run([str(tool), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    found: dict[str, list[str]] = {}
    for one in json.loads(done.stdout):
        name = str(Path(one["filename"]).relative_to(ROOT))
        found.setdefault(name, []).append(f"line {one['location']['row']}: {one['message']}")
    return found


def problems() -> dict[str, list[str]]:
    """Return the problems of every page, module, recipe and shipped table by file; generated pages do not count."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    verbless = without_verb()
    found: dict[str, list[str]] = {}
    for name in tracked:
        path = ROOT / name
        if path.is_symlink() or not path.is_file() or name in GENERATED:
            continue
        if name.endswith(".md") and not name.startswith(("benchmarks/", "tests/", "dapo/")):
            found[name] = of_page(path)
        elif name.endswith(".py") and name.startswith(("dapo/", "examples/")):
            found[name] = of_module(path) + verbless.get(name, [])
        elif name.endswith((".yaml", ".txt")) and name.startswith("dapo/"):
            found[name] = of_yaml(path)
    return found


def main() -> None:
    """Print the problems of the named files."""
    found = problems()
    for name in sys.argv[1:]:
        for problem in found.get(name, []):
            print(f"{name}: {problem}")


if __name__ == "__main__":
    main()
