"""What is fuzzed: a target for each decoder, by name. Every module beside this one holds some."""

from collections.abc import Mapping

from bench.fuzz_targets import bearers, codes, machines, programs, stores, trust, wire
from bench.fuzz_targets.target import Target

TARGETS: Mapping[str, Target] = {
    target.name: target
    for module in (wire, codes, machines, bearers, programs, stores, trust)
    for target in module.TARGETS
}
