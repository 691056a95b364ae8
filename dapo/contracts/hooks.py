"""Where functions of the user are found: ``package.module:function``, also in the working directory."""

from __future__ import annotations

import os
import sys


def search_working_directory() -> None:
    """Let modules of the working directory be imported, behind everything installed: none hides a package."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
