//! Three servers and the switch between them, each as a process. Any of them is killed with SIGKILL and
//! started again, and nothing that was acknowledged is lost.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use understudy_tests::alone;
use understudy_tests::processes::{Process as Child, Signal, command};

/// Timeout for everything that tests wait for. It is far above all expected times, for busy machines.
const DEADLINE: Duration = Duration::from_secs(25);
const STEP: Duration = Duration::from_millis(5);
/// Name of the rack's socket in the cluster's folder
const SOCKET: &str = "rack.sock";
/// Address at which the rack's switch accepts requests for groups
const SWITCH: &str = "10.0.0.254:18515";

/// A process with the text it has printed to standard error. It is killed when dropped.
struct Process {
    child: Child,
    /// Standard error of the process so far
    output: Arc<(Mutex<String>, Condvar)>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Child::start(command);
        let output = Arc::<(Mutex<String>, Condvar)>::default();
        let (writer, stderr) = (Arc::clone(&output), child.stderr.take().unwrap());
        let pid = child.id();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                println!("{pid}: {line}");
                *writer.0.lock().unwrap() += &(line + "\n");
                writer.1.notify_all();
            }
        });
        Self { child, output }
    }

    /// Waits until the process has printed this text.
    ///
    /// Panics after [`DEADLINE`].
    fn wait_for(&self, words: &str) {
        let (text, changed) = &*self.output;
        let missing = |text: &mut String| !text.contains(words);
        let (text, result) = changed.wait_timeout_while(text.lock().unwrap(), DEADLINE, missing).unwrap();
        assert!(!result.timed_out(), "{words:?} is missing in\n{text}");
    }

    /// Kills the process with SIGKILL.
    ///
    /// Panics if it has already ended.
    fn kill(mut self) {
        assert!(
            self.child.try_wait().unwrap().is_none(),
            "the process has already ended: {}",
            self.output.0.lock().unwrap()
        );
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Terminates the process (SIGTERM). Returns whether it succeeded, and what it printed to standard
    /// output.
    fn end(mut self) -> (bool, String) {
        self.child.signal(Signal::TERM);
        let mut printed = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        (self.child.wait().unwrap().success(), printed)
    }
}

/// Three servers, and how they are started
struct Cluster {
    folder: TempDir,
    tcp: Vec<SocketAddr>,
    through: bool,
}

impl Cluster {
    fn new(through: bool) -> Self {
        // Loopback addresses derived from the process id, with ports below the ephemeral range
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let tcp = (1..=3).map(|n| SocketAddr::from(([127, a.max(1), b, c], 7000 + n))).collect();
        Self { folder: tempfile::tempdir().unwrap(), tcp, through }
    }

    fn rack(&self) -> Process {
        let mut rack = command(env!("CARGO_BIN_EXE_kv-rack"));
        rack.arg(self.folder.path().join(SOCKET));
        let rack = Process::start(rack);
        rack.wait_for("The rack is ready");
        rack
    }

    fn tcp(&self) -> String {
        self.tcp.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
    }

    fn server(&self, id: usize) -> Process {
        let socket = self.folder.path().join(SOCKET);
        let mut server = command(env!("CARGO_BIN_EXE_kv"));
        server.args(["server", "--id", &id.to_string(), "--tcp", &self.tcp()]);
        server.args(["--rdma", "10.0.0.1,10.0.0.2,10.0.0.3", "--heartbeat-ms", "10"]);
        server.args(["--memif", &format!("{}:{id}", socket.display())]);
        if self.through {
            server.args(["--through", SWITCH]);
        }
        Process::start(server)
    }

    fn client(&self, arguments: &[&str]) -> Command {
        let mut client = command(env!("CARGO_BIN_EXE_kv"));
        client.arg(arguments[0]).args(["--tcp", &self.tcp()]).args(&arguments[1..]);
        client
    }

    /// Runs `kv` with a command such as `get`. Returns what it printed.
    fn call(&self, arguments: &[&str]) -> String {
        let output = self.client(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap().trim_end().into()
    }

    /// Sends one line to one server, as netcat does. Returns its whole response.
    fn send_line(&self, server: usize, line: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.tcp[server])?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Returns a field of a server's INFO.
    fn info(&self, server: usize, name: &str) -> Option<String> {
        let text = self.send_line(server, "INFO").ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned))
    }

    fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        for _ in 0..DEADLINE.as_millis() / STEP.as_millis() {
            if condition() {
                return;
            }
            thread::sleep(STEP);
        }
        panic!(
            "timeout: {what}\n{}",
            String::from_utf8_lossy(&self.client(&["info"]).output().unwrap().stdout)
        );
    }

    fn wait_for(&self, server: usize, name: &str, value: &str) {
        let what = format!("server {server} has {name}:{value}");
        self.wait_until(&what, || self.info(server, name).as_deref() == Some(value));
    }

    /// Waits until more entries are applied at these servers.
    fn wait_for_progress(&self, servers: &[usize]) {
        let applied = |server: usize| self.info(server, "applied")?.parse::<u64>().ok();
        for server in servers {
            let mut before = None;
            self.wait_until(&format!("server {server} applies more entries"), || {
                let now = applied(*server);
                before = before.or(now);
                now.zip(before).is_some_and(|(now, before)| now > before + 50)
            });
        }
    }
}

/// Asserts that nothing was lost or executed twice, and that shared keys are linearizable.
fn assert_check_passes(check: Process) {
    let (succeeded, printed) = check.end();
    println!("{printed}");
    assert!(succeeded && printed.contains("lost: 0\nexecuted twice: 0"), "{printed}");
    assert!(printed.contains("shared keys that are not linearizable: 0"), "{printed}");
    assert!(!printed.contains("operations on shared keys: 0,"), "{printed}");
}

#[test]
fn no_acknowledged_write_is_lost_when_any_process_is_killed() {
    alone!();
    let cluster = Cluster::new(false);
    let rack = cluster.rack();
    let servers = [0, 1, 2].map(|id| cluster.server(id));
    cluster.call(&["bootstrap"]);
    let check = Process::start(cluster.client(&["check", "--keys", "60", "--pause-ms", "30"]));
    check.wait_for("Writing");
    for server in 0..3 {
        cluster.wait_for(server, "standing", "member");
    }
    cluster.wait_for(0, "role", "leader");
    cluster.wait_for_progress(&[0, 1, 2]);
    let [leader, first, second] = servers;

    println!("a follower is killed, and becomes a member again");
    second.kill();
    cluster.wait_for_progress(&[0, 1]);
    let second = cluster.server(2);
    cluster.wait_for(2, "standing", "member");
    cluster.wait_for_progress(&[2]);

    println!("the restarted follower counts: there is no majority without it");
    first.kill();
    cluster.wait_for_progress(&[0, 2]);
    let first = cluster.server(1);
    cluster.wait_for(1, "standing", "member");

    println!("the leader is killed, and leads again after its restart");
    leader.kill();
    cluster.wait_for_progress(&[1, 2]);
    let leader = cluster.server(0);
    cluster.wait_for(0, "standing", "member");
    cluster.wait_for(0, "role", "leader");
    cluster.wait_for_progress(&[0, 1, 2]);

    println!("the restarted leader counts, too");
    first.kill();
    cluster.wait_for_progress(&[0, 2]);
    let first = cluster.server(1);
    cluster.wait_for(1, "standing", "member");

    println!("the switch is killed and restarted");
    rack.kill();
    let rack = cluster.rack();
    cluster.wait_for_progress(&[0, 1, 2]);

    assert_check_passes(check);
    assert_eq!(cluster.call(&["set", "greeting", "hello"]), "OK");
    leader.kill();
    assert_eq!(cluster.call(&["get", "greeting"]), "hello");
    for process in [first, second, rack] {
        assert!(process.end().0);
    }
}

#[test]
fn servers_replicate_through_the_switch_and_without_it() {
    alone!();
    let cluster = Cluster::new(true);
    let rack = cluster.rack();
    let [leader, _first, _second] = [0, 1, 2].map(|id| cluster.server(id));
    cluster.call(&["bootstrap"]);
    let check = Process::start(cluster.client(&["check", "--keys", "60", "--pause-ms", "30"]));
    check.wait_for("Writing");
    cluster.wait_for(0, "through_switch", "yes");
    cluster.wait_for_progress(&[0, 1, 2]);

    println!("the leader is killed");
    leader.kill();
    cluster.wait_for_progress(&[1, 2]);
    let _leader = cluster.server(0);
    cluster.wait_for(0, "role", "leader");
    cluster.wait_for(0, "through_switch", "yes");
    cluster.wait_for_progress(&[0, 1, 2]);

    println!("the switch is killed");
    rack.kill();
    let _rack = cluster.rack();
    cluster.wait_for_progress(&[0, 1, 2]);
    cluster.wait_for(0, "through_switch", "yes");
    cluster.wait_for_progress(&[0, 1, 2]);
    assert_check_passes(check);
}

#[test]
fn redis_clients_are_served() {
    alone!();
    let cluster = Cluster::new(false);
    let _rack = cluster.rack();
    let _servers = [0, 1, 2].map(|id| cluster.server(id));
    cluster.call(&["bootstrap"]);
    assert_eq!(cluster.call(&["set", "key", "value"]), "OK");
    let moved = format!("-MOVED 0 {}\r\n", cluster.tcp[0]);
    cluster.wait_until("server 1 names the leader", || cluster.send_line(1, "GET key").unwrap() == moved);
    // On a busy machine, a leader may lose the leadership for a moment, and reports it. Then all commands are
    // retried.
    let mut attempts = 0..;
    cluster.wait_until("server 0 leads until all commands are executed", || {
        try_commands(&cluster, attempts.next().unwrap()).is_some()
    });
    let long = format!("SET k {}", "x".repeat(2000));
    cluster.wait_until("server 0 leads and refuses a command that is too long", || {
        let answer = send_to_leader(&cluster, &long);
        answer.is_some_and(|answer| {
            assert_eq!(answer, "-ERR the command does not fit into 1072 bytes; raise --max-value\r\n");
            true
        })
    });
    // Invalid input
    assert!(cluster.send_line(0, "*nonsense\r\nPING").unwrap().starts_with("-ERR Protocol error"));
    assert_is_missing(&cluster, "nothing");
}

/// Asserts that there is no such key: `kv get` fails without an error message. It prints one if there is no
/// response in time.
fn assert_is_missing(cluster: &Cluster, key: &str) {
    let output = cluster.client(&["get", key]).output().unwrap();
    assert!(!output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// Sends text to server 0. Returns its whole response, or `None` if it did not lead throughout.
fn send_to_leader(cluster: &Cluster, text: &str) -> Option<String> {
    let answers = cluster.send_line(0, text).unwrap();
    let leads = !["-UNKNOWN ", "-MOVED ", "-NOLEADER "].iter().any(|error| answers.contains(error));
    leads.then_some(answers)
}

/// Executes commands on keys of this attempt. Returns `None` if the leader has lost the leadership meanwhile.
fn try_commands(cluster: &Cluster, attempt: u32) -> Option<()> {
    let send_line = |text: &str| {
        let text = text.replace('@', &attempt.to_string());
        send_to_leader(cluster, &text)
    };
    assert_eq!(cluster.call(&["set", &format!("key{attempt}"), "one two"]), "OK");
    assert_eq!(send_line("GET key@")?, "$7\r\none two\r\n");
    // Several commands at once, with an error among them, and an incomplete command at the end
    let answers = send_line("PING\r\nINCR n@\r\nINCR key@\r\n\r\nDEL key@\r\nGET key@\r\n*2\r\n$3\r\nGET")?;
    assert_eq!(answers, "+PONG\r\n:1\r\n-ERR value is not an integer or out of range\r\n:1\r\n$-1\r\n");
    assert_eq!(send_line("ONCE 7@ 1 INCR n@\r\nONCE 7@ 1 INCR n@")?, ":2\r\n:2\r\n");
    let answers = send_line(&["INCR m@"; 500].join("\r\n"))?;
    assert!(answers.ends_with(":499\r\n:500\r\n") && answers.lines().count() == 500);
    Some(())
}

#[test]
fn servers_that_are_all_killed_wait_for_a_bootstrap() {
    alone!();
    let cluster = Cluster::new(false);
    let _rack = cluster.rack();
    let servers = [0, 1, 2].map(|id| cluster.server(id));
    cluster.wait_for(0, "waits_for", "all servers run, and none has begun: bootstrap the group");
    assert_eq!(cluster.call(&["bootstrap"]), "The group is bootstrapped.");
    assert_eq!(cluster.call(&["set", "key", "value"]), "OK");
    let again = cluster.client(&["bootstrap"]).output().unwrap();
    assert!(
        !again.status.success() && String::from_utf8_lossy(&again.stderr).contains("is a member already")
    );
    for server in servers {
        server.kill();
    }
    let _servers = [0, 1, 2].map(|id| cluster.server(id));
    for server in 0..3 {
        cluster.wait_for(server, "waits_for", "all servers run, and none has begun: bootstrap the group");
        assert_eq!(
            cluster.send_line(server, "GET key").unwrap(),
            "-NOLEADER there is no leader; try again\r\n"
        );
    }
    assert_eq!(cluster.call(&["bootstrap", "--patience", "20"]), "The group is bootstrapped.");
    // The new group begins with an empty store.
    assert_is_missing(&cluster, "key");
}
