#!/bin/sh
# Runs an understudy command with the PCI addresses of this container's devices: start.sh COMMAND [OPTION...]
# Writes a copy of rack.toml, which is beside this script, in which each "$PCIDEVICE_..." is the value of that variable.
# The SR-IOV network device plugin sets it to the address of the device of this resource.
set -eu
: "${XDG_RUNTIME_DIR:=/run/understudy}"
file=$XDG_RUNTIME_DIR/rack.toml
# A variable that is missing, or that has several addresses, is not replaced: understudy reports the line.
replace=$(env | sed -n 's/^\(PCIDEVICE_[A-Z0-9_]*\)=\([0-9a-fA-F:.]\{1,\}\)$/s|"[$]\1"|"\2"|/p')
sed -e "$replace" "$(dirname "$0")/rack.toml" > "$file"
exec understudy "$@" "$file"
