"""Which model a node starts with: a new release must first pass a trial on the board.

A release is checked, takes its first steps in a child process, and is evaluated on the board's own
held-out samples. If it fails, the board returns to the last good release by itself. A fault of the
board or of its data does not make a release bad.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from edge.config import NodeConfig
from edge.data.front import front_of
from edge.data.node_data import open_knowledge
from edge.data.sources import open_folder
from edge.errors import BoardFault, ModelError, NoData, NotSigned
from edge.evaluation import spread
from edge.export import learned_on, model_in_use
from edge.onnx.session import LoadedModel, TrainStep, load_model
from edge.releases.store import Releases
from edge.releases.trial import try_model
from edge.trainer import Dataset, Step
from ternmesh.errors import TernmeshError
from ternmesh.model_package import FRONT, ModelPackage, keeps_adapter
from ternmesh.release import (
    LATENCY_UNIT,
    LOSS_UNIT,
    ReleaseManifest,
    ReleaseStanding,
    excuse,
    fail,
    succeed,
)
from ternmesh.types import Vector
from ternmesh_service.config_file import package_folder
from ternmesh_service.notify import no_beat
from ternmesh_service.status import InstalledReleases

_log = logging.getLogger(__name__)


def settle(
    config: NodeConfig, releases: Releases, beat: Callable[[], None] = no_beat
) -> LoadedModel:
    """The model to run. If the process dies here, the next process finds the attempt on disk.

    Raises ModelError if not even the configured model loads. BoardFault and NoData prove nothing
    about a release: the next start tries it again.
    """
    while True:
        standing = releases.begin()
        if standing.current == 0:
            return load_model(package_folder(config.model))
        try:
            loaded = _open(config, releases, standing, beat)
        except NoData:
            releases.change(excuse)  # the attempt does not count: no release could learn here
            raise
        except BoardFault:
            # The attempt counts: a release that can never be read must not stop the board.
            raise
        except TernmeshError as error:
            after = releases.change(partial(fail, reason=str(error)))
            back = f"release {after.current}" if after.current else "the configured model"
            _log.warning("release %d is bad, back to %s: %s", standing.current, back, error)
            continue
        if standing.on_trial:
            releases.change(succeed)
            _log.info("release %d is good", standing.current)
        return loaded


def _open(
    config: NodeConfig, releases: Releases, standing: ReleaseStanding, beat: Callable[[], None]
) -> LoadedModel:
    """The current release, after its trial if it is on trial."""
    try:
        loaded, manifest = releases.open(standing.current)
    except NotSigned as error:
        if standing.on_trial:
            raise
        # It has passed its trial. To replace it would delete what was learned with it.
        raise BoardFault(
            f"release {standing.current} runs here and is refused now ({error}): put signatures "
            f"that [security] requires into {releases.folder / str(standing.current)}, change "
            "[security] back, or install a newer release"
        ) from error
    if standing.on_trial and standing.tried != standing.current:
        try_release(config, loaded, manifest, beat)
    return loaded


def try_release(
    config: NodeConfig,
    loaded: LoadedModel,
    manifest: ReleaseManifest,
    beat: Callable[[], None] = no_beat,
) -> None:
    """Raise unless the release keeps the limits of its manifest on this board."""
    training, limits, package = config.training, config.releases, loaded.package
    if not manifest.new_front:
        _check_front(config, package)
    latency_s = try_model(
        loaded.folder, threads=training.threads, memory_mib=limits.memory_mib, cpu_s=limits.cpu_s
    )
    if latency_s > manifest.latency_max * LATENCY_UNIT:
        raise ModelError(
            f"a step takes {latency_s * 1e3:.0f} ms, and the manifest allows "
            f"{manifest.latency_max} ms"
        )
    if config.data.path is not None:
        open_folder(Path(config.data.path), package.outside(), config.data)
    front = front_of(config, loaded, beat)
    open_knowledge(config, package, front)
    if config.evaluate.path is None:
        _log.info("the loss of the release is not checked: [evaluate] names no data for it")
        return
    path = Path(config.evaluate.path)
    held_out = front.data(open_folder(path, package.outside(), config.evaluate))
    step = TrainStep(loaded.folder, package, training.threads, training.provider)
    adapter = _kept(config, loaded)
    loss = mean_loss(step, package, adapter, held_out, config.evaluate.samples_max, beat)
    if not loss <= manifest.loss_max * LOSS_UNIT:  # also refuses NaN
        raise ModelError(
            f"its loss on this board's held-out data is {loss:.4g}, and the manifest allows "
            f"{manifest.loss_max * LOSS_UNIT:.4g}"
        )


def _check_front(config: NodeConfig, package: ModelPackage) -> None:
    """ModelError where the release would make the rows that this board has labelled useless."""
    before = load_model(model_in_use(config)).package
    if before.front and before.files[FRONT] != package.files.get(FRONT):
        raise ModelError(
            f"it has another {FRONT} than {before.name} here: the labelled samples of this board, "
            "which are its rows, would be lost; if that is intended, make it with --new-front"
        )


def _kept(config: NodeConfig, loaded: LoadedModel) -> Vector:
    """The adapter that the board would go on with: what it has learned, where that stays."""
    try:
        before, vector, _ = learned_on(config)
    except ModelError:  # nothing was learned yet
        return loaded.initial
    fits = keeps_adapter(before.package.adapter_key(), loaded.package.adapter_key())
    return vector if fits else loaded.initial


def mean_loss(
    step: Step,
    package: ModelPackage,
    adapter: Vector,
    data: Dataset,
    samples_max: int,
    beat: Callable[[], None] = no_beat,
) -> float:
    """The mean loss of the adapter on at most `samples_max` samples of `data`.

    The last batch is filled up with the first samples: its size is fixed in the graph. ModelError
    if a gradient is not finite: no node could learn with it, however good the loss is.
    """
    chosen = spread(len(data), samples_max)
    batch = package.batch
    chosen = np.resize(chosen, -(-len(chosen) // batch) * batch)
    losses = []
    is_finite = True
    for start in range(0, len(chosen), batch):
        loss, gradient = step.run(adapter, data.batch(chosen[start : start + batch]))
        losses.append(loss)
        beat()
        is_finite &= bool(np.isfinite(gradient).all())
    mean = float(np.mean(losses))
    if np.isfinite(mean) and not is_finite:
        raise ModelError("its gradient on this board's held-out data is not finite")
    return mean


def report(standing: ReleaseStanding, refused: Mapping[int, str]) -> InstalledReleases:
    """The releases for `ternmesh status`; `refused` are the reasons of those never tried."""
    return InstalledReleases(
        current=standing.current,
        last_good=standing.last_good,
        attempts=standing.attempts,
        bad=tuple(standing.bad),
        not_taken=tuple(refused.items()),
    )
