#!/usr/bin/env bash
# Tests a container image with podman, in a storage of its own, without a network: tests/packages/image.sh IMAGE.tar
# Prints a line for each check; what a failed container printed follows. Needs root, for network namespaces.
set -Eeuo pipefail
archive=$(realpath "$1")
cd "$(dirname "$0")"
if [ "$(id -u)" != 0 ]; then
    echo "tests/packages/image.sh needs root: run it with sudo" >&2
    exit 1
fi
# crun takes only version 2 of cgroups; where both are mounted, this test sees version 2 alone.
if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
    mounts='umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup'
    exec unshare --mount bash -euc "$mounts; exec \"\$@\"" - ./image.sh "$archive"
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/image.XXXXXX")
namespace=image-$$
printed=$folder/printed
engine() {
    podman --root "$folder/storage" --runroot "$folder/state" --tmpdir "$folder/tmp" --events-backend none "$@"
}
cleanup() {
    engine rm --all --force --time 0 > /dev/null 2>&1 || true
    ip netns delete "$namespace" 2> /dev/null || true
    rm -rf --one-file-system "$folder"
}
trap cleanup EXIT
failed() { # LINE
    echo "FAILED in line $1 of image.sh"
    tail -n 30 "$printed"
    for name in $(engine ps --all --format '{{.Names}}'); do
        engine logs --tail 30 "$name"
    done
}
trap 'failed $LINENO' ERR

ok() {
    echo "ok: $*"
}
# Waits up to 30 s until a command succeeds.
await() {
    for _ in $(seq 300); do
        if "$@" > /dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    echo "not within 30 s: $*"
    return 1
}
# Runs the image with limits that any machine may set, and with no other privileges than those in the arguments.
start() { # ARGUMENT...
    engine run --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --read-only \
        --cap-drop all --security-opt no-new-privileges --network "${network:-none}" "$@" > "$printed" 2>&1
}
ready() { # NAME
    grep -q 'understudy is ready' <(engine logs "$1" 2>&1)
}
exited() { # NAME
    [ "$(engine inspect --format '{{.State.Status}}' "$1")" = exited ]
}
capabilities() { # NAME
    sed -n 's/^CapEff:[[:space:]]*//p' "/proc/$(engine inspect --format '{{.State.Pid}}' "$1")/status"
}
# Stops a container with SIGTERM, checks its exit code, and keeps what it printed. On a busy machine, a generator may not
# reach its rate, for which its exit code is 1.
stop() { # NAME
    local code=0
    engine stop --time 20 "$1" > /dev/null
    engine logs "$1" > "$printed" 2>&1
    ! grep -q '^SPOILED (rate_not_reached)' "$printed" || code=1
    [ "$(engine inspect --format '{{.State.ExitCode}}' "$1")" = "$code" ]
    awk '/^SPOILED/ && !/rate_not_reached/ { found = 1 } END { exit found }' "$printed"
    engine rm "$1" > /dev/null
}

engine load --quiet --input "$archive" > "$printed"
image=$(sed -n 's/^Loaded image: //p' "$printed")
unpacked=$(engine image inspect --format '{{.Size}}' "$image")
ok "$image: $(stat -c %s "$archive" | numfmt --to=si) packed, $(numfmt --to=si "$unpacked") unpacked"

start --rm "$image"
grep -q 'RDMA traffic of two hosts through one worker' "$printed"
ok "without a command: $(tail -n 1 "$printed")"
start --rm "$image" --version
ok "$(cat "$printed")"
start --rm "$image" check --example forward
grep -qx '\[forward\]' "$printed"
ok "check --example forward"

sockets=$folder/sockets
install -d -m 1777 "$sockets"
start --detach --name demo --volume "$sockets:/run/understudy/demo" "$image" run demo.toml
await ready demo
[ "$(capabilities demo)" = 0000000000000000 ]
ok "a container without capabilities, on a read-only file system, runs demo.toml"
start --rm --volume "$sockets:/run/understudy/demo" "$image" top --once demo.toml
grep -q writes "$printed"
ok "top, in another container, shows its stream: $(grep writes "$printed" | head -n 1 | tr -s ' ')"
stop demo
grep -q 'packets sent by 1 stream' "$printed"
ok "SIGTERM ends it with a report: $(tail -n 1 "$printed")"

start --detach --name demo --user understudy --volume "$sockets:/run/understudy/demo" "$image" run demo.toml
await ready demo
stop demo
ok "so does a container with --user understudy"

code=0
start --rm "$image" run missing.toml || code=$?
[ "$code" = 2 ]
ok "without its file, it ends with 2"

cat > "$folder/veth.toml" <<'END'
[runtime]
idle = "sleep"

[[port]]
name = "left"
af_packet = { interface = "left" }

[[port]]
name = "right"
af_packet = { interface = "right" }

[pktgen]
send = "left"
receive = "right"

[[pktgen.stream]]
verb = "write"
size = 256
src = "10.0.0.1"
dst = "10.0.0.2"
rate = { packets_per_s = 1000 }
END
ip netns add "$namespace"
ip -n "$namespace" link add name left type veth peer name right
ip -n "$namespace" link set left up
ip -n "$namespace" link set right up
network=ns:/run/netns/$namespace
file=("--volume" "$folder/veth.toml:/etc/understudy/veth.toml:ro")
for user in root understudy; do
    start --detach --name veth --user "$user" --cap-add NET_RAW,NET_ADMIN "${file[@]}" "$image" run veth.toml
    await ready veth
    [ "$(capabilities veth)" = 0000000000003000 ]
    stop veth
done
ok "af_packet as root and as understudy, with CAP_NET_RAW and CAP_NET_ADMIN alone: $(tail -n 1 "$printed")"
for capability in NET_RAW NET_ADMIN; do
    code=0
    start --rm --cap-add "$capability" "${file[@]}" "$image" run veth.toml || code=$?
    [ "$code" = 1 ]
done
ok "it needs both: with one of them, it ends with 1"
network=none

# Three containers that share a folder: a bridge and two hosts of configs/memif
rack=$folder/rack
install -d "$rack"
cp ../../configs/memif/{bridge,server,client}.toml "$rack"
sed -i 's/^count = .*/count = 100/' "$rack/client.toml"
start --detach --name bridge --volume "$rack:/rack" "$image" run /rack/bridge.toml
await ready bridge
start --detach --name server --volume "$rack:/rack" "$image" host /rack/server.toml
await ready server
start --detach --name client --volume "$rack:/rack" "$image" host /rack/client.toml
await exited client
stop client
ok "memif, three containers without capabilities: $(grep rping_client "$printed" | tr -s ' ')"
stop server
stop bridge

# The container of deploy/kubernetes with a ring in place of each device
pod=$folder/pod
cp -r ../../deploy/kubernetes "$pod"
sed -i 's/^pci = .*/ring = {}/; s/^hugepages = .*/idle = "sleep"/' "$pod/rack.toml"
answers() {
    local process
    process=$(engine inspect --format '{{.State.Pid}}' pod)
    nsenter --net="/proc/$process/ns/net" bash -c 'exec 3<> /dev/tcp/127.0.0.1/9464
        printf "GET /metrics HTTP/1.1\r\nHost: pod\r\n\r\n" >&3; head -n 1 <&3 | grep -q " 200 "'
}
start --detach --name pod --cap-add IPC_LOCK --tmpfs /run/understudy --volume "$pod:/etc/understudy:ro" \
    --entrypoint '["/bin/sh", "/etc/understudy/start.sh", "run"]' "$image"
await ready pod
answers
stop pod
ok "start.sh of deploy/kubernetes runs an instance, which answers a probe"
