#!/bin/bash
# Builds the kernel and the initramfs of the e2e guests: OUTDIR/vmlinuz and
# OUTDIR/initramfs.cpio. The kernel's package stays in OUTDIR/kernel.deb, for its other modules.
#
#   tests/e2e/build-guest.sh OUTDIR
#
# All content comes from Debian packages of this machine's release, downloaded
# with `apt-get download` and unpacked with `dpkg -x`: nothing is installed, and
# root is not needed. A second run with the same scripts finds the stamp file and
# returns at once; delete OUTDIR to get newer packages.
set -euo pipefail
export LC_ALL=C # the output of apt-cache is parsed below

here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build-guest.sh OUTDIR}

# Programs of the guests, and their libraries. A missing library is reported
# below, before a guest is booted.
packages=(
    perftest rdmacm-utils ibverbs-utils iproute2 busybox-static dash
    libibverbs1 libibverbs-dev librdmacm1 librdmacm-dev ibverbs-providers libibumad3
    libnl-3-200 libnl-route-3-200 libpci3 libudev1 zlib1g libc6
    libgcc-s1 libmnl0 libbpf1 libelf1 libcap2 libbsd0 libmd0 libxtables12
    libdb5.3 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0
    libcom-err2 libkeyutils1 libssl3 libselinux1 libpcre2-8-0
)
programs=(
    ib_send_bw ib_write_bw ib_read_bw ib_atomic_bw
    ib_send_lat ib_write_lat ib_read_lat ib_atomic_lat
    rping ucmatose udaddy rstream mckey
    ibv_devinfo ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong
    ip rdma tc bridge
)
# Kernel modules of the guests; their dependencies are added. crc32_generic is
# requested by name at run time (rxe's ICRC), so it is not a dependency.
modules=(
    virtio_pci virtio_net virtio_console crc32_generic rdma_rxe ib_uverbs rdma_ucm
    ib_umad 8021q
)

log() { echo "build-guest: $*" >&2; }
die() { log "$*"; exit 1; }

mkdir -p "$out"
out=$(cd "$out" && pwd)
exec 9>"$out/lock" && flock 9 # only one build at a time may write here
stamp=$(cat "$here"/*.sh "$here"/*.c | sha256sum)
if [[ -f $out/stamp && $(<"$out/stamp") == "$stamp" ]]; then
    exit 0
fi
for tool in apt-get apt-cache dpkg cpio cc; do
    command -v "$tool" >/dev/null || die "$tool is missing (apt-get install cpio build-essential)"
done

work=$out/work
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT

# --- packages -----------------------------------------------------------------
# The meta package names the release's current kernel.
kernel_package() {
    apt-cache depends --no-recommends --no-suggests linux-image-amd64 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-[0-9].*-amd64\)$/\1/p' | head -1
}
download() {
    kernel=$(kernel_package)
    [[ -n $kernel ]] || return 1
    # Downloads as the caller: apt's sandbox user cannot write here.
    (cd "$work/debs" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download "$kernel" "${packages[@]}")
}
mkdir "$work/debs"
log "downloading the kernel and ${#packages[@]} packages"
if ! download; then
    # The package lists are missing or older than the archive: update them.
    log "retrying after apt-get update"
    apt-get -qq update || die "apt-get update failed; run it as root, then retry"
    download || die "packages could not be downloaded; see the error above"
fi
mkdir "$work/kernel" "$work/unpacked"
dpkg -x "$work"/debs/linux-image-*.deb "$work/kernel"
for deb in "$work"/debs/*.deb; do
    [[ $deb == */linux-image-* ]] || dpkg -x "$deb" "$work/unpacked"
done

# --- root file system -----------------------------------------------------------
root=$work/root
lib=usr/lib/x86_64-linux-gnu
mkdir -p "$root"/{usr/bin,usr/sbin,$lib/libibverbs,etc/libibverbs.d,proc,sys,dev,tmp,root,modules}
ln -s usr/bin "$root/bin"
ln -s usr/sbin "$root/sbin"
ln -s usr/lib "$root/lib"
mkdir "$root/lib64"

unpacked() { # prints the path of a file of the packages, with or without /usr merge
    local candidate
    for candidate in "$@"; do
        if [[ -e $work/unpacked/$candidate ]]; then echo "$work/unpacked/$candidate"; return; fi
    done
    die "no package contains $1; add its package to the list in $0"
}
loader=$(unpacked lib64/ld-linux-x86-64.so.2 lib/x86_64-linux-gnu/ld-linux-x86-64.so.2)
cp -L "$(unpacked lib/x86_64-linux-gnu/ld-linux-x86-64.so.2)" "$root/lib64/ld-linux-x86-64.so.2"

# dash is the shell: busybox's shell would prefer its applets, such as a limited
# `ip`, to the programs of the same name.
for program in "${programs[@]}" dash; do
    cp -L "$(unpacked usr/bin/"$program" bin/"$program" usr/sbin/"$program" sbin/"$program")" "$root/usr/bin/"
done
# Programs of this folder, for operations that no packaged program has.
for source in "$here"/*.c; do
    cc -O1 -Wall -Wextra -Werror -I "$work/unpacked/usr/include" -Wl,--allow-shlib-undefined \
        -o "$root/usr/bin/$(basename "$source" .c)" "$source" "$(unpacked usr/lib/x86_64-linux-gnu/libibverbs.so.1)" \
        "$(unpacked usr/lib/x86_64-linux-gnu/librdmacm.so.1)"
done
cp "$(unpacked bin/busybox usr/bin/busybox)" "$root/usr/bin/busybox"
for applet in $("$root/usr/bin/busybox" --list); do
    [[ -e $root/usr/bin/$applet || $applet == sh ]] || ln -s busybox "$root/usr/bin/$applet"
done
ln -s dash "$root/usr/bin/sh"

# The provider is a plug-in, and libgcc is opened when a thread ends (pthread_exit):
# the list of needed libraries has neither.
cp -L "$work/unpacked/$lib"/libibverbs/librxe-rdmav*.so "$root/$lib/libibverbs/"
cp "$work/unpacked/etc/libibverbs.d/rxe.driver" "$root/etc/libibverbs.d/"
cp -L "$(unpacked lib/x86_64-linux-gnu/libgcc_s.so.1 usr/lib/x86_64-linux-gnu/libgcc_s.so.1)" "$root/$lib/"

# Uses the loader of the packages, which does not search this machine's libraries,
# only the given path.
library_path=$work/unpacked/lib/x86_64-linux-gnu:$work/unpacked/$lib
for file in "${programs[@]/#/$root/usr/bin/}" "$root/$lib"/libibverbs/*.so "$root/$lib"/*.so.*; do
    needed=$("$loader" --library-path "$library_path" --list "$file") || die "the loader cannot load $file"
    while read -r name _ path _; do
        case $name in linux-vdso* | */ld-linux* | statically) continue ;; esac
        [[ $path == "$work"/* ]] || die "$file needs $name: add its package to the list"
        [[ -e $root/$lib/$name ]] || cp -L "$path" "$root/$lib/$name"
    done <<<"$needed"
done

# --- modules ------------------------------------------------------------------------
# The packages contain no modules.dep (depmod writes it at installation), but each
# module lists its dependencies.
declare -A loaded=()
add_module() {
    local name=${1//-/_} file dependency
    [[ -z ${loaded[$name]:-} ]] || return 0
    loaded[$name]=1
    file=$(find "$work/kernel/lib/modules" -name "$name.ko" -o -name "${name//_/-}.ko" | head -1)
    [[ -n $file ]] || die "the kernel has no module $name"
    for dependency in $(grep -za '^depends=' "$file" | tr -d '\0' | sed 's/^depends=//; s/,/ /g'); do
        add_module "$dependency"
    done
    cp "$file" "$root/modules/"
    basename "$file" >>"$root/modules/order"
}
for module in "${modules[@]}"; do add_module "$module"; done

# --- image ------------------------------------------------------------------------------
install -m 755 "$here/guest-init.sh" "$root/init"
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
# Uncompressed: an emulated CPU copies faster than it decompresses.
(cd "$root" && find . -print0 | sort -z | cpio --null --quiet -o -H newc -R 0:0) >"$work/initramfs.cpio"
mv "$work/initramfs.cpio" "$out/initramfs.cpio"
cp "$work"/kernel/boot/vmlinuz-* "$out/vmlinuz"
mv "$work"/debs/linux-image-*.deb "$out/kernel.deb"
echo "$stamp" >"$out/stamp"
log "$kernel, $(wc -l <"$root/modules/order") modules, $(du -m "$out/initramfs.cpio" | cut -f1) MB initramfs in $out"
