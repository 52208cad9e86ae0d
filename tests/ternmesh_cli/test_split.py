"""Boards and a host train one small model together, in one process over a loopback bearer."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import edge.split
import host.split
from edge.config import DataConfig
from edge.errors import DataError
from edge.joining import rotate
from edge.sources import FolderData
from edge.split_config import SplitBoardConfig, SplitTrainingConfig, read_split_board_config
from edge.split_node import SplitNode, drawn, load_parts, with_labels
from host.split import SplitService
from host.split_config import read_split_host_config
from host.split_stage import Stage, load_stage
from models.split import (
    HOST,
    Cut,
    Receiver,
    Sender,
    load_middle,
    make_boundary,
    save_middle,
)
from models.split_export import export_cut
from models.whole import train_whole
from ternmesh.errors import TernmeshError, TrustError
from ternmesh.split.board import SplitBoard
from ternmesh.split.bodies import Intake
from ternmesh.split.host import Board, Settings, SplitHost
from ternmesh.split.plan import SplitPlan
from ternmesh.swarm.pace import Pace
from ternmesh.wire import activation
from ternmesh.wire.activation import Activation
from ternmesh.wire.control import FINISHED
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import MISUSED, main
from ternmesh_cli.status_text import describe
from ternmesh_store.keyring import Keyring, TrustConfig
from ternmesh_store.split_store import SplitStore
from transports.base import Arrival, Transport
from transports.faults import Faults
from transports.faulty import FaultyTransport
from transports.link_config import LinkConfig
from transports.loopback import LoopbackHub

LENGTH, INPUTS, WIDTH, LATENT, CLASSES, BATCH = 3, 4, 6, 2, 3, 4
torch.set_num_threads(1)


class Start(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INPUTS, WIDTH)

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(self.linear(features))


class End(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x.mean(1))
        return result


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, crossed: Tensor) -> Tensor:
        result: Tensor = self.linear(torch.tanh(crossed))
        return result


def make_cut(*, labels_stay: bool) -> Cut:
    torch.manual_seed(5)
    up, down = (make_boundary("learned", WIDTH, LATENT, LENGTH) for _ in range(2))
    first = Sender(Start(), up, LENGTH)
    middle = Receiver(down, End(WIDTH if labels_stay else CLASSES), LENGTH)
    adapter = train_whole(first, ("layers", "boundary"))
    parts = ("tiny", (LENGTH, INPUTS), CLASSES, first, middle, adapter)
    if not labels_stay:
        return Cut(*parts)
    head = Head()
    return Cut(*parts, head, train_whole(head, ("linear",)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The exported parts, by whether labels stay."""
    stays, sent = (tmp_path_factory.mktemp(name) for name in ("stays", "sent"))
    export_cut(make_cut(labels_stay=True), BATCH, stays)
    shutil.copytree(stays / "first", sent / "first")  # it is the same
    save_middle(make_cut(labels_stay=False).middle, sent / HOST)
    return {True: stays, False: sent}


LINK = {"broker": "b", "connected": True, "protocol": "5", "last_error": None, "dropped": 0}
LINK |= {"queued": 0, "in_flight": 0, "reconnects": 0}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Training:
    """Ends are made anew from their stores by `host` and `board`, as after a SIGKILL."""

    def __init__(self, parts: Path, folder: Path, *, stay: bool = False, **plan: int) -> None:
        self.parts, self.folder, self.stay = parts, folder, stay
        down = WIDTH if stay else CLASSES
        numbers = dict(zip(SplitPlan.__slots__, _NUMBERS, strict=True))
        self.plan = SplitPlan(**{**numbers, "labels_stay": int(stay), "width_down": down, **plan})
        self.hub, self.clock = LoopbackHub(), Clock()
        self.boards: dict[str, SplitNode] = {}
        self.stores: dict[str, SplitStore] = {}
        self.service = self.host()

    def host(self, checkpoint: int = 5, wait_s: float = 1.0) -> SplitService:
        cut = make_cut(labels_stay=self.stay)
        load_middle(cut.middle, self.parts / HOST)
        stage, transport = Stage(cut.middle, self.plan.clip_norm), self.hub.host()
        model = load_parts(self.parts)[2]
        self.service = SplitService(
            self.plan,
            Settings(),
            model,
            stage,
            self._store("host"),
            transport,
            self.clock,
            checkpoint=checkpoint,
            wait_s=wait_s,
        )
        transport.open()
        self.service.start()
        return self.service

    def board(
        self,
        name: str,
        around: Callable[[Transport], Transport] = lambda transport: transport,
        clips: dict[str, np.ndarray] | None = None,
    ) -> SplitNode:
        parts = load_parts(self.parts)
        config = SplitBoardConfig(
            name,
            str(self.folder),
            str(self.parts),
            LinkConfig(),
            DataConfig(path="clips"),
            training=SplitTrainingConfig(checkpoint=5),
        )
        data = FolderData(with_labels(parts[0].bundle), clips or samples(), 1.0)
        transport = around(self.hub.node(name))
        node = SplitNode(config, parts, data, data, self._store(name), transport, self.clock)
        transport.open()
        node.start()
        self.boards[name] = node
        return node

    def _store(self, name: str) -> SplitStore:
        if name in self.stores:
            self.stores[name].close()  # what was not committed is lost
        self.stores[name] = SplitStore(self.folder / f"{name}.sqlite")
        self.stores[name].open()
        return self.stores[name]

    def turn(self) -> None:
        moved = self.service.poll(0.0)
        for board in self.boards.values():
            moved |= board.turn(0.0)
        self.clock.now += 0.0 if moved else 0.5

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(20_000):
            if condition():
                return
            self.turn()
        raise AssertionError("it does not come to an end")

    def finish(self) -> None:
        self.until(lambda: all(board.is_done for board in self.boards.values()))


_NUMBERS = (LENGTH * LATENT, 4, 4, BATCH, 40, 20_000, 500, 0, CLASSES, CLASSES, 512, 2000)
_NUMBERS += (1000, 100_000_000)


def samples(count: int = 48) -> dict[str, np.ndarray]:
    """Three classes that a linear model can tell apart."""
    rng = np.random.default_rng(2)
    labels = np.arange(count) % CLASSES
    centres = rng.standard_normal((CLASSES, INPUTS)) * 2
    features = centres[labels][:, None] + 0.5 * rng.standard_normal((count, LENGTH, INPUTS))
    return {"features": features.astype(np.float32), "label": labels}


@pytest.fixture
def train(folders: dict[bool, Path], tmp_path: Path) -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def start(*, stay: bool = False, **plan: int) -> Training:
        made.append(Training(folders[stay], tmp_path, stay=stay, **plan))
        return made[-1]

    yield start
    for training in made:
        for store in training.stores.values():
            store.close()


def test_in_float32_it_is_the_training_of_the_whole_model(
    train: Callable[..., Training],
) -> None:
    training = train(bits_up=32, bits_gradient=32)
    board = training.board("theo")
    training.finish()
    cut = make_cut(labels_stay=False)
    load_middle(cut.middle, training.parts / HOST)
    trained = [*cut.first.parameters(), *cut.middle.parameters()]
    optimizer = torch.optim.Adam(trained)
    data = samples()
    for number in range(training.plan.micro_batches):
        for group in optimizer.param_groups:
            group["lr"] = training.plan.learning_rate(number)
        chosen = drawn(0, "theo", number, BATCH, len(data["label"]))
        logits = cut.middle(cut.first(torch.from_numpy(data["features"][chosen])))
        optimizer.zero_grad()
        loss = functional.cross_entropy(logits, torch.from_numpy(data["label"][chosen]))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    wanted = cut.first_adapter.join(dict(cut.first.named_parameters()))
    np.testing.assert_allclose(board.first.vector, wanted, atol=1e-4)
    assert np.abs(wanted - cut.first_adapter.vector()).max() > 0.05
    everything = torch.from_numpy(data["features"])
    theirs = training.service._stage.predict(board.first.forward({"features": data["features"]}))
    expected = cut.middle(cut.first(everything)).detach().numpy()
    np.testing.assert_allclose(theirs, expected, atol=1e-3)


@pytest.mark.parametrize("stay", [False, True])
def test_boards_learn_together_in_few_bits(train: Callable[..., Training], stay: bool) -> None:
    training = train(stay=stay)
    for name in ("theo", "nicolas"):
        training.board(name)
    training.finish()
    for board in training.boards.values():
        assert board.accuracy is not None
        assert board.accuracy > 0.9
        assert board.counts == {"learned": 40, "samples": 160}
        assert board.status()["phase"] == "finished"
    assert training.service.counts["learned"] == 80
    about = {"fleet": "garden", "trust": None, "transport": LINK}
    lines = "\n".join(describe({**training.service.status(), **about}))
    assert f"finished: {training.service._stage.steps} steps" in lines
    assert "theo: 40 of 40 micro-batches, 0 skipped, heard 0 s ago" in lines
    status = training.boards["theo"].status()
    lines = "\n".join(describe({**status, **about}))
    assert "40 of 40 micro-batches, finished: 0 lost, 0 diverged" in lines
    assert f"accuracy {status['accuracy']:.1%}" in lines


def test_nobody_gets_ahead_of_the_others(train: Callable[..., Training]) -> None:
    """A step waits for all boards, but not for ever: one that hangs costs `wait_s` a step."""
    training = train()
    theo, nicolas = training.board("theo"), training.board("nicolas")
    training.until(lambda: theo.board.joined and nicolas.board.joined)
    ahead = theo.board.number - nicolas.board.number
    while nicolas.counts["learned"] < 10:
        training.turn()
        assert abs(theo.board.number - nicolas.board.number) <= max(1, ahead)
    del training.boards["nicolas"]
    before, number = training.clock.now, theo.board.number
    training.until(lambda: theo.board.number == number + 3)
    assert 2.0 <= training.clock.now - before <= 4.0
    training.boards["nicolas"] = nicolas
    training.finish()
    assert nicolas.counts["lost"] <= 1


def test_a_step_waits_no_longer_when_the_other_board_is_gone(
    train: Callable[..., Training],
) -> None:
    training = train()
    service = training.host(wait_s=1e6)
    theo, nicolas = training.board("theo"), training.board("nicolas")
    training.until(lambda: nicolas.counts["learned"] == 2)
    del training.boards["nicolas"]
    training.until(lambda: theo.board.number == 20)
    training.until(lambda: not service.poll(0.0))
    steps = service._stage.steps
    service._hold(1, 19, np.zeros((BATCH, LENGTH * LATENT), np.float32))
    assert service._stage.steps == steps
    service.host.boards[2].moved_at = training.clock.now - service.host.settings.silence_s
    service.poll(0.0)
    assert service._stage.steps == steps + 1


def test_lost_micro_batches_are_skipped_and_counted(train: Callable[..., Training]) -> None:
    training = train()

    def lossy(transport: Transport) -> Transport:
        rng = np.random.default_rng(4)
        return FaultyTransport(transport, Faults(drop=0.1), rng, training.clock)

    board = training.board("theo", lossy)
    training.finish()
    lost, learned = board.counts["lost"], board.counts["learned"]
    assert (lost + learned, lost > 0) == (40, True)
    # What was lost on its way up the host has never seen; the rest was lost on its way down.
    assert learned <= training.service.counts["learned"] < 40
    assert board.accuracy is not None
    assert board.accuracy > 0.8


def test_a_host_that_is_killed_goes_on_from_its_checkpoint(train: Callable[..., Training]) -> None:
    training = train()
    board = training.board("theo")
    training.until(lambda: training.service._stage.steps == 17)
    run = training.service.host.run
    service = training.host()
    assert (service.host.run, service._stage.steps) == (run, 15)
    assert service.host.boards[1].name == "theo"
    training.finish()
    assert board.counts["learned"] + board.counts["lost"] == 40
    assert board.counts["learned"] >= 38
    assert service._stage.steps == 40 - 17 + 15 - board.counts["lost"]
    assert board.accuracy is not None
    assert board.accuracy > 0.9


def test_a_board_that_is_killed_goes_on_from_its_checkpoint(
    train: Callable[..., Training],
) -> None:
    training = train()
    before = training.board("theo")
    training.until(lambda: before.counts["learned"] == 10)
    kept = before.first.vector
    training.until(lambda: before.counts["learned"] == 13)
    again = training.board("theo")
    assert again.board.number == 10
    np.testing.assert_array_equal(again.first.vector, kept)
    training.finish()
    assert again.counts["lost"] in (3, 4)  # the host had 13 or 14
    assert again.counts["learned"] + again.counts["lost"] == 40
    assert training.service.host.boards[1].number == 40
    assert again.accuracy is not None
    assert again.accuracy > 0.9


def test_a_host_that_begins_after_the_end_ends_too(train: Callable[..., Training]) -> None:
    training = train()
    training.board("theo")
    training.finish()
    training.service.save()
    del training.boards["theo"]
    service = training.host()
    assert service.counts["learned"] == service.host.boards[1].learned == 40
    training.until(service.may_leave)


def test_a_board_that_is_stopped_keeps_all_that_it_learned(train: Callable[..., Training]) -> None:
    training = train()
    before = training.board("theo")
    training.until(lambda: before.counts["learned"] == 13)
    before.save()
    again = training.board("theo")
    assert again.counts["learned"] == 13
    np.testing.assert_array_equal(again.first.vector, before.first.vector)


def test_a_stop_in_the_middle_of_a_micro_batch_is_counted(
    train: Callable[..., Training],
) -> None:
    training = train()
    before = training.board("theo")
    training.until(lambda: before.counts["learned"] == 7 and not before.board.ready)
    before.save()  # as a stop does
    again = training.board("theo")
    training.finish()
    assert again.counts["learned"] + again.counts["lost"] == 40


def test_a_host_of_another_run_makes_boards_begin_anew(train: Callable[..., Training]) -> None:
    training = train()
    board = training.board("theo")
    initial = board.first.vector
    training.until(lambda: board.counts["learned"] == 5)
    (training.folder / "host.sqlite").rename(training.folder / "lost.sqlite")
    training.host()
    training.until(lambda: board.board.run == training.service.host.run)
    np.testing.assert_array_equal(board.first.vector, initial)
    training.finish()
    assert training.service.host.boards[1].learned == 40


def test_what_is_not_finite_is_skipped_and_counted(train: Callable[..., Training]) -> None:
    training = train()
    board = training.board("theo")
    training.until(lambda: board.counts["learned"] == 3)
    board.first.vector = board.first.vector * np.float32(np.nan)
    training.finish()
    assert board.counts["diverged"] == 37
    assert board.status()["loss"] is None
    assert board.accuracy is None
    assert training.service.counts["diverged"] == 0


def test_a_host_that_diverges_answers_nothing(train: Callable[..., Training]) -> None:
    training = train()
    board = training.board("theo")
    training.until(lambda: board.counts["learned"] == 3)
    with torch.no_grad():
        training.service._stage._parameters[0].fill_(torch.nan)
    training.until(lambda: board.counts["lost"] == 2)
    assert training.service.counts["diverged"] == 2
    assert board.counts["learned"] == 3


@pytest.mark.parametrize("plan", [{"width": 5}, {"batch": 5}, {"classes": 2}])
def test_a_plan_that_does_not_fit_is_refused(
    train: Callable[..., Training], plan: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The model's name is the same, so the host may be somebody else: nobody's program ends."""
    training = train(**plan)
    board = training.board("theo")
    training.until(lambda: board.board.refused["plan"] == 2)
    assert not board.board.joined
    assert caplog.text.count("refused from host: plan") == 1


def test_labels_count_from_zero(train: Callable[..., Training]) -> None:
    training = train()
    clips = {**samples(), "label": samples()["label"] - 1}
    with pytest.raises(DataError, match="they count from 0"):
        training.board("theo", clips=clips)


def tiny_stage(clip_norm: float = 1.0) -> tuple[Stage, np.ndarray, bytes]:
    """A stage with activations and labels that it learns from."""
    torch.manual_seed(0)
    stage = Stage(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES)), clip_norm)
    return (
        stage,
        np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32),
        bytes([0, 1, 2, 0]),
    )


def steps_of(stage: Stage, values: np.ndarray, labels: bytes, steps: int) -> float:
    loss = 0.0
    for _ in range(steps):
        _, loss, _ = stage.learn(values, labels)
        stage.step(0.01)
    return loss


@pytest.mark.parametrize("magnitude", [1e15, 1e25, 1e30])
def test_no_micro_batch_spoils_the_hosts_adam(magnitude: float) -> None:
    stage, values, labels = tiny_stage()
    steps_of(stage, values, labels, 3)
    steps_of(stage, values * np.float32(magnitude), labels, 1)
    for parameter in stage._parameters:
        moments = stage._optimizer.state[parameter]
        assert float(moments["exp_avg_sq"].sum()) <= 0.001 * 4  # of four steps, none above 1
    assert steps_of(stage, values, labels, 200) < 0.2
    stage.restore(stage.state())


def test_only_what_is_too_long_is_clipped() -> None:
    grown = {}
    for clip_norm in (1000.0, 0.001):
        stage, values, labels = tiny_stage(clip_norm)
        stage.learn(values, labels)
        stage.learn(values, labels)
        gradients = [p.grad for p in stage._parameters if p.grad is not None]
        grown[clip_norm] = torch.cat([gradient.reshape(-1) for gradient in gradients])
    assert float(grown[0.001].norm()) == pytest.approx(0.002)
    whole = grown[1000.0]
    np.testing.assert_allclose(grown[0.001], 0.002 * whole / whole.norm(), rtol=1e-4, atol=1e-9)


def test_what_is_not_finite_is_restored_from_no_checkpoint() -> None:
    stage, values, labels = tiny_stage()
    steps_of(stage, values, labels, 1)
    stage._optimizer.state[stage._parameters[0]]["exp_avg_sq"].fill_(torch.inf)
    with pytest.raises(TernmeshError, match="begin anew"):
        tiny_stage()[0].restore(stage.state())


@pytest.mark.parametrize("magnitude", [1e15, 1e25])
def test_no_gradient_spoils_the_boards_adam(folders: dict[bool, Path], magnitude: float) -> None:
    first = load_parts(folders[True])[0]
    target = first.bundle.batch_inputs[-1]
    inputs = {"features": samples()["features"][:BATCH]}
    back = np.full(target.shape, magnitude, np.float32)
    first.learn({**inputs, target.name: back}, 0.01, 1.0)
    assert float(first._moments.square.sum()) <= 0.0011


def test_a_host_goes_on_after_what_gives_no_gradient(train: Callable[..., Training]) -> None:
    """The board may send its next; a question whose answer fails lets nobody send two at once."""
    training = train()
    board = training.board("theo")
    training.until(lambda: board.counts["learned"] == 3)
    middle = training.service._stage._parameters[0]
    kept = middle.detach().clone()
    with torch.no_grad():
        middle.fill_(torch.nan)
    training.until(lambda: board.counts["lost"] == 1)
    with torch.no_grad():
        middle.copy_(kept)
    training.until(lambda: board.counts["learned"] == 4)
    host = training.service.host
    host.boards[1].held = 5
    with torch.no_grad():
        middle.fill_(torch.nan)
    question = np.zeros((BATCH, LENGTH * LATENT), np.float32)
    training.service._compute(1, Activation(activation.ASK, 90, question))
    assert host.boards[1].held == 5


def test_rotation_codes_and_revocations_end_at_a_split_host(
    folders: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol_fleet("garden", tmp_path / "host", {n: tmp_path / n for n in ("theo", "nora")})
    rings = {name: Keyring(tmp_path / name, TrustConfig()) for name in ("host", "theo")}
    hub, store = LoopbackHub(), SplitStore(tmp_path / "split.sqlite")
    numbers = dict(zip(SplitPlan.__slots__, _NUMBERS, strict=True))
    with ExitStack() as stack:
        for opened in (*rings.values(), store):
            opened.open()
            stack.callback(opened.close)
        model, transport, clock = load_parts(folders[True])[2], hub.host(), Clock()
        stage = Stage(make_cut(labels_stay=False).middle, 1.0)
        plan, ring = SplitPlan(**numbers), rings["host"]
        service = SplitService(
            plan, Settings(), model, stage, store, transport, clock, keyring=ring
        )
        transport.open()
        service.start()
        assert len(service.enrol({"enrol": "list"})["members"]) == 2
        assert service.enrol({"enrol": "code", "role": "node", "minutes": 1.0})["code"]

        class Served:
            """A board's transport, with the host in the same thread."""

            def __init__(self) -> None:
                self._board = hub.node("theo")
                self.open, self.close, self.send = (
                    self._board.open,
                    self._board.close,
                    self._board.send,
                )

            def receive(self, _timeout_s: float) -> Arrival | None:
                service.poll(0.0)
                return self._board.receive(0.0)

        monkeypatch.setattr("edge.joining.make_transport", lambda *_: Served())
        board = rings["theo"]
        rotation = board.begin_rotation()
        assert rotate(LinkConfig(fleet="garden"), "theo", tmp_path, board)
        assert board.rotation is None
        assert rotation is not None
        assert ring.roster.find("theo") == board.own.public
        board.begin_rotation()
        clock.now += 10.0
        with pytest.raises(TrustError, match="within the last hour"):
            rotate(LinkConfig(fleet="garden"), "theo", tmp_path, board)
        assert service.status()["refused"] == {"early": 1}
        boards = (
            Board(1, "theo", 40, Intake(plan), is_done=True),
            Board(2, "nora", 0, Intake(plan)),
        )
        service.host.boards = {board.context: board for board in boards}
        service.host.start(clock.now)
        assert service.status()["phase"] == "open"
        service.enrol({"enrol": "revoke", "name": "nora"})
        assert service.host._told == FINISHED, "the others are told at once"


@pytest.mark.parametrize("action", [["join", "AAAA"], ["rotate"]])
def test_enrol_reads_a_split_boards_file(
    action: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol_fleet("garden", tmp_path / "host", {"theo": tmp_path / "theo"})
    config, asked = tmp_path / "board.toml", []
    config.write_text(BOARD_TOML + "[training]\ncheckpoint = 5\n")
    monkeypatch.setattr("ternmesh.trust.enrolment.read_code", lambda _: None)

    def ask(link: LinkConfig, name: str, *_: object) -> None:
        asked.append((link.url, name))
        raise TernmeshError("nobody is there")

    monkeypatch.setattr("edge.joining.join", ask)
    monkeypatch.setattr("edge.joining.rotate", ask)
    main(["enrol", action[0], "--config", str(config), *action[1:]])
    assert asked == [("mqtt://127.0.0.1:1", "theo")]


def test_a_checkpoint_of_another_model_is_refused() -> None:
    stage = Stage(make_cut(labels_stay=False).middle, 1.0)
    other = Stage(nn.Linear(2, 2), 1.0)
    for state in (other.state(), b"", b"something else"):
        with pytest.raises(TernmeshError, match="begin anew"):
            stage.restore(state)


@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 13))
def test_an_epoch_has_each_sample_once(number: int, batch: int, count: int) -> None:
    dealt = np.concatenate([drawn(1, "theo", n, batch, count) for n in range(number + 1)])
    whole = dealt[: len(dealt) // count * count].reshape(-1, count)
    assert all(sorted(epoch) == list(range(count)) for epoch in whole.tolist())
    assert set(dealt.tolist()) <= set(range(count))


HOST_TOML = """
state_dir = "host"
bundle = "parts"
[link]
url = "mqtt://127.0.0.1:1"
"""
BOARD_TOML = """
name = "theo"
state_dir = "theo"
bundle = "parts"
[link]
url = "mqtt://127.0.0.1:1"
[data]
path = "clips.npz"
"""


@pytest.mark.parametrize(
    ("end", "text", "sentence"),
    [
        (
            "host",
            HOST_TOML + '[boundary]\nmethod = "subspace"',
            "must be one of none, resbm, learned",
        ),
        ("host", HOST_TOML + "[boundary]\nbits_up = 9", "boundary.bits_up must be one of"),
        ("host", HOST_TOML, "write it with `ternmesh split export`"),
        ("host", HOST_TOML + "[run]\nbatch = 1", "run.batch is 1"),
        ("host", HOST_TOML + "[run]\nmin_boards = 3\nboards_max = 2", "could never begin"),
        ("export", 'model = "models.split_keyword:nothing"' + HOST_TOML, "makes no parts"),
        ("board", BOARD_TOML.replace('"theo"', '"host"', 1), "name: "),
        ("board", BOARD_TOML.replace("path", "#"), "data.path is missing"),
        ("board", BOARD_TOML.replace("127.0.0.1", "example.org"), "[trust] insecure = true"),
    ],
)
def test_wrong_configurations(
    end: str, text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    insecure = [] if end == "export" else ["--insecure"]
    assert main(["split", end, "--config", str(config), *insecure]) == MISUSED
    assert sentence in capsys.readouterr().err


def test_ends_have_the_pace_of_their_bearer_and_the_clip_of_the_plan(
    folders: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, pace, ends = threading.Event(), Pace(hello_s=77.0, hello_longest_s=777.0), []
    stop.set()
    for program in (edge.split, host.split):
        monkeypatch.setattr(program, "pace_of", lambda _: pace)

    def noted(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: object, **options: object) -> object:
            ends.append(make(*arguments, **options))
            return ends[-1]

        return made

    monkeypatch.setattr(edge.split_node, "SplitBoard", noted(SplitBoard))
    monkeypatch.setattr(host.split, "SplitHost", noted(SplitHost))
    np.savez(tmp_path / "clips.npz", **samples())  # type: ignore[arg-type]
    parts = f"bundle = {str(folders[False])!r}"
    text = HOST_TOML.replace('bundle = "parts"', parts) + f"[run]\nbatch = {BATCH}\n"
    (tmp_path / "host.toml").write_text(text + "clip_norm = 1.6e-6\n")
    (tmp_path / "board.toml").write_text(BOARD_TOML.replace('bundle = "parts"', parts))
    monkeypatch.setattr("host.split_stage.make_cut", lambda *_, **__: make_cut(labels_stay=False))
    monkeypatch.setattr("host.split_stage.load_middle", lambda *_: None)
    served_config = read_split_host_config(tmp_path / "host.toml")
    stage, classes = load_stage(served_config)
    host.split.run_split_host(served_config, lambda _: (stage, classes), stop, insecure=True)
    config = read_split_board_config(tmp_path / "board.toml")
    edge.split.run_split_board(config, stop, insecure=True)
    served, board = ends
    assert served._hello_longest_s == pace.hello_longest_s
    assert stage._clip_norm == served.plan.clip_norm == 2e-6
    assert board._greeting.at - time.monotonic() > 30.0


@pytest.mark.parametrize("name", ["host.toml", "board.toml"])
def test_the_examples_are_read(name: str) -> None:
    path = Path(__file__).parents[2] / "examples" / "split" / name
    if name == "host.toml":
        assert read_split_host_config(path).run.min_boards == 3
    else:
        config = read_split_board_config(path)
        assert config.data.path is not None
        assert Path(config.data.path).exists()
