#!/usr/bin/env bash
# Checks the files in deploy/: manifests, configurations, the unit with its drop-in, scripts.
#   scripts/check_deploy.sh BUILD_FOLDER
# Keeps kubernetes-validate, which has the schemas of Kubernetes, in BUILD_FOLDER/check-deploy (144 MB from PyPI, once).
set -euo pipefail
program=$(realpath "$1/release/understudy")
tools=$(realpath "$1")/check-deploy
cd "$(dirname "$0")/.."
if [ ! -e "$tools/bin/kubernetes-validate" ]; then
    echo "installing: kubernetes-validate"
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check kubernetes-validate==1.37.0
fi
"$tools/bin/python" scripts/check_manifests.py

folder=$(mktemp -d "${TMPDIR:-/tmp}/check-deploy.XXXXXX")
trap 'rm -rf "$folder"' EXIT
fail() {
    echo "deploy/$*" >&2
    exit 1
}
sh -n deploy/kubernetes/start.sh
sh -n deploy/systemd/install.sh
sh -n deploy/systemd/understudy.cfg

# start.sh as in a pod, with `check` in place of `run`
ln -s "$program" "$folder/understudy"
start() { # VARIABLE=VALUE...
    env -i PATH="$folder:$PATH" XDG_RUNTIME_DIR="$folder" "$@" sh deploy/kubernetes/start.sh check \
        > "$folder/printed" 2>&1
}
host=PCIDEVICE_INTEL_COM_UNDERSTUDY_HOST
network=PCIDEVICE_INTEL_COM_UNDERSTUDY_NETWORK
start "$host=0000:3b:02.0" "${host}_INFO={\"0000:3b:02.0\":{}}" "$network=0000:3b:0a.0" || {
    cat "$folder/printed" >&2
    fail "kubernetes/rack.toml: understudy check refuses it"
}
for port in 'host +PCI 0000:3b:02.0' 'network +PCI 0000:3b:0a.0'; do
    grep -Eq "^$port " "$folder/printed" ||
        fail "kubernetes/start.sh does not give the ports their devices: $(cat "$folder/printed")"
done
for value in "" "0000:3b:02.0,0000:3b:02.1"; do
    ! start "$host=$value" "$network=0000:3b:0a.0" || fail "kubernetes/start.sh accepts '$value' as a device"
    grep -q "$host" "$folder/printed" || fail "kubernetes/start.sh: no message names $host"
done

# This machine may have other CPUs.
sed 's/^workers = .*/workers = ["any", "any"]/' deploy/systemd/rack.toml > "$folder/rack.toml"
"$program" check --quiet "$folder/rack.toml" || fail "systemd/rack.toml: understudy check refuses it"
cpus() { # PATTERN FILE
    sed -n "s/$1/\1/p" "$2" | tr -d ' '
}
workers=$(cpus '^workers = \[\(.*\)\].*' deploy/systemd/rack.toml)
isolated=$(cpus '.* isolcpus=\([0-9,]*\) .*' deploy/systemd/understudy.cfg)
[ -n "$workers" ] && [ "$workers" = "$isolated" ] ||
    fail "systemd/rack.toml has workers on other CPUs than systemd/understudy.cfg isolates"

# systemd reports an unknown key without an exit code.
units=$folder/units
mkdir -p "$units/understudy@rack.service.d"
sed "s|@PREFIX@/bin/understudy|$folder/understudy|" packaging/understudy@.service.in > "$units/understudy@.service"
install -m 644 deploy/systemd/pci.conf "$units/understudy@rack.service.d"
SYSTEMD_UNIT_PATH="$units:" systemd-analyze verify --man=no understudy@rack.service > "$folder/printed" 2>&1 ||
    fail "systemd/pci.conf: $(cat "$folder/printed")"
! grep understudy "$folder/printed" >&2 || fail "systemd/pci.conf: systemd-analyze verify reports the above"
sed "s|/usr/bin/understudy|$folder/understudy|" deploy/systemd/etcd.conf > "$units/understudy@rack.service.d/etcd.conf"
SYSTEMD_UNIT_PATH="$units:" systemd-analyze verify --man=no understudy@rack.service > "$folder/printed" 2>&1 ||
    fail "systemd/etcd.conf: $(cat "$folder/printed")"
! grep understudy "$folder/printed" >&2 || fail "systemd/etcd.conf: systemd-analyze verify reports the above"
echo "deploy/: start.sh, configurations and units are valid"
