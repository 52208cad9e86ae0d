"""One profile for all property tests: no deadline, as CI machines are shared."""

import pytest
from hypothesis import settings

settings.register_profile("daily", deadline=None, max_examples=40)
settings.register_profile("nightly", deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("nightly" if config.getoption("--nightly") else "daily")
