"""`python -m bench NAME [--quick] [--keep]`: measure one claim. Exit code 0 when it ran."""

import argparse
import importlib

from bench.result import show

NAMES = (
    "demo",
    "bundle",
    "train_step",
    "footprint",
    "codec",
    "m3",
    "zeroth_order",
    "code",
    "link",
    "link_kill",
    "ble",
    "serial",
    "mqtt",
    "seal",
    "adversary",
    "rollback",
    "power_cut",
    "fuzz",
    "pipeline",
    "split",
    "convergence",
    "replicas",
    "pipeline_kill",
    "subspace",
)


def main() -> None:
    """Run the named benchmark, or regenerate the README's figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=(*NAMES, "readme"))
    parser.add_argument("--quick", action="store_true", help="a coarse answer in under a minute")
    parser.add_argument("--keep", action="store_true", help="write the result to docs/results/")
    parser.add_argument("--check", action="store_true", help="readme: only compare")
    parser.add_argument("--minutes", type=float, default=10.0, help="fuzz: for each decoder")
    parser.add_argument("--only", nargs="*", default=(), metavar="TARGET", help="fuzz: of these")
    parser.add_argument("--rtt-ms", type=float, help="pipeline: of the home link")
    parser.add_argument("--loss", type=float, help="pipeline: share of packets that it loses")
    arguments = parser.parse_args()
    module = importlib.import_module(f"bench.{arguments.name}")
    if arguments.name == "readme":
        module.main(check=arguments.check)
    elif arguments.name == "fuzz":
        result = module.measure(
            quick=arguments.quick, minutes=arguments.minutes, only=arguments.only
        )
        show(result, keep=arguments.keep)
    elif arguments.name == "pipeline":
        home = {"rtt_ms": arguments.rtt_ms, "loss": arguments.loss}
        given = {name: value for name, value in home.items() if value is not None}
        show(module.measure(quick=arguments.quick, **given), keep=arguments.keep)
    else:
        show(module.measure(quick=arguments.quick), keep=arguments.keep)


if __name__ == "__main__":
    main()
