#!/usr/bin/env bash
# Installs a release build, which `make library` has made:
#   packaging/install.sh BUILD_FOLDER
# Variables say where to: PREFIX (/usr/local); LIBDIR (lib) and ZSH (share/zsh/site-functions) below it; SYSTEMD, a
# folder below it if systemd looks there, and else /etc; and DESTDIR before all of them. STRIP=no leaves
# debugging symbols in the program and the library, for tools that package them. PROGRAM is the
# program to install (BUILD_FOLDER/release/understudy).
set -euo pipefail
cd "$(dirname "$0")/.."
built=$1/release
: "${PROGRAM:=$built/understudy}"
: "${PREFIX:=/usr/local}" "${LIBDIR:=lib}" "${DESTDIR:=}" "${STRIP:=yes}"
case $PREFIX in
/usr | /usr/local) lib=$PREFIX/lib ;;
*) lib=/etc ;;
esac
: "${ZSH:=share/zsh/site-functions}" "${SYSTEMD:=$lib/systemd/system}"
for file in "$PROGRAM" "$built"/{libonepipe_c.so,THIRD-PARTY}; do
    if [ ! -e "$file" ]; then
        echo "$file is missing; \`make library\` builds what is in $built" >&2
        exit 1
    fi
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
share=$DESTDIR$PREFIX/share
doc=$share/doc/understudy

# Copies a file, creating the folders above it.
put() { # MODE FROM TO
    install -D -m "$1" "$2" "$3"
}
# Copies a program or library. Its symbols go into .debug beside it, where gdb and backtraces find them.
put_binary() { # MODE FROM TO
    put "$1" "$2" "$3"
    [ "$STRIP" = yes ] || return 0
    local debug
    debug=$(dirname "$3")/.debug/$(basename "$3").debug
    mkdir -p "$(dirname "$debug")"
    objcopy --only-keep-debug "$3" "$debug"
    chmod 644 "$debug"
    strip --strip-unneeded "$3"
    objcopy --add-gnu-debuglink="$debug" "$3"
}
fill() { # FROM TO
    mkdir -p "$(dirname "$2")"
    sed -e "s|@PREFIX@|$PREFIX|g; s|@LIBDIR@|$LIBDIR|g; s|@VERSION@|$version|g" "$1" > "$2"
    chmod 644 "$2"
}

put_binary 755 "$PROGRAM" "$DESTDIR$PREFIX/bin/understudy"
"$PROGRAM" generate man "$share/man/man1"
for shell in bash:bash-completion/completions/understudy zsh:${ZSH#share/}/_understudy fish:fish/vendor_completions.d/understudy.fish; do
    file=$share/${shell#*:}
    mkdir -p "$(dirname "$file")"
    "$PROGRAM" generate completions "${shell%%:*}" > "$file"
done

library=$DESTDIR$PREFIX/$LIBDIR/libonepipe.so
put_binary 644 "$built/libonepipe_c.so" "$library.$version"
ln -sf "libonepipe.so.$version" "$library.${version%%.*}"
ln -sf "libonepipe.so.${version%%.*}" "$library"
put 644 onepipe-host/c/include/onepipe.h "$DESTDIR$PREFIX/include/onepipe.h"
fill packaging/onepipe.pc.in "$DESTDIR$PREFIX/$LIBDIR/pkgconfig/onepipe.pc"
for example in onepipe-host/c/examples/*.c; do
    put 644 "$example" "$share/doc/libonepipe-dev/examples/$(basename "$example")"
done

if [ -z "$DESTDIR" ] && [ ! -w /etc ]; then
    echo "the service is not installed, because /etc is for root" >&2
else
    fill packaging/understudy@.service.in "$DESTDIR$SYSTEMD/understudy@.service"
    put 644 packaging/understudy.sysusers "$DESTDIR$lib/sysusers.d/understudy.conf"
    put 644 packaging/understudy.tmpfiles "$DESTDIR$lib/tmpfiles.d/understudy.conf"
    # An edited file stays.
    [ -e "$DESTDIR/etc/understudy/demo.toml" ] || put 644 configs/service/demo.toml "$DESTDIR/etc/understudy/demo.toml"
fi

# The folders have the names of the repository's, so that links between pages, and to the examples, work.
find configs docs -type f \( -name '*.toml' -o -name '*.json' -o -name '*.yml' -o -name '*.md' \) | while read -r file; do
    put 644 "$file" "$doc/$file"
done
find deploy -type f | while read -r file; do
    put 644 "$file" "$doc/$file"
done
put 644 README.md "$doc/README.md"
put 644 CHANGELOG.md "$doc/CHANGELOG.md"
put 644 SECURITY.md "$doc/SECURITY.md"
put 644 LICENSE "$doc/LICENSE"
put 644 "$built/THIRD-PARTY" "$doc/THIRD-PARTY"
