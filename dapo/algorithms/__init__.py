"""The mathematics: pure functions of arrays and numbers. No recipe, no container, no I/O.

``docs/algorithm.md``, ``losses.md`` and ``correction.md`` have each formula. Only ``losses`` needs torch.
"""
