# SPDX-License-Identifier: Apache-2.0
"""What is found of Ceph. Files are in its place here; tests/lab/ceph has a real one."""

import dataclasses
import os
from pathlib import Path

import pytest

from imageio_daemon.checks import ceph as checks
from imageio_daemon.checks.finding import Verdict
from imageio_daemon.config.config import Config
from tests.support.fakeceph import FakeCeph


@pytest.fixture
def ceph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCeph:
    made = FakeCeph(tmp_path / "ceph")
    monkeypatch.setenv("PATH", made.path)
    return made


def configured(*pools: str) -> Config:
    config = Config()
    return dataclasses.replace(config, backend_rbd=dataclasses.replace(config.backend_rbd, allowed_pools=pools))


def test_without_pools_nothing_is_asked(ceph: FakeCeph) -> None:
    assert not list(checks.cluster(configured(), []))


def test_pool_in_which_an_image_is_missed_can_be_reached(ceph: FakeCeph) -> None:
    (finding,) = checks.cluster(configured("pool"), [])
    assert finding.verdict is Verdict.OK, finding
    assert ceph.asked() == [
        {
            "driver": "rbd",
            "pool": "pool",
            "image": checks.NOBODYS,
            "conf": "/etc/ceph/ceph.conf",
            "user": "imageio",
        }
    ]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("error connecting: No such file or directory", "is there a key"),
        ("error opening pool pool: No such file or directory", "error opening pool"),
        ("error reading header from imageioctl check: Operation not permitted", "then: pool/NAMESPACE)"),
        ("Unknown driver 'rbd'", "qemu-block-extra"),
    ],
)
def test_pool_that_cannot_be_reached_has_failed(ceph: FakeCeph, said: str, told: str) -> None:
    ceph.fail(said)
    (finding,) = checks.cluster(configured("pool"), [])
    assert finding.verdict is Verdict.FAILED
    assert told in finding.text


def test_service_is_checked_not_the_environment_of_who_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "qemu-img").write_text('#!/bin/sh\necho "at \': $CEPH_ARGS|" >&2\nexit 1\n')
    (tmp_path / "qemu-img").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CEPH_ARGS", "--keyring /root/key")
    *_, finding = checks.cluster(configured("pool"), [])
    assert finding.text == "pool pool: |"


def test_missing_rbd_is_a_warning(ceph: FakeCeph) -> None:
    (ceph.bin / "rbd").unlink()
    warned, finding = checks.cluster(configured("pool"), [])
    assert (warned.verdict, finding.verdict) == (Verdict.WARNING, Verdict.OK)
    assert "ceph-common" in warned.text


def test_missing_qemu_img_has_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    *_, finding = checks.cluster(configured("pool"), [])
    assert (finding.verdict, "qemu-utils" in finding.text) == (Verdict.FAILED, True)


def test_cluster_without_an_answer_has_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "qemu-img").write_text("#!/bin/sh\nexec sleep 99\n")
    (tmp_path / "qemu-img").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(checks, "TIMEOUT", 0.1)
    *_, finding = checks.cluster(configured("pool"), [])
    assert "does not answer" in finding.text


def test_all_pools_and_images_are_asked_for_at_the_same_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each program waits for all of them, and fails if they do not come."""
    (tmp_path / "qemu-img").write_text(
        f"#!/bin/sh\ntouch {tmp_path}/asked-$$\n"
        f'while [ "$(ls {tmp_path} | grep -c asked-)" -lt 3 ]; do sleep 0.02; done\n'
    )
    (tmp_path / "qemu-img").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    findings = list(checks.cluster(configured("one", "two"), ["rbd:one/disk"]))[-3:]
    assert [finding.verdict for finding in findings] == [Verdict.OK] * 3


def test_image_is_found_or_not(ceph: FakeCeph) -> None:
    ceph.create("pool/disk", 1024)
    wrong = {"rbd:pool/never": "No such file", "rbd:other/disk": "allowed_pools", "rbd:": "expected"}
    _, found, *findings = checks.cluster(configured("pool"), ["rbd:pool/disk", *wrong])
    assert (found.check, found.verdict) == ("image", Verdict.OK)
    for finding, told in zip(findings, wrong.values(), strict=True):
        assert finding.verdict is Verdict.FAILED
        assert told in finding.text


def test_namespace_is_asked_for_in_the_place_of_its_pool(ceph: FakeCeph) -> None:
    ceph.create("pool/tenant/disk", 1024)
    reached, *images = checks.cluster(configured("pool/tenant"), ["rbd:pool/tenant/disk", "rbd:pool/disk"])
    assert (reached.verdict, "pool/tenant" in reached.text) == (Verdict.OK, True)
    assert [finding.verdict for finding in images] == [Verdict.OK, Verdict.FAILED]
    assert {asked["namespace"] for asked in ceph.asked()} == {"tenant"}
