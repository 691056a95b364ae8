"""A reader of a page, who saves its files, runs its programs and types its commands, from top to bottom."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from pages import ROOT, Block, blocks, dapo_commands
from small_run import dapo

from dapo.config import load_recipe

NUMBERS = ("run.name=", "run.seed=", "trainer.steps=", "learner.learning_rate=")
SMALLER = {
    "agents": {
        "prompts_per_step: 8, group_size: 16": "prompts_per_step: 2, group_size: 4",
        "minibatch_prompts: 4": "minibatch_prompts: 2",
    },
    "base_to_trained": {
        "11_000": "64",  # examples
        "kind: exact, pattern: '=\\s*(-?\\d+)\\s*$'": "kind: regex, pattern: '.'",  # which a step of training meets
        "prompts_per_step: 32, group_size: 16": "prompts_per_step: 8, group_size: 8",
        "epochs: 3": "epochs: 1",
    },
}
"""Of a page's own files: what stands there, and what the test takes instead."""


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
            for shown, smaller in SMALLER.get(self.page, {}).items():
                text = text.replace(shown, smaller)
            (self.folder / block.file).write_text(text)
        elif block.language == "python":
            exec(block.body, {})
            self.ran.append("python")
        elif block.language == "bash":
            for file in re.findall(r"^python (\w+\.py)$", block.body, re.MULTILINE):
                exec((self.folder / file).read_text(), {})
                self.ran.append("python")
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
        assert done.stdout or done.stderr or name == "train"
        self.ran.append(name)

    def smaller(self, name: str, given: list[str]) -> list[str]:
        if "--resume" in given:
            return ["trainer.steps=2"]
        if name == "check":
            return []
        answers_never_right = given[0] != self.small or any(a.startswith("rewards.") for a in given)
        off = ["algorithm.dynamic_sampling.mode=off"] if answers_never_right else []
        named = [] if any(a.startswith("run.name=") for a in given) else ["run.name=quickstart", "run.if_exists=backup"]
        called = named if given[0] == self.small else []
        return [*off, *called, "trainer.steps=1", "validation.samples=1", "validation.limit=2", "run.dir=runs"]
