"""A small stand-in for the Hugging Face hub, on 127.0.0.1."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeHub:
    """Serves one file at `/REPOSITORY/resolve/main/FILENAME`, and breaks when told to."""

    def __init__(self, path: str, content: bytes, etag: str = "v1") -> None:
        self.path = path
        self.content = content
        self.etag = etag
        self.cuts: list[int] = []
        """Bytes after which each of the next connections is cut."""
        self.honours_range = True
        self.status = 200
        self.redirects: dict[str, str] = {}
        """Where to send a method instead, as a hub sends its readers to a store of files."""
        self.requests: list[tuple[str, str, str | None]] = []
        """(method, Authorization or "", Range) of every request."""
        self.endpoint = ""

    @contextmanager
    def running(self) -> Iterator[FakeHub]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        server.daemon_threads = False
        self.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _handler_for(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *args: object) -> None:
            pass

        def _answer(self, with_body: bool) -> None:
            wanted = self.headers.get("Range")
            hub.requests.append((self.command, self.headers.get("Authorization", ""), wanted))
            if hub.status != 200 or self.path != hub.path:
                self.send_response(hub.status if hub.status != 200 else 404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if self.command in hub.redirects:
                self.send_response(302)
                self.send_header("Location", hub.redirects[self.command])
                self.send_header("ETag", f'"{hub.etag}"')
                self.send_header("X-Repo-Commit", "0" * 40)
                self.send_header("X-Linked-Size", str(len(hub.content)))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start = 0
            if with_body and wanted and hub.honours_range:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if start else 200)
            if start:
                total = len(hub.content)
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            self.send_header("ETag", f'"{hub.etag}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(hub.content) - start))
            self.end_headers()
            if with_body:
                body = hub.content[start:]
                self.wfile.write(body[: hub.cuts.pop(0)] if hub.cuts else body)

    return Handler
