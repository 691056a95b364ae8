"""Tutorials and how-to pages, from top to bottom: their files are saved, their programs and commands run.

In the quickstart's place stands a smaller recipe, which trains for a step or two. A run that differs from another in
numbers alone is a copy of it, whose recipe is loaded; reports are made where the README's commands are run.
Every other page with a fenced block of Python or bash is named here with the test that runs it.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from each import each
from page_session import Session
from pages import FENCE, ROOT, blocks, navigation
from quick import quick
from ruamel.yaml import YAML
from small_run import dapo, write_recipe

from dapo.config import recipe_from_dict
from dapo.environments.tools import Tool
from dapo.sandbox.runs import SandboxError
from dapo.sandbox.select import SandboxSettings, try_sandbox

SESSIONS = [
    "tutorial",
    "own_data",
    "own_reward",
    "own_algorithm",
    "howto_sizes",
    "howto_memory",
    "howto_code_rewards",
    "environments",
    "agents",
    "rewards",
    "howto_thinking",
    "howto_flat_reward",
    "howto_batch",
    "cli",
    "run_folder",
    "adapters",
    "publish",
    "base_to_trained",
]
ELSEWHERE = {
    "README": "integration/test_run_documented.py",
    "python": "integration/test_run_documented.py",
    "extending": "integration/test_run_documented.py",
    "algorithm": "unit/test_docs_commands.py",
    "losses": "unit/test_docs_commands.py",
    "correction": "unit/test_docs_commands.py",
    "hooks": "unit/algorithms/test_algorithms_docs.py",
    "howto_judges": "integration/test_run_pages.py",
    "howto_tools": "integration/test_run_pages.py",
    "chat_model": "real/test_real_page.py",
    "import": "unit/importing/test_importing_page.py",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with a model, a small recipe and a run called first."""
    folder = tmp_path_factory.mktemp("pages")
    recipe = write_recipe(folder, "logging: {console: quiet}\n")
    lines = recipe.read_text().replace(", reward_scaling: {source_max: 1.1}", "").splitlines(keepends=True)
    recipe.write_text("".join(line for line in lines if "name: short" not in line))  # one reward, as the quickstart
    dapo("train", recipe, "trainer.steps=1", f"run.dir={folder}/runs", "run.name=first")
    return folder


@pytest.mark.parametrize("page", quick(SESSIONS, ["tutorial"]))
def test_a_page_does_what_it_says(page, tmp_path, monkeypatch, finished):
    monkeypatch.chdir(tmp_path)
    if page == "howto_code_rewards":
        try:
            try_sandbox(SandboxSettings())
        except SandboxError as error:
            pytest.skip(str(error))
    session = Session(page, tmp_path, finished)
    session.go_through()
    assert session.ran


@each("page", [ROOT / "README.md", *navigation()])
def test_every_block_is_run_or_says_why_not(page):
    open_ = [b for b in blocks(page) if b.language in ("python", "bash") and b.not_run is None]
    if page.stem not in SESSIONS and open_:
        where = ELSEWHERE.get(page.stem)
        assert where, f"{page.name}: which test runs this?\n{open_[0].body}"
        assert (ROOT / "tests" / where).is_file()


INDENTED = {"README.md"}
"""Whose commands stand in indented lines: test_run_documented.py reads them there."""


@each("page", [ROOT / "README.md", *navigation()])
def test_no_command_escapes_by_its_form(page):
    """What a reader is to type stands in a fenced block of bash, which is run or marked; or, behind a `$`, with what it
    says."""
    text = FENCE.sub("", page.read_text())
    typed = re.findall(
        r"^ {4,}((?:\.venv[\w-]*/bin/)?(?:dapo|make|pip|python3?|git|docker|sbatch|ray) .*)$", text, re.MULTILINE
    )
    assert page.name in INDENTED or typed == []
    silent = [b for b in blocks(page) if b.language in ("", "sh", "shell", "console") and b.not_run is None]
    assert [b.body for b in silent if re.search(r"^(\.venv[\w-]*/bin/)?dapo ", b.body, re.MULTILINE)] == []


@pytest.mark.whole
def test_the_tracker_of_the_python_page(finished, tmp_path):
    (source,) = (b for b in blocks(ROOT / "docs/python.md") if b.file == "mytracker.py")
    (tmp_path / "mytracker.py").write_text(source.body)
    small = ["trainer.steps=1", "validation.every=0", f"run.dir={tmp_path}", "run.name=tracked"]
    dapo("train", finished / "recipe.yaml", *small, "logging.trackers=[mytracker:Lines]", cwd=tmp_path)
    (line,) = (tmp_path / "tracked/lines.jsonl").read_text().splitlines()
    assert line.startswith('{"step": 1, "accuracy": 0.')


def test_the_tool_of_the_page_has_a_schema_and_its_recipe_is_one():
    source, *recipes = (b for b in blocks(ROOT / "docs/howto_tools.md") if b.language in ("python", "yaml"))
    names: dict[str, object] = {}
    exec(source.body, names)
    tool = Tool.of(names["add"])
    assert tool.schema["function"]["description"] == "Add two numbers."
    assert tool.function(**tool.check({"a": 2})) == 2
    own = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum"}]}}
    own["rewards"] = [{"kind": "task"}]
    typed, programs = (recipe_from_dict({**own, **YAML(typ="safe").load(each.body)}).recipe for each in recipes)
    assert typed.environment.max_turns == 4
    assert programs.environment.tools == ["python"]


@pytest.mark.whole
def test_the_judge_of_the_page_scores_a_run(finished, tmp_path):
    """The service of the page, started as the page starts it; `dapo check` and a step of training ask it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    for block in blocks(ROOT / "docs/howto_judges.md"):
        if block.file:
            text = block.body.replace("8000", port).replace("builtin/signed-sum", str(finished / "model"))
            (tmp_path / block.file).write_text(text)
    judge = subprocess.Popen([sys.executable, "judge.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(int(port))
        checked = dapo("check", "judged.yaml", "--verbose", cwd=tmp_path).stdout
        assert "right ('GOLD')" in checked
        assert "mixed groups: scores of accuracy differ by more than 1e-06" in checked
        small = ["trainer.steps=1", "validation.every=0", "rollout.prompts_per_step=2", "rollout.group_size=4"]
        small += ["rollout.max_response_tokens=8", "algorithm.overlong_punishment.enabled=false"]
        small += ["algorithm.dynamic_sampling.mode=off", f"run.dir={tmp_path}", "run.name=judged"]
        dapo("train", "judged.yaml", *small, cwd=tmp_path)
    finally:
        judge.kill()
        judge.wait()
    (line,) = (tmp_path / "judged/metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["reward/unscored"] == 0


def wait_for_port(port):
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("the judge did not start")


def test_the_reward_of_a_thinking_model_reads_what_follows_the_thoughts():
    (source,) = (b for b in blocks(ROOT / "docs/howto_thinking.md") if b.file == "thinking.py")
    names: dict[str, object] = {}
    exec(source.body, names)
    prompt = type("Prompt", (), {"answer": "7"})

    def said(text):
        return names["score"](prompt, type("Response", (), {"text": text}))

    assert said("maybe \\boxed{7}") == {"accuracy": 0.0, "closed": 0.0}
    assert said("maybe \\boxed{8}</think> It is \\boxed{7}.") == {"accuracy": 1.0, "closed": 1.0}
    assert said("maybe \\boxed{7}</think> It is \\boxed{8}.") == {"accuracy": 0.0, "closed": 1.0}
