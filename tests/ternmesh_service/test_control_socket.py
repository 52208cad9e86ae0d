import json
import socket
import stat
import threading
import time
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


def test_an_answer_reaches_its_client(path):
    with ControlServer(path, echo):
        for number in range(3):
            assert ask(path, {"number": number, "text": "ä\n"}) == {
                "asked": {"number": number, "text": "ä\n"}
            }


def test_only_the_owner_may_connect(path):
    with ControlServer(path, echo):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_is_not_there_is_made_for_its_owner_alone(tmp_path):
    folder = tmp_path / "state"
    with ControlServer(folder / "control.sock", echo):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_socket_is_gone_when_the_server_is(path):
    with ControlServer(path, echo):
        pass
    assert not path.exists()
    with pytest.raises(ControlError, match=r"no process answers on .*is it running"):
        ask(path, {})


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\n",
        b"{\n",
        b"\xff\xfe\n",
        b"[1]\n",
        b"3\n",
        b"null\n",
        b'{"command": "status"\n',
        b"[" * 4000 + b"\n",
        b'{"a": "' + b"x" * module.REQUEST_MAX + b'"}\n',
        b"x" * 1_000_000,
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


def test_an_error_of_the_answer_is_a_sentence_for_the_client(path):
    def fail(request):
        raise ControlError("the process is busy: ask again")

    with ControlServer(path, fail), pytest.raises(ControlError, match="busy: ask again"):
        ask(path, {})


@pytest.mark.parametrize("answer", [{"x": object()}, {"x": "y" * module.ANSWER_MAX}])
def test_an_answer_that_cannot_be_sent_is_a_sentence(path, answer):
    sentence = r"serializable|the answer has more than"
    with ControlServer(path, lambda request: answer), pytest.raises(ControlError, match=sentence):
        ask(path, {})


def test_a_large_answer_arrives_whole(path):
    answer = {"x": "y" * (module.ANSWER_MAX - 100)}
    with ControlServer(path, lambda request: answer):
        assert ask(path, {}) == answer


def test_clients_that_hang_block_nobody(path):
    with ControlServer(path, echo):
        hanging = [socket.socket(socket.AF_UNIX) for _ in range(module.CLIENTS_MAX - 1)]
        for client in hanging:
            client.connect(str(path))
            client.sendall(b'{"half": ')
        assert ask(path, {}) == {"asked": {}}
        for client in hanging:
            client.close()


def test_clients_that_hang_are_sent_away(path, monkeypatch, eventually):
    monkeypatch.setattr(module, "CLIENT_S", 0.1)
    with ControlServer(path, echo):
        hanging = [socket.socket(socket.AF_UNIX) for _ in range(module.CLIENTS_MAX)]
        for client in hanging:
            client.connect(str(path))
        for client in hanging:
            client.settimeout(10.0)
            assert client.recv(1) == b""
            client.close()

        def answered() -> bool:
            try:
                return ask(path, {}) == {"asked": {}}
            except ControlError:
                return False

        eventually(answered)


def test_one_client_too_many_is_told_to_come_again(path):
    with ControlServer(path, echo):
        hanging = [socket.socket(socket.AF_UNIX) for _ in range(module.CLIENTS_MAX)]
        for client in hanging:
            client.connect(str(path))
        with pytest.raises(ControlError, match="gives no answer"):
            ask(path, {})
        for client in hanging:
            client.close()


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


def test_a_file_in_the_way_is_left_alone(path):
    path.write_text("precious")
    with pytest.raises(ControlError, match="in the way"):
        ControlServer(path, echo).__enter__()
    assert path.read_text() == "precious"


def test_a_path_that_is_too_long_is_a_sentence(tmp_path):
    path = tmp_path / ("x" * module.PATH_MAX)
    with pytest.raises(ControlError, match="choose a shorter path"):
        ControlServer(path, echo).__enter__()
    with pytest.raises(ControlError, match="shorter path"):
        ask(path, {})


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "state").symlink_to("nowhere")
    with pytest.raises(ControlError, match="cannot listen on"):
        ControlServer(tmp_path / "state" / "control.sock", echo).__enter__()


def test_a_server_that_hangs_does_not_hang_its_client(path):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(ControlError, match="gives no answer"):
            ask(path, {}, timeout_s=0.05)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "gives no answer"),
        (b"nothing\n", "gives no answer"),
        (b"\xff\n", "gives no answer"),
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
        thread.start()
        with pytest.raises(ControlError, match=sentence):
            ask(path, {})
        thread.join()


def test_a_relay_answers_in_the_thread_of_the_owner(path):
    relay, owners, answers = Relay(), [], []

    def answer(request):
        owners.append(threading.current_thread())
        return {"asked": request}

    with ControlServer(path, relay.ask):
        client = threading.Thread(target=lambda: answers.append(ask(path, {"number": 1})))
        client.start()
        deadline = time.monotonic() + 10.0
        while not owners and time.monotonic() < deadline:
            relay.serve(answer)
        client.join()
    assert answers == [{"asked": {"number": 1}}]
    assert owners == [threading.current_thread()]


def test_an_error_of_one_answer_does_not_reach_the_owner(path):
    relay, stop = Relay(), threading.Event()

    def answer(request):
        if "path" in request:
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return request

    def work() -> None:
        while not stop.wait(0.01):
            relay.serve(answer)

    owner = threading.Thread(target=work)
    owner.start()
    with ControlServer(path, relay.ask):
        with pytest.raises(ControlError, match=r"cannot be answered: Unicode"):
            ask(path, {"path": 1})
        assert ask(path, {"a": 1}) == {"a": 1}
    stop.set()
    owner.join()


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


def test_an_owner_that_is_busy_is_a_sentence(path):
    with (
        ControlServer(path, Relay(timeout_s=0.01).ask),
        pytest.raises(ControlError, match="busy: ask again"),
    ):
        ask(path, {})


def test_requests_that_nobody_waits_for_any_more_do_no_harm():
    relay = Relay(timeout_s=0.0)
    for _ in range(2 * module.CLIENTS_MAX):
        with pytest.raises(ControlError, match="busy"):
            relay.ask({})
    served = []

    def note(request: dict[str, Any]) -> dict[str, Any]:
        served.append(request)
        return {}

    relay.serve(note)
    assert len(served) == module.CLIENTS_MAX
