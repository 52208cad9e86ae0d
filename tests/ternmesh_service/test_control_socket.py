import json
import socket
import stat
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ternmesh_service import control_socket as module
from ternmesh_service.control_socket import ControlError, ControlServer, Relay, ask
from ternmesh_store.database import StoreError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "control.sock"


def echo(request):
    return {"asked": request}


def raw(path: Path, data: bytes) -> dict:
    """What the server answers to bytes as they are."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
    return json.loads(answer) if answer else {}


def test_an_answer_reaches_its_client_who_is_the_owner(tmp_path):
    folder = tmp_path / "state"
    path = folder / "control.sock"
    with ControlServer(path, echo):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for number in range(3):
            request = {"number": number, "text": "ä\n"}
            assert ask(path, request) == {"asked": request}
    assert not path.exists()
    with pytest.raises(ControlError, match=r"no process answers on .*is it running"):
        ask(path, {})


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff\xfe\n",
        b"[1]\n",
        b"[" * 4000 + b"\n",
        b'{"a": "' + b"x" * module.REQUEST_MAX + b'"}\n',
    ],
)
def test_garbage_is_refused_and_harms_nobody(path, garbage):
    with ControlServer(path, echo):
        try:
            answer = raw(path, garbage)
        except (ConnectionResetError, BrokenPipeError):
            answer = {}  # It hung up on us before we had said it all.
        assert answer == {} or "not a request" in answer["error"]
        assert ask(path, {}) == {"asked": {}}


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda _: {"x": object()}, "serializable"),
        (lambda _: {"x": "y" * module.ANSWER_MAX}, "the answer has more than"),
        (Relay(timeout_s=0.01).ask, "busy: ask again"),
    ],
)
def test_what_cannot_be_answered_is_a_sentence_for_the_client(path, answer, sentence):
    with ControlServer(path, answer), pytest.raises(ControlError, match=sentence):
        ask(path, {})


@pytest.mark.parametrize("sent", [b'{"half": ', b'{"large": 1}\n'])
def test_clients_that_hang_are_left_and_the_others_wait(path, monkeypatch, sent):
    monkeypatch.setattr(module, "CLIENT_S", 0.5)
    large = {"x": "y" * (module.ANSWER_MAX // 2)}  # more than the system keeps for a client

    def answer(request: Any) -> Any:
        return large if "large" in request else {"asked": request}

    with ControlServer(path, answer), ExitStack() as stack:
        for _ in range(module.CLIENTS_MAX):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(path))
            client.sendall(sent)  # and reads nothing
        assert ask(path, {}) == {"asked": {}}


def test_the_socket_of_a_killed_process_is_replaced(path):
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.listen()
    dead.close()  # The file stays, as it does after a SIGKILL.
    with ControlServer(path, echo):
        assert ask(path, {}) == {"asked": {}}


def test_the_socket_of_a_living_process_is_not_taken(path):
    with ControlServer(path, echo):
        with pytest.raises(ControlError, match="another process answers"):
            ControlServer(path, lambda request: {}).__enter__()
        assert ask(path, {}) == {"asked": {}}


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("file", "in the way"),
        ("x" * module.PATH_MAX, "choose a shorter path"),
        ("link/control.sock", "cannot listen on"),
    ],
)
def test_a_place_that_cannot_be_used_is_a_sentence(tmp_path, place, sentence):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ControlError, match=sentence):
        ControlServer(tmp_path / place, echo).__enter__()
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "gives no answer"),
        (b"nothing\n", "gives no answer"),
        (b"[]\n", "of another kind"),
        (b"x" * (module.ANSWER_MAX + 1), "a line has more than"),
    ],
)
def test_a_server_that_talks_nonsense_is_a_sentence(path, answer, sentence):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()

        def talk() -> None:
            client, _ = silent.accept()
            with client:
                client.recv(100)
                client.sendall(answer)

        thread = threading.Thread(target=talk)
        if answer is not None:  # else it hangs
            thread.start()
        with pytest.raises(ControlError, match=sentence):
            ask(path, {}, timeout_s=0.05 if answer is None else module.ANSWER_S)
        if answer is not None:
            thread.join()


def test_a_relay_answers_in_the_thread_of_the_owner(path):
    relay, owners, answers = Relay(), [], []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        owners.append(threading.current_thread())
        if "path" in request:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return {"asked": request}

    def work() -> None:
        with pytest.raises(ControlError, match=r"cannot be answered: Unicode"):
            ask(path, {"path": 1})
        answers.append(ask(path, {"number": 1}))

    with ControlServer(path, relay.ask):
        client = threading.Thread(target=work)
        client.start()
        while client.is_alive():
            relay.serve(answer)
    assert answers == [{"asked": {"number": 1}}]
    assert set(owners) == {threading.current_thread()}


def test_an_error_that_closes_the_state_ends_the_owner_after_the_answer():
    relay, replies = Relay(), []

    def fail(request):
        raise StoreError("cannot write state.sqlite")

    def serve():
        while client.is_alive():
            relay.serve(fail)

    client = threading.Thread(target=lambda: replies.append(relay.ask({})))
    client.start()
    with pytest.raises(StoreError):
        serve()
    client.join()
    assert replies == [{"error": "cannot write state.sqlite"}]
