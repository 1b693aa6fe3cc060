# SPDX-License-Identifier: Apache-2.0
"""Read an image in memory and check its counts: another reader of the format than the engine, and faster than qemu-img.

It has what crash states need: no compressed clusters, no subclusters, no snapshots' content.
"""

import struct
from collections import Counter

OFFSET = 0x00FFFFFFFFFFFE00
COPIED = 1 << 63


def u64s(data: bytes | bytearray | memoryview, offset: int, count: int) -> tuple[int, ...]:
    """Return numbers; what is past the end reads as zeros."""
    part = bytes(data[offset : offset + 8 * count]).ljust(8 * count, b"\0")
    return struct.unpack(f">{count}Q", part)


class Checked:
    """What an image holds. `wrong`: what a later writer would destroy data by. `leaks`: clusters."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data
        head = struct.unpack_from(">IIQIIQIIQQIIQ", data)
        self.cluster = 1 << head[4]
        self.size = head[5]
        l1_size, l1_offset, self.table_offset, table_clusters, snapshots, snapshots_offset = head[7:13]
        self.order = int(struct.unpack_from(">I", data, 96)[0])
        self.wrong: list[str] = []
        self.uses: Counter[int] = Counter()
        self.copied: set[int] = set()
        self._use(0, 1, "header")
        self._use(l1_offset, -(-8 * l1_size // self.cluster), "L1")
        self._use(self.table_offset, table_clusters, "table")
        self.table = u64s(data, self.table_offset, table_clusters * self.cluster // 8)
        for block in self.table:
            if block:
                self._use(block, 1, "block")
        self.l1 = u64s(data, l1_offset, l1_size)
        self._walk(self.l1, active=True)
        self._snapshots(snapshots, snapshots_offset)
        self.leaks = self._compare()

    def _use(self, offset: int, clusters: int, what: str) -> None:
        first = offset // self.cluster
        if offset % self.cluster or offset >= len(self.data) + self.cluster:
            self.wrong.append(f"{what} at {offset:#x}")
        for number in range(first, first + clusters):
            self.uses[number] += 1

    def _walk(self, l1: tuple[int, ...], *, active: bool) -> None:
        for entry in l1:
            if not entry:
                continue
            self._use(entry & OFFSET, 1, "L2")
            self._mark(entry, active=active)
            for inner in u64s(self.data, entry & OFFSET, self.cluster // 8):
                if inner & OFFSET:
                    self._use(inner & OFFSET, 1, "data")
                    self._mark(inner, active=active)

    def _mark(self, entry: int, *, active: bool) -> None:
        if active and entry & COPIED:
            self.copied.add((entry & OFFSET) // self.cluster)

    def _snapshots(self, count: int, offset: int) -> None:
        at = offset
        for _ in range(count):
            l1_offset, l1_size, name, title = struct.unpack_from(">QIHH", self.data, at)
            extra = struct.unpack_from(">I", self.data, at + 36)[0]
            self._use(l1_offset, -(-8 * l1_size // self.cluster), "snapshot's L1")
            self._walk(u64s(self.data, l1_offset, l1_size), active=False)
            at += -(-(40 + extra + name + title) // 8) * 8
        if count:
            self._use(offset, -(-(at - offset) // self.cluster), "snapshots")

    def count_of(self, number: int) -> int:
        bits: int = 1 << self.order
        per_block = self.cluster * 8 // bits
        index, place = divmod(number, per_block)
        block = self.table[index] if index < len(self.table) else 0
        if not block:
            return 0
        if bits < 8:
            at = block + place * bits // 8
            byte = int(self.data[at]) if at < len(self.data) else 0
            return int(byte >> place * bits % 8 & ((1 << bits) - 1))
        at = block + place * bits // 8
        return int.from_bytes(bytes(self.data[at : at + bits // 8]).ljust(bits // 8, b"\0"), "big")

    def _compare(self) -> int:
        leaks = 0
        for number in range(-(-len(self.data) // self.cluster)):
            count, uses = self.count_of(number), self.uses[number]
            leaks += count > uses
            if count < uses:
                self.wrong.append(f"cluster {number} is used {uses} times and counted {count}")
            if count != 1 and number in self.copied:
                self.wrong.append(f"cluster {number} is marked as used once and counted {count}")
        self.wrong += [f"cluster {n} is past the end" for n in self.uses if n * self.cluster >= len(self.data)]
        return leaks

    def content(self, below: bytes = b"") -> bytearray:
        """Return what a guest reads. below: what the backing file has."""
        found = bytearray(below[: self.size].ljust(self.size, b"\0"))
        per_table = self.cluster // 8
        for index, entry in enumerate(self.l1):
            if not entry:
                continue
            for place, inner in enumerate(u64s(self.data, entry & OFFSET, per_table)):
                start = (index * per_table + place) * self.cluster
                end = min(start + self.cluster, self.size)
                if inner & 1:
                    found[start:end] = bytes(max(end - start, 0))
                elif inner & OFFSET and start < self.size:
                    host = inner & OFFSET
                    found[start:end] = bytes(self.data[host : host + end - start]).ljust(end - start, b"\0")
        return found
