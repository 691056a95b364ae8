"""Recipes: schema, presets, loading, overrides, checks, rules for resuming. Imports no torch."""

from dapo.config.load import LoadedRecipe, difference_from_preset, dump_resolved, load_recipe, recipe_from_dict
from dapo.config.schema import Recipe

__all__ = ["LoadedRecipe", "Recipe", "difference_from_preset", "dump_resolved", "load_recipe", "recipe_from_dict"]
