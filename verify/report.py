"""A report's page in headless Chromium: no error, no request, tables that can be read on a phone; with a
picture of it for the documents.

    pip install playwright
    paceline measure ... --output report
    python -m verify.report report/report.html    # needs a Chromium: apt install chromium

What it holds the page to, at a desktop's, a tablet's and a phone's width, in light and in dark: it loads
without a word on the console, asks nobody for anything, is nowhere wider than the screen, shows every cell of
every table whole and, on a phone, with its name, and has its pictures drawn. With `--made-up` it opens a
report of invented figures, which needs no model.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

WIDTHS = {"desktop": 1180, "tablet": 800, "phone": 390}
PICTURE_HEIGHT = 1700
NARROW = 640
"""Below this, rows are cards, and each cell says what it is."""


def check(page: Any, path: Path, width: int) -> None:
    """Open the page, and raise where it is not as it should be."""
    faults: list[str] = []
    page.on(
        "request", lambda one: one.url.startswith(("file:", "data:")) or faults.append(f"asked {one.url}")
    )
    page.on("console", lambda one: faults.append(one.text))
    page.on("pageerror", lambda one: faults.append(str(one)))
    page.goto(path.absolute().as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "wider than the screen"
    assert page.locator("svg").count() >= 2
    assert page.locator("table tbody tr").count() > 4
    hidden = page.locator("tbody th, tbody td").evaluate_all(
        "cells => cells.filter(one => one.offsetWidth < 8 || one.offsetHeight < 8).length"
    )
    assert not hidden, f"{hidden} cells cannot be seen"
    cut = page.locator("tbody td").evaluate_all(
        "cells => cells.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.innerText)"
    )
    assert not cut, f"cells are cut off: {cut}"
    if width < NARROW:
        labels = page.locator("tbody td").evaluate_all(
            "cells => cells.map(one => getComputedStyle(one, '::before').content)"
        )
        assert all(label not in ("none", '""') for label in labels), "a figure without its name"
        sizes = page.locator("tbody td").evaluate_all(
            "cells => Math.min(...cells.map(one => parseFloat(getComputedStyle(one).fontSize)))"
        )
        assert sizes >= 13, f"text of {sizes} pixels"
    assert not faults, faults


def made_up(folder: Path) -> Path:
    """Write a report of invented figures, and return its page."""
    from tests.measure.report.scenes import report
    from tests.measure.report.test_page import SPEEDS

    from paceline.measure.report.write import HTML_FILE, write

    write(report(folder, SPEEDS), folder)
    return folder / HTML_FILE


def main() -> None:
    """Check at every width, in light and in dark, and keep a picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, nargs="?", help="a report.html")
    parser.add_argument("--made-up", action="store_true", help="a report of invented figures")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="its path")
    parser.add_argument("--screenshot", type=Path, help="picture of its top at a desktop's width, in light")
    options = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        sys.exit("playwright is not there: pip install playwright")
    if (options.page is None) != options.made_up:
        parser.error("give a report.html, or --made-up")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        path = options.page or made_up(Path(folder))
        browser = player.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for scheme in ("dark", "light"):
            for name, width in WIDTHS.items():
                page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
                check(page, path, width)
                if options.screenshot is not None and name == "desktop" and scheme == "light":
                    page.set_viewport_size({"width": width, "height": PICTURE_HEIGHT})
                    page.screenshot(path=options.screenshot)
                page.close()
                print(f"{scheme}, {name}: as it should be")
        browser.close()


if __name__ == "__main__":
    main()
