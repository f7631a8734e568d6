"""Sessions on ``/subscribe``: whose they are, how long, and what else comes there."""

from __future__ import annotations

import json

import pytest
import websocket

from tests.farm import wait_until
from tests.sender import Sender, refusal

pytestmark = pytest.mark.usefixtures("nothing_is_lost")


def test_a_session_that_never_was(sender: Sender) -> None:
    for session in ("s-" + 64 * "0", "x", "\x00", "é"):
        assert "subscribe again" in refusal(sender.post(sender.envelope(session_id=session)), 403)


def test_a_session_of_somebody_else(strict: Sender) -> None:
    stranger, session = subscribed(strict.url)
    try:
        assert "subscribe again" in refusal(strict.post(strict.envelope(session_id=session)), 403)
    finally:
        stranger.close()


def test_a_session_with_a_letter_changed(sender: Sender) -> None:
    opened, session = subscribed(sender.url)
    for place in (5, -1):
        changed = list(session)
        changed[place] = "1" if changed[place] == "0" else "0"
        assert "subscribe again" in refusal(sender.post(sender.envelope(session_id="".join(changed))), 403)
    assert sender.post(sender.envelope(session_id=session)).status_code == 200
    opened.close()


def test_a_session_that_is_closed(sender: Sender) -> None:
    opened, session = subscribed(sender.url)
    opened.close()

    def refused() -> bool:
        return sender.post(sender.envelope(session_id=session)).status_code == 403

    wait_until(refused, what="the session to be closed")


def subscribed(url: str, **headers: str) -> tuple[websocket.WebSocket, str]:
    opened = websocket.create_connection(f"ws{url.removeprefix('http')}/subscribe", header=headers, timeout=30)
    return opened, json.loads(opened.recv())["session_id"]


def test_what_a_client_says_on_its_socket_is_not_heard(sender: Sender) -> None:
    opened, session = subscribed(sender.url)
    opened.send("nonsense")
    opened.send_binary(b"\x80\x04" * 1000)
    sender.submit(session_id=session)
    assert json.loads(opened.recv())["status"] == "QUEUED"
    opened.close()


def test_a_subscription_that_is_no_websocket(sender: Sender) -> None:
    refusal(sender.get("/subscribe"))
