"""Ask the peers themselves, now, and compare our functions and whole steps with theirs (``make oracles``).

Answers go to ``build/oracles/answers``; the committed fixtures stay as they are. Takes the options of pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys

from make_fixtures import HERE, ROOT, make_fixtures


def main() -> int:
    answers = ROOT / "build" / "oracles" / "answers"
    for stale in answers.glob("*.json"):
        stale.unlink()
    missing = make_fixtures(answers, ROOT / "build" / "oracles", [])
    env = os.environ | {"DAPO_ORACLE_ANSWERS": str(answers)}
    tests = [HERE / "test_algorithms_oracles.py", HERE / "test_step_oracles.py"]
    command = [sys.executable, "-m", "pytest", "-m", "slow or not slow", *tests, *sys.argv[1:]]
    code = subprocess.run(command, env=env, check=False).returncode
    if missing:
        print(f"not asked: {', '.join(missing)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
