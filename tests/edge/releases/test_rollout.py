"""Bad releases lead back to the last good one, whatever dies; with real processes."""

import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.config import DataConfig, EvaluateConfig, NodeConfig, ReleasesConfig
from edge.errors import BoardFault, ModelError, NoData, NotSigned
from edge.onnx.session import LoadedModel
from edge.releases.rollout import report, settle
from edge.releases.store import Releases, accept_unsigned, make_release
from ternmesh.model_package import FORWARD, FRONT, TRAIN_STEP
from ternmesh.release import ATTEMPTS_MAX
from ternmesh_service.release_files import entries_of, extract, pack_folder
from tests.edge.conftest import FrontedPackage
from tests.edge.fleet import board_config

Release = Callable[..., Path]


@pytest.fixture
def board(tiny: LoadedModel, tiny_data: dict[str, Any], tmp_path: Path) -> NodeConfig:
    np.savez(tmp_path / "ada.npz", **tiny_data)
    return board_config(
        tmp_path,
        tiny.folder,
        evaluate=EvaluateConfig(path=str(tmp_path / "ada.npz")),
        releases=ReleasesConfig(dir=str(tmp_path / "releases"), insecure=True),
    )


@pytest.fixture
def releases(board: NodeConfig) -> Releases:
    assert board.releases.dir is not None
    return Releases(Path(board.releases.dir), accept_unsigned)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's answer without the child: `test_trial` has that."""
    monkeypatch.setattr("edge.releases.rollout.try_model", lambda *_, **__: 0.010)


def version_of(loaded: LoadedModel) -> str:
    return loaded.folder.name


def test_a_good_release_is_tried_in_a_child_and_stays(board, releases, new_release, tiny) -> None:
    assert settle(board, releases).folder == tiny.folder
    releases.install(new_release(1))
    beats: list[int] = []
    assert version_of(settle(board, releases, lambda: beats.append(1))) == "1"
    assert beats, "the watchdog hears of each batch of the trial"
    standing = releases.standing()
    assert (standing.current, standing.last_good, standing.bad) == (1, 1, ())
    assert version_of(settle(board, releases)) == "1"


def changed_step(
    folder: Path, *nodes: tuple[str, list[str], str], **constants: np.ndarray
) -> bytes:
    """The train step with other constants; `nodes` compute its gradient from "plain"."""
    import onnx

    step = onnx.load_from_string((folder / TRAIN_STEP).read_bytes())
    graph = step.graph
    if nodes:
        graph.node[-1].output[0] = "plain"
    for kind, inputs, output in nodes:
        graph.node.append(onnx.helper.make_node(kind, inputs, [output]))
    kept = [tensor for tensor in graph.initializer if tensor.name not in constants]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for name, array in constants.items():
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return step.SerializeToString()


def not_finite(folder: Path) -> bytes:
    return changed_step(folder, W=np.full((6, 3), np.nan, np.float32))


def gradient_not_finite(folder: Path) -> bytes:
    """The train step with a good loss and a useless gradient."""
    return changed_step(
        folder, ("Sub", ["plain", "plain"], "zeros"), ("Div", ["zeros", "zeros"], "gradient")
    )


# What is wrong, how the release is made, what else the board is told, and the reason.
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "loss": ({"loss_max": 1e-6}, {}, "its loss on"),
    "latency": ({"latency_max_s": 0.001}, {}, "a step takes 10 ms, and the manifest allows 1 ms"),
    "not finite": ({"step": not_finite}, {}, "held-out data is nan"),
    "gradient": ({"step": gradient_not_finite}, {}, "held-out data is not finite"),
    "damaged": ({}, {}, "forward.onnx is not what"),
    "data": ({}, {"data": {"path": "other.npz"}}, "has shape (9, 4)"),
    "probe set": ({}, {"knowledge": {"path": "ada.npz"}}, "[knowledge]"),
}


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(("kind", "has_good"), [("loss", False), *((kind, True) for kind in BAD)])
def test_a_bad_release_is_rolled_back(
    kind: str,
    has_good: bool,
    board: NodeConfig,
    releases: Releases,
    new_release: Release,
    tiny: LoadedModel,
    tmp_path: Path,
) -> None:
    """Behind it lies a good release, or none; before it another bad one."""
    made, settings, reason = BAD[kind]
    np.savez(tmp_path / "other.npz", x=np.zeros((9, 4), np.float32), t=np.zeros((9, 3), np.float32))
    if has_good:
        prove(board, releases, new_release(1))
    for table, changes in settings.items():
        paths = {name: str(tmp_path / v) for name, v in changes.items() if name == "path"}
        board = replace(board, **{table: replace(getattr(board, table), **changes | paths)})
    more = {name: value for name, value in made.items() if name != "step"}
    if "step" in made:
        more["changes"] = {TRAIN_STEP: made["step"](tiny.folder)}
    for version in (2, 3):
        releases.install(new_release(version, **more))
        if kind == "damaged":
            damaged = releases.folder / str(version) / FORWARD
            damaged.write_bytes(damaged.read_bytes()[:-1])
        now = settle(board, releases)
        assert now.folder == (releases.folder / "1" if has_good else tiny.folder)
        standing = releases.standing()
        assert (standing.current, standing.last_good) == (has_good, has_good)
        assert standing.bad[-1][0] == version
        assert reason in standing.bad[-1][1]
        assert report(standing, {}).bad[-1] == standing.bad[-1]
        settle(board, releases)
        assert releases.standing() == standing


@pytest.mark.usefixtures("fast")
def test_a_last_good_one_that_is_damaged_leads_to_the_configured_model(
    board: NodeConfig, releases: Releases, new_release: Release, tiny: LoadedModel
) -> None:
    prove(board, releases, new_release(1))
    (releases.folder / "1" / FORWARD).write_bytes(b"\0")
    assert settle(board, releases).folder == tiny.folder
    assert releases.standing().current == 0


def test_a_configured_model_that_is_damaged_is_an_error(board, releases, tiny_copy) -> None:
    (tiny_copy / FORWARD).write_bytes(b"\0")
    with pytest.raises(ModelError, match=r"forward\.onnx"):
        settle(replace(board, model=str(tiny_copy)), releases)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("kind", "table"), [("missing", "data"), ("empty folder", "evaluate"), ("cut", "data")]
)
def test_data_that_is_away_for_a_while_condemns_nothing(
    kind: str, table: str, board: NodeConfig, releases: Releases, new_release: Release
) -> None:
    path = Path(str(board.data.path)).parent / "own.npz"
    whole = Path(str(board.data.path)).read_bytes()
    changed: Any = DataConfig(path=str(path)) if table == "data" else EvaluateConfig(path=str(path))
    board = replace(board, **{table: changed})
    if kind == "empty folder":
        path.mkdir()
    elif kind == "cut":
        path.write_bytes(whole[:-100])
    releases.install(new_release(1))
    for _ in range(ATTEMPTS_MAX + 2):
        with pytest.raises(NoData, match=r"own\.npz"):
            settle(board, releases)
        assert (releases.standing().current, releases.standing().attempts) == (1, 0)
    if kind == "empty folder":
        path.rmdir()
    path.write_bytes(whole)
    assert version_of(settle(board, releases)) == "1"


def prove(board: NodeConfig, releases: Releases, release: Path) -> None:
    """Make a release the last good one of a board."""
    releases.install(release)
    settle(board, releases)


def not_readable(folder: Path) -> Callable[[], None]:
    """Put a folder in the place of a model's file (root may read every file), and back."""
    path, aside = folder / FORWARD, folder / "aside"
    path.rename(aside)
    path.mkdir()

    def undo() -> None:
        path.rmdir()
        aside.rename(path)

    return undo


@pytest.mark.usefixtures("fast")
def test_a_last_good_one_that_cannot_be_read_is_kept(board, releases, new_release) -> None:
    prove(board, releases, new_release(1))
    before, undo = releases.standing(), not_readable(releases.folder / "1")
    for _ in range(ATTEMPTS_MAX + 1):
        with pytest.raises(
            BoardFault, match=r"forward\.onnx cannot be read \(Is a directory\): check"
        ):
            settle(board, releases)
    assert releases.standing() == before
    undo()
    assert version_of(settle(board, releases)) == "1"


def refuse(_content: bytes, _signatures: bytes) -> None:
    raise NotSigned("this release is not signed by ann")


@pytest.mark.usefixtures("fast")
def test_a_change_of_security_does_not_condemn_what_runs(board, releases, new_release) -> None:
    prove(board, releases, new_release(1))
    before = releases.standing()
    with pytest.raises(
        BoardFault, match=r"release 1 runs here and .* not signed by ann.*\[security\]"
    ):
        settle(board, Releases(releases.folder, refuse))
    assert releases.standing() == before
    assert version_of(settle(board, releases)) == "1"


def test_a_release_on_trial_that_is_not_signed_is_bad(board, releases, new_release, tiny) -> None:
    releases.install(new_release(1))
    releases.begin()
    assert settle(board, Releases(releases.folder, refuse)).folder == tiny.folder
    assert releases.standing().bad == ((1, "this release is not signed by ann"),)


@pytest.mark.usefixtures("fast")
def test_deaths_in_trials_lead_back_without_a_visit(
    board, releases, new_release, monkeypatch
) -> None:
    prove(board, releases, new_release(1))
    releases.install(new_release(2))
    monkeypatch.setattr("edge.releases.rollout.try_model", lambda *_, **__: sys.exit())
    for attempts in range(1, ATTEMPTS_MAX + 1):
        with pytest.raises(SystemExit):
            settle(board, releases)
        assert Releases(releases.folder, accept_unsigned).standing().attempts == attempts
    assert version_of(settle(board, releases)) == "1"
    standing = releases.standing()
    assert (standing.current, standing.last_good, standing.attempts) == (1, 1, 0)
    assert standing.bad == ((2, f"the node died in {ATTEMPTS_MAX} trials of it"),)


def test_another_front_is_refused_unless_its_maker_allows_it(
    new_fronted: FrontedPackage, slopes: dict[str, Any], tmp_path: Path
) -> None:
    """With real trials. A release that keeps the front need not send it."""
    np.savez(tmp_path / "ada.npz", **slopes)
    model, other = new_fronted().folder, new_fronted(2.0).folder
    releases_of = ReleasesConfig(dir=str(tmp_path / "releases"), insecure=True)
    evaluate = EvaluateConfig(path=str(tmp_path / "ada.npz"))
    board = board_config(tmp_path, model, evaluate=evaluate, releases=releases_of)
    releases = Releases(tmp_path / "releases", accept_unsigned)

    def release(version: int, *, new_front: bool) -> Path:
        made = tmp_path / f"release-{version}"
        make_release(other, made, version, (100.0, 100.0), new_front=new_front)
        releases.install(made)
        return made

    release(1, new_front=False)
    assert settle(board, releases).folder == model
    assert "labelled samples of this board, which are its rows, would be lost" in str(
        releases.standing().bad
    )
    second = release(2, new_front=True)
    assert version_of(settle(board, releases)) == "2"
    third = release(3, new_front=False)
    assert version_of(settle(board, releases)) == "3"
    packed = pack_folder(third, entries_of(second))
    front = (other / FRONT).read_bytes()
    assert zlib.compress(front, 9) not in packed
    extract(packed, tmp_path / "unpacked", [second], accept_unsigned)
    assert (tmp_path / "unpacked" / FRONT).read_bytes() == front
    assert zlib.compress(front, 9) in pack_folder(third)
