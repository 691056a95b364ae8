"""``dapo export``: a checkpoint's weights as a folder that transformers loads."""

from __future__ import annotations

from pathlib import Path

from dapo.checkpoint.store import CheckpointStore
from dapo.checkpoint.tree import as_damage, load_state
from dapo.config.load import load_recipe
from dapo.learner import storage
from dapo.loop.trainer import check_fingerprint
from dapo.observe.console import Console
from dapo.observe.run_folder import RunFolder
from dapo.run.parts import make_facts, make_model


def export(run: Path, out: Path, step: int | None = None) -> int:
    """Write checkpoint ``step`` (default: the newest) of a run to ``out``. Returns the exit code."""
    with Console("plain") as console:
        folder = RunFolder.open(run)
        recipe = load_recipe(folder.resolved_recipe, of_a_run=True).recipe
        saved = CheckpointStore(folder.checkpoints).path(step)
        facts = make_facts(recipe, console)  # another model is refused before any weight of it is read
        with as_damage(saved):
            check_fingerprint(load_state(saved)["fingerprint"], dict(facts.fingerprint), saved)
        loaded = make_model(recipe, console)
        storage.load(saved / "learner", loaded)
        storage.export(out, loaded)
        console.say(f"{saved} -> {out}")
        console.say(f'load it with AutoModelForCausalLM.from_pretrained("{out}")')
    return 0
