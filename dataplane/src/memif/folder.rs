//! The private folder of the sockets between this process and its memif drivers.
//!
//! A process that connects to a driver's listener can make the EAL panic, by disconnecting before it has
//! received HELLO; and a process that fills the queue of a socket to which a driver connects blocks the
//! control thread. Other users must therefore have no access to these sockets.

use crate::error::Error;
use crate::unix_socket::identity;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Prefix of the folders' names
const PREFIX: &str = "understudy-memif-";
/// Maximum length of a socket's path in front of the file name, in bytes
const MAX_FOLDER_LEN: usize = 90;
/// Maximum number of attempts to create a folder, in case another instance removes it before it is locked
const ATTEMPTS: usize = 16;

/// A folder that only this user can access. It is removed when dropped; if the instance is killed, the next
/// instance removes it.
#[derive(Debug)]
pub(super) struct Folder {
    folder: TempDir,
    /// Lock that is held while the instance runs
    _lock: File,
}

impl Folder {
    /// Creates a folder in `$XDG_RUNTIME_DIR`, or in the folder for temporary files.
    pub(super) fn create() -> Result<Self, Error> {
        let own = |folder: &PathBuf| folder.metadata().is_ok_and(|file| file.is_dir() && is_own(&file));
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(own);
        Self::create_in(&runtime.unwrap_or_else(std::env::temp_dir))
    }

    fn create_in(base: &Path) -> Result<Self, Error> {
        let shown = base.display();
        let bytes = base.as_os_str().as_bytes();
        if !base.is_absolute()
            || bytes.len() + PREFIX.len() > MAX_FOLDER_LEN
            || bytes.iter().any(|c| b",=[]".contains(c))
        {
            return Err(Error::new(
                format!(
                    "DPDK does not accept sockets in {shown}: its path is relative, too long, or has one of `,=[]`"
                ),
                "set XDG_RUNTIME_DIR or TMPDIR to another folder of your own, such as /run/user/1000",
            ));
        }
        remove_stale(base);
        Self::create_locked(base).map_err(|error| {
            Error::new(
                format!("cannot create a folder for the sockets of memif's drivers in {shown}: {error}"),
                "make it writable, or set XDG_RUNTIME_DIR or TMPDIR to a folder of your own",
            )
        })
    }

    fn create_locked(base: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let private = fs::Permissions::from_mode(0o700);
            let folder = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(base)?;
            // Until it is locked, another instance may take the folder for a stale one.
            let Ok(lock) = File::open(folder.path()) else { continue };
            if lock.try_lock().is_err() {
                continue;
            }
            // Checked with the lock held: before, another instance may remove the folder and release its own
            // lock.
            let found = folder.path().symlink_metadata().map(|file| identity(&file)).ok();
            if found == Some(identity(&lock.metadata()?)) {
                return Ok(Self { folder, _lock: lock });
            }
        }
        Err(io::Error::other("another instance removed each of them"))
    }

    /// Returns the path of a file in the folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn is_own(file: &fs::Metadata) -> bool {
    file.uid() == rustix::process::geteuid().as_raw()
}

/// Removes the folders of instances of this user that were killed.
fn remove_stale(base: &Path) {
    for entry in base.read_dir().into_iter().flatten().flatten() {
        let is_ours = |name: &OsStr| name.as_bytes().starts_with(PREFIX.as_bytes());
        let own = is_ours(&entry.file_name())
            && entry.path().symlink_metadata().is_ok_and(|file| file.is_dir() && is_own(&file));
        if !own {
            continue;
        }
        let Ok(folder) = File::open(entry.path()) else { continue };
        if folder.try_lock().is_ok() {
            _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_private_and_removed_when_dropped() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::create_in(base.path()).unwrap();
        let path = folder.folder.path().to_owned();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        fs::write(folder.path("socket"), "").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn stale_folders_are_removed_and_those_in_use_are_not() {
        let base = tempfile::tempdir().unwrap();
        let running = Folder::create_in(base.path()).unwrap();
        let stale = base.path().join(PREFIX.to_owned() + "stale");
        let other = base.path().join("other");
        for folder in [&stale, &other] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("server-0"), "").unwrap();
        }
        let _next = Folder::create_in(base.path()).unwrap();
        assert!(!stale.exists() && other.exists() && running.folder.path().exists());
    }

    #[test]
    fn folders_of_instances_that_start_together_are_not_removed() {
        let base = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..250 {
                        let folder = Folder::create_in(base.path()).unwrap();
                        assert!(folder.folder.path().exists(), "another instance has removed it");
                    }
                });
            }
        });
    }

    #[test]
    fn folder_that_dpdk_does_not_accept_is_refused() {
        for base in ["/tmp/a,b".to_owned(), "relative".into(), format!("/{}", "x".repeat(100))] {
            let error = Folder::create_in(Path::new(&base)).unwrap_err();
            assert!(error.what.starts_with("DPDK does not accept"), "{error}");
        }
    }
}
