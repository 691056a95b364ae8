"""Make the pictures of docs/images from one quickstart run, and the numbers that README names of that run.

    python benchmarks/pictures.py --chromium /usr/bin/chromium     # two minutes; `make pictures` finds it

curve.png becomes quickstart.png; report.png and rollouts.png are screenshots of the run's report at one size.
docs/images/pictures.json names for each picture the commit, the command, and the words on it that the page's own code
writes. tests/unit/test_pictures.py looks for these words in today's code.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import architecture_picture
from machine import RESULTS, describe_machine, refuse_changes

from dapo.metrics.charts import CURVE, table
from dapo.observe.metrics import read_metrics
from dapo.observe.samples import before_and_after, read_samples

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs/images"
RECORD = "pictures.json"
RUN = "quickstart"
WRITTEN_BY = ("dapo/report/**/*.js", "dapo/report/**/*.py", "dapo/observe/pictures.py")
"""Files whose texts stand on the page and on the curve, besides the titles and labels of charts."""
IN_SIGHT = """() => [...document.querySelectorAll('nav a, h2, h3, dt, th, label, button, .term')].filter((element) => {
  const box = element.getBoundingClientRect();
  const drawn = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  return drawn && (element.contains(drawn) || drawn.contains(element));
}).map((element) => element.innerText.split('\\n')[0].trim())"""


def texts() -> set[str]:
    """Return what today's code can write on a page or a curve: its strings, and the text between its tags."""
    code = "\n".join(file.read_text() for pattern in WRITTEN_BY for file in sorted(ROOT.glob(pattern)))
    found = re.findall(r'"([^"\n]+)"|\'([^\'\n]+)\'|`([^`\n]+)`|>([^<>\n{}]+)<', code)
    charts = {word for chart in table() for word in (chart["title"], *(line["label"] for line in chart["series"]))}
    return charts | {text.strip() for one in found for text in one}


def screenshots(page: Path, chromium: str, out: Path) -> dict[str, list[str]]:
    """Write report.png and rollouts.png of a report; return the words in sight on each."""
    from playwright.sync_api import sync_playwright

    found = {}
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1300, "height": 860}, color_scheme="light")
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready=true]")
        tab.screenshot(path=out / "report.png")
        found["report.png"] = tab.evaluate(IN_SIGHT)
        tab.locator("#top nav").get_by_role("link", name="Rollouts").click()
        tab.get_by_role("button", name="Next →").click()
        tab.get_by_label("Colour tokens by").select_option(label="entropy")
        tab.evaluate("document.querySelector('#rollouts').scrollIntoView(); window.scrollBy(0, 100)")
        tab.wait_for_timeout(500)
        tab.screenshot(path=out / "rollouts.png")
        found["rollouts.png"] = tab.evaluate(IN_SIGHT)
        browser.close()
    known = texts()
    return {
        name: sorted({word for word in words if word in known and not word.isdigit()}) for name, words in found.items()
    }


def on_curve() -> list[str]:
    """Return the words on the curve of a run with rewards: titles and labels of its charts."""
    charts = [chart for chart in table() if chart["section"] == CURVE and chart["id"] != "losses"]
    return sorted({word for chart in charts for word in (chart["title"], *(line["label"] for line in chart["series"]))})


def numbers(run: Path) -> dict[str, Any]:
    """Return what README says of the run: held-out accuracy by step, and the problem that gained most."""
    rows = read_metrics(run / "metrics.jsonl")
    accuracy = {int(row["step"] or 0): row["validation/accuracy"] for row in rows if row.get("validation/accuracy")}
    before, after = before_and_after(read_samples(run / "samples.jsonl"), 1)[0]
    example = {"problem": after.problem, "answer": after.answer, "before": before.response, "after": after.response}
    return {"held_out": accuracy, "example": example}


def main() -> None:
    """Make the run, the pictures and the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", required=True, help="path of a Chromium")
    parser.add_argument("--work", type=Path, default=ROOT / "build/pictures", help="where the run goes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of quickstart.json")
    given = parser.parse_args()
    refuse_changes(given.out)
    machine = describe_machine()
    work = given.work.resolve()
    settings = [f"run.dir={work}", f"run.name={RUN}", "run.if_exists=backup"]
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "dapo", "train", RUN, *settings], cwd=ROOT, check=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = round(ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime)
    subprocess.run([sys.executable, "-m", "dapo", "report", str(work / RUN)], cwd=ROOT, check=True)
    shutil.copy(work / RUN / "curve.png", IMAGES / "quickstart.png")
    architecture_picture.draw(IMAGES / "architecture.png")
    on_page = screenshots(work / RUN / "report/report.html", given.chromium, IMAGES)
    on_page |= {"quickstart.png": on_curve(), "architecture.png": []}
    record = json.loads((IMAGES / RECORD).read_text())
    made = {"commit": machine["commit"], "command": "make pictures"}
    record |= {name: made | {"words": words} for name, words in on_page.items()}
    (IMAGES / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    result = machine | {"command": "make pictures", "processor_seconds": processor} | numbers(work / RUN)
    (given.out / "quickstart.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"{', '.join(on_page)} in {IMAGES}; {given.out / 'quickstart.json'}")


if __name__ == "__main__":
    main()
