"""Problems: read from files or made, rendered to prompts, and handed out in a resumable order."""

from dapo.data.formats import RawProblem
from dapo.data.load import DataReport, PreparedData, load_problems, prepare
from dapo.data.stream import EpochStream

__all__ = ["DataReport", "EpochStream", "PreparedData", "RawProblem", "load_problems", "prepare"]
