//! The folder of the sockets between this process and its drivers.
//!
//! Whoever connects to a driver's listener can make the EAL panic (a caller that goes before it is greeted), and whoever
//! fills the queue of a socket that a driver connects to blocks the control thread. So no other user may reach them.

use crate::error::Error;
use crate::place::identity;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What the names of these folders begin with
const PREFIX: &str = "understudy-memif-";
/// Bytes that a socket's path may have before the name of the file
const LONGEST: usize = 90;
/// Attempts to make a folder that no other instance removes before it is locked
const ATTEMPTS: usize = 16;

/// A folder that this user alone may enter. It is removed when dropped; the next instance removes that of a killed one.
#[derive(Debug)]
pub(super) struct Folder {
    folder: TempDir,
    /// Locked for as long as the instance runs
    _lock: File,
}

impl Folder {
    /// Makes a folder in `$XDG_RUNTIME_DIR`, or in the folder for temporary files.
    pub(super) fn make() -> Result<Self, Error> {
        let own = |folder: &PathBuf| folder.metadata().is_ok_and(|file| file.is_dir() && is_own(&file));
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(own);
        Self::make_in(&runtime.unwrap_or_else(std::env::temp_dir))
    }

    fn make_in(base: &Path) -> Result<Self, Error> {
        let shown = base.display();
        let bytes = base.as_os_str().as_bytes();
        if !base.is_absolute()
            || bytes.len() + PREFIX.len() > LONGEST
            || bytes.iter().any(|c| b",=[]".contains(c))
        {
            return Err(Error::new(
                format!(
                    "DPDK cannot take sockets in {shown}: its path is relative, too long, or has one of `,=[]`"
                ),
                "set XDG_RUNTIME_DIR or TMPDIR to another folder of your own, such as /run/user/1000",
            ));
        }
        remove_stale(base);
        Self::make_locked(base).map_err(|error| {
            Error::new(
                format!("no folder for the sockets of memif's drivers could be made in {shown}: {error}"),
                "make it writable, or set XDG_RUNTIME_DIR or TMPDIR to a folder of your own",
            )
        })
    }

    fn make_locked(base: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let private = fs::Permissions::from_mode(0o700);
            let folder = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(base)?;
            // Until it is locked, another instance may take it for one that was left behind.
            let Ok(lock) = File::open(folder.path()) else { continue };
            if lock.try_lock().is_err() {
                continue;
            }
            // Checked under the lock: before, another instance may remove the folder and release its own lock.
            let there = folder.path().symlink_metadata().map(|file| identity(&file)).ok();
            if there == Some(identity(&lock.metadata()?)) {
                return Ok(Self { folder, _lock: lock });
            }
        }
        Err(io::Error::other("each was removed at once"))
    }

    /// Returns the path of a file in it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn is_own(file: &fs::Metadata) -> bool {
    file.uid() == rustix::process::geteuid().as_raw()
}

/// Removes what instances of this user have left that were killed.
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
        let folder = Folder::make_in(base.path()).unwrap();
        let path = folder.folder.path().to_owned();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        fs::write(folder.path("socket"), "").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn folder_of_a_killed_instance_is_removed_and_that_of_a_running_one_is_not() {
        let base = tempfile::tempdir().unwrap();
        let running = Folder::make_in(base.path()).unwrap();
        let stale = base.path().join(PREFIX.to_owned() + "stale");
        let other = base.path().join("other");
        for folder in [&stale, &other] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("server-0"), "").unwrap();
        }
        let _next = Folder::make_in(base.path()).unwrap();
        assert!(!stale.exists() && other.exists() && running.folder.path().exists());
    }

    #[test]
    fn folders_of_instances_that_start_together_are_not_removed() {
        let base = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..250 {
                        let folder = Folder::make_in(base.path()).unwrap();
                        assert!(folder.folder.path().exists(), "another instance has removed it");
                    }
                });
            }
        });
    }

    #[test]
    fn folder_that_dpdk_cannot_take_is_refused() {
        for base in ["/tmp/a,b".to_owned(), "relative".into(), format!("/{}", "x".repeat(100))] {
            let error = Folder::make_in(Path::new(&base)).unwrap_err();
            assert!(error.what.starts_with("DPDK cannot take"), "{error}");
        }
    }
}
