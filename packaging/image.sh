#!/usr/bin/env bash
# Builds a container image from the Debian packages in BUILD_FOLDER/deb and a minimal Debian 12 into
# BUILD_FOLDER/image/understudy-VERSION.tar: packaging/image.sh BUILD_FOLDER
# Needs neither root nor a container engine. As another user, it needs user namespaces (package uidmap, /etc/subuid).
set -euo pipefail
built=$(realpath "$1")
cd "$(dirname "$0")/.."
package=("$built"/deb/understudy_*.deb)
if [ ! -e "${package[0]}" ]; then
    echo "$built/deb has no package of understudy: run \`make deb\` first" >&2
    exit 1
fi
full=$(dpkg-deb --field "${package[0]}" Version)
version=${full%%+*}
out=$built/image
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d "${TMPDIR:-/tmp}/image.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Other users, to whom mmdebstrap maps root, may not read the build folder.
chmod 755 "$work"
cp "${package[0]}" "$work"
copy=$work/$(basename "${package[0]}")

# Files are as old as the commit: the same packages give the same image.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# Manual pages and translations are not read in a container. udev, which DPDK's drivers depend on, does not run.
options=()
for path in /usr/share/{man,locale,info,doc}/'*' {,/usr}/lib/udev/hwdb.d/'*' /usr/lib/x86_64-linux-gnu/gconv/'*'; do
    options+=(--dpkgopt="path-exclude=$path")
done
# Licences, examples and documentation stay.
for path in /usr/share/doc/'*'/copyright /usr/share/doc/understudy/'*'; do
    options+=(--dpkgopt="path-include=$path")
done
sources=$(scripts/apt-sources.sh)
mapfile -t sources <<< "$sources"
# merged-usr and usr-is-merged: otherwise perl is installed to merge /usr. Files that mmdebstrap copies from this machine
# are removed. The folders of sockets and configurations are for any user (--user).
hooks=/usr/share/mmdebstrap/hooks
mmdebstrap --quiet --variant=essential "${options[@]}" \
    --hook-dir="$hooks/merged-usr" --hook-dir="$hooks/file-mirror-automount" \
    --include=usr-is-merged,systemd-standalone-sysusers --include="$copy" \
    --customize-hook="rm -rf \"\$1$work\"" \
    --customize-hook='cd "$1" && rm -rf etc/apt/sources.list* etc/{hostname,resolv.conf} var/cache/debconf var/log/*' \
    --customize-hook='cd "$1" && install -d -m 1777 run/understudy run/understudy/demo && chmod 755 etc/understudy' \
    --skip=output/dev bookworm "$work/root.tar" "${sources[@]}" > "$out/log" 2>&1 || {
    tail -n 40 "$out/log" >&2
    exit 1
}

# The user is root, whose capabilities are those that the container gets: docs/service.md, "Container".
cat > "$work/config.json" <<END
{
    "created": "$(date --utc --date="@$SOURCE_DATE_EPOCH" +%FT%TZ)",
    "config": {
        "Env": ["PATH=/usr/sbin:/usr/bin", "XDG_RUNTIME_DIR=/run/understudy"],
        "Entrypoint": ["understudy"],
        "Cmd": ["run"],
        "WorkingDir": "/etc/understudy",
        "StopSignal": "SIGTERM",
        "Labels": {
            "org.opencontainers.image.title": "understudy",
            "org.opencontainers.image.version": "$full",
            "org.opencontainers.image.licenses": "$(sed -n 's/^license = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)"
        }
    }
}
END
packaging/oci.py "$work/root.tar" "$out/understudy-$version.tar" "localhost/understudy:$version" "$work/config.json"
rm "$out/log"
cd "$out"
ls -sh --block-size=K -- *.tar
