# SPDX-License-Identifier: Apache-2.0
# A virtual machine with Debian 13's kernel and tree; sourced by programs of the lab after trees.sh.
# shellcheck shell=bash
# shellcheck disable=SC2154  # what trees.sh sets

# The kernel's package is unpacked, not installed: nothing has to boot from the tree. Debian has ZFS as source only: its
# modules are made in a copy of the tree, which needs the headers of the same kernel.
make_kernel() {
    local made=$lab/kernel.new
    [ ! -e "$lab/kernel/zfs" ] || return 0
    copy_tree trixie kernel-build
    # shellcheck disable=SC2016  # for the shell in there
    inside kernel-build sh -ec 'cd /root; apt-get -q update >/dev/null
        image=$(apt-cache depends linux-image-amd64 | sed -n "s/.*Depends: \(linux-image-[^ ]*\)$/\1/p" | head -n 1)
        apt-get -q download "$image"
        export DEBIAN_FRONTEND=noninteractive
        apt-get -q -y install --no-install-recommends "linux-headers-${image#linux-image-}" dkms build-essential >/root/log
        apt-get -q -y install --no-install-recommends zfs-dkms >>/root/log'
    rm -rf "$made"
    dpkg-deb -x "$lab"/kernel-build/root/linux-image-*.deb "$made"
    [ -e "$made/lib" ] || ln -s usr/lib "$made/lib"
    version=$(ls "$made/lib/modules")
    cp -r "$lab/kernel-build/lib/modules/$version/updates" "$made/lib/modules/$version/"
    depmod -b "$made" "$version"
    modinfo -b "$made" -k "$version" -F version zfs >"$made/zfs"
    rm -rf "$lab/kernel" "$lab/kernel-build"
    mv "$made" "$lab/kernel"
}

# An initrd that loads what the disk needs and goes on there.
make_initrd() {
    local ird=$machine/initrd number=10 module
    mkdir -p "$ird"/{bin,dev,modules,new}
    cp "$lab/trixie/bin/busybox" "$ird/bin/"
    for module in virtio_pci virtio_blk ext4; do
        modprobe -d "$lab/kernel" -S "$version" --show-depends "$module"
    done | awk '/^insmod/ && !seen[$2]++ {print $2}' | while read -r module; do
        number=$((number + 1))
        xz -dc "$module" >"$ird/modules/$number.ko"
    done
    cat >"$ird/init" <<'END'
#!/bin/busybox sh
for module in /modules/*; do /bin/busybox insmod $module; done
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t ext4 /dev/vda /new
exec /bin/busybox switch_root /new /checks/tests/lab/guest
END
    chmod +x "$ird/init"
    (cd "$ird" && find . | cpio -o -H newc --quiet | gzip -1) >"$machine/initrd.gz"
}

make_disk() {
    local name=${machine##*/}/vm tree=$machine/vm
    copy_tree trixie "$name"
    copy_sources "$tree/src"
    # Debian's pytest, and what the project says that it needs.
    inside "$name" sh -ec 'python3 -m venv --system-site-packages /opt/env; /opt/env/bin/pip -q install /src'
    mkdir "$tree/checks" "$tree/results"
    cp -r "$tree/src/tests" "$tree/checks/" # without the package beside them, which has to be the installed one
    cp -r "$lab/kernel/lib/modules" "$tree/lib/"
    rm -rf "$tree"/root/*.deb "$tree/var/lib/apt/lists" "$tree/var/cache/apt/archives"
    mke2fs -q -t ext4 -d "$tree" "$machine/disk.img" 4G
    rm -rf "$tree"
}

# machine RESULTS PYTEST-ARGUMENT...: what it changes on its first disk is forgotten; the second one has what is in this
# directory, and brings the results back. With MACHINE_NETWORK, the id of a process, it reaches what that process reaches.
# One thread for all processors: with one for each, QEMU 7.2 has run code that the guest's kernel was just patching.
machine() {
    local results=$1 there=() network=(-nic none)
    [ -z "${MACHINE_NETWORK:-}" ] || {
        there=(nsenter "--net=/proc/$MACHINE_NETWORK/ns/net")
        network=(-nic user,model=virtio-net-pci)
    }
    mkdir -p "$results"
    printf '%s\n' "${@:2}" >"$results/arguments"
    mke2fs -q -t ext4 -d "$results" "$results.img" 64M
    "${there[@]}" timeout 7200 qemu-system-x86_64 -accel tcg,thread=single -cpu max -smp 2 -m 2048 -nodefaults -display none -serial stdio -no-reboot \
        -kernel "$lab/kernel/boot/vmlinuz-$version" -initrd "$machine/initrd.gz" \
        -append "console=ttyS0 panic=-1 quiet no_timer_check" \
        -drive "file=$machine/disk.img,format=raw,if=virtio,snapshot=on" \
        -drive "file=$results.img,format=raw,if=virtio,cache=unsafe" "${network[@]}" \
        </dev/null | tee "$results.console"
    debugfs -R "rdump / $results" "$results.img" 2>/dev/null
    rm "$results.img"
    [ "$(cat "$results/status")" = 0 ]
}

# make_machine: all that machine() needs, for this program.
make_machine() {
    needs debootstrap systemd-nspawn git qemu-system-x86_64 mke2fs debugfs cpio modprobe depmod modinfo xz
    machine=$lab/machine-${0##*/}
    # shellcheck disable=SC2086  # one word for each package
    debian_tree trixie trixie $trixie_packages
    {
        flock 9
        make_kernel
    } 9>"$lab/kernel.lock"
    version=$(ls "$lab/kernel/lib/modules")
    rm -rf "$machine"
    mkdir "$machine"
    make_initrd
    make_disk
}
