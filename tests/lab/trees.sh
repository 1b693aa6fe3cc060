# SPDX-License-Identifier: Apache-2.0
# Debian trees for the programs of the lab; sourced by them from the top of the project. All of it lies below .cache/lab.
# shellcheck shell=bash

lab=$PWD/.cache/lab
mirror=${MIRROR:-http://deb.debian.org/debian}
mkdir -p "$lab"

# Programs that run in a tree have its /tmp, not the directory of whoever runs the lab.
unset TMPDIR

# Of the Debian 13 that has newer peers and another kernel.
# python3-cffi-backend, here and below: debootstrap does not find what provides a virtual package.
trixie_packages="ca-certificates python3-venv python3-dev gcc libc6-dev libssl-dev libzstd-dev zlib1g-dev python3-pytest busybox-static kmod
    nfs-kernel-server nbd-client dmsetup e2fsprogs xfsprogs fio qemu-utils libnbd-bin libnbd-dev liburing-dev nbdkit iproute2 drbd-utils
    open-iscsi lvm2 thin-provisioning-tools zfsutils-linux ceph-common python3-cffi-backend"

# Status 77: cannot run here.
cannot() {
    echo "${0##*/}: $*" >&2
    exit 77
}

# needs PROGRAM...: as root. On Debian what is missing is installed.
needs() {
    [ "$(id -u)" = 0 ] || cannot "needs root"
    local program missing=()
    for program; do command -v "$program" >/dev/null || missing+=("$(package_of "$program")"); done
    if [ ${#missing[@]} != 0 ] && command -v apt-get >/dev/null; then
        echo "${0##*/}: installing ${missing[*]}"
        { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}"; } \
            >"$lab/apt.log" 2>&1 || cannot "apt-get failed: $(tail -n 1 "$lab/apt.log")"
    fi
    for program; do command -v "$program" >/dev/null || cannot "needs $program"; done
}

# The package of Debian 12 that has a program, where its name is another one.
package_of() {
    case $1 in
        systemd-nspawn) echo systemd-container ;;
        newuidmap) echo uidmap ;;
        rpmbuild) echo rpm ;;
        qemu-system-x86_64) echo qemu-system-x86 ;;
        mke2fs | debugfs) echo e2fsprogs ;;
        xml2-config) echo libxml2-dev ;;
        modprobe | depmod | modinfo) echo kmod ;;
        unshare | setpriv | nsenter) echo util-linux ;;
        xz) echo xz-utils ;;
        ip) echo iproute2 ;;
        go) echo golang-go ;;
        cargo) echo cargo-web ;; # Debian 12's newest
        *) echo "$1" ;;
    esac
}

# debian_tree SUITE NAME PACKAGE...: a tree with these packages, made once for each list of them by whoever needs it first.
debian_tree() {
    local tree=$lab/$2 packages
    packages=$(echo "${@:3}" | tr -s ' \n' ',')
    packages=${packages%,}
    {
        flock 9
        [ "$(cat "$tree/packages" 2>/dev/null)" = "$packages" ] || make_tree "$1" "$tree" "$packages"
    } 9>"$tree.lock"
}

make_tree() {
    local suite=$1 tree=$2 packages=$3
    rm -rf --one-file-system "$tree" "$tree.new"
    debootstrap --variant=minbase --components=main,contrib --include="$packages" "$suite" "$tree.new" "$mirror" >"$tree.log" ||
        { tail "$tree.log" >&2; return 1; }
    # As every installed machine has it.
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$tree.new/etc/hosts"
    # Authorities that this host trusts in addition, its proxy's for one.
    if [ -d "$tree.new/usr/local/share/ca-certificates" ]; then
        find /usr/local/share/ca-certificates -name '*.crt' -exec cp -t "$tree.new/usr/local/share/ca-certificates" {} +
        chroot "$tree.new" update-ca-certificates >>"$tree.log"
    fi
    echo "$packages" >"$tree.new/packages"
    mv "$tree.new" "$tree"
}

# copy_tree FROM TO: a tree that a program may change, without what an earlier run did.
copy_tree() {
    rm -rf "${lab:?}/$2"
    cp -a --reflink=auto "$lab/$1" "$lab/$2"
}

# copy_sources TO: this checkout as it is, without what was built.
copy_sources() {
    mkdir -p "$1"
    git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$1"
}

# build_twice DIST KIND...: packages of this checkout in DIST. Built again, elsewhere, the same commit gives the same bytes.
build_twice() {
    local dist=$1 again=$1-again
    rm -rf "$dist" "$again"
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH PACKAGES_CACHE=$PWD/.cache/packages
    DIST=$dist scripts/packages "${@:2}"
    copy_sources "$again"
    git -C "$again" init -q
    "$again/scripts/packages" "${@:2}"
    diff -r "$dist" "$again/dist"
    rm -rf "${again:?}"
}

# inside TREE COMMAND...: run a command in a tree, with this host's network and what its pip is told.
inside() {
    local variable tell=()
    for variable in PIP_CERT PIP_INDEX_URL; do
        [ -z "${!variable:-}" ] || tell+=("--setenv=$variable=${!variable}")
    done
    # /tmp on the disk, as on any Debian 12.
    SYSTEMD_NSPAWN_TMPFS_TMP=0 systemd-nspawn --quiet --register=no --keep-unit --as-pid2 --resolv-conf=copy-host "${tell[@]}" -D "$lab/$1" "${@:2}"
}

# A tree of this host's Debian with Ceph, where .venv of this checkout runs.
make_ceph_tree() {
    needs debootstrap unshare ip
    ceph_tree=$lab/ceph
    # shellcheck disable=SC1091
    debian_tree "$(. /etc/os-release && echo "$VERSION_CODENAME")" ceph ca-certificates python3 qemu-utils qemu-block-extra \
        libnbd-bin iproute2 procps ceph-mon ceph-mgr ceph-osd ceph-common python3-cffi-backend \
        libtcmalloc-minimal4 systemd systemd-sysv dbus python3-pytest openssl curl
}

# Programs that others wrote, which stand before the daemon, attack it, or are its clients and servers.
others_packages="python3 python3-cffi-backend python3-pytest iproute2 procps openssl curl qemu-utils
    nginx-light haproxy varnish squid h2o chromium chromium-driver
    testssl.sh sslscan slowhttptest
    rclone aria2 lftp wget2 axel fio fuse3 libnbd-bin nbdkit nbd-server nodejs
    virt-v2v nbdkit-plugin-python libguestfs-tools linux-image-cloud-amd64 busybox-static fdisk e2fsprogs"

# A tree of this host's Debian with them.
make_others_tree() {
    others_tree=$lab/others
    # shellcheck disable=SC2086  # one word for each package
    make_apt_tree others $others_packages
}

# libvirt, a kernel for its machines, and another program that backs them up.
backup_packages="python3 python3-cffi-backend python3-libvirt python3-libnbd iproute2 procps openssl qemu-utils qemu-system-x86
    libvirt-daemon-system libvirt-clients libnbd-bin busybox-static cpio kmod virtnbdbackup linux-image-cloud-amd64"

make_backup_tree() {
    backup_tree=$lab/backup
    # shellcheck disable=SC2086
    make_apt_tree backup $backup_packages
}

# make_apt_tree NAME PACKAGE...: a tree of this host's Debian with these packages. apt-get installs them: many need what
# only a virtual package provides. Nothing is started there.
make_apt_tree() {
    needs debootstrap unshare ip systemd-nspawn
    # shellcheck disable=SC1091
    debian_tree "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$1" ca-certificates
    {
        flock 9
        [ "$(cat "$lab/$1/$1" 2>/dev/null)" = "${*:2}" ] || add_packages "$@"
    } 9>"$lab/$1.lock"
}

add_packages() {
    printf '#!/bin/sh\nexit 101\n' >"$lab/$1/usr/sbin/policy-rc.d"
    chmod +x "$lab/$1/usr/sbin/policy-rc.d"
    inside "$1" sh -ec 'apt-get -q update; DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"' sh \
        "${@:2}" >"$lab/$1.log" 2>&1 || { tail "$lab/$1.log" >&2; return 1; }
    rm -rf "$lab/$1"/var/cache/apt/archives/*.deb
    echo "${*:2}" >"$lab/$1/$1"
}

# With the examples in its source package.
ovirt_sdk=ovirt-engine-sdk-python==4.6.3

# Programs of the package index for the tree: they run there, since it is this host's Debian. What cannot be had is told,
# and its checks are skipped by name.
make_others_venv() {
    others_venv=$lab/others-venv
    [ -x "$others_venv/bin/python" ] || .venv/bin/python -m venv --clear "$others_venv"
    local wanted
    needs xml2-config # for the SDK of oVirt
    for wanted in ovirt-imageio==2.5.1 "$ovirt_sdk" sslyze==6.3.1 tlslite-ng==0.8.2 redbot==2.7.1; do
        grep -qsxF "$wanted" "$others_venv/has" && continue
        if "$others_venv/bin/pip" -q --disable-pip-version-check install "$wanted" >"$others_venv.log" 2>&1; then
            echo "$wanted" >>"$others_venv/has"
        else
            echo "SKIP: $wanted cannot be installed: $(tail -n 1 "$others_venv.log")" >&2
        fi
    done
    # The browser's checks run in the same process as the others.
    .venv/bin/python -c 'import selenium' 2>/dev/null ||
        .venv/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt selenium ||
        echo "SKIP: selenium cannot be installed, so no browser is tried" >&2
}

# built NAME COMMAND...: a program of another language's index, below .cache/lab/NAME, which is made once for each command.
# What cannot be had is told, and its checks are skipped by name.
built() {
    local place=$lab/$1
    [ "$(cat "$place/made" 2>/dev/null)" = "${*:2}" ] && return
    rm -rf "$place"
    mkdir -p "$place"
    if (cd "$place" && "${@:2}") >"$place.log" 2>&1; then
        echo "${*:2}" >"$place/made"
    else
        echo "SKIP: $1 cannot be had: $(tail -n 1 "$place.log")" >&2
    fi
}

# A program that uses Rust's crate nbd.
make_nbd_crate() {
    needs cargo
    built nbd_crate cargo install --quiet --root . --path "$PWD/tests/lab/nbd_crate" --target-dir target
}

# Toxiproxy, a server in Go that spoils connections.
make_toxiproxy() {
    needs go
    built toxiproxy env GOBIN="$lab/toxiproxy" GOPATH="$lab/toxiproxy/go" GOFLAGS=-modcacherw \
        go install github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0
}

# The client that Xen Orchestra has for NBD. Of two of its dependencies, which it names and does not use, the index here has
# older versions only.
make_npm_client() {
    needs npm
    # shellcheck disable=SC2016  # for the shell in there
    built npm sh -ec 'echo "$1" >package.json; npm install --ignore-scripts --no-audit --no-fund' sh \
        '{"private": true, "dependencies": {"@vates/nbd-client": "3.6.0"},
          "overrides": {"@xen-orchestra/async-map": "0.1.4", "xen-api": "4.7.6"}}'
}

# The examples of oVirt's SDK.
make_ovirt_examples() { built ovirt_sdk fetch_ovirt_sdk "$ovirt_sdk"; }

fetch_ovirt_sdk() {
    "$others_venv/bin/pip" -q --disable-pip-version-check download --no-deps --no-binary :all: "$1" &&
        tar -xzf ./*.tar.gz --strip-components=1 && [ -e examples/upload_disk.py ]
}

# The system of libguestfs's virtual machines, made once: virt-v2v would make it at each run.
make_appliance() {
    [ -e "$others_tree/opt/appliance/README.fixed" ] ||
        inside others env LIBGUESTFS_BACKEND=direct libguestfs-make-fixed-appliance /opt/appliance >"$lab/appliance.log" 2>&1 ||
        echo "SKIP: no virtual machine for virt-v2v: $(tail -n 1 "$lab/appliance.log")" >&2
}

# The iotests of this host's qemu, from its source package. The export that they use is "", which here is a ticket, "disk".
make_qemu_iotests() {
    # shellcheck disable=SC1091
    built qemu_iotests fetch_qemu_iotests "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$mirror"
}

fetch_qemu_iotests() {
    mkdir -p lists/partial
    echo "deb-src $2 $1 main" >sources.list
    local options=(-q -o "Dir::Etc::sourcelist=$PWD/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::Lists=$PWD/lists"
        -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update && apt-get "${options[@]}" source --download-only qemu &&
        tar -xJf qemu_*.orig.tar.xz --strip-components=1 --wildcards '*/tests/qemu-iotests' '*/python' &&
        sed -i -e 's#nbd+unix:///?socket#nbd+unix:///disk?socket#' \
            -e 's#sleep 1 .*needs to be listening.*#until [ -e "$QEMU_TEST_DIR/qemu-nbd.pid" ]; do sleep 0.1; done#' \
            tests/qemu-iotests/common.rc &&
        sed -i 's#nbd+unix:///\\??socket#nbd+unix:///disk?socket#' tests/qemu-iotests/common.filter &&
        rm -rf lists ./*.tar.xz
}

# check_among_others NAME PYTEST-ARGUMENT...: check_in the tree of others.
check_among_others() { check_in "$others_tree" "$@"; }

# check_in TREE NAME PYTEST-ARGUMENT...: run tests/lab/NAME*_checks.py in a tree of this host's Debian. What a run makes there
# is in memory, or in directories that the next run makes anew. Its tables are printed at the end. DATA: MiB of data in images.
# The shell is the first process there, and reaps what daemons leave.
check_in() {
    local tree=$1 name=$2 status=0
    (within "$tree" .venv/bin/python -c "from ioutil_ext import lib") || cannot "needs .venv to be of this Debian's Python"
    rm -rf --one-file-system "$tree/scratch-$name" "$tree/results-$name"
    mkdir "$tree/scratch-$name" "$tree/results-$name"
    # shellcheck disable=SC2016  # for the shell in there
    within "$tree" env "RESULTS=/results-$name" "DATA=${DATA:-256}" \
        sh -c 'ip link set lo up; mount -t tmpfs shm /dev/shm; "$@"; exit $?' sh \
        .venv/bin/python -m pytest -c /dev/null --rootdir . --noconftest -p no:cacheprovider \
        --basetemp="/scratch-$name/tests" -v -rA --color=no \
        --junit-xml="/results-$name/$name.xml" "${@:3}" tests/lab/"$name"*_checks.py </dev/null &
    running=$!
    trap 'kill -9 "$running" 2>/dev/null' EXIT # and with it all that it has started
    wait "$running" || status=$?
    trap - EXIT
    cat "$tree/results-$name"/*.md
    [ "$status" = 0 ] || return "$status"
    rm -rf --one-file-system "$tree/scratch-$name"
    echo "$name: all as it should be"
}

# within TREE COMMAND...: run it in a tree of this host's Debian, with mounts, processes and a network of its own, which end with it.
within() {
    exec unshare --mount --net --pid --fork --kill-child sh -ec '
        mount --bind "$1" "$1" # as a root is a mount
        cd "$1"
        mount --rbind /dev dev
        mount --rbind /sys sys
        mount -t proc proc proc
        mount -t tmpfs run run
        mount -t tmpfs tmp tmp
        mkdir -p ".$2"
        mount --bind "$2" ".$2"
        cd "$2"; tree=$1; shift 2
        exec chroot "$tree" env -i -C "$PWD" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            HOME=/tmp LANG=C.UTF-8 "$@"
    ' sh "$1" "$PWD" "${@:2}"
}

# check_booted TREE CHECKS ARGUMENTS NSPAWN-OPTION...: run this file of tests/lab with pytest in a booted tree (ARGUMENTS:
# one word list), and show what it says. Its results are left in TREE/results.
check_booted() {
    local tree=$lab/$1 name=${2%_checks.py}
    mkdir -p "$tree/checks"
    cp -r tests "$tree/checks/" # without the package beside them, which has to be the installed one
    run_booted "$1" "cd /checks && PYTHONPATH=/checks python3 -m pytest -c /dev/null --rootdir /checks --noconftest \
        -p no:cacheprovider -v -rA --color=no --junit-xml=/results/$name.xml tests/lab/$2 $3" "${@:4}"
}

# run_booted TREE COMMAND NSPAWN-OPTION...: boot a tree as a container without a network, run a shell command in it, and
# show what it says. That is left in TREE/results, with the journal.
run_booted() {
    local tree=$lab/$1
    mkdir -p "$tree/results"
    echo "$2" >"$tree/results/command"
    cat >"$tree/etc/systemd/system/lab.service" <<END
[Unit]
SuccessAction=poweroff
FailureAction=poweroff
[Service]
Type=oneshot
TimeoutStartSec=900
ExecStart=/bin/sh -c 'sh /results/command >/results/log 2>&1; echo \$\$? >/results/status'
ExecStopPost=/bin/sh -c 'journalctl -o short-precise --no-pager >/results/journal'
[Install]
WantedBy=multi-user.target
END
    ln -sf ../lab.service "$tree/etc/systemd/system/multi-user.target.wants/lab.service"
    systemd-nspawn --quiet --boot --register=no --keep-unit --private-network "${@:3}" -D "$tree" \
        </dev/null >"$tree/results/console" 2>&1 || true
    cat "$tree/results/log"
    [ "$(cat "$tree/results/status")" = 0 ]
}
