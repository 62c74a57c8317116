"""Looking name servers up by HTTP; wrong answers are tried in tests/client/routing/test_discovery.py."""

from __future__ import annotations

import socket
import threading

import pytest

from rmqkit.toolkit.address_server import addresses_at, url_of
from tests.toolkit.address_servers import AddressServer


def test_the_url_is_the_one_that_java_asks() -> None:
    """A domain with a port gets no other one."""
    assert url_of("names.example", "nsaddr") == "http://names.example:8080/rocketmq/nsaddr"
    assert url_of("names.example:80", "nsaddr-unit") == "http://names.example:80/rocketmq/nsaddr-unit"


def test_the_addresses_are_in_the_first_line() -> None:
    """Each once, whatever separates them."""
    with AddressServer(b"127.0.0.8:9876;127.0.0.9:9876, 127.0.0.8:9876\nignored").running() as server:
        assert addresses_at(f"{server.url}/rocketmq/nsaddr") == ("127.0.0.8:9876", "127.0.0.9:9876")
    assert server.paths == ["/rocketmq/nsaddr"]


def test_an_answer_of_another_protocol_is_an_error_of_the_network() -> None:
    """As a server that cannot be reached."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1_000)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="no HTTP answer"):
            addresses_at(f"http://127.0.0.1:{listener.getsockname()[1]}/rocketmq/nsaddr")
        thread.join()
