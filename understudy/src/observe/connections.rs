//! Connections to the observation socket and the metrics server: one thread each, and a limit on their
//! number.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Connections at once
pub(super) const MAX_CONNECTIONS: usize = 16;
/// Time for which a client may leave a response unread
pub(super) const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts connections for the lifetime of the process, and turns away those beyond [`MAX_CONNECTIONS`].
pub(super) fn accept_all<S: Send + 'static>(
    incoming: impl Iterator<Item = io::Result<S>>,
    serve: impl Fn(&S) -> io::Result<()> + Clone + Send + 'static,
    turn_away: impl Fn(&S) -> io::Result<()>,
) {
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in incoming {
        let Ok(stream) = stream else {
            // No file descriptor is free; this passes.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let guard = ConnectionGuard::new(&connections);
        if connections.load(Ordering::Relaxed) > MAX_CONNECTIONS {
            _ = turn_away(&stream);
            continue;
        }
        let serve = serve.clone();
        let serve = move || {
            let _guard = guard;
            // A client that disconnects is not an error.
            _ = serve(&stream);
        };
        _ = thread::Builder::new().name("observe-guest".into()).spawn(serve);
    }
}

struct ConnectionGuard(Arc<AtomicUsize>);

impl ConnectionGuard {
    fn new(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connections))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
