"""The server of a page answers its own page, and refuses all others."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest

from poptorch_emu.report.page.page_server import PageServer

HOSTILE = "<script>alert(1)</script>"


def answer(question: str) -> object | None:
    if question == "fault":
        raise ZeroDivisionError(HOSTILE)
    return {"asked": question, "text": HOSTILE} if question.isdecimal() else None


@pytest.fixture
def server() -> Iterator[PageServer]:
    made = PageServer("<p>a page</p>", answer)
    yield made
    made.stop()


def port_and_root(server: PageServer) -> tuple[int, str]:
    host, _, root = server.address.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    assert name == "127.0.0.1"
    return int(port), f"/{root}"


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Returns status, type and text of the answer to a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port_and_root(server)[0], timeout=10)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert response.getheader("Access-Control-Allow-Origin") is None
    return response.status, response.getheader("Content-Type", ""), text


def test_page_and_questions_then_are_answered(server: PageServer) -> None:
    _, root = port_and_root(server)
    assert ask(server, root) == (200, "text/html; charset=utf-8", "<p>a page</p>")
    status, kind, text = ask(server, f"{root}12")
    assert (status, kind) == (200, "application/json; charset=utf-8")
    assert json.loads(text) == {"asked": "12", "text": HOSTILE}


@pytest.mark.parametrize("question", ["a", "../12", "..%2f12", "12?x=1", "12/", "%00"])
def test_question_that_is_none_then_is_refused(server: PageServer, question: str) -> None:
    status, kind, text = ask(server, port_and_root(server)[1] + question)
    assert (status, text) == (404, "There is no such choice.") and kind.startswith("text/plain")


@pytest.mark.parametrize(
    "path", ["/", "/12", "/favicon.ico", "/%s/12" % ("x" * 16), "//", "*", "/%e4"]
)
def test_path_without_the_key_then_is_refused(server: PageServer, path: str) -> None:
    status, kind, text = ask(server, path)
    assert (status, text) == (404, "There is no such page.") and kind.startswith("text/plain")


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:1", "localhost.evil:80"])
def test_request_for_another_host_then_is_refused(server: PageServer, host: str) -> None:
    _, root = port_and_root(server)
    assert ask(server, root, Host=host)[0] == 404
    assert ask(server, f"{root}12", Host=host)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_method_other_than_get_then_is_refused(server: PageServer, method: str) -> None:
    assert ask(server, port_and_root(server)[1], method)[0] == 501


def test_fault_of_an_answer_then_the_page_gets_it_as_text_and_the_next_is_answered(
    server: PageServer, caplog: pytest.LogCaptureFixture
) -> None:
    _, root = port_and_root(server)
    status, kind, text = ask(server, f"{root}fault")
    assert (status, text) == (500, f"ZeroDivisionError: {HOSTILE}") and kind.startswith(
        "text/plain"
    )
    assert ask(server, f"{root}1")[0] == 200


def test_keys_of_servers_then_differ(server: PageServer) -> None:
    other = PageServer("", answer)
    other.stop()
    assert port_and_root(other)[1] != port_and_root(server)[1]
    assert len(port_and_root(server)[1]) >= 16


def test_connections_that_say_nothing_then_others_are_answered(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poptorch_emu.report.page.page_server._Handler.timeout", 0.1)
    port, root = port_and_root(server)
    with (
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)) as half,
    ):
        half.sendall(b"GET /")
        begin = time.monotonic()
        assert ask(server, root)[0] == 200
        assert time.monotonic() - begin < 8


def test_server_when_it_is_stopped_then_its_port_is_closed_and_it_stops_again(
    server: PageServer,
) -> None:
    assert server.is_running
    server.stop()
    server.stop()
    server.wait()
    assert not server.is_running
    with pytest.raises(ConnectionRefusedError):
        ask(server, port_and_root(server)[1])
