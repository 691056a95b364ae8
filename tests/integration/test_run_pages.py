"""Tutorials and how-to pages, from top to bottom: their files are saved, their programs and commands run.

In the quickstart's place stands a smaller recipe, which trains for a step or two. A run that differs from another in
numbers alone is a copy of it, whose recipe is loaded; reports are made where the README's commands are run.
Every other page with a fenced block of Python or bash is named here with the test that runs it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pages import ROOT, Block, blocks, dapo_commands, navigation
from small_run import dapo, write_recipe

from dapo.config import load_recipe

SESSIONS = [
    "own_data",
    "own_reward",
    "own_algorithm",
    "howto_sizes",
    "howto_memory",
    "howto_code_rewards",
    "howto_thinking",
    "howto_sft",
    "howto_verl",
    "howto_flat_reward",
    "howto_batch",
    "chat_model",
    "cli",
    "run_folder",
]
ELSEWHERE = {
    "README": "integration/test_run_documented.py",
    "tutorial": "integration/test_run_documented.py",
    "python": "integration/test_run_documented.py",
    "extending": "integration/test_run_documented.py",
    "data_and_rewards": "integration/test_run_pages.py",
    "scaling": "cluster/test_cluster_runs.py",
    "overlap": "cluster/test_cluster_overlap.py",
    "algorithm": "unit/algorithms/test_algorithms_docs.py",
    "engines": "unit/rollout/test_rollout_own.py",
    "import": "unit/importing/test_importing_page.py",
}
NUMBERS = ("run.name=", "run.seed=", "trainer.steps=", "learner.learning_rate=")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with a model, a small recipe and a run called first."""
    folder = tmp_path_factory.mktemp("pages")
    recipe = write_recipe(folder, "logging: {console: quiet}\n")
    dapo("train", recipe, "trainer.steps=1", "validation.every=0", f"run.dir={folder}/runs", "run.name=first")
    return folder


class Session:
    """A reader in a folder, who saves, runs and types what a page shows."""

    def __init__(self, page: str, folder: Path, finished: Path) -> None:
        self.page, self.folder, self.finished = page, folder, finished
        self.small = str(finished / "recipe.yaml")
        self.ran: list[str] = []
        shutil.copytree(finished / "runs", folder / "runs")

    def go_through(self) -> None:
        for block in blocks(ROOT / f"docs/{self.page}.md"):
            if block.not_run is None:
                self.take(block)

    def take(self, block: Block) -> None:
        if block.file:
            text = block.body.replace("builtin/signed-sum", str(self.finished / "model"))
            (self.folder / block.file).write_text(text)
        elif block.language == "python":
            exec(block.body, {})
            self.ran.append("python")
        elif block.language == "bash":
            for name, *arguments in dapo_commands(block.body):
                self.type_in(name, arguments)

    def type_in(self, name: str, arguments: list[str]) -> None:
        if name == "report":
            assert (self.folder / arguments[0]).is_dir()
            return
        replaced = {"quickstart": self.small, "builtin/signed-sum": str(self.finished / "model")}
        given = [replaced.get(a, a) if name != "recipes" else a for a in arguments]
        if name in ("train", "check"):
            given += self.smaller(name, given)
        if name == "train" and given[0] == self.small and all(a.startswith(NUMBERS) for a in arguments[1:]):
            load_recipe(self.small, arguments[1:])
            named = next(a.partition("=")[2] for a in arguments if a.startswith("run.name="))
            shutil.copytree(self.folder / "runs/first", self.folder / "runs" / named)
            return
        done = dapo(name, *given, cwd=self.folder)
        assert done.stdout or name == "train"
        self.ran.append(name)

    def smaller(self, name: str, given: list[str]) -> list[str]:
        if "--resume" in given:
            return ["trainer.steps=2"]
        if name == "check":
            return []
        answers_never_right = given[0] != self.small or any(a.startswith("rewards.") for a in given)
        off = ["algorithm.dynamic_sampling.mode=off"] if answers_never_right else []
        return [*off, "trainer.steps=1", "validation.samples=1", "validation.limit=2", "run.dir=runs"]


@pytest.mark.parametrize("page", SESSIONS)
def test_a_page_does_what_it_says(page, tmp_path, monkeypatch, finished):
    monkeypatch.chdir(tmp_path)
    session = Session(page, tmp_path, finished)
    session.go_through()
    pages_with_files_alone = {"howto_code_rewards"}
    assert session.ran or page in pages_with_files_alone


@pytest.mark.parametrize("page", [ROOT / "README.md", *navigation()], ids=lambda page: page.name)
def test_every_block_is_run_or_says_why_not(page):
    open_ = [b for b in blocks(page) if b.language in ("python", "bash") and b.not_run is None]
    if page.stem not in SESSIONS and open_:
        where = ELSEWHERE.get(page.stem)
        assert where, f"{page.name}: which test runs this?\n{open_[0].body}"
        assert (ROOT / "tests" / where).is_file()


def test_the_tracker_of_the_python_page(finished, tmp_path):
    (source,) = (b for b in blocks(ROOT / "docs/python.md") if b.file == "mytracker.py")
    (tmp_path / "mytracker.py").write_text(source.body)
    small = ["trainer.steps=1", "validation.every=0", f"run.dir={tmp_path}", "run.name=tracked"]
    dapo("train", finished / "recipe.yaml", *small, "logging.trackers=[mytracker:Lines]", cwd=tmp_path)
    (line,) = (tmp_path / "tracked/lines.jsonl").read_text().splitlines()
    assert line.startswith('{"step": 1, "accuracy": 0.')


def test_the_reward_of_the_page_of_rewards():
    (source,) = (b for b in blocks(ROOT / "docs/data_and_rewards.md") if b.file == "my_rewards.py")
    names: dict[str, object] = {}
    exec(source.body, names)
    completion = type("Completion", (), {"text": " so 7 \n", "__len__": lambda self: 3})()
    assert names["score"](type("Prompt", (), {"answer": "7"}), completion) == {"accuracy": 1.0, "brevity": 0.25}


def test_the_reward_that_runs_code_tells_right_from_wrong(tmp_path, monkeypatch):
    (source,) = (b for b in blocks(ROOT / "docs/howto_code_rewards.md") if b.file == "run_code.py")
    names: dict[str, object] = {}
    exec(source.body.replace("SECONDS = 5", "SECONDS = 1"), names)

    def said(program):
        prompt = type("Prompt", (), {"extra": {"tests": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]}})
        return names["score"](prompt, type("Completion", (), {"text": f"So:\n```python\n{program}\n```"}))

    assert said("def add(a, b):\n    return a + b") == {"accuracy": 1.0, "tests_passed": 1.0}
    assert said("def add(a, b):\n    return 0") == {"accuracy": 0.0, "tests_passed": 0.5}
    assert said("while True: pass") == {"accuracy": 0.0, "tests_passed": 0.0}


def test_the_reward_of_a_thinking_model_reads_what_follows_the_thoughts():
    (source,) = (b for b in blocks(ROOT / "docs/howto_thinking.md") if b.file == "thinking.py")
    names: dict[str, object] = {}
    exec(source.body, names)
    prompt = type("Prompt", (), {"answer": "7"})

    def said(text):
        return names["score"](prompt, type("Completion", (), {"text": text}))

    assert said("maybe \\boxed{7}") == {"accuracy": 0.0, "closed": 0.0}
    assert said("maybe \\boxed{8}</think> It is \\boxed{7}.") == {"accuracy": 1.0, "closed": 1.0}
    assert said("maybe \\boxed{7}</think> It is \\boxed{8}.") == {"accuracy": 0.0, "closed": 1.0}
