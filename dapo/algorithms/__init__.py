"""The mathematics: pure functions of arrays and numbers. No recipe, no container, no I/O.

``docs/algorithm.md`` sets every formula beside the function that computes it. Only ``losses`` needs torch.
"""
