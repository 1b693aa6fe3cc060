#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
#
# The init of the guest of tests/lab/backup: it writes to its disks, and is the agent by which libvirt freezes file systems:
# frozen, it writes nothing, and tells the checksums of its disks on the console.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in /modules/*; do insmod "$module"; done

# port NAME: the device of a virtio channel.
port() {
    for found in /sys/class/virtio-ports/*; do
        [ "$(cat "$found/name")" = "$1" ] && echo "/dev/${found##*/}"
    done
}

# Whoever has the lock may write, or wants that nobody does.
lock() { until mkdir /lock 2>/dev/null; do sleep 0.05; done; }

write_disks() {
    number=0
    while :; do
        lock
        disk=$([ $((RANDOM % 3)) = 0 ] && echo vdb || echo vda)
        place=$(((RANDOM * 32768 + RANDOM) % ($(cat "/sys/block/$disk/size") / 128 - 4)))
        case $((RANDOM % 8)) in
            0) blkdiscard -o $((place * 65536)) -l 65536 "/dev/$disk" ;;
            1) dd if=/dev/zero of="/dev/$disk" bs=64k seek=$place count=2 conv=notrunc,fsync ;;
            2) dd if=/dev/urandom of="/dev/$disk" bs=512 seek=$((place * 128 + 3)) count=1 conv=notrunc,fsync ;;
            *) dd if=/dev/urandom of="/dev/$disk" bs=64k seek=$place count=$((RANDOM % 4 + 1)) conv=notrunc,fsync ;;
        esac 2>/tmp/error || echo "FAILED $disk $(cat /tmp/error)"
        number=$((number + 1))
        echo "WROTE $number"
        rmdir /lock
        sleep 0.02
    done
}

freeze() {
    [ -n "$frozen" ] && return
    lock
    frozen=yes
    sync
    echo 3 >/proc/sys/vm/drop_caches
    for disk in vda vdb; do echo "SUM $disk $(sha256sum <"/dev/$disk" | cut -c1-64)"; done
}

# With `held` on its command line the guest writes again, and the answer waits for a line on the channel lab.held.
thaw() {
    [ -n "$frozen" ] || return
    frozen=
    rmdir /lock
    echo THAWED
    # Nothing is read as long as nobody has connected to it.
    if grep -q held /proc/cmdline; then until read -r _ <&4; do sleep 0.1; done; fi
}

agent() {
    exec 3<>"$(port org.qemu.guest_agent.0)" 4<>"$(port lab.held)"
    frozen=
    echo READY
    while :; do
        read -r line <&3 || { sleep 0.1; continue; }
        id=$(echo "$line" | sed -n 's/.*"id": *\([0-9]*\).*/\1/p')
        case $line in
            *guest-sync-delimited*) printf '\377{"return": %s}\n' "$id" >&3 ;;
            *guest-sync*) echo "{\"return\": $id}" >&3 ;;
            *guest-fsfreeze-freeze*) freeze; echo '{"return": 1}' >&3 ;;
            *guest-fsfreeze-thaw*) thaw; echo '{"return": 1}' >&3 ;;
            *) echo '{"error": {"class": "CommandNotFound", "desc": "not here"}}' >&3 ;;
        esac
    done
}

until [ -b /dev/vda ] && [ -b /dev/vdb ] && [ -n "$(port org.qemu.guest_agent.0)" ] && [ -n "$(port lab.held)" ]; do sleep 0.1; done
write_disks &
agent
