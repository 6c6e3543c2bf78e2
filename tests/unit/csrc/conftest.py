"""Runs tests of the engine in both orders: by lists of actions, and by micro-batches."""

import hand_built
import pytest


def pytest_generate_tests(metafunc):
    """Runs the tests of a module with `IN_EACH_ORDER = True` twice."""
    if getattr(metafunc.module, "IN_EACH_ORDER", False):
        metafunc.parametrize("order", ["lists", "micro-batches"], indirect=True)


@pytest.fixture(autouse=True)
def order(request, monkeypatch):
    """Chooses the order of execution for hand-built programs."""
    follows_lists = getattr(request, "param", "micro-batches") == "lists"
    monkeypatch.setattr(hand_built, "FOLLOWS_LISTS", follows_lists)
