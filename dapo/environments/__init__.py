"""Environments: what answers the model between its turns. Imports no torch.

``forms`` turns what a user wrote into episodes, ``tools`` and ``formats`` read calls, ``worker`` plays episodes in a
guarded process, ``pool`` asks the workers, ``hosts`` has pools on other machines, and ``speech`` writes replies as
tokens.
"""
