"""Problems: read from files or made, rendered to prompts, and handed out in a resumable order."""

from dapo.data.formats import Problem
from dapo.data.load import DataReport, PreparedData, load_problems, prepare
from dapo.data.stream import EpochStream

__all__ = ["DataReport", "EpochStream", "PreparedData", "Problem", "load_problems", "prepare"]
