"""Which run a host goes on with, and what a new run takes along from the one before.

A run of another plan, or of a model whose adapter has the same tensors, takes the global adapter
and the host's residual along. The host makes it version 1 of the new run.
"""

import logging
import os

from ternmesh.config import ConfigError
from ternmesh.model_package import ModelPackage, fits_adapter, keeps_adapter
from ternmesh.plan import Plan, run_length
from ternmesh_store.host_store import HostStore, LearnedRun, StoredRun

RUN_SIZE = 8

_log = logging.getLogger(__name__)


def continue_or_begin(
    store: HostStore,
    plan: Plan,
    package: ModelPackage,
    followed: tuple[bytes, Plan] | None = None,
    *,
    new_run: bool = False,
    after_end: bool = False,
) -> StoredRun:
    """The stored run if it has this model and plan; otherwise a new one takes its place, durably.

    On an aggregator, it is the run that is `followed`: of the host above, with its plan.
    The new one takes along what was learned, where it can (ConfigError, and nothing is changed), or
    with `new_run` begins from nothing. With `after_end`, a new one also follows a finished run.
    """
    model, key = package.model_hash(), package.adapter_key()
    stored = store.load(model)
    if followed is not None:
        is_stored = stored is not None and (stored.run, stored.plan) == followed
        return stored if stored and is_stored else store.begin(*followed, model, key)
    if stored is not None and stored.plan == plan and not (after_end and stored.state.finished):
        _log.info("run %s goes on at global update %d", stored.run.hex(), stored.state.version)
        if new_run:
            _log.warning(
                "--new-run changes nothing, because model and [run] are those of this run: to "
                "begin another run all the same, change a value of [run] besides"
            )
        elif stored.state.finished:
            _log.warning("it is finished: --continue begins another with what it has learned")
        return stored
    lost = store.learned()
    if new_run and lost:
        _log.warning("run %s is given up at global update %d", lost.run.hex(), lost.version)
    carried = None if new_run else _carried(lost, package, plan)
    is_first = not (new_run or stored or lost)
    begun = store.begin(os.urandom(RUN_SIZE), plan, model, key, is_first=is_first, carried=carried)
    _log.info("run %s begins: %s", begun.run.hex(), run_length(plan.rounds))
    return begun


def can_carry(run: LearnedRun | None, package: ModelPackage) -> bool:
    """Whether a run of this model can take along what was learned in `run`, if there is any."""
    if run is None or run.model == package.model_hash():
        return True
    return fits_adapter(run.adapter_key, package.adapter_key())


def _carried(run: LearnedRun | None, package: ModelPackage, plan: Plan) -> LearnedRun | None:
    """What a run of this model and plan takes along from `run`, which then ends.

    None where nothing was learned, or where the model differs only in its initial adapter.
    ConfigError where the adapter has other tensors, or the plan has no round to learn in.
    """
    if run is None:
        return None
    named = f"run {run.run.hex()}, which has reached global update {run.version}"
    if not can_carry(run, package):
        raise ConfigError(
            f"the model has changed since {named}, and its adapter has other tensors: bring the "
            "model back, or start once with --new-run to give up what was learned"
        )
    is_same = run.model == package.model_hash()
    if not is_same and not keeps_adapter(run.adapter_key, package.adapter_key()):
        _log.warning("the model begins with an adapter of its own, instead of that of %s", named)
        return None
    if plan.rounds == 1:
        raise ConfigError(
            "run.rounds is 1, and the first round takes along what was learned: set 2 or more, or "
            "start once with --new-run to give it up"
        )
    _log.warning("a new run takes along what was learned in %s", named)
    return run
