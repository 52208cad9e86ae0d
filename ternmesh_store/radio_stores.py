"""What a radio keeps on disk beside the run: its link's state and its airtime."""

from dataclasses import dataclass
from pathlib import Path

from ternmesh.link.regions import SubBand
from ternmesh_store.airtime_budget import AirtimeBudget
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.link_store import LinkStore

LINK, AIRTIME = "link.db", "airtime.db"


@dataclass(frozen=True, slots=True)
class RadioStores:
    """The files of one device in its state folder."""

    folder: Path

    def beside(self, name: str) -> "RadioStores":
        """Those of a further radio of the device, called `name`: its airtime is its own."""
        return RadioStores(self.folder / f"link-{name}")

    def log(self) -> LinkStore:
        """The link's state, not opened yet."""
        return LinkStore(self.folder / LINK)

    def budget(self, band: SubBand, hold_s: float, speed: float) -> AirtimeBudget:
        """The airtime ledger of a sub-band."""
        return AirtimeBudget(AirtimeStore(self.folder / AIRTIME), band, hold_s=hold_s, speed=speed)
