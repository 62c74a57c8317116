"""An HTTP server that names name servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class AddressServer:
    """Answers every GET with `status` and `body`; `paths` has what was asked."""

    def __init__(self, body: bytes = b"", status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.body = body
        self.status = status
        self.headers = headers or {}
        self.paths: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self.url = ""

    @contextmanager
    def running(self) -> Iterator[AddressServer]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.paths.append(self.path)
                served.hold.wait()
                self.send_response(served.status)
                for name, value in served.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(served.body)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield self
            finally:
                self.hold.set()
                server.shutdown()
                thread.join()
