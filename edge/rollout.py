"""Which bundle a node starts with: a new release proves itself first, a bad one is left.

A release is checked, takes its first steps in a child process, and is judged on the board's own
held-out samples. What is wrong with it leads back to the last good one, without a visit; what is
wrong with the board itself does not condemn it.
"""

import logging
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edge.config import ZEROTH_ORDER, NodeConfig, bundle_folder, npz_settings
from edge.errors import BoardFault, ModelError, NoData, NotSigned
from edge.evaluation import spread
from edge.model_trial import TrialLimits, try_model
from edge.releases import Releases
from edge.session import LoadedBundle, load_bundle
from edge.sources import open_folder
from edge.trainer import Dataset, Step
from edge.zeroth_order import make_step
from ternmesh.errors import TernmeshError
from ternmesh.release import LATENCY_UNIT, LOSS_UNIT, Manifest
from ternmesh.rollout import Standing, excuse, fail, succeed

_log = logging.getLogger(__name__)


def settle(config: NodeConfig, releases: Releases) -> LoadedBundle:
    """The bundle to run. If its process dies in here, the next one finds the attempt on disk.

    Raises ModelError where not even the configured bundle loads, BoardFault or NoData where the
    board is at fault: nothing is known of the release then, and the next start tries it again.
    """
    while True:
        standing = releases.begin()
        if standing.current == 0:
            return load_bundle(bundle_folder(config))
        try:
            loaded = _open(config, releases, standing)
        except NoData:
            releases.change(excuse)  # no other release could learn without it either
            raise
        except BoardFault:
            # On trial this attempt counts: what can never be read must not hold a board up.
            raise
        except TernmeshError as error:
            after = releases.change(partial(fail, reason=str(error)))
            back = _named(after.current)
            _log.warning("release %d is bad, back to %s: %s", standing.current, back, error)
            continue
        if standing.on_trial:
            releases.change(succeed)
            _log.info("release %d is good", standing.current)
        return loaded


def _open(config: NodeConfig, releases: Releases, standing: Standing) -> LoadedBundle:
    """The current release, judged if it is on trial."""
    try:
        loaded, manifest = releases.open(standing.current)
    except NotSigned as error:
        if standing.on_trial:
            raise
        # It has proved itself, and to leave it would delete what was learned with it.
        raise BoardFault(
            f"release {standing.current} runs here and is refused now ({error}): put signatures "
            f"that [trust] asks for into {releases.folder / str(standing.current)}, change [trust] "
            "back, or install a newer release"
        ) from error
    if standing.on_trial:
        _judge(config, loaded, manifest)
    return loaded


def _judge(config: NodeConfig, loaded: LoadedBundle, manifest: Manifest) -> None:
    """An error, one sentence, unless the release does on this board what its manifest promises."""
    training, chosen = config.training, config.releases
    limits = TrialLimits(memory_mib=chosen.memory_mib, cpu_s=chosen.cpu_s)
    with_gradient = training.mode != ZEROTH_ORDER
    latency_s = try_model(
        loaded.folder, limits, with_gradient=with_gradient, threads=training.threads
    )
    if latency_s > manifest.latency_max * LATENCY_UNIT:
        raise ModelError(
            f"a step takes {latency_s * 1e3:.0f} ms, and the manifest allows "
            f"{manifest.latency_max} ms"
        )
    bundle, data = loaded.bundle, config.data
    if data.path is not None:
        open_folder(Path(data.path), bundle, npz_settings(data))
    if config.evaluate.path is None:
        _log.info("the release's loss is not judged: [evaluate] names no data for that")
        return
    held_out = open_folder(Path(config.evaluate.path), bundle, npz_settings(config.evaluate))
    loss = mean_loss(make_step(config, loaded), loaded, held_out, config.evaluate.samples_max)
    if not loss <= manifest.loss_max * LOSS_UNIT:  # so that NaN is refused
        raise ModelError(
            f"its loss on this board's held-out data is {loss:.4g}, and the manifest allows "
            f"{manifest.loss_max * LOSS_UNIT:.4g}"
        )


def mean_loss(step: Step, loaded: LoadedBundle, data: Dataset, samples_max: int) -> float:
    """The mean loss of the bundle's first adapter on at most `samples_max` samples of `data`.

    The last batch is filled up with the first samples: its size is fixed in the graph. ModelError
    where a gradient is not finite: nobody could learn with that, however good the loss is.
    """
    chosen = spread(len(data), samples_max)
    batch = loaded.bundle.batch
    chosen = np.resize(chosen, -(-len(chosen) // batch) * batch)
    losses, is_finite = [], True
    for start in range(0, len(chosen), batch):
        loss, gradient = step.run(loaded.initial, data.batch(chosen[start : start + batch]))
        losses.append(loss)
        is_finite &= bool(np.isfinite(gradient).all())
    mean = float(np.mean(losses))
    if np.isfinite(mean) and not is_finite:
        raise ModelError("its gradient on this board's held-out data is not finite")
    return mean


def report(standing: Standing, refused: Mapping[int, str]) -> dict[str, Any]:
    """What `ternmesh status` says of releases; `refused` are those that were never on trial."""
    return {
        "current": standing.current,
        "last_good": standing.last_good,
        "attempts": standing.attempts,
        "bad": [{"version": version, "reason": reason} for version, reason in standing.bad],
        "not_taken": [{"version": version, "reason": refused[version]} for version in refused],
    }


def passed_over(standing: Standing, installed: Collection[int]) -> list[int]:
    """Versions on the disk that are neither in use nor bad nor to come: a newer one was taken."""
    others = {standing.current, standing.last_good, *(version for version, _ in standing.bad)}
    return [version for version in installed if version <= standing.floor and version not in others]


def _named(version: int) -> str:
    return f"release {version}" if version else "the configured bundle"
