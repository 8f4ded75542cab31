//! DPDK's environment abstraction layer: one a process.

use crate::config::{Config, Eal as EalConfig, Memory};
use crate::memif::{Channels, park_interrupts};
use crate::{Error, port};
use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The EAL, up. Dropping it takes it down, and it cannot come up again in this process.
#[derive(Debug)]
pub(crate) struct Eal {
    /// Whether the folder of files for other DPDK processes is ours
    shared: bool,
    /// Whether there are ports of memif
    memif: bool,
}

static STARTED: AtomicBool = AtomicBool::new(false);

impl Eal {
    /// Starts the EAL with the devices of `config`.
    pub(crate) fn start(config: &Config, channels: &Channels) -> Result<Self, Error> {
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(Error::new("DPDK was already started in this process", "start another process"));
        }
        let arguments = arguments(config, channels)?;
        // The EAL keeps pointers into its arguments, permutes them and may replace some: they are leaked on purpose, as
        // they would be in a C program.
        let mut argv: Vec<*mut c_char> = arguments.iter().map(|a| a.clone().into_raw()).collect();
        argv.push(std::ptr::null_mut());
        let argv = argv.leak();
        let log = Log::capture();
        let silence = Silence::begin();
        // SAFETY: argv holds argc C strings and a null, all of them live and writable.
        let result = unsafe { dpdk_sys::rte_eal_init(argv.len() as i32 - 1, argv.as_mut_ptr()) };
        drop(silence);
        let errno = errno();
        let log = log.finish();
        if result < 0 {
            remove_runtime_folder(false);
            return Err(explain(&config.eal, errno, &log).with_log(log));
        }
        let shared = config.eal.file_prefix.is_some();
        let eal = Self { shared, memif: !channels.is_empty() };
        // A virtual device that fails to probe does not fail the EAL.
        for (index, port) in config.ports.iter().enumerate() {
            if port::find(index, port).is_none() {
                return Err(port::missing(port, &log).with_log(log));
            }
        }
        // From here on only errors are worth a line, on standard error.
        // SAFETY: sets a number, and no stream, which means standard error.
        unsafe {
            dpdk_sys::rte_log_set_global_level(dpdk_sys::RTE_LOG_ERR);
        }
        Ok(eal)
    }
}

impl Drop for Eal {
    fn drop(&mut self) {
        if self.memif {
            // The EAL would wait for its interrupt thread for ever. The end of the process frees what is left.
            park_interrupts();
        } else if port::is_all_back() {
            // SAFETY: the EAL is up; ports and pools were closed and freed before, by the order of fields in `Runtime`, and
            // no packet buffer is left.
            unsafe { dpdk_sys::rte_eal_cleanup() };
        }
        remove_runtime_folder(self.shared);
    }
}

/// The EAL makes a folder for its files, and leaves both to the next process of this prefix, which may never come.
/// Removes it: with all that is in it, or only if it is empty and so nobody's.
fn remove_runtime_folder(with_files: bool) {
    // SAFETY: a string in static memory, empty before the EAL has made a folder.
    let folder = unsafe { CStr::from_ptr(dpdk_sys::rte_eal_get_runtime_dir()) };
    let folder = Path::new(OsStr::from_bytes(folder.to_bytes()));
    if folder.as_os_str().is_empty() {
        return;
    }
    // Failure means that somebody else needs it.
    _ = if with_files { std::fs::remove_dir_all(folder) } else { std::fs::remove_dir(folder) };
    _ = folder.parent().map(std::fs::remove_dir);
}

/// The arguments for `rte_eal_init`.
fn arguments(config: &Config, channels: &Channels) -> Result<Vec<CString>, Error> {
    let eal = &config.eal;
    let mut words: Vec<String> = vec!["understudy".into()];
    // One lcore for the control plane, on any CPU; workers are threads of ours, pinned by ourselves.
    let cpus: Vec<String> =
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id.to_string()).collect();
    words.extend([
        "--lcores".into(),
        format!("0@({})", if cpus.is_empty() { "0".into() } else { cpus.join(",") }),
    ]);
    match eal.memory {
        Memory::Ordinary { mb } => words.extend(["--no-huge".into(), "-m".into(), mb.to_string()]),
        Memory::HugePages { mb } => words.extend(["-m".into(), mb.to_string()]),
    }
    match (&eal.file_prefix, eal.memory) {
        (Some(prefix), _) => words.push(format!("--file-prefix={prefix}")),
        (None, Memory::HugePages { .. }) => words.push("--in-memory".into()),
        (None, Memory::Ordinary { .. }) => words.push("--no-shconf".into()),
    }
    if !eal.telemetry {
        words.push("--no-telemetry".into());
    }
    let mut pci = false;
    for (index, port) in config.ports.iter().enumerate() {
        match port::allow(index, port, channels)? {
            port::Allow::Pci(address) => {
                pci = true;
                words.extend(["-a".into(), address]);
            }
            port::Allow::Virtual(device) => words.push(format!("--vdev={device}")),
        }
    }
    if !pci {
        words.push("--no-pci".into());
    }
    words.extend(eal.extra.iter().cloned());
    words
        .into_iter()
        .map(|word| {
            CString::new(word).map_err(|_| Error::new("an EAL argument has a zero byte in it", "remove it"))
        })
        .collect()
}

/// Why the EAL did not start, from what it logged.
fn explain(eal: &EalConfig, errno: i32, log: &str) -> Error {
    let prefix = eal.file_prefix.as_deref().unwrap_or("rte");
    if log.contains("Cannot create lock on") {
        return Error::new(
            format!("another DPDK process uses the file prefix `{prefix}`"),
            "stop that process, choose another `file_prefix`, or leave `file_prefix` out (then nothing is shared)",
        );
    }
    if log.contains("hugepage") && matches!(eal.memory, Memory::HugePages { .. }) {
        return Error::new(
            "there are not enough free huge pages",
            "reserve some (as root: echo 512 > /proc/sys/vm/nr_hugepages), ask for less `memory_mb`, or set \
             `hugepages = false`; `understudy doctor` shows what there is",
        );
    }
    if log.contains("annot allocate memory") || log.contains("ot enough memory") {
        return Error::new("there is too little memory", "ask for less `memory_mb`, or free some");
    }
    if matches!(errno, libc::EACCES | libc::EPERM) || log.contains("ermission denied") {
        return Error::new(
            "DPDK may not do what the configuration asks for",
            "run as root, or leave out `file_prefix`, `hugepages` and PCI ports, which need privileges",
        );
    }
    let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it logged nothing");
    Error::new(
        format!("DPDK did not start: {} ({last})", error_text(errno)),
        "the log below says more; `understudy doctor` checks what DPDK needs",
    )
}

/// `rte_errno`: the reason of the calling thread's last failure.
pub(crate) fn errno() -> i32 {
    // SAFETY: reads a variable of this thread.
    unsafe { dpdk_sys::understudy_rte_errno() }
}

/// DPDK's words for an error number, positive or negative.
pub(crate) fn error_text(errno: i32) -> String {
    // SAFETY: returns a string in a buffer of this thread, copied before the next call.
    unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno.abs())) }.to_string_lossy().into_owned()
}

/// The version of the libdpdk that is loaded, such as `DPDK 22.11.11`.
pub(crate) fn version() -> String {
    // SAFETY: returns a constant string.
    unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_string_lossy().into_owned()
}

/// Standard error, led nowhere while this lives: what ends the EAL's start is printed there as well as logged.
struct Silence {
    stderr: i32,
}

impl Silence {
    fn begin() -> Option<Self> {
        // SAFETY: duplicates, opens, replaces and closes descriptors; 2 is valid at all times.
        unsafe {
            let stderr = libc::dup(2);
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if stderr < 0 || null < 0 {
                return None;
            }
            libc::dup2(null, 2);
            libc::close(null);
            Some(Self { stderr })
        }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // SAFETY: gives descriptor 2 back what it was, and closes the copy.
        unsafe {
            libc::dup2(self.stderr, 2);
            libc::close(self.stderr);
        }
    }
}

/// DPDK's log, caught in memory while it lives.
pub(crate) struct Log {
    file: *mut libc::FILE,
    text: Box<(*mut c_char, usize)>,
}

impl Log {
    pub(crate) fn capture() -> Self {
        let mut text = Box::new((std::ptr::null_mut(), 0));
        // SAFETY: both addresses stay valid until `finish`, because the box does not move its content.
        let file = unsafe { libc::open_memstream(&raw mut text.0, &raw mut text.1) };
        if !file.is_null() {
            // SAFETY: the stream is open, and `finish` takes it away before it closes it.
            unsafe { dpdk_sys::rte_openlog_stream(file.cast()) };
        }
        Self { file, text }
    }

    /// What was logged meanwhile; the log goes to standard error again.
    pub(crate) fn finish(self) -> String {
        if self.file.is_null() {
            return String::new();
        }
        // SAFETY: the stream is open; after closing it, `text` is a C string of ours to free.
        unsafe {
            dpdk_sys::rte_openlog_stream(std::ptr::null_mut());
            libc::fclose(self.file);
            let text = CStr::from_ptr(self.text.0).to_string_lossy().into_owned();
            libc::free(self.text.0.cast());
            text
        }
    }
}
