"""Train with a reward function: any callable of a prompt and a completion."""

import dapo


def score(prompt, completion):
    """Return 1 if the last total is the gold answer, and record how many totals the response has."""
    answer = completion.text.rpartition("=")[2].strip()
    return {"accuracy": float(answer == prompt.answer), "totals": float(completion.text.count("="))}


if __name__ == "__main__":
    run = dapo.train("quickstart", rewards=[score], **{"run.name": "example_reward", "trainer.steps": 20})
    print("held-out accuracy:", run.metrics[0]["validation/accuracy"], "->", run.best["validation/accuracy"])
    print("totals in a response:", run.metrics[-1]["reward/totals"])
