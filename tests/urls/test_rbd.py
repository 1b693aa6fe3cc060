# SPDX-License-Identifier: Apache-2.0
import pytest

from imageio_daemon.errors import InvalidRequest
from imageio_daemon.urls.rbd import MAX_NAME, RbdAddress, is_name, is_rbd, parse


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("rbd:pool/image", RbdAddress("pool", "", "image", "")),
        ("rbd:pool/space/image", RbdAddress("pool", "space", "image", "")),
        ("rbd:pool/image@snap", RbdAddress("pool", "", "image", "snap")),
        ("rbd:pool/space/image@snap", RbdAddress("pool", "space", "image", "snap")),
        ("rbd:p:conf=x/i:id=admin", RbdAddress("p:conf=x", "", "i:id=admin", "")),
        ("rbd:p,q=1/--image=é \\ %2f", RbdAddress("p,q=1", "", "--image=é \\ %2f", "")),
    ],
)
def test_names_stand_for_themselves(url: str, address: RbdAddress) -> None:
    assert is_rbd(url)
    assert parse(url) == address
    assert str(address) == url


@pytest.mark.parametrize(
    "url",
    [
        "rbd:",
        "rbd:pool",
        "rbd:/image",
        "rbd:pool/",
        "rbd://pool/image",
        "rbd:pool//image",
        "rbd:pool/a/b/c",
        "rbd:pool/image@",
        "rbd:pool/image@a@b",
        "rbd:pool@a/image",
        "rbd:pool/image@a/b",
        "rbd:pool/ima\nge",
        "rbd:pool/ima\0ge",
        "rbd:pool/ima\x85ge",
        "rbd:pool/ima\u2028ge",
        "rbd:pool/ima\ud800ge",
        "rbd:pool/" + "é" * (MAX_NAME // 2 + 1),
        "rbd:pool/image\n",
        " rbd:pool/image",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="rbd:POOL"):
        parse(url)


def test_other_schemes_are_none() -> None:
    assert not is_rbd("rbdx:pool/image")
    assert not is_rbd("/rbd:pool/image")


def test_name_has_a_longest_length() -> None:
    assert is_name("a" * MAX_NAME)
    assert not is_name("a" * (MAX_NAME + 1))
    assert not is_name("")


def test_qemu_gets_each_name_by_itself() -> None:
    assert parse("rbd:p:conf=x/n/i,file=x@s").node("/etc/ceph.conf", "me") == {
        "driver": "rbd",
        "pool": "p:conf=x",
        "namespace": "n",
        "image": "i,file=x",
        "snapshot": "s",
        "conf": "/etc/ceph.conf",
        "user": "me",
    }
    assert parse("rbd:p/i").node() == {"driver": "rbd", "pool": "p", "image": "i"}


def test_no_name_becomes_an_option_of_rbd() -> None:
    assert parse("rbd:p/--help@-s").options("/c", "me") == [
        "--pool=p",
        "--image=--help",
        "--snap=-s",
        "--conf=/c",
        "--id=me",
    ]
