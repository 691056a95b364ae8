"""``dapo evaluate``: the validation sets of a recipe on a model or on a run's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from dapo.checkpoint.store import CheckpointStore
from dapo.config.load import LoadedRecipe
from dapo.errors import DataError
from dapo.observe.console import Console
from dapo.observe.run_folder import RunFolder
from dapo.observe.view import validation_lines
from dapo.run.session import Session


def evaluate(loaded: LoadedRecipe, run: Path | None = None, step: int | None = None) -> int:
    """Print each set's metrics; for a run, of checkpoint ``step`` (default: the newest). Returns the exit code."""
    with Console(loaded.recipe.logging.console) as console:
        saved = CheckpointStore(RunFolder.open(run).checkpoints).path(step) if run is not None else None
        session = Session.make(loaded.recipe, console)
        try:
            learner = session.learner()
            if saved is not None:
                learner.load(saved / "learner")
                console.say(f"weights of {saved}")
            session.engine.publish(0, learner.publish())
            session.sync_check(learner)(0)
            evaluator = session.evaluator()
            if evaluator is None:
                raise DataError("there is nothing to evaluate on: give --data FILE")
            result = evaluator.evaluate()
        finally:
            session.close()
        for line in validation_lines(0, result.metrics):
            console.print(line)
        print(json.dumps(result.metrics, indent=1, sort_keys=True))
    return 0
