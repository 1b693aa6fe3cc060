# SPDX-License-Identifier: Apache-2.0
"""PATCH finalize, and GET of its state: the image is compared, and then nothing changes it through the ticket."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Answer, Connection
from tests.support.images import Image, MakeImage, MiB, make_image, pattern
from tests.support.places import Trait, needs
from tests.support.polling import eventually

CONTENT = pattern(9 * MiB + 12_345)
BLOCK = 4 * MiB


def blocks_of(content: bytes, block_size: int = BLOCK) -> list[bytes]:
    blocks = (content[start : start + block_size] for start in range(0, len(content), block_size))
    return [hashlib.blake2b(block, digest_size=32).digest() for block in blocks]


def checksum_of(content: bytes, *, blocks: bool = False, block_size: int = BLOCK) -> dict[str, Any]:
    digests = blocks_of(content, block_size)
    whole = hashlib.blake2b(b"".join(digests), digest_size=32).hexdigest()
    told: dict[str, Any] = {"algorithm": "blake2b", "block_size": block_size, "checksum": whole}
    return told | ({"blocks": [digest.hex() for digest in digests]} if blocks else {})


def finalize(client: Connection, url: str, checksum: dict[str, Any]) -> Answer:
    return client.patch(url, {"op": "finalize", "checksum": checksum})


def state(client: Connection, url: str) -> dict[str, Any]:
    told: dict[str, Any] = client.get(f"{url}/finalize").json()
    return told


@pytest.mark.every_kind
@pytest.mark.parametrize("blocks", [False, True])
def test_an_image_that_is_what_was_sent_is_verified_by_reading(
    client: Connection, new_image: MakeImage, blocks: bool
) -> None:
    image = new_image(CONTENT)
    answer = finalize(client, image.url, checksum_of(CONTENT, blocks=blocks))
    report = {**checksum_of(CONTENT), "size": len(CONTENT), "verified": "read"}
    assert (answer.status, answer.json()) == (200, report)
    assert state(client, image.url) == {"state": "finalized", **report}


@pytest.mark.parametrize("algorithm", ["sha256", "blake2s"])
@pytest.mark.parametrize("block_size", [MiB, 16 * MiB])
def test_any_checksum_of_the_server_is_accepted(
    client: Connection, new_image: MakeImage, algorithm: str, block_size: int
) -> None:
    image = new_image(CONTENT)
    told = client.get(f"{image.url}/checksum?algorithm={algorithm}&block_size={block_size}").json()
    assert finalize(client, image.url, told).status == 200


@pytest.mark.every_kind
def test_what_was_written_before_is_compared(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=len(CONTENT))
    assert client.put(f"{image.url}?flush=n", CONTENT).status == 200
    assert finalize(client, image.url, checksum_of(CONTENT)).status == 200


def test_blocks_that_differ_are_named_and_the_image_stays_writable(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    wrong = bytearray(CONTENT)
    wrong[0] ^= 1
    wrong[-1] ^= 1
    answer = finalize(client, image.url, checksum_of(bytes(wrong), blocks=True))
    assert (answer.status, answer.json()) == (409, {**checksum_of(CONTENT), "mismatch": [0, 2]})
    assert answer.code == "mismatch"
    assert state(client, image.url) == {"state": "mismatch", **answer.json()}
    assert client.put(image.url, bytes(wrong)).status == 200
    assert finalize(client, image.url, checksum_of(bytes(wrong), blocks=True)).status == 200


def test_without_a_list_of_blocks_only_the_checksum_is_told(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    answer = finalize(client, image.url, checksum_of(CONTENT[:-1] + b"\0"))
    assert (answer.status, answer.json()) == (409, {**checksum_of(CONTENT), "mismatch": []})


@pytest.mark.parametrize(("length", "mismatch"), [(5 * MiB, [1, 2]), (20 * MiB, [2, 3])])
def test_the_first_block_that_only_one_side_has_is_named(
    client: Connection, new_image: MakeImage, length: int, mismatch: list[int]
) -> None:
    image = new_image(CONTENT)
    answer = finalize(client, image.url, checksum_of(CONTENT.ljust(length, b"\0")[:length], blocks=True))
    assert (answer.status, answer.json()["mismatch"]) == (409, mismatch)


@pytest.mark.every_kind
def test_a_finalized_image_is_read_and_not_changed(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(CONTENT)
    assert finalize(client, image.url, checksum_of(CONTENT)).status == 200
    for method, body in (
        ("PATCH", b'{"op": "zero", "size": 4096}'),
        ("PATCH", b'{"op": "flush"}'),
        ("PUT", b"change"),
    ):
        with daemon.connect("unix") as other:
            assert other.request(method, image.url, None, body).status == 403
    assert client.get(image.url).body == CONTENT
    answer = client.request("OPTIONS", image.url)
    told = answer.json()
    assert answer.headers["Allow"] == "OPTIONS,GET"
    assert told["finalized"]
    assert not {"zero", "flush"} & set(told["features"])
    assert "finalize" in told["features"]
    assert daemon.status(image.ticket)["finalized"]


def test_other_connections_cannot_change_it_either(daemon: Daemon, new_image: MakeImage, service_name: str) -> None:
    image = new_image(CONTENT)
    with daemon.connect(service_name) as writer, daemon.connect(service_name) as client:
        assert writer.put(f"{image.url}?flush=n", CONTENT[:4096]).status == 200
        assert finalize(client, image.url, checksum_of(CONTENT)).status == 200
        assert writer.put(f"{image.url}?flush=n", b"change").status == 403
    assert image.read(0, 4096) == CONTENT[:4096]


def test_other_connections_go_on_reading(daemon: Daemon, new_image: MakeImage, service_name: str) -> None:
    image = new_image(CONTENT)
    with daemon.connect(service_name) as reader, daemon.connect(service_name) as client:
        assert reader.get(image.url).body == CONTENT
        assert finalize(client, image.url, checksum_of(CONTENT)).status == 200
        assert reader.get(image.url).body == CONTENT


def test_the_same_finalize_again_gets_the_same_answer(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    first = finalize(client, image.url, checksum_of(CONTENT, blocks=True))
    second = finalize(client, image.url, checksum_of(CONTENT))
    assert (first.status, first.json()) == (second.status, second.json())


def test_another_finalize_of_a_finalized_image_is_refused(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    finalize(client, image.url, checksum_of(CONTENT))
    for other in (checksum_of(CONTENT[1:]), checksum_of(CONTENT, block_size=MiB)):
        answer = finalize(client, image.url, other)
        assert (answer.status, answer.text) == (409, "The image is finalized with another checksum\n")


def test_an_image_that_was_not_finalized_is_open(client: Connection, image: Image) -> None:
    assert state(client, image.url) == {"state": "open"}


def test_an_empty_image_is_finalized(client: Connection, new_image: MakeImage) -> None:
    assert finalize(client, new_image(size=0).url, checksum_of(b"")).status == 200


@needs(Trait.ZEROS)
def test_an_empty_disk_of_1_tib_is_finalized_at_once(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=1024**4)
    told = client.get(f"{image.url}/checksum").json()
    assert finalize(client, image.url, told).status == 200


# What is refused


@pytest.mark.parametrize("ops", [["read"], []])
def test_a_ticket_that_may_write_is_needed(client: Connection, new_image: MakeImage, ops: list[str]) -> None:
    image = new_image(CONTENT, ops=ops)
    assert finalize(client, image.url, checksum_of(CONTENT)).status == 403


@pytest.mark.parametrize("length", [10, 100_000])
def test_strangers_are_refused(client: Connection, length: int) -> None:
    answer = finalize(client, "/images/unknown", checksum_of(CONTENT) | {"x": "x" * length})
    assert answer.status == 403


@pytest.mark.parametrize(
    "checksum",
    [
        None,
        [],
        "",
        {},
        {"checksum": 1},
        {"checksum": "00"},
        {"checksum": "g" * 64},
        {"checksum": "é" * 64},
        {"checksum": " " * 64},
        {"checksum": "0" * 64, "algorithm": "md6"},
        {"checksum": "0" * 64, "algorithm": ["blake2b"]},
        {"checksum": "0" * 64, "algorithm": "sha1"},
        {"checksum": "0" * 64, "block_size": 4096},
        {"checksum": "0" * 64, "block_size": True},
        {"checksum": "0" * 64, "block_size": "4194304"},
        {"checksum": "0" * 64, "blocks": "0" * 64},
        {"checksum": "0" * 64, "blocks": ["00"]},
        {"checksum": "0" * 64, "blocks": [0]},
        {"checksum": "0" * 64, "blocks": ["0" * 64]},
    ],
)
def test_malformed_checksums_are_refused(client: Connection, image: Image, checksum: Any) -> None:
    assert finalize(client, image.url, checksum).status == 400
    assert client.put(image.url, b"data").status == 200, "and the image stays writable"


@needs(Trait.HOLES)
def test_as_many_blocks_as_fit_into_1_mib_are_read(client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=15_000 * MiB)
    told = client.get(f"{image.url}/checksum?block_size={MiB}").json()
    zeros = hashlib.blake2b(bytes(MiB), digest_size=32).hexdigest()
    answer = finalize(client, image.url, told | {"blocks": [zeros] * 15_000})
    assert answer.status == 200
    assert finalize(client, image.url, told | {"blocks": [zeros] * 16_000}).status == 413


@pytest.mark.parametrize("path", ["PUT", "PATCH", "POST", "DELETE"])
def test_the_state_is_only_read(client: Connection, image: Image, path: str) -> None:
    assert client.request(path, f"{image.url}/finalize", None, b"{}").status == 405


# While it runs


@pytest.fixture
def slow(make_daemon: MakeDaemon) -> Daemon:
    """A daemon that does not wait for results."""
    return make_daemon(program="tests.support.slowfinalize")


@pytest.fixture
def slow_image(slow: Daemon, tmp_path: Path) -> Image:
    return make_image(slow, tmp_path)(CONTENT)


def hold(slow: Daemon) -> Path:
    """Let verifications wait until the file is removed."""
    held = slow.directory / "held"
    held.touch()
    return held


def test_a_long_one_is_answered_202_and_its_state_is_told(slow: Daemon, slow_image: Image) -> None:
    held = hold(slow)
    with slow.connect("unix") as client:
        answer = finalize(client, slow_image.url, checksum_of(CONTENT))
        running = {"state": "verifying", **checksum_of(CONTENT), "done": 0, "size": len(CONTENT)}
        assert (answer.status, answer.json()) == (202, running)
        assert state(client, slow_image.url) == running
        held.unlink()
        eventually(lambda: state(client, slow_image.url)["state"] == "finalized", "it is finalized")
        assert finalize(client, slow_image.url, checksum_of(CONTENT)).status == 200


def test_it_is_not_told_as_finalized_before_that_is_kept(slow: Daemon, slow_image: Image) -> None:
    unkept = slow.directory / "unkept"
    unkept.touch()
    with slow.connect("unix") as client:
        assert finalize(client, slow_image.url, checksum_of(CONTENT)).status == 202
        eventually(lambda: slow.status(slow_image.ticket).get("finalized"), "it is compared")
        assert state(client, slow_image.url)["state"] == "verifying"
        unkept.unlink()
        eventually(lambda: state(client, slow_image.url)["state"] == "finalized", "it is kept")


def test_changes_are_refused_while_it_runs_and_allowed_after_a_mismatch(slow: Daemon, slow_image: Image) -> None:
    held = hold(slow)
    with slow.connect("unix") as client, slow.connect("unix") as writer:
        assert writer.put(f"{slow_image.url}?flush=n", CONTENT[:4096]).status == 200
        assert finalize(client, slow_image.url, checksum_of(CONTENT[1:])).status == 202
        for refused in (
            writer.put(f"{slow_image.url}?flush=n", b"change"),
            client.patch(slow_image.url, {"op": "zero", "size": 4096}),
        ):
            assert (refused.status, refused.text) == (409, "The image is being verified\n")
            assert refused.code == "in_use"
        assert client.get(slow_image.url).body == CONTENT
        held.unlink()
        eventually(lambda: state(client, slow_image.url)["state"] == "mismatch", "it is compared")
        assert client.put(f"{slow_image.url}?flush=n", b"change").status == 200
    assert slow_image.read(0, 6) == b"change"


def test_one_verification_runs_at_a_time_whatever_is_asked_for(slow: Daemon, slow_image: Image) -> None:
    held = hold(slow)
    with slow.connect("unix") as client:
        assert finalize(client, slow_image.url, checksum_of(CONTENT)).status == 202
        assert finalize(client, slow_image.url, checksum_of(CONTENT)).status == 202
        answer = finalize(client, slow_image.url, checksum_of(CONTENT[1:]))
        assert (answer.status, answer.text) == (409, "The image is being compared with another checksum\n")
        held.unlink()
        eventually(lambda: state(client, slow_image.url)["state"] == "finalized", "it is finalized")


def test_a_write_that_runs_ends_first(slow: Daemon, slow_image: Image) -> None:
    with slow.connect("unix") as client, slow.connect("unix") as writer:
        head = f"PUT {slow_image.url} HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n"
        writer.sock.sendall(head.encode() + b"last")
        eventually(lambda: slow.status(slow_image.ticket)["active"], "the write runs")
        content = b"last one" + CONTENT[8:]
        assert finalize(client, slow_image.url, checksum_of(content)).status == 202
        writer.sock.sendall(b" one")
        assert writer.receive().status == 200
        eventually(lambda: state(client, slow_image.url)["state"] == "finalized", "it is finalized")


def test_removal_of_the_ticket_ends_it(slow: Daemon, slow_image: Image) -> None:
    with slow.connect("unix") as client, slow.connect("unix") as writer:
        writer.sock.sendall(f"PUT {slow_image.url} HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nlast".encode())
        eventually(lambda: slow.status(slow_image.ticket)["active"], "the write runs")
        assert finalize(client, slow_image.url, checksum_of(CONTENT)).status == 202
        assert slow.control("DELETE", f"/tickets/{slow_image.ticket}").status == 204


def test_many_finalizes_of_one_checksum_get_one_answer(daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(CONTENT)

    def once(_: int) -> int:
        with daemon.connect("unix") as client:
            return finalize(client, image.url, checksum_of(CONTENT)).status

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(once, range(8))) == {200}


# After a restart


@pytest.mark.parametrize("end", [Daemon.stop, Daemon.kill])
def test_it_stays_finalized_after_a_restart(
    make_daemon: MakeDaemon, tmp_path: Path, end: Callable[[Daemon], object]
) -> None:
    own = make_daemon(daemon={"state_dir": tmp_path / "state"})
    image = make_image(own, tmp_path)(CONTENT)
    with own.connect("unix") as client:
        first = finalize(client, image.url, checksum_of(CONTENT))
    end(own)
    own.restart()
    with own.connect("unix") as client:
        again = finalize(client, image.url, checksum_of(CONTENT))
        assert (again.status, again.json()) == (first.status, first.json()) == (200, again.json())
        assert state(client, image.url)["state"] == "finalized"
        assert client.put(image.url, b"change").status == 403


@needs(Trait.HERE)
def test_a_ticket_that_is_installed_again_may_write(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(CONTENT)
    finalize(client, image.url, checksum_of(CONTENT))
    daemon.add_ticket(image.path, len(CONTENT), uuid=image.ticket, **image.place.where)
    assert client.put(image.url, b"change").status == 200
