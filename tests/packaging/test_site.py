"""The documents as a site: it is built strictly, README is its first page, nothing is left out."""

import re
from pathlib import Path

import pytest
import site_pages
from site_pages import make_site, reached
from tree import ROOT, PackageError

NAV = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
MISSING = "zensical is not installed: pip install 'ternmesh[docs]'"
DEEP = {
    Path("docs/results/2026-11-21-experiment_m3.md"),
    Path("docs/results/2026-11-29-experiments.md"),
    Path("models/zoo/fsdd/ATTRIBUTION.md"),
    Path("models/zoo/speech/ATTRIBUTION.md"),
}


def test_the_navigation_has_each_page_once_and_no_other() -> None:
    pages = {path for path in reached() if path.suffix == ".md"} - DEEP
    assert sorted(NAV) == sorted(map(str, pages))


def test_each_guide_is_reached_from_the_readme() -> None:
    guides = {path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")}
    assert guides <= reached()


def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason=MISSING)
    index = (make_site(tmp_path / "site") / "index.html").read_text()
    assert "Small computers learn together" in index
    assert 'href="docs/install.html"' in index
    assert 'src="docs/round.svg"' in index
    assert not re.findall(r'(?:src|rel="stylesheet" href)="https?:', index)  # nothing from others


@pytest.mark.parametrize("link", ["README.md#nowhere", "nowhere.png"])
def test_a_link_that_leads_nowhere_ends_the_build(link: str, tmp_path, monkeypatch) -> None:
    pytest.importorskip("zensical", reason=MISSING)
    monkeypatch.setattr(site_pages, "ROOT", tmp_path)
    (tmp_path / "mkdocs.yml").write_bytes((ROOT / "mkdocs.yml").read_bytes())
    (tmp_path / "README.md").write_text(f"# One page\n\n[a link]({link})\n")
    with pytest.raises(PackageError, match=r"does not exist|no file"):
        make_site(tmp_path / "site")


def test_a_folder_that_is_no_site_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(PackageError):
        make_site(tmp_path)
    assert (tmp_path / "letters.txt").exists()
