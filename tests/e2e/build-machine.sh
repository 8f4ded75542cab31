#!/bin/bash
# Builds a Debian 12 with systemd for an emulated machine, without understudy: OUTDIR/machine/root.tar, and
# OUTDIR/machine/initramfs.cpio, which loads the modules for its disk. The kernel is that of the guests, whose
# build-guest.sh has run before. A second run with the same scripts returns at once; delete OUTDIR/machine to get
# newer packages.
#
#   tests/e2e/build-machine.sh OUTDIR     (root)
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
guests=$(cd "${1:?usage: build-machine.sh OUTDIR}" && pwd)
out=$guests/machine
mkdir -p "$out"
exec 9>"$out/lock" && flock 9
# DPDK's drivers are those that the package of understudy needs.
drivers=$(grep -o 'librte-[a-z0-9-]*' "$here/../../debian/control" | sort -u | paste -sd,)
stamp=$(cat "$here/build-machine.sh" "$guests/stamp" <(echo "$drivers") | sha256sum)
if [[ -f $out/stamp && $(<"$out/stamp") == "$stamp" ]]; then
    exit 0
fi
rm -f "$out/stamp"
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT

echo "build-machine: downloading a minimal Debian 12 with DPDK's drivers" >&2
sources=$("$here/../../scripts/apt-sources.sh")
mapfile -t sources <<< "$sources"
mmdebstrap --quiet --variant=minbase \
    --include="systemd,systemd-sysv,dbus,udev,kmod,iproute2,driverctl,xdp-tools,$drivers" \
    bookworm "$work/root" "${sources[@]}"

# --- kernel modules -------------------------------------------------------------
dpkg -x "$guests/kernel.deb" "$work/kernel"
version=$(basename "$work"/kernel/lib/modules/*)
from=$work/kernel/lib/modules/$version
to=$work/root/lib/modules/$version
mkdir -p "$to/kernel/drivers"
cp "$from"/modules.builtin* "$from/modules.order" "$to"
cp -r "$from"/kernel/{arch,crypto,fs,lib,net,virt} "$to/kernel"
cp -r "$from"/kernel/drivers/{block,char,net,uio,vfio,virtio} "$to/kernel/drivers"
chroot "$work/root" depmod "$version"

# --- system ------------------------------------------------------------------------
# The serial console is for the kernel's messages. There are no logins, and no timers.
chroot "$work/root" systemctl --quiet mask getty.target systemd-logind.service e2scrub_reap.service e2scrub_all.timer \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer systemd-update-utmp-runlevel.service
install -D -m 644 /dev/stdin "$work/root/etc/systemd/system/lab-shell.service" <<'END'
[Unit]
Description=Shell on a virtio port, through which guest.py drives the machine
After=network.target
[Service]
Environment=HOME=/root
LimitMEMLOCK=infinity
ExecStart=/bin/sh -c 'while [ ! -e /dev/virtio-ports/shell ]; do sleep 0.1; done; exec 3<>/dev/virtio-ports/shell; echo @@READY >&3; cat <&3 | sh >&3 3>&-'
[Install]
WantedBy=multi-user.target
END
chroot "$work/root" systemctl --quiet enable lab-shell.service
echo machine >"$work/root/etc/hostname"
tar -C "$work/root" -cf "$work/root.tar" .

# --- initramfs: only what mounts the disk ----------------------------------------------
ram=$work/ram
mkdir -p "$ram"/{bin,dev,root,modules}
cp /usr/bin/busybox "$ram/bin/busybox" 2>/dev/null || cp /bin/busybox "$ram/bin/busybox"
for applet in sh insmod mount switch_root sleep; do ln -s busybox "$ram/bin/$applet"; done
for module in virtio_pci virtio_blk ext4 crc32c_generic; do
    chroot "$work/root" modprobe --set-version "$version" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r file; do
    cp "$work/root/$file" "$ram/modules"
    basename "$file" >>"$ram/modules/order"
done
install -m 755 /dev/stdin "$ram/init" <<'END'
#!/bin/sh
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
while [ ! -e /dev/vda ]; do sleep 0.1; done
mount -t ext4 /dev/vda /root
exec switch_root /root /sbin/init
END
(cd "$ram" && find . | cpio --quiet -o -H newc -R 0:0) >"$work/initramfs.cpio"

mv "$work/root.tar" "$work/initramfs.cpio" "$out"
echo "$stamp" >"$out/stamp"
