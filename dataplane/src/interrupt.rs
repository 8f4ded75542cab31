//! The EAL's interrupt thread.

use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::c_void;
use std::sync::mpsc;

/// Parks the EAL's interrupt thread for the rest of the process; call it before ports are closed for good.
/// The driver frees its listener's handle without notifying the interrupt thread, which would access it when
/// it next wakes up.
pub(crate) fn park_interrupts() {
    static PARKED: AtomicBool = AtomicBool::new(false);
    if PARKED.swap(true, Ordering::SeqCst) {
        return;
    }
    let (parked, wait) = mpsc::channel();
    let set = set_alarm(move || {
        _ = parked.send(());
        loop {
            std::thread::park();
        }
    });
    if set.is_ok() {
        _ = wait.recv();
    }
}

/// Runs `work` in the EAL's interrupt thread, and waits for it.
pub(crate) fn in_interrupt_thread(work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let set = set_alarm(move || {
        work();
        _ = done.send(());
    });
    if let Err(work) = set {
        // There is no memory for an alarm. The driver's callbacks may run concurrently, but not on anything
        // that workers use.
        work();
    }
    _ = wait.recv();
}

type Work = Box<dyn FnOnce() + Send>;

/// Schedules `work` on the EAL's interrupt thread. Returns it if that is not possible.
fn set_alarm(work: impl FnOnce() + Send + 'static) -> Result<(), Work> {
    unsafe extern "C" fn run(work: *mut c_void) {
        // SAFETY: `work` is the box that was leaked below, and this is called once.
        let work = unsafe { Box::from_raw(work.cast::<Work>()) };
        work();
    }
    let work: Box<Work> = Box::new(Box::new(work));
    let work = Box::into_raw(work);
    // SAFETY: the EAL is up; `run` takes ownership of its argument, once.
    let result = unsafe { dpdk_sys::rte_eal_alarm_set(1, Some(run), work.cast()) };
    // SAFETY: if the call failed, the box is still owned here.
    if result < 0 { Err(*unsafe { Box::from_raw(work) }) } else { Ok(()) }
}
