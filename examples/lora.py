"""Train a LoRA adapter, and export it merged into the model."""

import dapo

if __name__ == "__main__":
    settings = {"model.lora.rank": 8, "learner.learning_rate": 3e-3}
    run = dapo.train("quickstart", **settings, **{"run.name": "example_lora", "trainer.steps": 20})
    print("held-out accuracy:", run.metrics[0]["validation/accuracy"], "->", run.best["validation/accuracy"])
    dapo.export(run.path, run.path / "merged")
    print("model:", run.path / "merged")
