#!/usr/bin/env python3
"""Runs consensus with and without the P4CE switch on this machine: servers, a top-of-rack switch and the P4CE switch, each a
process, connected by shared memory. Needs no root, no huge pages and no NIC.

    scripts/demo-p4ce.py [--understudy PROGRAM] [--quick] [--json FILE]

Exits with 0 if every check passed, with 1 if one failed, with 130 after Ctrl-C.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILT = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
SWITCH_ID = 100
SIZE = 64
# Seconds between two live lines of a server
LIVE_S = 0.25
# Time limit of each step, in seconds
STEP_TIMEOUT_S = 30


class Failed(Exception):
    """A check of the demo failed."""


def runtime():
    return '[runtime]\nworkers = ["any"]\nidle = "sleep"        # more workers than CPUs\n\n'


def port(name, socket_id, role):
    return f'[[port]]\nname = "{name}"\nmtu = 1500\nmemif = {{ socket = "rack.sock", id = {socket_id}, role = "{role}" }}\n\n'


def rack_config(servers):
    ports = "".join(port(f"server-{n}", n, "server") for n in range(servers))
    ports += port("p4ce", SWITCH_ID, "server")
    return f"# The top-of-rack switch: a learning bridge.\n\n{runtime()}{ports}[forward]\nmac_table = {{}}\n"


def switch_config():
    return (
        "# The P4CE switch: one port for all of its traffic.\n\n"
        f'{runtime()}{port("rack", SWITCH_ID, "client")}'
        '[p4ce]\nmac = "02:00:00:00:00:fe"\naddresses = ["10.0.0.254/24"]\nsilent_after_ms = 200\n'
    )


def server_config(number, servers, with_switch, heartbeat_us):
    addresses = ", ".join(f'"10.0.0.{n + 1}"' for n in range(servers))
    switch = 'switch = "10.0.0.254"\n' if with_switch else ""
    return (
        f"# Server {number}: the leader or a replica.\n\n"
        f'{runtime()}{port("eth", number, "client")}'
        f'[nic]\nmac = "02:00:00:00:00:{number + 1:02x}"\naddresses = ["10.0.0.{number + 1}/24"]\n\n'
        f"[consensus]\nid = {number}\nservers = [{addresses}]\n{switch}"
        f"heartbeat_us = {heartbeat_us}\nlog_entries = 4096\nmax_value = {SIZE}\nwindow = 16\n"
        f"propose = {{ size = {SIZE} }}      # as fast as possible\n"
    )


class Process:
    """One `understudy` process and its output."""

    def __init__(self, program, verb, config, arguments=(), on_line=None):
        self.name = config.stem
        self.log = open(config.with_suffix(".log"), "ab")
        stdout = subprocess.PIPE if on_line else subprocess.DEVNULL
        # The kernel kills the process when this script ends, however it ends.
        command = ["setpriv", "--pdeathsig", "KILL", "--", str(program), verb, str(config), "--json", *arguments]
        # In a process group of its own: this script forwards Ctrl-C.
        self.child = subprocess.Popen(command, stdout=stdout, stderr=self.log, start_new_session=True)
        self.reader = self.lines = None
        if on_line:
            self.lines = open(config.with_suffix(".jsonl"), "ab", buffering=0)
            self.reader = threading.Thread(target=self.read, args=(on_line,), daemon=True)
            self.reader.start()

    def read(self, on_line):
        for text in self.child.stdout:
            try:
                line = json.loads(text)
            except ValueError:
                # The process was killed in the middle of a line.
                continue
            self.lines.write(text)
            on_line(line)

    def is_alive(self):
        return self.child.poll() is None

    def kill(self):
        self.child.kill()
        self.child.wait()
        self.close()

    def close(self):
        if self.reader:
            self.reader.join(5)
            self.lines.close()
        self.log.close()

    def wait_exit(self):
        """Waits until the process has printed its report and exited, after SIGINT. Returns whether it exited with 0."""
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.close()
        return self.child.returncode == 0


class Cluster:
    """A rack with servers, with or without the P4CE switch in it."""

    def __init__(self, demo, replicas, with_switch):
        self.demo, self.count, self.with_switch = demo, replicas + 1, with_switch
        self.lock = threading.Lock()
        # By server: its last line, the pauses in its lines with their arrival times, and its report
        self.last, self.pauses, self.reports = {}, {}, {}
        # All lines of leaders, with their arrival times
        self.leader_lines = []
        # By number of entries: the hash of the state, and the servers that reported it
        self.states, self.disagreement = {}, None
        name = f"{replicas}-replicas-{'with' if with_switch else 'without'}-switch"
        self.folder = demo.folder / name
        self.folder.mkdir(exist_ok=True)
        (self.folder / "rack.toml").write_text(rack_config(self.count))
        (self.folder / "switch.toml").write_text(switch_config())
        for n in range(self.count):
            (self.folder / f"server-{n}.toml").write_text(server_config(n, self.count, with_switch, demo.heartbeat_us))
        self.rack = self.start("run", "rack")
        self.switch = self.start("run", "switch") if with_switch else None
        self.servers = {}
        for n in range(self.count):
            # One server bootstraps the group when all run; a restarted server does not.
            self.start_server(n, ["--bootstrap"] if n == 0 else [])
        demo.cluster = self

    def start(self, verb, name, arguments=(), on_line=None):
        process = Process(self.demo.program, verb, self.folder / f"{name}.toml", arguments, on_line)
        self.demo.processes.append(process)
        return process

    def start_server(self, n, arguments=()):
        live = ["--live", str(LIVE_S), *arguments]
        self.servers[n] = self.start("host", f"server-{n}", live, lambda line: self.on_server_line(n, line))

    def start_switch(self):
        self.switch = self.start("run", "switch")

    def kill_server(self, n):
        self.servers.pop(n).kill()
        with self.lock:
            self.last.pop(n, None)

    def on_server_line(self, n, line):
        with self.lock:
            for entries, state in line["checkpoints"] + [[line["decided"], line["hash"]]]:
                state_and_servers = self.states.setdefault(entries, (state, set()))
                state_and_servers[1].add(n)
                if state_and_servers[0] != state:
                    self.disagreement = f"after {entries} entries, the state of server {n} differs from that of {sorted(state_and_servers[1] - {n})}"
            if line["kind"] == "report":
                self.reports[n] = line
            else:
                self.last[n] = line
                if line["leads"]:
                    self.leader_lines.append((time.monotonic(), line))
                self.pauses.setdefault(n, []).append((time.monotonic(), line["pause_ms"]))

    def lines(self):
        with self.lock:
            return dict(self.last)

    def compared(self):
        """Returns the number of states that two or more servers have reported."""
        with self.lock:
            return sum(1 for _, servers in self.states.values() if len(servers) > 1)

    def decided(self):
        return max((line["decided"] for line in self.lines().values()), default=0)

    def longest_pause(self, since, servers):
        """Returns the longest pause of the servers after `since`, in ms. The first line after it also covers time before it."""
        with self.lock:
            each = [max((ms for at, ms in self.pauses.get(n, []) if at > since), default=0) for n in servers]
        return max(each, default=0)

    def check(self):
        if self.disagreement:
            raise Failed(f"SERVERS DISAGREE: {self.disagreement}")
        processes = [self.rack, *([self.switch] if self.switch else []), *self.servers.values()]
        for process in processes:
            if not process.is_alive():
                raise Failed(f"{process.name} exited unexpectedly: see {self.folder}/{process.name}.log")

    def wait(self, what, done, at_least=0.0):
        """Waits until `done` returns true, and shows the table meanwhile."""
        began = time.monotonic()
        while True:
            self.check()
            self.demo.show()
            waited = time.monotonic() - began
            if waited >= at_least and done():
                return
            if waited > STEP_TIMEOUT_S:
                raise Failed(f"{what}: not within {STEP_TIMEOUT_S} s (logs are in {self.folder})")
            slept = time.monotonic()
            time.sleep(0.05)
            self.demo.longest_stall_s = max(self.demo.longest_stall_s, time.monotonic() - slept - 0.05)

    def is_stable(self, leader):
        """Returns whether all running servers are members and follow `leader`, and it uses the switch if there is one."""
        lines = self.lines()
        if set(lines) != set(self.servers):
            return False
        if any(line["standing"] != "member" or line["leader"] != leader for line in lines.values()):
            return False
        with_switch = self.with_switch and self.switch is not None
        return lines[leader]["leads"] and lines[leader]["through_switch"] == with_switch

    def stop(self):
        """Stops all processes. Returns the reports of the servers."""
        processes = [*self.servers.values(), *([self.switch] if self.switch else []), self.rack]
        for process in processes:
            if process.is_alive():
                process.child.send_signal(signal.SIGINT)
        exited_cleanly = [process.wait_exit() for process in processes]
        for process in processes:
            self.demo.processes.remove(process)
        self.demo.cluster = None
        if self.disagreement:
            raise Failed(f"SERVERS DISAGREE: {self.disagreement}")
        if not all(exited_cleanly):
            names = [process.name for process, ended in zip(processes, exited_cleanly) if not ended]
            raise Failed(f"{', '.join(names)} exited with an error: see the logs in {self.folder}")
        return self.reports


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def table(head, rows):
    """Formats columns as wide as their content, the first left-aligned and the others right-aligned."""
    rows = [head, *rows]
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if n == 0 else cell.rjust(width) for n, (cell, width) in enumerate(zip(row, widths))]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


class Demo:
    def __init__(self, program, folder, quick):
        self.program, self.folder, self.quick = program, folder, quick
        self.processes, self.cluster = [], None
        # A server that does not get a CPU for 14 heartbeats is suspected to have failed.
        self.cpus = len(os.sched_getaffinity(0))
        self.replicas = [2] if quick else [2, 4]
        self.count = self.replicas[-1] + 3
        self.heartbeat_us = 10_000 if self.count > self.cpus else 2_000
        self.drawn, self.shown_at = 0, 0.0
        # Longest time for which this script did not get a CPU, in seconds: a pause of a server may have the same cause
        self.longest_stall_s = 0.0
        self.terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def print_text(self, text=""):
        self.drawn = 0
        print(text, flush=True)

    def show(self, force=False):
        """Shows the live table: redrawn in place on a terminal, one line a second elsewhere."""
        if self.cluster is None:
            return
        now = time.monotonic()
        if not force and now - self.shown_at < (0.2 if self.terminal else 1.0):
            return
        self.shown_at = now
        lines = self.cluster.lines()
        if not self.terminal:
            leaders = [line for line in lines.values() if line["leads"]]
            if leaders:
                print("    " + self.live_line(max(leaders, key=lambda line: line["decided"])), flush=True)
            return
        head = ["", "role", "entries", "entries/s", "packets out", "packets in", "median us", "p99 us"]
        rows = []
        for n in range(self.cluster.count):
            rows.append([f"server {n}", *self.row(lines.get(n), n in self.cluster.servers)])
        if self.cluster.with_switch:
            role = "down" if self.cluster.switch is None else "in use" if self.in_use(lines) else "idle"
            rows.append(["P4CE switch", role, *[""] * 6])
        text = table(head, rows)
        if self.drawn:
            sys.stdout.write(f"\x1b[{self.drawn}A")
        sys.stdout.write("".join(f"\x1b[2K{line}\n" for line in text))
        sys.stdout.flush()
        self.drawn = len(text)

    @staticmethod
    def in_use(lines):
        return any(line["through_switch"] for line in lines.values())

    @staticmethod
    def row(line, runs):
        if line is None:
            return ["starting" if runs else "down", *["-"] * 6]
        role = "leader" if line["leads"] else "joining" if line["standing"] != "member" else "replica"
        writes = line["switch"] or line["direct"] or {}
        latency = writes.get("latency_us") or {}
        numbers = [number(writes.get("packets_out"), 2), number(writes.get("packets_in"), 2)]
        times = [number(latency.get("p50")), number(latency.get("p99"))]
        return [role, number(line["decided"]), number(line["decided_per_s"]), *numbers, *times]

    def live_line(self, line):
        role, _, rate, out, into, median, late = self.row(line, True)
        path = "through the switch" if line["through_switch"] else "directly to each replica"
        return (
            f"server {line['id']} is {role}, writes {path}: {rate} consensus/s, {out} packets out and {into} in per consensus, "
            f"median {median} us, p99 {late} us"
        )

    def measure(self, replicas, with_switch):
        seconds = 1.5 if self.quick else 5
        path = "with the P4CE switch" if with_switch else "without it"
        self.print_text(f"\n{replicas} replicas and a leader, {path}, for {seconds:g} s")
        cluster = Cluster(self, replicas, with_switch)
        cluster.wait("server 0 leads and all follow", lambda: cluster.is_stable(0))
        began = time.monotonic()
        cluster.wait("the measurement", lambda: True, seconds)
        compared = cluster.compared()
        reports = cluster.stop()
        path = "switch" if with_switch else "direct"
        # The first line also covers time before the measurement.
        lines = [line[path] for at, line in cluster.leader_lines if at >= began + LIVE_S and line["id"] == 0]
        lines = [line for line in lines if line and line["decided"]]
        decided = sum(line["decided"] for line in lines)
        if not decided:
            raise Failed(f"the leader decided no value within {seconds:g} s; see the logs in {cluster.folder}")
        if compared == 0:
            raise Failed("no two servers reported a state after the same entries")

        def each(key):
            return sum(line[key] * line["decided"] for line in lines) / decided

        spent = sum(line["seconds"] for line in lines)
        return {
            "replicas": replicas,
            "switch": with_switch,
            "decided": decided,
            "decided_per_s": decided / spent,
            "goodput": decided * SIZE / spent,
            "packets_out": each("packets_out"),
            "packets_in": each("packets_in"),
            "latency_us": reports[0][path]["latency_us"],
            "compared": compared,
            "intervals": [{key: line[key] for key in ("seconds", "decided", "packets_out", "packets_in")} for line in lines],
        }

    def kill_and_restart(self, cluster, what, kill, servers, restart, after_kill, after_restart):
        """Kills a process and restarts it. Returns the two pauses, in ms."""
        decided = cluster.decided()
        self.print_text(f"\n  {what} is killed")
        killed = time.monotonic()
        kill()
        seconds = 0.7 if self.quick else 2.0
        cluster.wait(
            f"entries decided after {what} was killed",
            lambda: cluster.decided() > decided + 100 and after_kill(),
            seconds,
        )
        kill_ms = cluster.longest_pause(killed, servers)
        self.print_text(f"  {what} is restarted")
        restarted = time.monotonic()
        restart()
        cluster.wait(f"{what} is back", after_restart, seconds)
        restart_ms = cluster.longest_pause(restarted, servers)
        decided = cluster.decided()
        cluster.wait("entries are decided", lambda: cluster.decided() > decided + 100)
        self.print_text(f"  longest pause: {kill_ms:.0f} ms after the kill, {restart_ms:.0f} ms after the restart")
        return {"what": what, "killed_ms": kill_ms, "back_ms": restart_ms}

    def measure_failures(self, replicas, with_switch):
        path = "with the P4CE switch" if with_switch else "without it"
        self.print_text(f"\nPauses after a process is killed (SIGKILL): {replicas} replicas, {path}")
        cluster = Cluster(self, replicas, with_switch)
        cluster.wait("server 0 leads and all follow", lambda: cluster.is_stable(0))
        began = time.monotonic() + LIVE_S
        cluster.wait("the run without a failure", lambda: cluster.is_stable(0), 1.5)
        usual_ms = cluster.longest_pause(began, list(cluster.servers))
        last = replicas
        other_replicas = list(range(1, last))

        def kill_switch():
            cluster.switch.kill()
            self.processes.remove(cluster.switch)
            cluster.switch = None

        def kill(n):
            self.processes.remove(cluster.servers[n])
            cluster.kill_server(n)

        results = [
            self.kill_and_restart(
                cluster,
                "a replica",
                lambda: kill(last),
                [0, *other_replicas],
                lambda: cluster.start_server(last),
                lambda: cluster.lines()[0]["leads"],
                lambda: cluster.is_stable(0),
            ),
            self.kill_and_restart(
                cluster,
                "the leader",
                lambda: kill(0),
                range(1, last + 1),
                lambda: cluster.start_server(0),
                lambda: cluster.lines()[1]["leads"],
                lambda: cluster.is_stable(0),
            ),
        ]
        if with_switch:
            results.append(
                self.kill_and_restart(
                    cluster,
                    "the P4CE switch",
                    kill_switch,
                    range(0, last + 1),
                    cluster.start_switch,
                    lambda: cluster.is_stable(0),
                    lambda: cluster.is_stable(0),
                )
            )
        compared = cluster.compared()
        cluster.stop()
        if compared == 0:
            raise Failed("no two servers reported a state after the same entries")
        return {"replicas": replicas, "switch": with_switch, "compared": compared, "usual_ms": usual_ms, "killed": results}

    def run(self):
        self.print_text(f"P4CE: a leader replicates {SIZE}-byte values; a value is decided when a majority of servers holds it.")
        self.print_text("Without the switch, the leader writes each value to every replica; with it, once to the switch.")
        self.print_text(f"Up to {self.count} processes share {self.cpus} CPU{'s'[:self.cpus > 1]} without RDMA hardware: times and rates are those of")
        self.print_text("this machine, not of RDMA NICs and a hardware switch. Packet counts are exact.")
        self.print_text(f"Configurations and logs: {self.folder}")
        sizes, most_replicas = self.replicas, self.replicas[-1]
        measured = [self.measure(size, with_switch) for size in sizes for with_switch in (False, True)]
        self.print_comparison(sizes, measured)
        killed = [self.measure_failures(most_replicas, with_switch) for with_switch in (True, False)]
        self.print_pauses(killed)
        compared = sum(run["compared"] for run in measured + killed)
        self.print_text(f"\nServers reported their state after the same entries {compared:,} times; the states were always equal.")
        without, through = (next(run for run in measured if run["replicas"] == most_replicas and run["switch"] == switch) for switch in (False, True))
        outage_ms = max(each["killed_ms"] for each in killed[0]["killed"])
        self.print_text(
            f"\n{most_replicas} replicas: the leader sends {through['packets_out']:.2f} packets per value with the P4CE switch instead of "
            f"{without['packets_out']:.2f}, and values were decided again {outage_ms:.0f} ms after a process was killed, at most"
        )
        return {"cpus": self.cpus, "heartbeat_us": self.heartbeat_us, "measured": measured, "killed": killed, "compared": compared}

    def print_comparison(self, sizes, measured):
        head = [""]
        for size in sizes:
            head += [f"{size} replicas", "with switch"]

        def row(name, value):
            return [name, *[value(run) for run in measured]]

        rows = [
            row("consensus/s", lambda run: number(run["decided_per_s"])),
            row("goodput, MB/s", lambda run: number(run["goodput"] / 1e6, 2)),
            row("leader's packets out, per consensus", lambda run: number(run["packets_out"], 2)),
            row("leader's packets in, per consensus", lambda run: number(run["packets_in"], 2)),
            row("median latency, us", lambda run: number(run["latency_us"]["p50"])),
            row("p99 latency, us", lambda run: number(run["latency_us"]["p99"])),
        ]
        self.print_text("\nComparison")
        for line in table(head, rows):
            self.print_text(line)
        self.print_text(f"  Packets beyond 1, 2 or 4 are heartbeats (every {self.heartbeat_us // 1000} ms, independent of the load) and retransmissions.")
        self.print_text("  The switch is one more process on these CPUs, and adds two hops to each value: on this machine that costs")
        self.print_text("  more than it saves. Where the leader's link is the bottleneck, fewer packets per value mean more values.")

    def print_pauses(self, killed):
        rows = []
        with_switch, without = [{each["what"]: each for each in run["killed"]} for run in killed]
        for what, each in with_switch.items():
            other = without.get(what, {})
            for key, label in [("killed_ms", f"{what} is killed"), ("back_ms", f"{what} is restarted")]:
                rows.append([label, number(each[key]), number(other.get(key))])
        rows.append(["no failure", *[number(run["usual_ms"]) for run in killed]])
        self.print_text("\nLongest pause until the next value is decided, ms")
        for line in table(["", "with switch", "without"], rows):
            self.print_text(line)
        self.print_text(f"  A server is suspected to have failed after {14 * self.heartbeat_us // 1000} ms without a heartbeat. A restarted server with the lowest")
        self.print_text("  number becomes the leader again, and the leader retries the switch some time after it failed.")
        if self.longest_stall_s > 0.1:
            stall_ms = self.longest_stall_s * 1000
            self.print_text(f"  This script itself did not get a CPU for up to {stall_ms:,.0f} ms: pauses of that length are due to the machine's load.")

    def clean(self):
        for process in self.processes:
            if process.is_alive():
                process.kill()
        self.processes.clear()


def main():
    parser = argparse.ArgumentParser(description="Consensus with and without the P4CE switch, on this machine.")
    parser.add_argument("--understudy", default=BUILT / "release/understudy", help="path of the program")
    parser.add_argument("--quick", action="store_true", help="shorter: 2 replicas only")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    parser.add_argument("--keep", action="store_true", help="keep the configurations and logs")
    args = parser.parse_args()
    program = pathlib.Path(args.understudy).resolve()
    if not program.exists():
        sys.exit(f"{program} does not exist; run `make build`, or set the path with --understudy")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="understudy-p4ce-"))
    demo = Demo(program, folder, args.quick)
    # SIGTERM cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    code = 1
    try:
        results = demo.run()
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(results, indent=1))
        code = 0
    except KeyboardInterrupt:
        demo.print_text("\nStopped.")
        code = 130
    except Failed as failed:
        demo.print_text(f"\nFailed: {failed}")
    finally:
        demo.clean()
        if args.keep or code == 1:
            print(f"Configurations and logs are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
