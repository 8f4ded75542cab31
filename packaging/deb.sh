#!/usr/bin/env bash
# Builds Debian packages of a release build into BUILD_FOLDER/deb, from a copy of the tracked files, and checks them with
# lintian: packaging/deb.sh BUILD_FOLDER [PROGRAM]
set -euo pipefail
built=$(realpath "$1")
program=$(realpath "${2:-$built/release/understudy}")
echo "packaging $program"
cd "$(dirname "$0")/.."
out=$built/deb
rm -rf "$out"
mkdir -p "$out/understudy"
git ls-files -z | tar --null --files-from=- -c | tar -x -C "$out/understudy"
# Each commit is a later version, which apt installs.
commit=$(TZ=UTC git log -1 --format=%cd.%h --date=format-local:%Y%m%d%H%M%S)
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "warning: uncommitted changes are in the packages, whose version names the last commit" >&2
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
cd "$out/understudy"
sed -i "1s/(.*)/($version+git$commit)/" debian/changelog
BUILT=$built PROGRAM=$program dpkg-buildpackage --build=binary --no-sign --no-pre-clean > "$out/log" 2>&1 || {
    tail -n 40 "$out/log"
    exit 1
}
cd "$out"
rm -rf understudy
lintian --fail-on error,warning --tag-display-limit 0 ./*.changes
ls -sh --block-size=K -- *.deb
