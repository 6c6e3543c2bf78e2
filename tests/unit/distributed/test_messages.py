"""Messages in a store that others can reach: forged messages have no effect."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from torch._C._distributed_c10d import PrefixStore, TCPStore

from poptorch_emu import Error
from poptorch_emu.distributed.failed_process import (
    Failure,
    Watcher,
    find,
    record,
    wait_until_seen,
)
from poptorch_emu.distributed.launch_environment import SECRET
from poptorch_emu.distributed.launch_store import make_store
from poptorch_emu.distributed.message_store import MessageStore

pytestmark = pytest.mark.feature("poprun", fidelity="exact")

FORGED_FAILURE = json.dumps({"process": 0, "host": "here", "line": "it is over"})
FORGERIES = {
    "failure without a signature": FORGED_FAILURE,
    "other JSON": '{"a": 1}',
    "no JSON": "Traceback (most recent call last):",
    "escape sequences": "\x1b[2J\x1b]0;owned\x07",
    "nothing": "",
    "only a signature": "0" * 64,
    "wrong signature": f"{'0' * 64} {FORGED_FAILURE}",
    "no text": b"\xff\xfe\x00 \xff",
}


@pytest.fixture
def tcp_store() -> TCPStore:
    return make_store([])[0]


@pytest.fixture
def store(tcp_store: TCPStore) -> MessageStore:
    return MessageStore(tcp_store, "the secret of this launch")


@pytest.fixture
def attacker(tcp_store: TCPStore) -> PrefixStore:
    return PrefixStore("poptorch_emu/0", tcp_store.clone())


def test_message_then_whoever_has_the_secret_reads_it(tcp_store, store) -> None:
    store.write("key", "text, ä\nand more")
    assert store.read("key") == "text, ä\nand more"
    assert MessageStore(tcp_store, "the secret of this launch").read("key") == store.read("key")
    assert store.read("other") is None


@pytest.mark.parametrize("value", FORGERIES.values(), ids=FORGERIES)
def test_message_when_forged_then_is_not_there_and_one_warning_says_so(
    value, store, attacker, caplog
) -> None:
    attacker.set("key", value)
    assert store.read("key") is None and store.read("key") is None
    (logged,) = caplog.records
    text = logged.getMessage()
    assert "A message 'key' from outside of this launch is ignored" in text
    assert SECRET in text and text.isprintable()
    store.write("key", "genuine")
    assert store.read("key") == "genuine"


def test_message_when_replayed_then_is_not_there(tcp_store, store, attacker, monkeypatch) -> None:
    store.write("facts/0/1", "of model 0")
    attacker.set("facts/1/1", attacker.get("facts/0/1"))
    assert store.read("facts/1/1") is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    restarted = MessageStore(tcp_store, "the secret of this launch")
    PrefixStore("poptorch_emu/1", tcp_store).set("facts/0/1", attacker.get("facts/0/1"))
    assert restarted.read("facts/0/1") is None


def test_message_when_the_secret_is_another_then_is_not_there(tcp_store, store) -> None:
    for secret in ("", "the secret of another launch"):
        MessageStore(tcp_store, secret).write("key", "text")
        assert store.read("key") is None


def test_secret_then_comes_from_the_environment_and_is_no_short_one(tcp_store, monkeypatch) -> None:
    monkeypatch.setenv(SECRET, "0123456789abcdef")
    MessageStore(tcp_store).write("key", "text")
    assert MessageStore(tcp_store, "0123456789abcdef").read("key") == "text"
    monkeypatch.setenv(SECRET, "0123456789abcde")
    with pytest.raises(
        Error, match=f"{SECRET} has 15 characters, but must be a random text of at least 16"
    ):
        MessageStore(tcp_store)
    monkeypatch.delenv(SECRET)
    assert MessageStore(tcp_store).read("key") is None


@pytest.mark.parametrize("value", FORGERIES.values(), ids=FORGERIES)
def test_failure_when_forged_then_the_true_one_takes_its_place(value, store, attacker) -> None:
    attacker.set("failure", value)
    assert find(store) is None
    failure = Failure(1, "host", "the disk is full")
    assert record(store, failure) == failure == find(store)
    assert record(store, Failure(0, "host", "later")) == failure


@pytest.mark.parametrize(
    "message",
    ["", "[", '{"a": 1}', "[1]", '{"process": "1", "host": "h", "line": "l"}', "[" * 100_000],
)
def test_failure_when_a_message_tells_of_none_then_there_is_none(message, store) -> None:
    """Another version of the package may have signed the message."""
    store.write("failure", message)
    assert find(store) is None
    failure = Failure(1, "host", "the disk is full")
    assert record(store, failure) == failure


def test_failure_then_nothing_in_its_text_controls_the_terminal() -> None:
    text = str(Failure(1, "host\x1b[2J", "\x1b[31mthe disk\r\nis full\x07"))
    assert text == r"Process 1 on host\x1b[2J failed: \x1b[31mthe disk\r\nis full\x07"


@pytest.fixture
def watcher(tcp_store) -> Iterator[list[Failure]]:
    """Yields the list of the failures that a watcher finds."""
    found: list[Failure] = []
    theirs = MessageStore(tcp_store, "the secret of this launch")
    watcher = Watcher(theirs, 3, "holder", found.append)
    yield found
    watcher.stop()


@pytest.mark.parametrize("value", FORGERIES.values(), ids=FORGERIES)
def test_watcher_when_a_failure_is_forged_then_goes_on_and_finds_the_true_one(
    value, watcher, store, attacker
) -> None:
    attacker.set("failure", value)
    time.sleep(0.3)
    assert not watcher
    record(store, Failure(1, "host", "the disk is full"))
    wait_until_seen(store, [3], 10.0)
    assert watcher == [Failure(1, "host", "the disk is full")]


def test_seen_when_forged_then_is_waited_for(store, attacker) -> None:
    attacker.set("seen/1", "")
    begin = time.monotonic()
    wait_until_seen(store, [1], 0.5)
    assert time.monotonic() - begin >= 0.4
