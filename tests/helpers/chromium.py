"""Find the Chromium of this machine: the variable CHROMIUM, or a command.

python tests/helpers/chromium.py      prints its path; exits with 1 where there is none
"""

from __future__ import annotations

import os
import shutil

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, COMMANDS)), None)

if __name__ == "__main__":
    if CHROMIUM is None:
        raise SystemExit(f"no Chromium was found: install one of {', '.join(COMMANDS)}, or set CHROMIUM to its path")
    print(CHROMIUM)
