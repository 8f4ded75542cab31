//! Connections to the observation socket and the metrics server: one thread each, and a limit on their
//! number.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Connections at once
pub(super) const GUESTS: usize = 16;
/// Time for which a client may leave a response unread
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Accepts connections for the lifetime of the process, and turns away those beyond [`GUESTS`].
pub(super) fn receive<S: Send + 'static>(
    incoming: impl Iterator<Item = io::Result<S>>,
    serve: impl Fn(&S) -> io::Result<()> + Clone + Send + 'static,
    turn_away: impl Fn(&S) -> io::Result<()>,
) {
    let guests = Arc::new(AtomicUsize::new(0));
    for stream in incoming {
        let Ok(stream) = stream else {
            // No file descriptor is free; this passes.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let guest = Guest::new(&guests);
        if guests.load(Ordering::Relaxed) > GUESTS {
            _ = turn_away(&stream);
            continue;
        }
        let serve = serve.clone();
        let serve = move || {
            let _guest = guest;
            // A client that disconnects is not an error.
            _ = serve(&stream);
        };
        _ = thread::Builder::new().name("observe-guest".into()).spawn(serve);
    }
}

struct Guest(Arc<AtomicUsize>);

impl Guest {
    fn new(guests: &Arc<AtomicUsize>) -> Self {
        guests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(guests))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
