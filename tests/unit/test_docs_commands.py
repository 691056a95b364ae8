"""Commands, recipes and metrics as the pages write them: known to the command line, the schema and the glossary.

What runs them: tests/integration/test_run_pages.py and test_run_documented.py.
"""

from __future__ import annotations

import re

import pytest
import typer
from each import each
from pages import ROOT, all_pages, blocks, code_of, dapo_commands
from ruamel.yaml import YAML

from dapo.cli.main import app
from dapo.config.explain import explain
from dapo.config.peer_names import PEER_METRICS, peer_metric
from dapo.config.settings import generic, settings
from dapo.metrics.glossary import AREAS, GLOSSARY, lookup

COMMANDS = typer.main.get_command(app).commands
ELSEWHERE = {"epsilon_high", "KEY"}  # shown because it is refused; a placeholder


def known_setting(key: str) -> bool:
    """A setting, or something below one that takes any names."""
    path = generic(key)
    while path not in settings() and "." in path:
        path = path.rpartition(".")[0]
    found = settings().get(path)
    return found is not None and (path == generic(key) or found.expected.startswith("a mapping"))


@each("page", all_pages())
def test_commands_have_options_that_exist_and_keys_that_are_settings(page):
    for name, *arguments in dapo_commands(code_of(page)):
        assert name in COMMANDS, f"{page.name}: dapo {name}"
        COMMANDS[name].make_context(name, list(arguments))
        keys = [key for key, is_one, _ in (a.partition("=") for a in arguments if not a.startswith("-")) if is_one]
        unknown = [key for key in keys if key not in ELSEWHERE and not known_setting(key)]
        assert unknown == [], f"{page.name}: dapo {name} {' '.join(arguments)}"


def test_a_wrong_command_is_seen():
    page = "x\n    $ .venv/bin/dapo evaluate runs/x \\\n      --sample 3 'a=1; 2'  # why\n"
    shown, second = dapo_commands(f"{page}    dapo data x; dapo view | head\n")
    assert shown == ["evaluate", "runs/x", "--sample", "3", "a=1; 2"]
    assert second == ["data", "x"]
    with pytest.raises(Exception, match="--sample"):
        COMMANDS["evaluate"].make_context("evaluate", shown[1:])
    assert known_setting("rewards.3.weight")
    assert not known_setting("rewards.3.wight")
    assert not known_setting("algorithm.clip.higher")


@each("page", all_pages())
def test_recipes_on_pages_hold_settings(page):
    def walk(value: object, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                below = f"{path}.{key}" if path else str(key)
                assert known_setting(below), f"{page.name}: {below}"
                if generic(below) in settings() and settings()[generic(below)].section:
                    walk(inner, below)
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                walk(inner, f"{path}.{number}")

    for block in blocks(page):
        if block.language != "yaml" or page.name == "import.md":  # others' files, and parts of recipes made of them
            continue
        walk(YAML(typ="safe").load(block.body), "")


@each("page", all_pages())
def test_metrics_on_pages_are_in_the_glossary(page):
    areas = "|".join({metric.key.split("/")[0] for lines in AREAS.values() for metric in lines() if "/" in metric.key})
    for name in re.findall(rf"`((?:{areas})/[\w/<>]+)`", page.read_text()):
        if not name.endswith("/"):
            known = lookup(re.sub(r"<\w+>", "1", name)) or peer_metric(name)
            assert known is not None, f"{page.name}: {name}"


def test_names_elsewhere_lead_to_metrics():
    for entry in PEER_METRICS:
        assert entry.ours
        assert all(lookup(key) is not None for key in entry.ours), entry.key
        assert entry.key not in GLOSSARY, f"{entry.key} is a name of ours"
        assert explain(entry.key)[0].startswith(f"`{entry.key}` of {entry.who[0]}")


HISTORY = re.compile(
    r"^## Finished studies$.*?(?=^## )|† [^|]*|^```bash\ngit worktree add .*?^```$", re.MULTILINE | re.DOTALL
)
"""Commands of scripts that are in the history: pages say at which commit."""


def lacking(text: str) -> list[str]:
    """Return the make targets and the scripts of benchmarks/ that a page names in code and that are not there."""
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    code = "\n".join(re.findall(r"^```.*?^```$|^    [^\n]*|`[^`\n]+`", HISTORY.sub("", text), re.MULTILINE | re.DOTALL))
    named = [f"make {target}" for target in re.findall(r"\bmake ([a-z][a-z-]*)", code) if target not in targets]
    scripts = re.findall(r"\bbenchmarks/([a-z_]+\.py)", code)
    return named + [script for script in scripts if not (ROOT / "benchmarks" / script).exists()]


def test_make_targets_and_scripts_on_pages_exist():
    pages = [*all_pages(), ROOT / "benchmarks/README.md"]
    assert {page.name: found for page in pages if (found := lacking(page.read_text()))} == {}


def test_a_target_and_a_script_that_are_gone_are_seen():
    page = "    make golden && python benchmarks/gone.py\n\nRun `make bench-gone`, or make sure.\n"
    assert lacking(page) == ["make bench-gone", "gone.py"]
    assert lacking("| † `make bench-old` | `make nothing` |\n") == ["make nothing"]


def test_the_page_of_the_command_line_names_commands_and_options_that_exist():
    page = (ROOT / "docs/cli.md").read_text()
    named = set(re.findall(r"^\| `dapo (\w+)", page, re.MULTILINE))
    assert len(named) >= 11
    assert named <= COMMANDS.keys()
    options = {option for parameter in COMMANDS["evaluate"].params for option in parameter.opts}
    shown = re.findall(r"`(--?[\w-]+)`", page.partition("## Options of `evaluate`")[2].partition("\n## ")[0])
    assert set(shown) - {"--no-greedy"} <= options
