# SPDX-License-Identifier: Apache-2.0
"""imageioctl ticket add, list, show, extend, remove."""

import secrets
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from imageio_daemon.control import tickets
from imageio_daemon.control.arguments import parser
from imageio_daemon.control.service import ControlService
from tests.control.conftest import Ctl, run_on_terminal
from tests.support.daemon import Certificates, Daemon, now
from tests.support.images import MiB
from tests.support.polling import eventually


@pytest.fixture
def name(daemon: Daemon, image: Path) -> str:
    """The name of a ticket."""
    transfer = f"job-{secrets.token_hex(4)}"
    daemon.add_ticket(image, MiB, transfer_id=transfer)
    return transfer


def add(daemon: Daemon, ctl: Ctl, *arguments: str | Path) -> str:
    """Add a ticket and return its id."""
    done = ctl("ticket", "add", *arguments)
    assert done.status == 0, done
    ticket_id = done.out.strip()
    daemon.hide(ticket_id)
    return ticket_id


def listed(ctl: Ctl) -> list[str]:
    return [state["transfer"] for state in ctl("ticket", "list", "--json").json()]


# add


def test_add_takes_the_size_of_a_file(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    status = daemon.status(add(daemon, ctl, image))
    assert (status["size"], status["url"], status["ops"]) == (MiB, f"file://{image}", ["read", "write"])


def test_add_has_all_options(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    options = ("--size", "4K", "--write", "--timeout", "2m", "--inactivity-timeout", "7", "--sparse")
    names = ("--filename", "x.img", "--transfer-id", "job", "--dirty")
    status = daemon.status(add(daemon, ctl, *options, *names, image))
    wanted = {
        "size": 4096,
        "ops": ["write"],
        "timeout": 120,
        "inactivity_timeout": 7,
        "sparse": True,
        "filename": "x.img",
        "transfer_id": "job",
        "dirty": True,
    }
    assert status.items() >= wanted.items()


@pytest.mark.parametrize("option", ["--write", "--write-only"])
def test_ticket_that_writes_may_read(daemon: Daemon, ctl: Ctl, image: Path, option: str) -> None:
    ticket = add(daemon, ctl, option, image)
    assert daemon.status(ticket)["ops"] == ["write"]
    with daemon.connect("unix") as connection:
        assert connection.request("GET", f"/images/{ticket}").status == 200


def test_add_of_a_qcow2_takes_the_size_of_its_disk(daemon: Daemon, ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, "5M"], check=True)
    options = ("--format", "qcow2", "--bitmap", "b1", "--no-backing-chain", "--read-only", "--shared")
    status = daemon.status(add(daemon, ctl, *options, path))
    wanted = {"size": 5 * MiB, "format": "qcow2", "bitmap": "b1", "dirty": True, "backing_chain": False, "shared": True}
    assert status.items() >= wanted.items()
    assert status["ops"] == ["read"]


def test_add_of_an_image_on_ceph_takes_its_address(daemon: Daemon, ctl: Ctl) -> None:
    status = daemon.status(add(daemon, ctl, "--size", "5M", "--since", "s", "--read-only", "rbd:pool/image@t"))
    assert status.items() >= {"url": "rbd:pool/image@t", "since": "s", "dirty": True}.items()


def test_add_makes_a_path_absolute(daemon: Daemon, ctl: Ctl, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.chdir(image.parent)
    assert daemon.status(add(daemon, ctl, image.name))["url"] == f"file://{image}"


@pytest.mark.parametrize("given", [("--id", "ID"), ("--id", "-")], ids=" ".join)
def test_add_takes_an_id(daemon: Daemon, ctl: Ctl, image: Path, given: tuple[str, str]) -> None:
    ticket_id = secrets.token_hex(16)
    daemon.hide(ticket_id)
    done = ctl("ticket", "add", given[0], given[1].replace("ID", ticket_id), image, stdin=f"{ticket_id}\n")
    assert done.out == f"{ticket_id}\n"
    assert daemon.status(ticket_id)["size"] == MiB


def test_add_wants_one_id_on_standard_input(ctl: Ctl, image: Path) -> None:
    ctl("ticket", "add", "--id", "-", image, stdin="a\nb\n").failed_with("expected one id on standard input", 2)


def test_add_tells_the_name_as_json(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    (told,) = ctl("ticket", "add", "--json", image).json()
    daemon.hide(told["uuid"])
    assert daemon.status(told["uuid"])["transfer"] == told["transfer"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nbd:unix:/socket",), "--size is needed for an image that is no local path"),
        (("--format", "vmdk", "/images/x"), "--size is needed for vmdk"),
        (("/no/such/image",), "--size is needed: can't tell that of /no/such/image: No such file"),
        (("--format", "qcow2", "/etc/passwd"), "--size is needed: .*: this is no qcow2 image"),
    ],
    ids=["url", "format", "missing", "not qcow2"],
)
def test_add_needs_a_size_that_it_cannot_tell(ctl: Ctl, arguments: tuple[str, ...], reason: str) -> None:
    ctl("ticket", "add", *arguments).failed_with(reason, 2)


def test_add_tells_why_the_daemon_refuses(ctl: Ctl, image: Path) -> None:
    ctl("ticket", "add", "--filename", "a\tb", image).failed_with("400 Invalid ticket: 'filename' holds control", 1)


# list and show


def test_list_has_a_line_for_each_ticket_without_ids(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    ticket_id = daemon.add_ticket(image, MiB, transfer_id="of-the-list", ops=["read"])
    out = ctl("ticket", "list").out
    (line,) = [line for line in out.splitlines() if line.startswith("of-the-list ")]
    assert line.split()[1:4] == ["read", "1.0", "MiB"]
    assert ticket_id not in out
    assert ticket_id in ctl("ticket", "list", "--show-ids").out


def test_show_tells_all_but_the_id(daemon: Daemon, ctl: Ctl, image: Path, name: str) -> None:
    out = ctl("ticket", "show", name).out
    assert f"url: file://{image}\n" in out
    assert f"transfer: {name}\n" in out
    assert "uuid" not in out
    (state,) = ctl("ticket", "show", "--json", "--show-ids", name).json()
    assert daemon.status(state["uuid"]) | {"idle_time": 0} == state | {"idle_time": 0}


def test_show_does_not_tell_urls_of_other_servers(daemon: Daemon, ctl: Ctl) -> None:
    daemon.add_ticket("", MiB, url="https://host:1/images/secret-there", transfer_id="of-a-proxy")
    assert "secret-there" not in ctl("ticket", "show", "of-a-proxy").out
    assert "secret-there" in ctl("ticket", "show", "--show-ids", "of-a-proxy").out


def test_ids_come_on_standard_input(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    ids = [daemon.add_ticket(image, MiB, transfer_id=f"on-stdin-{number}") for number in range(2)]
    told = ctl("ticket", "show", "--json", "-", stdin="\n".join(ids)).json()
    assert [state["transfer"] for state in told] == ["on-stdin-0", "on-stdin-1"]


def test_names_cannot_change_the_terminal(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    daemon.add_ticket(image, MiB, transfer_id="\x1b[2Jname")
    assert "\\x1b[2Jname" in ctl("ticket", "list").out


@pytest.mark.parametrize("action", ["show", "extend", "remove"])
@pytest.mark.parametrize(
    ("given", "reason"), [(["nobody"], "no ticket has the name"), (["--id", "x"], "no such ticket")]
)
def test_unknown_ticket_has_a_status_of_its_own(ctl: Ctl, action: str, given: list[str], reason: str) -> None:
    ctl("ticket", action, *given).failed_with(reason, 3)


def test_name_of_several_tickets_is_refused(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    for _ in range(2):
        daemon.add_ticket(image, MiB, transfer_id="twice")
    ctl("ticket", "remove", "twice").failed_with("2 tickets have the name twice: use --id", 3)


def test_a_ticket_must_be_named(ctl: Ctl) -> None:
    ctl("ticket", "show").failed_with("which ticket", 2)


# extend and remove


def test_extend_lets_tickets_expire_later(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    ticket_id = daemon.add_ticket(image, MiB)
    assert ctl("ticket", "extend", "--timeout", "2h", "--id", ticket_id).status == 0
    assert daemon.status(ticket_id)["expires"] > now() + 7000


def test_remove_of_several(ctl: Ctl, daemon: Daemon, image: Path, name: str) -> None:
    ticket_id = daemon.add_ticket(image, MiB, transfer_id="another")
    told = ctl("ticket", "remove", "--json", name, "-", stdin=ticket_id).json()
    assert told == [{"transfer": name}, {"transfer": "another"}]
    assert not {name, "another"} & set(listed(ctl))


def test_all_takes_no_names(ctl: Ctl) -> None:
    ctl("ticket", "remove", "--all", "job").failed_with("--all is for all tickets", 2)


@pytest.mark.parametrize(("answer", "left"), [("yes", 0), ("", 2)])
def test_remove_of_all_asks_on_a_terminal(certificates: Certificates, image: Path, answer: str, left: int) -> None:
    with Daemon(certificates) as daemon:
        for _ in range(2):
            daemon.add_ticket(image, MiB)
        done = run_on_terminal("ticket", "remove", "--all", "--socket", daemon.control_socket, answer=answer)
        assert "Remove 2 tickets" in done.out
        assert done.status == (1 if left else 0)
        assert len(daemon.control("GET", "/tickets/").json()) == left


def test_remove_of_all_waits_for_the_answer_for_as_long_as_it_takes(
    certificates: Certificates, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Daemon(certificates, {"daemon": {"inactivity_timeout": 1}}) as daemon:
        daemon.add_ticket(image, MiB)

        def answer_late(_: str) -> str:
            ended = "connection ended client=unix"  # of the one that has added the ticket, and of the command's
            eventually(lambda: daemon.log.text().count(ended) == 2, "the daemon waits no longer")
            return "yes"

        monkeypatch.setattr("builtins.input", answer_late)
        monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
        options = parser().parse_args(["ticket", "remove", "--all", "--socket", daemon.control_socket])
        with ControlService(daemon.control_socket) as service:
            tickets.remove(options, service)
        assert daemon.control("GET", "/tickets/").json() == []


def test_remove_of_all_does_not_ask_a_script(certificates: Certificates, image: Path) -> None:
    with Daemon(certificates) as daemon:
        daemon.add_ticket(image, MiB)
        done = run_on_terminal("ticket", "remove", "--all", "--yes", "--socket", daemon.control_socket, answer="")
        assert (done.status, done.out) == (0, "")
        assert daemon.control("GET", "/tickets/").json() == []


# Names of files that are not UTF-8


def test_name_that_is_not_utf_8_is_told_in_ascii(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    named = image.with_name("d\udcefsk")
    image.rename(named)
    ticket_id = add(daemon, ctl, "--transfer-id", "no-utf-8", named)
    assert daemon.status(ticket_id)["url"] == f"file://{named}"
    assert ctl("ticket", "show", "no-utf-8", "--json").json()[0]["url"] == f"file://{named}"
    for command in (("show", "no-utf-8"), ("list",)):
        done = ctl("ticket", *command)
        assert done.status == 0, done
    assert r"d\xefsk" in ctl("ticket", "show", "no-utf-8").out


def test_name_that_is_not_utf_8_and_leads_nowhere_is_told(ctl: Ctl, tmp_path: Path) -> None:
    done = ctl("ticket", "add", tmp_path / "d\udcefsk")
    assert (done.status, "--size is needed" in done.err, r"d\xefsk" in done.err) == (2, True, True)


def test_output_is_escaped_where_it_has_no_such_letters(
    daemon: Daemon, ctl: Ctl, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = image.with_name("d\u00efsk")
    image.rename(named)
    add(daemon, ctl, "--transfer-id", "ascii", named)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert r"d\xefsk" in ctl("ticket", "show", "ascii").out
