"""TCP connections: who has no key learns nothing, holds up nobody, and is counted."""

import errno
import os
import socket
import threading
from contextlib import suppress
from queue import Queue

import pytest

from flstream.errors import ChannelClosedError, UsageError
from flstream.transport import tcp
from flstream.transport.tcp import UNIX, StartToken, TcpListener, dial


class Listening:
    """A listener, and who it has let in."""

    def __init__(self, address="127.0.0.1:0"):
        self.accepted = Queue()
        self.listener = TcpListener(address, lambda *both: self.accepted.put(both))
        self.address = self.listener.address
        self.token = self.listener.admit("site-1")

    def raw(self):
        host, port = self.address.split(":")
        return socket.create_connection((host, int(port)), 10)

    def greeted(self):
        """One that is asked for its proof, and the proof, as docs/internals/protocol.md has it."""
        sock = self.raw()
        greeting = b"FLSA\1" + bytes(3) + b"receiver" + bytes(8) + self.token.id + os.urandom(32)
        sock.sendall(greeting)
        return sock, self.token.proof(b"dials", greeting, sock.recv(32))

    def let_in(self, role="receiver", token=None):
        """Connect with the key; return who that was, and the two ends, closed."""
        near = dial(self.address, token or self.token, "server", role)
        far, who = self.accepted.get(timeout=10)
        near.close()
        far.close()
        return who, near, far


@pytest.fixture
def listening(request):
    listening = Listening(getattr(request, "param", "127.0.0.1:0"))
    yield listening
    listening.listener.close()
    while not listening.accepted.empty():
        listening.accepted.get()[0].close()


anywhere = pytest.mark.parametrize("listening", ["127.0.0.1:0", UNIX], indirect=True)


@anywhere
def test_a_key_lets_its_process_in_by_its_name_until_it_is_dismissed(listening):
    other = listening.listener.admit("site-2", role="agent")
    keys = (listening.token, "receiver", "site-1"), (other, "agent", "site-2")
    for token, role, name in 2 * keys:
        who, near, far = listening.let_in(role, token=token)
        assert (who.name, who.role, far.peer, near.peer) == (name, role, name, "server")
    assert listening.listener.strangers == 0
    listening.listener.dismiss(listening.token)
    with pytest.raises(ChannelClosedError, match="closed the connection before it was open"):
        dial(listening.address, listening.token, "server")


@pytest.mark.parametrize(
    ("token", "role"),
    [(StartToken.new(), "receiver"), (None, "agent")],
    ids=["another key", "another role"],
)
@anywhere
def test_who_has_not_the_key_is_closed_and_counted_and_never_handed_on(listening, token, role):
    token = token or listening.token
    with pytest.raises(ChannelClosedError, match=f"server at {listening.address} closed the con"):
        dial(listening.address, token, "server", role)
    assert listening.listener.strangers == 1
    assert listening.accepted.empty()


def test_a_listener_without_the_key_is_found_out(listening):
    def pretend():
        with server.accept()[0] as sock:
            sock.sendall(bytes(64))  # what it draws, and a proof
            sock.recv(96, socket.MSG_WAITALL)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(ChannelClosedError, match="has not the key"):
            dial(f"127.0.0.1:{server.getsockname()[1]}", listening.token, "server")
        thread.join(10)


@pytest.mark.parametrize("is_dismissed", [True, False])
def test_neither_a_key_that_is_dismissed_meanwhile_nor_a_false_proof_opens(listening, is_dismissed):
    sock, proof = listening.greeted()
    with sock:
        if is_dismissed:
            listening.listener.dismiss(listening.token)
        sock.sendall(proof if is_dismissed else bytes(32))
        assert sock.recv(1) == b""
    assert listening.listener.strangers == 1


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n" * 8, bytes(64), b"FLSA" + bytes(60), os.urandom(4096)]
)
def test_who_says_something_else_gets_no_answer_but_the_end(listening, said):
    with listening.raw() as sock:
        sock.sendall(said)
        with suppress(ConnectionResetError):  # what it said beyond the first bytes was not read
            assert sock.recv(1) == b""
    assert listening.listener.strangers == 1


def test_who_says_nothing_is_closed_in_time_and_others_are_let_in_meanwhile(listening, monkeypatch):
    monkeypatch.setattr(tcp, "AUTHENTICATION_SECONDS", 0.3)
    with listening.raw() as silent, listening.raw() as slow:
        slow.sendall(b"FLSA")
        listening.let_in()
        assert silent.recv(1) == slow.recv(1) == b""
        assert listening.listener.strangers == 2


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EMFILE])
def test_others_are_given_up_for_want_of_room_and_for_nothing_else(listening, monkeypatch, number):
    """Such as one that has hung up before it was accepted."""

    def fails(_):
        monkeypatch.undo()
        raise OSError(number, "of the next connection")

    sock, proof = listening.greeted()
    monkeypatch.setattr(socket.socket, "accept", fails)
    with sock, listening.raw():  # for which the listener may be waiting already
        listening.let_in()
        proof = proof if number == errno.ECONNABORTED else b""
        assert bool(listening.listener.strangers) == (not proof)
        sock.sendall(proof)
        assert len(sock.recv(32)) == len(proof)


def test_of_too_many_that_are_pending_the_oldest_goes_first(listening, monkeypatch):
    monkeypatch.setattr(tcp, "MOST_PENDING", 8)
    socks = [listening.raw() for _ in range(11)]
    for sock in socks[:3]:
        assert sock.recv(1) == b""
    assert listening.listener.strangers >= 3
    # Who comes with a key is let in all the same, and who is pending sees the end.
    listening.let_in()
    listening.listener.close()
    for sock in socks[3:]:
        assert sock.recv(1) == b""
    for sock in socks:
        sock.close()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("0.0.0.0:0", "stands for every address"),
        ("[::]:0", "stands for every address"),
        (":7707", "is no address; give HOST:PORT"),
        ("127.0.0.1:70000", "is no address; give HOST:PORT"),
        ("127.0.0.1:x", "is no address; give HOST:PORT"),
        ("192.0.2.1:0", "cannot be listened on: "),
        ("no.such.host.invalid:0", "cannot be listened on: "),
    ],
)
def test_an_address_that_cannot_be_bound_is_refused(address, sentence):
    with pytest.raises(UsageError, match=sentence):
        TcpListener(address, lambda *_: None)


@anywhere
def test_nobody_at_an_address_is_an_error_that_names_it(listening):
    listening.listener.close()
    with pytest.raises(ChannelClosedError, match=rf"server at {listening.address} cannot be reach"):
        dial(listening.address, listening.token, "server")
    with pytest.raises(UsageError, match="is no address"):
        dial("nowhere", listening.token, "server")


def test_a_token_comes_back_from_its_text_and_does_not_show_in_logs():
    token = StartToken.new()
    assert StartToken.parse(f" {token}\n") == token
    assert token.key.hex() not in repr(token)
    assert StartToken.new().id != token.id
    for text in ("", "abc", "zz" * 32, str(token)[:-1], str(token) + "00"):
        with pytest.raises(UsageError, match="a key has 64 hexadecimal digits"):
            StartToken.parse(text)


def test_a_dead_link_without_traffic_is_known_after_ten_seconds(listening):
    near = dial(listening.address, listening.token, "server")
    for end in (near, listening.accepted.get(timeout=10)[0]):
        with end.detach() as sock:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, count, user = (
                sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"))
                for option in ("KEEPIDLE", "KEEPINTVL", "KEEPCNT", "USER_TIMEOUT")
            )
        assert (idle + interval * count, user) == (10, 0)


def test_neither_who_hangs_up_nor_an_owner_that_fails_stops_others(listening, monkeypatch, capfd):
    def fail(*_):
        monkeypatch.undo()
        raise ZeroDivisionError("of the owner")

    monkeypatch.setattr(listening.listener, "_on_connection", fail)
    dial(listening.address, listening.token, "server").close()
    listening.let_in()
    assert "of the owner" in capfd.readouterr().err
    for _ in range(20):
        sock, proof = listening.greeted()
        with sock:
            sock.sendall(proof)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0] + [0] * 4))
    dial(listening.address, listening.token, "server").close()
