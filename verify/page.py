"""The server's page in headless Chromium, on the default pair of models, with a screenshot for the documents.

    pip install playwright
    python -m verify.page         # needs a Chromium: apt install chromium, or playwright install chromium

What it holds the page to: it loads without an error, asks no other host, shows each route with its state, is
worked by keyboard alone (token, switch, question), shows the tokens that were drafted, and answers the same
with speculation off and on, in light and in dark. It says why a switch was refused until the next one, and
nothing is wider than a phone's screen.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.config.file import load_serve_config
from paceline.server.serve import load, new_event_loop, serve

DOCS = Path(__file__).parent.parent / "docs"
TOKEN = "token-of-the-page"
PHONE = {"width": 360, "height": 740}
LOOK_MS = 1500
"""Within which the page looks at the server again."""
CONFIG = {
    "target": "qwen2.5-coder-1.5b-instruct",
    "draft": "qwen2.5-coder-0.5b-instruct",
    "context_length": 2048,
    "kv_memory": "600MiB",
    "routes": {
        "chat": {"speculation": "auto"},
        "code": {"speculation": "on", "drafters": ["model"], "draft_length": 4},
        "batch": {"speculation": "off"},
    },
    "default_route": "chat",
    "server": {"port": 0, "admin_token": TOKEN},
}


@contextmanager
def served() -> Iterator[str]:
    """Serve in a thread and give the address."""
    settings = load_serve_config(flags=CONFIG, environ={})
    loaded = load(settings)
    is_ready, address, stops = threading.Event(), [], []

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))

        def on_ready(url: str) -> None:
            address.append(url)
            is_ready.set()

        await serve(loaded, settings, on_ready, stop)

    def run() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    is_ready.wait()
    try:
        yield address[0]
    finally:
        stops[0]()
        thread.join()


def check(page: Any, url: str, tokens: int) -> None:
    """Work the page by keyboard, and raise where it is not as it should be."""
    faults: list[str] = []
    page.on("request", lambda one: one.url.startswith(url) or faults.append(f"asked {one.url}"))
    page.on("console", lambda one: one.type == "error" and faults.append(one.text))
    page.on("pageerror", lambda one: faults.append(str(one)))
    page.goto(url)
    page.wait_for_selector(".card >> nth=2")
    states = page.locator(".state").all_inner_texts()
    assert states == ["speculating", "speculating", "off"], states
    assert page.locator("fieldset input").last.is_disabled()

    # By keyboard alone from here on: past the link that skips to the chat, past the key, to the token.
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "admin-token"
    page.keyboard.type(TOKEN)
    page.keyboard.press("Tab")
    page.wait_for_selector("fieldset:not([disabled])")
    page.locator("input[name='speculation-batch'][value='off']").focus()
    page.keyboard.press("ArrowUp")  # from off to on
    page.locator(".card:last-child .state[data-state=speculating]").wait_for()
    assert "by admin" in page.locator(".overlay").nth(2).inner_text()
    page.locator(".reset").nth(2).focus()
    page.keyboard.press("Enter")
    page.locator(".card:last-child .state[data-state=off]").wait_for()
    assert "set by admin" in page.locator("#decisions li").first.inner_text()

    page.select_option("#route", "code")
    page.fill("#max-tokens", str(tokens))
    page.locator("#ask button[type=submit]").focus()
    page.keyboard.press("Enter")
    page.locator("#verdict:not(:empty)").wait_for(timeout=240_000)
    verdict = page.locator("#verdict").inner_text()
    assert verdict.startswith("The texts are the same."), verdict
    assert page.locator("#off-text mark").count() == 0
    assert page.locator("#on-text mark").count() > 0
    page.wait_for_timeout(LOOK_MS)
    assert not faults, faults


def check_refusal(page: Any) -> None:
    """Switch with a wrong token: the reason outlasts the next look at the server, the switch does not."""
    page.fill("#admin-token", "another token")
    page.wait_for_selector("fieldset:not([disabled])")
    page.locator("input[name='speculation-batch'][value='on']").click()
    page.locator("#notice:not([hidden])").wait_for()
    page.wait_for_timeout(LOOK_MS)
    assert "another token" in page.locator("#notice").inner_text()
    assert page.locator("input[name='speculation-batch'][value='off']").is_checked()


def check_phone(page: Any) -> None:
    """Look at it through a small window."""
    page.set_viewport_size(PHONE)
    wide = page.evaluate(
        "[...document.body.querySelectorAll('*')]"
        ".filter((one) => one.getBoundingClientRect().right > innerWidth)"
        ".map((one) => one.outerHTML.slice(0, 80))"
    )
    assert not wide, wide


def main() -> None:
    """Check in light and in dark, and keep a screenshot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="its path")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--screenshot", type=Path, default=DOCS / "page.png")
    parser.add_argument(
        "--phone", type=Path, metavar="FILE.png", help="keep pictures of the small window, too"
    )
    options = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        sys.exit("playwright is not there: pip install playwright")
    with served() as url, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for scheme in ("dark", "light"):
            page = browser.new_page(color_scheme=scheme, viewport={"width": 1180, "height": 900})
            check(page, url, options.tokens)
            name = options.screenshot
            page.screenshot(
                path=name if scheme == "light" else name.with_stem(f"{name.stem}-dark"), full_page=True
            )
            check_phone(page)
            if options.phone is not None:
                page.screenshot(
                    path=options.phone.with_stem(f"{options.phone.stem}-{scheme}"), full_page=True
                )
            check_refusal(page)
            page.close()
            print(f"{scheme}: as it should be")
        browser.close()


if __name__ == "__main__":
    main()
