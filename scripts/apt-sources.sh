#!/usr/bin/env bash
# Prints this machine's sources of Debian 12, a line each, for mmdebstrap: not those of others, whose keys a new system lacks,
# whatever the files are in which they are written. Without package lists (`apt-get update`), prints those files.
set -euo pipefail
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ ! -e $keys ] || key=" [signed-by=$keys]"
sources=$(LC_ALL=C apt-cache policy | awk -v key="${key:-}" '
    /^ *-?[0-9]+ / { uri = $2; path = $3 }
    /^ *release / && /o=Debian,/ && /n=bookworm/ && !seen[uri, path]++ {
        suite = path; component = path
        sub("/[^/]*$", "", suite); sub(".*/", "", component)
        print "deb" key, uri, suite, component
    }')
if [ -z "$sources" ]; then
    sources=$(find /etc/apt/sources.list /etc/apt/sources.list.d -name '*.list' -o -name '*.sources' 2>/dev/null || true)
fi
printf '%s\n' "$sources"
