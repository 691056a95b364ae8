"""The way over from other trainers: their configurations, launch scripts and config objects as recipes.

Nothing that is read here is executed. ``convert`` is where it begins: one module for each trainer works out what
several keys mean together. ``dapo.config.peer_names`` has dapo's name of each key, for hints too.
"""
