#!/usr/bin/env bash
# Installs missing Debian packages and cargo tools of the groups that are named:
#   deps.sh [build] [test] [demo] [e2e] [bench] [instructions] [etcd] [pgo] [fresh] [deb] [test-deb] [image] [test-image]
#           [check-deploy] [lint] [mutants] [mutants-of-a-file]
# Prints nothing if nothing is missing. Uses sudo unless it runs as root.
set -euo pipefail

declare -A packages=(
    [build]="build-essential pkg-config libclang-dev libdpdk-dev"
    [test]="python3 tshark"
    [demo]="python3"
    [e2e]="python3 build-essential qemu-system-x86 iproute2 iputils-ping ethtool procps tcpdump cpio busybox-static xz-utils mmdebstrap e2fsprogs"
    [bench]="dpdk-dev"
    [instructions]="valgrind"
    [etcd]="etcd-server protobuf-compiler libprotobuf-dev"
    [pgo]=""
    [fresh]="mmdebstrap"
    [deb]="debhelper git lintian python3"
    [test-deb]="mmdebstrap systemd-container"
    [image]="mmdebstrap python3 uidmap"
    [test-image]="podman iproute2"
    [check-deploy]="python3-venv systemd"
    [lint]=""
    [mutants]=""
    [mutants-of-a-file]=""
)

# The version that belongs to the compiler
if [[ " $* " == *" pgo "* ]] && ! "$(dirname "$0")/pgo.sh" --tool >/dev/null 2>&1; then
    llvm=llvm-$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
    ! apt-cache show "$llvm" >/dev/null 2>&1 || packages[pgo]=$llvm
fi

missing=()
# Debian 12's rustc is too old for this workspace; its rustc-web, with which browsers are built, is not.
command -v cargo >/dev/null || missing+=(cargo-web rustc-web)
for group in "$@"; do
    for package in ${packages[$group]}; do
        if ! dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then
            missing+=("$package")
        fi
    done
done
if ((${#missing[@]})); then
    echo "installing: ${missing[*]}"
    sudo=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || { echo "scripts/deps.sh: cannot install packages: not root, and sudo is missing; install them as root, or run this as root" >&2; exit 1; }
        sudo=(sudo)
    fi
    export DEBIAN_FRONTEND=noninteractive
    # Debian starts etcd when it is installed; the tests start servers of their own.
    had_etcd=$(command -v etcd || true)
    "${sudo[@]}" apt-get update -q
    "${sudo[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"
    if [ -z "$had_etcd" ] && command -v etcd >/dev/null && [ -d /run/systemd/system ]; then
        "${sudo[@]}" systemctl disable --now etcd
    fi
fi

# Without default features: manifests and licences are checked; advisories, which need the network, are not.
if [[ " $* " == *" lint "* ]] && ! cargo deny --version >/dev/null 2>&1; then
    echo "installing: cargo-deny (this takes a few minutes, once)"
    cargo install --locked --no-default-features cargo-deny
fi

if [[ " $* " == *" mutants "* ]] && ! cargo nextest --version >/dev/null 2>&1; then
    echo "installing: cargo-nextest (this takes a few minutes, once)"
    cargo install --locked cargo-nextest
fi

if [[ " $* " == *" mutants-of-a-file "* ]] && ! cargo mutants --version >/dev/null 2>&1; then
    echo "installing: cargo-mutants (this takes a few minutes, once)"
    cargo install --locked cargo-mutants
fi
