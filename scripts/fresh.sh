#!/usr/bin/env bash
# Runs commands in a clone of this repository's HEAD inside a fresh minimal Debian 12, with nothing installed but git, make
# and ca-certificates. This shows which packages scripts/deps.sh fails to install. Needs root (chroot, mounts).
#   scripts/fresh.sh [COMMAND...]        default: 'make run' 'make test', some 25 minutes on two cores
# Prints a line for each command, with its exit code and seconds; for a failed one, the last 20 lines of its output before
# that. KEEP=1 keeps the folder.
set -euo pipefail
cd "$(dirname "$0")/.."
(($#)) || set -- 'make run' 'make test'
if [ "$(id -u)" != 0 ]; then
    echo "scripts/fresh.sh needs root: run it with sudo" >&2
    exit 1
fi
scripts/deps.sh fresh
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "warning: uncommitted changes are not part of the clone; commit them to test them" >&2
fi

root=$(mktemp -d "${TMPDIR:-/tmp}/fresh.XXXXXX")
cleanup() {
    # Unmount first: otherwise rm would remove this machine's devices.
    for mount in proc sys dev; do
        if mountpoint -q "$root/$mount"; then
            umount -R "$root/$mount" 2>/dev/null || umount -l "$root/$mount"
        fi
    done
    [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"
}
trap cleanup EXIT

# Uses the package and crate sources of this machine.
sources=$(scripts/apt-sources.sh)
mapfile -t sources <<< "$sources"
mmdebstrap --quiet --variant=minbase --include=ca-certificates,git,make bookworm "$root" "${sources[@]}"
for file in /etc/apt/apt.conf.d/99* /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || cp -L "$file" "$root$file"
done
cargo_config=${CARGO_HOME:-$HOME/.cargo}/config.toml
[ ! -e "$cargo_config" ] || install -D "$cargo_config" "$root/root/.cargo/config.toml"
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
git clone -q . "$root/src/understudy"

environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8)
while read -r variable; do
    environment+=("$variable")
done < <(env | grep -iE '^(https?_proxy|no_proxy|CARGO_(HTTP|NET|REGISTR|SOURCE)[A-Z_]*|SSL_CERT_[A-Z]*)=' || true)

failed=0
for command in "$@"; do
    began=$SECONDS
    code=0
    env -i "${environment[@]}" chroot "$root" bash -c "cd /src/understudy && $command" \
        > "$root/log" 2>&1 < /dev/null || code=$?
    if ((code)); then
        failed=1
        tail -n 20 "$root/log"
    fi
    echo "$command: exit $code, $((SECONDS - began)) s"
done
exit "$failed"
