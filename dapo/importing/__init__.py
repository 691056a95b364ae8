"""The way over from other trainers: their configurations, launch scripts and config objects as recipes.

Nothing that is read here is executed. What a key is called here stands in ``dapo.config.peers``, which hints use too;
what several keys mean together is worked out by one module for each trainer.
"""

from dapo.importing.convert import Imported, import_file, import_text
from dapo.importing.recipe import ARGUMENTS

__all__ = ["ARGUMENTS", "Imported", "import_file", "import_text"]
