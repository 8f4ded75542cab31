#!/bin/sh
# First process of an e2e guest: mounts file systems, loads modules, then runs a
# shell on a virtio serial port for guest.py. Kernel messages go to the UART, so
# they never mix with the output of commands; and the emulated UART stalls on
# long lines, which a virtio port does not.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root

mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
mkdir -p /dev/pts && mount -t devpts pts /dev/pts
exec >/dev/console 2>&1 </dev/null

# build-guest.sh has written this file in dependency order.
while read -r module; do
    insmod "/modules/$module" || echo "init: cannot load $module"
done </modules/order

ip link set lo up
# No duplicate address detection: while an address is tentative, for a second or
# two, the guest does not respond for it. No router solicitations: there is no router.
for option in accept_dad dad_transmits router_solicitations; do
    for file in /proc/sys/net/ipv6/conf/*/$option; do echo 0 >"$file"; done
done
# RDMA pins memory; without this ibv_reg_mr is limited to 64 KiB.
ulimit -l unlimited

# The port is opened once for both directions. `cat` reads it, because dash would
# otherwise read input that is meant for the next command in the middle of one.
exec 3<>/dev/vport0p1
echo "@@READY" >&3
cat <&3 | sh >&3 3>&-
poweroff -f
