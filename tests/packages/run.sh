#!/usr/bin/env bash
# Tests Debian packages in a new Debian 12 that systemd-nspawn boots, without a network: tests/packages/run.sh FOLDER
# Prints a line for each check; the log of a failure follows. Needs root. KEEP=1 keeps the Debian.
set -euo pipefail
packages=$(realpath "$1")
cd "$(dirname "$0")"
if [ "$(id -u)" != 0 ]; then
    echo "tests/packages/run.sh needs root: run it with sudo" >&2
    exit 1
fi
root=$(mktemp -d "${TMPDIR:-/tmp}/packages.XXXXXX")
cleanup() {
    [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"
}
trap cleanup EXIT

sources=$(../../scripts/apt-sources.sh)
mapfile -t sources <<< "$sources"
mmdebstrap --quiet --variant=minbase \
    --include=systemd,systemd-sysv,dbus,iproute2,man-db,bash-completion,gcc,libc6-dev,pkg-config \
    bookworm "$root" "${sources[@]}"
for file in /etc/apt/apt.conf.d/99* /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || { mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"; }
done
mkdir "$root/packages"
cp "$packages"/*.deb "$root/packages"
cp inside.sh stuck.c "$root/packages"

# The same package as an older version, to be upgraded
old=$(mktemp -d)
dpkg-deb -R "$packages"/understudy_*.deb "$old"
sed -i 's/^Version: .*/Version: 0.1.9/' "$old/DEBIAN/control"
dpkg-deb -b "$old" "$root/packages/old.deb" > /dev/null
rm -r "$old"

# Dependencies come from the network, which only this step has.
chroot "$root" bash -c 'export DEBIAN_FRONTEND=noninteractive; apt-get update -qq
    apt-get install -y -qq --no-install-recommends /packages/old.deb /packages/libonepipe0_*.deb /packages/libonepipe-dev_*.deb \
        etcd-server etcd-client' \
    > "$root/packages/install.log" 2>&1 || { tail -n 20 "$root/packages/install.log"; exit 1; }

cat > "$root/etc/systemd/system/inside.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=300
ExecStart=/packages/inside.sh
ExecStopPost=systemctl poweroff --no-block
StandardOutput=append:/packages/results
StandardError=append:/packages/results
END
ln -s ../inside.service "$root/etc/systemd/system/multi-user.target.wants/inside.service"

# Two starts: the second one shows that an enabled instance comes back.
for boot in first second; do
    echo "$boot" > "$root/packages/boot"
    rm -f "$root/packages/$boot.passed"
    # DPDK asks /sys/module, which systemd-nspawn hides, for the modules of VFIO.
    timeout 400 systemd-nspawn --quiet --directory="$root" --boot --private-network --bind-ro=/sys/module --register=no --keep-unit \
        > "$root/packages/console.log" 2>&1 || true
    if [ ! -e "$root/packages/$boot.passed" ]; then
        cat "$root/packages/results" 2>/dev/null || tail -n 30 "$root/packages/console.log"
        exit 1
    fi
done
grep '^ok' "$root/packages/results"
