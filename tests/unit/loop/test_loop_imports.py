"""What a driver has to load: the loop runs in a process without torch."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_loop_brings_no_torch():
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "dapo" / "loop").rglob("*.py")
    )
    assert len(modules) > 15
    code = (
        "import importlib, sys\n"
        f"for name in {modules}: importlib.import_module(name)\n"
        "print([name for name in ('torch', 'transformers', 'vllm', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
