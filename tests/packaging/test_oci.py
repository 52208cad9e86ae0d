"""The OCI image around small layers: its form, without the network."""

import gzip
import hashlib
import json
import tarfile
from pathlib import Path

import oci
import pytest
from tree import PackageError


@pytest.fixture
def small_layers(monkeypatch):
    monkeypatch.setattr(oci, "base_layer", lambda target, release, date, app: release.encode())
    monkeypatch.setattr(oci, "tree_layer", lambda target, date, app: target.arch.encode())


def parts(image: Path) -> dict[str, bytes]:
    with tarfile.open(image) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


@pytest.mark.usefixtures("small_layers")
def test_an_image_has_a_manifest_for_each_architecture(tmp_path):
    found = parts(oci.make_oci("3.11", ("amd64", "arm64"), tmp_path))

    def blob(entry):
        content = found[f"blobs/sha256/{entry['digest'].removeprefix('sha256:')}"]
        assert entry["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert entry["size"] == len(content)
        return content

    (image,) = json.loads(found["index.json"])["manifests"]
    manifests = json.loads(blob(image))["manifests"]
    assert [entry["platform"]["architecture"] for entry in manifests] == ["amd64", "arm64"]
    for entry in manifests:
        manifest = json.loads(blob(entry))
        packed = [blob(layer) for layer in manifest["layers"]]
        assert all(content[4:8] == bytes(4) for content in packed)  # gzip's time
        layers = [gzip.decompress(content) for content in packed]
        arch = entry["platform"]["architecture"]
        assert layers == [b"bookworm", arch.encode()]
        config = json.loads(blob(manifest["config"]))
        assert config["architecture"] == arch
        assert config["config"]["User"] == str(oci.UID)
        sums = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        assert config["rootfs"]["diff_ids"] == sums


@pytest.mark.usefixtures("small_layers")
def test_the_same_input_makes_the_same_image(tmp_path):
    first, second = (
        oci.make_oci("3.13", ("arm64",), tmp_path / name).read_bytes() for name in ("a", "b")
    )
    assert first == second


def test_a_python_that_no_debian_has_is_refused(tmp_path):
    with pytest.raises(PackageError, match=r"3\.11 or 3\.13"):
        oci.make_oci("3.12", ("arm64",), tmp_path)
