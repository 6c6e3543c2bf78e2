"""A web server of this computer for one page, whose script asks Python for answers."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from threading import Thread
from typing import Any

from poptorch_emu.log import logger

_HOST = "127.0.0.1"
# A connection that sends no request for so long is closed: browsers open some in advance, and the
# server has one thread.
_PATIENCE_SECONDS = 1.0
# The server looks so often whether it should stop.
_POLL_SECONDS = 0.25
_KEY_BYTES = 12

# Returns the answer to a question, the end of the asked address; None if it is not a valid one.
Answer = Callable[[str], object | None]


class PageServer:
    """Serves a page, and answers to its questions, until it is stopped.

    The server listens on 127.0.0.1, so that no other computer reaches it. The address contains a
    random key, so that no other user of this computer and no other page of the browser finds the
    page. A request that names another host is refused, so that no foreign name leads here. One
    thread answers one request after another.

    Attributes:
        address: address of the page; a question is the address of the page and the question.
    """

    def __init__(self, page: str, answer: Answer) -> None:
        """Starts to serve `page`; `answer` runs in the thread of the server."""
        self._server = _Server(page.encode(errors="backslashreplace"), answer)
        self.address = f"http://{_HOST}:{self._server.port}{self._server.root}"
        self._thread = Thread(
            target=self._server.serve_forever,
            args=(_POLL_SECONDS,),
            name="poptorch_emu page server",
            daemon=True,
        )
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the server answers; a forked process has no server."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stops after the request that is being answered; a second call has no effect."""
        if self.is_running:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def wait(self) -> None:
        """Waits until another thread calls `stop`."""
        while self.is_running:
            self._thread.join(_POLL_SECONDS)


class _Server(TCPServer):
    request_queue_size = 16

    def __init__(self, page: bytes, answer: Answer) -> None:
        super().__init__((_HOST, 0), _Handler)
        self.page, self.answer = page, answer
        self.port: int = self.server_address[1]
        self.hosts = (f"{_HOST}:{self.port}", f"localhost:{self.port}")
        self.root = f"/{secrets.token_urlsafe(_KEY_BYTES)}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Notes a fault of a connection, for example one that the browser closed."""
        logger.debug("A connection of the page server failed: %s", sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "poptorch_emu", ""
    timeout = _PATIENCE_SECONDS

    def do_GET(self) -> None:
        """Sends the page or an answer; any other address is refused."""
        root = self.server.root
        key, question = self.path[: len(root)], self.path[len(root) :]
        is_known = secrets.compare_digest(key.encode(), root.encode())
        if not is_known or self.headers.get("Host") not in self.server.hosts:
            self._send_text(HTTPStatus.NOT_FOUND, "There is no such page.")
        elif not question:
            self._send(HTTPStatus.OK, "text/html", self.server.page)
        else:
            self._send_answer(question)

    def _send_answer(self, question: str) -> None:
        try:
            answer = self.server.answer(question)
        except Exception as error:  # The page shows it, and the program goes on.
            logger.exception("The page server could not answer.")
            return self._send_text(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}"
            )
        if answer is None:
            return self._send_text(HTTPStatus.NOT_FOUND, "There is no such choice.")
        data = json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()
        return self._send(HTTPStatus.OK, "application/json", data)

    def _send_text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/plain", text.encode(errors="backslashreplace"))

    def _send(self, status: HTTPStatus, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Logs nothing, because the address has the key."""
