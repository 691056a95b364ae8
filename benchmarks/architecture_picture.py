"""Draw docs/images/architecture.png: what the parts of a training step give to each other.

python benchmarks/architecture_picture.py            # a second
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).resolve().parent
DARK, GREY = "#0072b2", "#6b7280"

BOXES: dict[str, tuple[float, float, str]] = {
    "data": (0.9, 4.2, "prompts\ndata/"),
    "collector": (3.4, 4.2, "collector\nloop/sampling/"),
    "engine": (6.2, 5.5, "engines\nengines/"),
    "rewards": (6.2, 2.9, "verifiers\nrewards/"),
    "algorithm": (3.4, 1.6, "plan\nalgorithms/"),
    "learner": (6.2, 0.5, "learner\nlearner/"),
    "observe": (0.9, 1.6, "run folder\nobserve/, report/"),
    "checkpoint": (8.9, 0.5, "checkpoints\ncheckpoint/"),
}
ARROWS: Sequence[tuple[str, str, str]] = (
    ("data", "collector", ""),
    ("collector", "engine", "requests"),
    ("engine", "collector", "responses"),
    ("collector", "rewards", "questions"),
    ("rewards", "collector", "scores"),
    ("collector", "algorithm", "P kept groups"),
    ("algorithm", "learner", "rows, weights"),
    ("algorithm", "observe", "metrics"),
    ("learner", "checkpoint", ""),
)


def draw(out: Path) -> None:
    """Write the picture to ``out``."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(10, 6), dpi=110)
    boxes = {}
    for name, (x, y, text) in BOXES.items():
        remote = name in ("engine", "rewards", "learner")
        box = {"boxstyle": "round,pad=0.5", "fc": "#eaf3fa" if remote else "white", "ec": DARK if remote else GREY}
        boxes[name] = panel.text(x, y, text, ha="center", va="center", fontsize=10, bbox=box, zorder=3).get_bbox_patch()
    pairs = {(start, end) for start, end, _ in ARROWS}
    for start, end, text in ARROWS:
        arrow(panel, boxes, start, end, text, bend=0.2 if (end, start) in pairs else 0.0)
    arrow(panel, boxes, "learner", "engine", "weights of version n,\nnamed by a ticket", bend=0.55, colour=DARK)
    said = "White: in the driver's process. Blue: there, or in processes of their own, on one machine or many."
    panel.text(0.1, 6.2, said, fontsize=9.5, color=GREY)
    panel.set(xlim=(0, 10), ylim=(-0.1, 6.4))
    panel.axis("off")
    figure.tight_layout()
    figure.savefig(out)


def arrow(panel: Axes, boxes: dict[str, Any], start: str, end: str, text: str, bend: float, colour: str = GREY) -> None:
    """Draw an arrow between two boxes, with the name of what travels; ``bend`` keeps a pair of arrows apart."""
    (x, y, _), (to_x, to_y, _) = BOXES[start], BOXES[end]
    style = {"arrowstyle": "-|>", "color": colour, "lw": 1.4, "connectionstyle": f"arc3,rad={bend}"}
    panel.annotate(
        "",
        xy=(to_x, to_y),
        xytext=(x, y),
        arrowprops={**style, "patchA": boxes[start], "patchB": boxes[end], "shrinkB": 3},
    )
    dx, dy, aside = to_x - x, to_y - y, bend / 2
    plain = {"fc": "white", "ec": "none", "pad": 1.5}
    where = (x + to_x) / 2 + dy * aside, (y + to_y) / 2 - dx * aside
    panel.text(
        *where, text, fontsize=9, ha="center", va="center", bbox=plain, color=colour if colour != GREY else "black"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=HERE.parent / "docs" / "images" / "architecture.png", help="of the picture"
    )
    draw(parser.parse_args().out)


if __name__ == "__main__":
    main()
