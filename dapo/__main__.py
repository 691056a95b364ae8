"""``python -m dapo`` is the command ``dapo``."""

import sys

from dapo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
