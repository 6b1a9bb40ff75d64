"""The page's files: there, complete, and asking nobody but their own server. `verify/page.py` works it in a
browser."""

from __future__ import annotations

import re

import pytest

from paceline.server.page_files import FILES, FOLDER
from tests.server.running import Running


def test_every_file_is_served_and_no_other(server: Running) -> None:
    http = server.http()
    assert {path.name for path in FOLDER.iterdir()} == FILES.keys()
    page = http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for name in FILES:
        answer = http.get(f"/page/{name}")
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    for name in ("page_files.py", "..%2Fapp.py", "%2e%2e/app.py"):
        assert http.get(f"/page/{name}").status_code == 404
    named = re.findall(r'(?:src|href)="(/[^"]*)"', page.text)
    assert {f"/page/{name}" for name in FILES if name != "index.html"} == set(named)


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_host(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert re.findall(r"(?:https?:|wss?:)?//\w[\w.-]*\.\w+", text) == []


def test_elements_that_the_scripts_ask_for_are_in_the_page() -> None:
    html = (FOLDER / "index.html").read_text(encoding="utf-8")
    scripts = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("status.js", "chat.js"))
    wanted = set(re.findall(r'(?:byId|getElementById)\("([\w-]+)"\)', scripts))
    assert len(wanted) > 10
    assert wanted <= set(re.findall(r'id="([\w-]+)"', html))
    # Text of clients and models goes in as text, never as markup.
    assert "innerHTML" not in scripts
