//! Requests of the system to give a device back.
//!
//! A device that is to be unplugged, or given to another driver, belongs to this process as long as its
//! port is open (VFIO): the kernel requests it, and waits. DPDK then calls, from its interrupt thread, the
//! callback that is registered for the device.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::CString;

static REQUESTED: [AtomicBool; dpdk_sys::RTE_MAX_ETHPORTS as usize] =
    [const { AtomicBool::new(false) }; dpdk_sys::RTE_MAX_ETHPORTS as usize];

/// Begins to note requests for the device of this name, which is that of port `port`.
pub(crate) fn watch(device: &str, port: u16) {
    let device = CString::new(device).expect("names of devices contain no zero byte");
    // SAFETY: the name is a C string, which DPDK copies. The callback only writes to a static array, at the index
    // that it gets in place of an address.
    unsafe {
        // On failure (no memory), a request waits until the run ends.
        dpdk_sys::rte_dev_event_callback_register(
            device.as_ptr(),
            Some(on_event),
            core::ptr::without_provenance_mut(usize::from(port)),
        );
    }
}

/// Returns whether the system has requested the device of this port.
pub(crate) fn is_requested(port: u16) -> bool {
    REQUESTED[usize::from(port)].load(Ordering::Relaxed)
}

extern "C" fn on_event(_: *const c_char, event: dpdk_sys::rte_dev_event_type, port: *mut c_void) {
    if event == dpdk_sys::rte_dev_event_type_RTE_DEV_EVENT_REMOVE {
        REQUESTED[port.addr()].store(true, Ordering::Relaxed);
    }
}
