"""One profile for all property tests: no deadline, as CI machines are shared."""

from hypothesis import settings

settings.register_profile("ternmesh", deadline=None)
settings.load_profile("ternmesh")
