"""``python -m benchmarks.gpu``: is this program right on the card that is here, and how fast is it there?

Preflight, checks, benchmarks: each a plain function that gets a :class:`~benchmarks.gpu.room.Room`. ``plan.py`` lists
them in the order of what they tell, ``runner.py`` runs them in child processes, and pytest wraps the same functions.
"""
