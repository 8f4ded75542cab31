//! DPDK's environment abstraction layer (EAL), of which a process has one.

use crate::config::{Config, Eal as EalConfig, Memory};
use crate::error::{Error, errno, error_text};
use crate::interrupt::park_interrupts;
use crate::memif::Channels;
use crate::{missing, port};
use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The initialised EAL. Dropping it cleans it up; it cannot be initialised again in this process.
#[derive(Debug)]
pub(crate) struct Eal {
    /// Whether this instance owns the runtime folder with files for other DPDK processes
    shared: bool,
    /// Whether there are memif ports
    memif: bool,
}

static STARTED: AtomicBool = AtomicBool::new(false);

impl Eal {
    /// Initialises the EAL with the devices of `config`.
    pub(crate) fn start(config: &Config, channels: &Channels) -> Result<Self, Error> {
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(Error::new("DPDK was already started in this process", "start another process"));
        }
        let arguments = arguments(config, channels)?;
        // The EAL keeps pointers into its arguments, permutes them and may replace some. They are leaked on
        // purpose, as the arguments of a C program's `main` live until its end.
        let mut argv: Vec<*mut c_char> = arguments.iter().map(|a| a.clone().into_raw()).collect();
        argv.push(std::ptr::null_mut());
        let argv = argv.leak();
        let log = LogCapture::begin();
        let redirect = StderrRedirect::begin();
        // SAFETY: argv consists of argc C strings and a null pointer, all of them live and writable.
        let result = unsafe { dpdk_sys::rte_eal_init(argv.len() as i32 - 1, argv.as_mut_ptr()) };
        drop(redirect);
        let errno = errno();
        let log = log.finish();
        if result < 0 {
            remove_runtime_folder(false);
            return Err(explain(&config.eal, errno, &log).with_log(log));
        }
        let shared = config.eal.file_prefix.is_some();
        let eal = Self { shared, memif: !channels.is_empty() };
        // The EAL initialises successfully even if a device fails to probe.
        let mut ports = config.ports.iter().enumerate();
        let missing = ports.find(|(index, port)| port::find(*index, port).is_none());
        // From here on only errors are logged, to standard error; with a missing device, not what the drivers of
        // the other ports report while they are closed.
        let level = if missing.is_some() { dpdk_sys::RTE_LOG_EMERG } else { dpdk_sys::RTE_LOG_ERR };
        // SAFETY: sets a number only. No stream is set, which means standard error.
        unsafe { dpdk_sys::rte_log_set_global_level(level) };
        if let Some((_, port)) = missing {
            return Err(missing::explain(port, &log).with_log(log));
        }
        Ok(eal)
    }
}

impl Drop for Eal {
    fn drop(&mut self) {
        if self.memif {
            // `rte_eal_cleanup` would wait forever for the EAL's interrupt thread, which is parked. The end
            // of the process frees the rest.
            park_interrupts();
        } else if port::all_buffers_returned() {
            // SAFETY: the EAL is up. The order of fields in `Runtime` ensures that ports and pools were
            // closed and freed before, and no packet buffer is in use.
            unsafe { dpdk_sys::rte_eal_cleanup() };
        }
        remove_runtime_folder(self.shared);
    }
}

/// Removes the runtime folder that the EAL creates and leaves to the next process with this prefix, of which
/// there may be none: with its contents, or only if it is empty and therefore unused.
fn remove_runtime_folder(with_files: bool) {
    // SAFETY: the result is a string in static memory, which is empty until the EAL has created a folder.
    let folder = unsafe { CStr::from_ptr(dpdk_sys::rte_eal_get_runtime_dir()) };
    let folder = Path::new(OsStr::from_bytes(folder.to_bytes()));
    if folder.as_os_str().is_empty() {
        return;
    }
    // Failure means that another process uses the folder.
    _ = if with_files { std::fs::remove_dir_all(folder) } else { std::fs::remove_dir(folder) };
    _ = folder.parent().map(std::fs::remove_dir);
}

/// Returns the arguments for `rte_eal_init`.
fn arguments(config: &Config, channels: &Channels) -> Result<Vec<CString>, Error> {
    let eal = &config.eal;
    let mut words: Vec<String> = vec!["understudy".into()];
    // One lcore for the control plane, on any CPU. Workers are threads that this program creates and pins.
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
        match port::device_argument(index, port, channels.driver_arguments(index))? {
            port::DeviceArgument::Pci(address) => {
                pci = true;
                words.extend(["-a".into(), address]);
            }
            port::DeviceArgument::Virtual(device) => words.push(format!("--vdev={device}")),
        }
    }
    if !pci {
        words.push("--no-pci".into());
    }
    words.extend(eal.extra.iter().cloned());
    words
        .into_iter()
        .map(|word| {
            CString::new(word).map_err(|_| Error::new("an EAL argument contains a zero byte", "remove it"))
        })
        .collect()
}

/// Derives the reason why the EAL did not start from its log.
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
            "reserve some (as root: echo 512 > /proc/sys/vm/nr_hugepages), reduce `memory_mb`, or set \
             `hugepages = false`; `understudy doctor` shows the reserved pages",
        );
    }
    if log.contains("annot allocate memory") || log.contains("ot enough memory") {
        return Error::new("there is too little memory", "reduce `memory_mb`, or free some memory");
    }
    if matches!(errno, libc::EACCES | libc::EPERM) || log.contains("ermission denied") {
        return Error::new(
            "DPDK has no permission for what the configuration requires",
            "run as root, or leave out `file_prefix`, `hugepages` and PCI ports, which need privileges",
        );
    }
    if log.contains("Could not get loaded module details") {
        return Error::new(
            "DPDK did not start, because /sys/module is not visible here",
            "let the container see it, such as with `systemd-nspawn --bind-ro=/sys/module`",
        );
    }
    let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no log");
    Error::new(
        format!("DPDK did not start: {} ({last})", error_text(errno)),
        "see the log below; `understudy doctor` checks what DPDK needs",
    )
}

/// Returns the version of the loaded libdpdk, such as `DPDK 22.11.11`.
pub(crate) fn version() -> String {
    // SAFETY: returns a constant string.
    unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_string_lossy().into_owned()
}

/// Redirects standard error to /dev/null while it lives: fatal errors of the EAL are printed there in
/// addition to being logged.
struct StderrRedirect {
    stderr: i32,
}

impl StderrRedirect {
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

impl Drop for StderrRedirect {
    fn drop(&mut self) {
        // SAFETY: restores descriptor 2 and closes its duplicate.
        unsafe {
            libc::dup2(self.stderr, 2);
            libc::close(self.stderr);
        }
    }
}

/// Captures DPDK's log in memory while it lives.
pub(crate) struct LogCapture {
    file: *mut libc::FILE,
    text: Box<(*mut c_char, usize)>,
}

impl LogCapture {
    pub(crate) fn begin() -> Self {
        let mut text = Box::new((std::ptr::null_mut(), 0));
        // SAFETY: both addresses stay valid until `finish`, because the contents of the box do not move.
        let file = unsafe { libc::open_memstream(&raw mut text.0, &raw mut text.1) };
        if !file.is_null() {
            // SAFETY: the stream is open, and `finish` resets DPDK's stream before it closes this one.
            unsafe { dpdk_sys::rte_openlog_stream(file.cast()) };
        }
        Self { file, text }
    }

    /// Returns what was logged since `capture`. Later log messages go to standard error again.
    pub(crate) fn finish(self) -> String {
        if self.file.is_null() {
            return String::new();
        }
        // SAFETY: the stream is open; after closing it, `text` is a C string that this process has to free.
        unsafe {
            dpdk_sys::rte_openlog_stream(std::ptr::null_mut());
            libc::fclose(self.file);
            let text = CStr::from_ptr(self.text.0).to_string_lossy().into_owned();
            libc::free(self.text.0.cast());
            text
        }
    }
}
