"""Train a model that cannot do a task yet: imitate solutions first, then learn from rewards."""

import random
from pathlib import Path

import dapo
from dapo.data.signed_sum import make_problem, sloppy_solution
from dapo.models.tiny import make_tiny_model

EXAMPLES = 11_000
STEPS = 20

if __name__ == "__main__":
    folder = Path("runs/example_sft_base")
    make_tiny_model(folder, "llama", heads=2, seed=1)
    problems = [make_problem(1001, n, max_terms=4) for n in range(EXAMPLES)]
    examples = [
        # the solutions misread most minus signs: the mistake is what reinforcement learning removes
        {"prompt": problem.prompt, "response": sloppy_solution(problem, random.Random(n), rambler_share=0.0)}
        for n, problem in enumerate(problems)
    ]
    recipe = {
        "model": {"path": str(folder)},
        "data": {
            "train": [{"task": "signed_sum", "seed": 101, "size": 4000, "options": {"max_terms": 4}}],
            "validation": [
                {"task": "signed_sum", "name": "held_out", "seed": 2, "size": 128, "options": {"max_terms": 4}}
            ],
        },
        "rewards": [{"name": "accuracy", "kind": "exact", "pattern": r"=\s*(-?\d+)\s*$"}],
        "rollout": {"prompts_per_step": 32, "group_size": 16, "max_response_tokens": 24},
        "algorithm": {"overlong_punishment": {"cache_length": 8}},
        "learner": {"learning_rate": 5e-4, "minibatch_prompts": 8},
        "sft": {"epochs": 3, "learning_rate": 3e-3},
    }
    imitated = dapo.sft(recipe, train=examples, **{"run.name": "example_sft"})
    recipe["model"] = {"path": str(imitated.path / "export")}
    run = dapo.train(recipe, **{"run.name": "example_sft_then_dapo", "trainer.steps": STEPS})
    print("held-out accuracy:", run.metrics[0]["validation/accuracy"], "->", run.best["validation/accuracy"])
