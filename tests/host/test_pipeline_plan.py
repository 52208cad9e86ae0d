"""What `pipeline plan` chooses for a link."""

from dataclasses import replace

import pytest

from host.pipeline.config import PipelineConfig
from host.pipeline.plan import CHOICES, describe, least, plan
from models.bottleneck.config import Shape

CONFIG = PipelineConfig(
    "state", stages=4, micro_batch=1, micro_batches=32, model=Shape(32_768, 2048, 16, 16, 1024)
)


def test_a_fast_link_needs_no_compression_and_a_slow_one_the_least_that_helps() -> None:
    assert least(plan(CONFIG, 1e5, 0.0, 30.0)).choice is CHOICES[0]
    home = plan(CONFIG, 80.0, 50.0, 30.0)
    assert least(home).choice is CHOICES[3]  # an eighth
    assert [row.tokens_per_s for row in home] == sorted(row.tokens_per_s for row in home)
    # What would lose more than training alone is never chosen.
    assert least(plan(CONFIG, 0.1, 50.0, 30.0)).choice is CHOICES[3]


def test_what_stays_on_a_machine_takes_no_time() -> None:
    four = replace(CONFIG, micro_batch=4)
    two = replace(four, addresses=("a:1", "a:2", "b:1", "b:2"))
    shares = [plan(config, 80.0, 50.0, 250.0)[2].busy for config in (four, two)]
    assert shares == pytest.approx([0.70, 0.92], abs=0.01)


def test_what_waits_for_the_round_trip_is_told_to_send_more_micro_batches() -> None:
    few = PipelineConfig("state", stages=4, micro_batch=1, micro_batches=4, model=CONFIG.model)
    said = describe(few, plan(few, 1000.0, 500.0, 30.0))
    assert "raise micro_batches (now 4)" in said
    assert said.count("<- the least") == 1
    assert "lost 0.28" in said
    assert "raise micro_batches" not in describe(CONFIG, plan(CONFIG, 1e5, 0.0, 30.0))
