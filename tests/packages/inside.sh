#!/usr/bin/env bash
# Checks that run.sh carries out in the booted Debian, at the first and at the second start.
set -Eeuo pipefail
boot=$(cat /packages/boot)
trap 'code=$?; [ $code = 0 ] && touch /packages/$boot.passed || { echo "FAILED in line $failed_at of inside.sh"; journalctl --no-pager -n 40 -u "understudy@*"; }' EXIT
trap 'failed_at=$LINENO' ERR
failed_at=unknown

ok() {
    echo "ok: $*"
}
# Succeeds if a command fails. (bash ignores the result of `! command` with `set -e`.)
fails() {
    if "$@" > /dev/null 2>&1; then
        echo "did not fail: $*"
        return 1
    fi
}
property() { # UNIT PROPERTY
    systemctl show --value --property "$2" "understudy@$1"
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
logged() { # UNIT PRIORITY TEXT
    grep -q -- "$3" <(journalctl --quiet --no-pager --priority "$2" --unit "understudy@$1")
}
shows_stream() {
    grep -q writes <(understudy top /etc/understudy/demo.toml --once)
}
restarted() { # UNIT OLD_PROCESS
    systemctl is-active "understudy@$1" && [ "$(property "$1" MainPID)" != "$2" ]
}

first() {
    began=$(date +%s%N)
    systemctl start understudy@demo
    ok "systemctl start understudy@demo: ready after $((($(date +%s%N) - began) / 1000000)) ms"

    process=$(property demo MainPID)
    [ "$(stat -c %U "/proc/$process")" = understudy ]
    grep -q '^CapEff:[[:space:]]*0000000000003000$' "/proc/$process/status"
    ok "it runs as the user understudy, with CAP_NET_RAW and CAP_NET_ADMIN only"

    await shows_stream
    ok "understudy top shows its stream: $(understudy top /etc/understudy/demo.toml --once | grep writes | head -n 1 | tr -s ' ')"

    printed=$(apt-get install -y /packages/understudy_*.deb 2>&1)
    grep -q "^understudy: still running the old version: understudy@demo.service " <<< "$printed"
    [ "$(property demo MainPID)" = "$process" ]
    systemctl restart understudy@demo
    [ "$(property demo MainPID)" != "$process" ]
    ok "an upgrade does not restart a running instance, and reports it; $(understudy --version)"

    process=$(property demo MainPID)
    systemctl reload understudy@demo
    await logged demo info "Reloaded /etc/understudy/demo.toml: nothing has changed"
    cp /etc/understudy/demo.toml /etc/understudy/demo.toml.good
    sed -i 's/^qps = 4/qqs = 4/' /etc/understudy/demo.toml
    fails systemctl reload understudy@demo
    await logged demo err 'qqs'
    sed -i 's/^qqs = 4/qps = 8/' /etc/understudy/demo.toml
    systemctl reload understudy@demo
    await logged demo warning "demo.toml: .pktgen.stream.writes.qps. takes effect when the instance is started again"
    mv /etc/understudy/demo.toml.good /etc/understudy/demo.toml
    [ "$(property demo MainPID)" = "$process" ]
    systemctl is-active understudy@demo > /dev/null
    ok "a reload refuses a file with mistakes, reports what needs a restart, and the instance goes on"

    drop_in=/etc/systemd/system/understudy@central.service.d/etcd.conf
    key=/understudy/$(cat /proc/sys/kernel/hostname)/central
    wire() { # LINE_OF_RUNTIME NAME_OF_RULE
        etcdctl put "$key" > /dev/null << END
[runtime]
idle = "sleep"
$1
[[port]]
name = "a"
ring = {}
[impair]
pairs = [["a", "a"]]
[[impair.rule]]
name = "$2"
action = "drop"
END
    }
    install -D -m 644 /usr/share/doc/understudy/deploy/systemd/etcd.conf "$drop_in"
    sed -i 's|etcd://[^/]*/|etcd://127.0.0.1/|' "$drop_in"
    systemctl daemon-reload
    systemctl start etcd
    await etcdctl endpoint health
    fails timeout 20 systemctl start understudy@central
    await logged central err "etcd has no key .$key."
    wire "" first
    await systemctl is-active understudy@central
    process=$(property central MainPID)
    wire "" second
    await logged central info ": rules second"
    wire "idel = 1" third
    await logged central warning "is refused, and the run goes on as before"
    wire "control_queue = 64" fourth
    await logged central warning ".runtime.control_queue. takes effect when the instance is started again"
    wire "" fifth
    systemctl reload understudy@central
    await logged central info ": rules fifth"
    [ "$(property central MainPID)" = "$process" ]
    await grep -q fifth /var/lib/understudy/central/cache.toml
    systemctl stop etcd
    systemctl restart understudy@central
    await logged central warning "The run starts with the configuration in cache.toml"
    systemctl stop understudy@central
    rm -r "$(dirname "$drop_in")"
    systemctl daemon-reload
    ok "a configuration in etcd: new versions, one with a mistake, one that needs a restart, and a start without etcd"

    for side in a b; do
        ip link add "host-$side" type veth peer name "switch-$side"
        ip link set "host-$side" up
        ip link set "switch-$side" up
    done
    mkdir /tmp/network
    cat > /tmp/network/network.toml << END
[topology]
idle = "sleep"
[controller]
listen = "127.0.0.1:7070"
secret_file = "secret"
[[switch]]
name = "tor1"
tunnel = "10.255.0.1"
mac = "02:00:00:00:01:01"
representative = "a"
[[host]]
name = "a"
id = 1
address = "10.0.0.1/24"
mac = "02:00:00:00:00:01"
switch = "tor1"
interface = "host-a"
[[host]]
name = "b"
id = 2
address = "10.0.0.2/24"
mac = "02:00:00:00:00:02"
switch = "tor1"
interface = "host-b"
END
    plan() {
        understudy plan /tmp/network/network.toml --out /tmp/network/plan > /tmp/network/printed
    }
    install_on() {
        sh /tmp/network/plan/install.sh "$1" >> /tmp/network/printed
    }
    plan
    fails install_on c
    fails install_on a
    (umask 077 && head -c 32 /dev/urandom | base64 > /tmp/network/plan/secret)
    install_on --controller
    install_on a
    [ "$(stat -c %a:%U /etc/understudy/secret)" = 600:understudy ]
    joined() {
        understudy controller status --at 127.0.0.1:7070 --secret-file /var/lib/understudy-controller/secret --json | grep -q '"connected": *true'
    }
    await joined
    process=$(property tor1.representative MainPID)
    controller=$(systemctl show --value --property MainPID understudy-controller)
    install_on a
    install_on --controller
    [ "$(property tor1.representative MainPID)" = "$process" ]
    [ "$(systemctl show --value --property MainPID understudy-controller)" = "$controller" ]
    exposure=$(systemd-analyze security --no-pager understudy-controller | tail -n 1)
    systemd-analyze security --no-pager --threshold=20 understudy-controller > /dev/null
    sed -i 's/^representative = "a"/representative = "b"/' /tmp/network/network.toml
    plan
    install_on b
    systemctl is-active understudy@tor1.representative > /dev/null
    [ "$(property tor1.representative MainPID)" != "$process" ]
    install_on a
    fails systemctl is-active understudy@tor1.representative
    [ ! -e /etc/understudy/tor1.representative.toml ]
    install_on b
    systemctl disable --quiet --now understudy-controller understudy@tor1.representative
    rm -r /tmp/network /var/lib/understudy-controller /etc/systemd/system/understudy-controller.service /etc/understudy/*.representative.toml \
        /etc/understudy/secret
    ok "install.sh of a plan: representative and controller as services (${exposure#*:}), again, and with another plan"

    fails systemctl start understudy@missing
    [ "$(property missing ExecMainStatus)" = 2 ]
    [ "$(property missing NRestarts)" = 0 ]
    await logged missing err 'missing.toml'
    [ "$(stat -c %a:%G /etc/understudy)" = 750:understudy ]
    ok "an instance without its file ends with 2 and is not tried again: $(journalctl -q -o cat -p err -u understudy@missing | head -n 1)"

    printf '[runtime]\nidle = "sleep"\n[[port]]\nname = "a"\naf_packet = { interface = "late0" }\n[forward]\npairs = [["a", "a"]]\n' \
        > /etc/understudy/late.toml
    systemctl start understudy@late 2> /dev/null || true
    await logged late err late0
    ip link add late0 type veth peer name late1
    ip link set late0 up
    await systemctl is-active understudy@late
    ok "an interface that comes later is used then, after $(property late NRestarts) more starts"
    systemctl stop understudy@late

    printf '[runtime]\nhugepages = true\nmemory_mb = 1048576\n[[port]]\nname = "a"\nring = {}\n[forward]\npairs = [["a", "a"]]\n' \
        > /etc/understudy/huge.toml
    fails systemctl start understudy@huge
    await logged huge err 'huge pages'
    systemctl stop understudy@huge
    ok "without huge pages: $(journalctl -q -o cat -p err -u understudy@huge | grep 'huge pages' | head -n 1 | tr -s ' ')"

    process=$(property demo MainPID)
    worker=$(grep -l '^worker-0$' "/proc/$process"/task/*/comm | cut -d / -f 5)
    gcc -o /tmp/stuck /packages/stuck.c
    /tmp/stuck "$worker" &
    await restarted demo "$process"
    wait $!
    await logged demo err 'Worker 0 has made no progress'
    logged demo warning 'Watchdog timeout'
    ok "a stuck worker is reported, and systemd starts the instance again"

    process=$(property demo MainPID)
    kill -STOP "$process"
    await restarted demo "$process"
    ok "so it does if the whole program is stopped"

    process=$(property demo MainPID)
    mkdir -p /run/log/journal
    mount -t tmpfs -o size=8m journal /run/log/journal
    systemctl restart systemd-journald
    dd if=/dev/zero of=/run/log/journal/fill bs=64k 2> /dev/null || true
    for _ in $(seq 20); do systemctl reload understudy@demo; done
    sleep 12
    [ "$(property demo MainPID)" = "$process" ]
    shows_stream
    rm /run/log/journal/fill
    umount -l /run/log/journal
    systemctl restart systemd-journald
    systemctl reload understudy@demo
    await logged demo info "Reloaded /etc/understudy/demo.toml"
    ok "an instance goes on while the journal is full"

    exposure=$(systemd-analyze security --no-pager understudy@demo | tail -n 1)
    systemd-analyze security --no-pager --threshold=30 understudy@demo > /dev/null
    ok "systemd-analyze security:${exposure#*:}"

    man -w understudy understudy-run > /dev/null
    [ -z "$(man --warnings understudy 2>&1 > /dev/null)" ]
    ok "man understudy: $(man understudy 2> /dev/null | wc -l) lines"
    bash -c 'source /usr/share/bash-completion/completions/understudy
        COMP_WORDS=(understudy che); COMP_CWORD=1; _understudy understudy che understudy; [ "${COMPREPLY[*]}" = check ]'
    ok "bash completes understudy che to check"

    gcc -o /tmp/scatter /usr/share/doc/libonepipe-dev/examples/scatter.c $(pkg-config --cflags --libs onepipe)
    ldd /tmp/scatter | grep -q 'libonepipe.so.0 => /lib/'
    cd /usr/share/doc/understudy/configs
    /tmp/scatter process.toml 5 10 1 2 > /tmp/scatter.txt 2>&1 || { cat /tmp/scatter.txt; return 1; }
    ok "a C program built with pkg-config onepipe: $(tail -n 1 /tmp/scatter.txt)"

    systemctl enable --quiet understudy@demo
}

second() {
    await systemctl is-active understudy@demo
    ok "an enabled instance runs after a restart of the machine"

    sed -i 's/^qps = 4/qps = 5/' /etc/understudy/demo.toml
    apt-get install -y --reinstall /packages/understudy_*.deb > /tmp/again.log 2>&1 || { cat /tmp/again.log; return 1; }
    grep -q '^qps = 5' /etc/understudy/demo.toml
    apt-get remove -y understudy > /tmp/remove.log 2>&1 || { cat /tmp/remove.log; return 1; }
    fails grep -qx understudy /proc/[0-9]*/comm
    grep -q '^qps = 5' /etc/understudy/demo.toml
    apt-get install -y /packages/understudy_*.deb > /tmp/again.log 2>&1 || { cat /tmp/again.log; return 1; }
    systemctl start understudy@demo
    grep -q '^qps = 5' /etc/understudy/demo.toml
    ok "an edited demo.toml stays over a new installation and a removal, which stops the instance"

    touch /etc/understudy/own.toml
    apt-get purge -y understudy > /tmp/purge.log 2>&1 || { cat /tmp/purge.log; return 1; }
    fails grep -qx understudy /proc/[0-9]*/comm
    left=$(find / -xdev -name '*understudy*' -not -path '/proc/*' -not -path '/packages/*' -not -path '/var/cache/*' \
        -not -path '/var/log/journal/*' -not -path '/run/*' -not -path '/tmp/*')
    # The administrator's own files stay.
    [ "$left" = /etc/understudy ] || { echo "left: $left"; return 1; }
    ok "a purge stops the instance and leaves only the administrator's files"
}

"$boot"
