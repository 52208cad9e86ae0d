"""What is fuzzed: a target for each decoder, by name. Every module beside this one holds some."""

from collections.abc import Mapping

from bench.fuzz_targets import (
    bearers,
    codes,
    configs,
    desks,
    ends,
    files,
    gateways,
    keyed,
    links,
    machines,
    pipelines,
    programs,
    runs,
    seals,
    split,
    stores,
    trust,
    wire,
)
from bench.fuzz_targets.target import Target

_MODULES = (
    *(wire, codes, machines, bearers, programs, configs, stores, trust, seals, gateways, files),
    *(split, desks, ends, pipelines, keyed, links, runs),
)
TARGETS: Mapping[str, Target] = {
    target.name: target for module in _MODULES for target in module.TARGETS
}
