#!/bin/sh
# Prepares a server with Debian 12 for an instance on NICs: as root, install.sh PACKAGE.deb NAME.toml
# Installs the package, NAME.toml and the files beside this script, and enables understudy@NAME. Each device that
# NAME.toml names with `pci` gets the driver vfio-pci. This takes effect when the server starts again. May be repeated.
set -eu
if [ $# != 2 ]; then
    echo "usage: install.sh PACKAGE.deb NAME.toml" >&2
    exit 2
fi
package=$(realpath "$1")
configuration=$(realpath "$2")
name=$(basename "$configuration" .toml)
cd "$(dirname "$0")"

devices=$(sed -n 's/^[[:space:]]*pci[[:space:]]*=[[:space:]]*"\([^"]*\)".*/\1/p' "$configuration")
for device in $devices; do
    if [ ! -e "/sys/bus/pci/devices/$device" ]; then
        echo "install.sh: $configuration names $device, which this server does not have: correct it (lspci -D)" >&2
        exit 1
    fi
    for interface in /sys/class/net/*; do
        case $(realpath "$interface") in
        */"$device"/*)
            # /proc/net/route: interface, destination; ipv6_route: destination, its length, ..., interface
            interface=$(basename "$interface")
            if grep -q "^$interface[[:space:]]00000000[[:space:]]" /proc/net/route ||
                grep -q "^0\{32\} 00 .* $interface\$" /proc/net/ipv6_route; then
                echo "install.sh: $device is $interface, which has the default route: name another one" >&2
                exit 1
            fi
            for upper in "/sys/class/net/$interface/master" "/sys/class/net/$interface"/upper_*; do
                if [ -e "$upper" ]; then
                    echo "install.sh: $device is $interface, which is part of a bond, a bridge or a VLAN: remove it there first" >&2
                    exit 1
                fi
            done
            ;;
        esac
    done
done

export DEBIAN_FRONTEND=noninteractive
apt-get install -y "$package" driverctl
understudy check --quiet "$configuration"
install -m 640 -g understudy "$configuration" "/etc/understudy/$name.toml"
install -D -m 644 pci.conf "/etc/systemd/system/understudy@$name.service.d/pci.conf"
install -D -m 644 70-understudy.rules /etc/udev/rules.d/70-understudy.rules
install -D -m 644 understudy.cfg /etc/default/grub.d/understudy.cfg
# `driverctl set-override` would bind the devices now, where vfio-pci may lack the IOMMU.
mkdir -p /etc/driverctl.d
for device in $devices; do
    echo vfio-pci > "/etc/driverctl.d/pci-$device"
done
update-grub
systemctl enable "understudy@$name"
echo "understudy@$name starts when this server starts again: systemctl reboot"
