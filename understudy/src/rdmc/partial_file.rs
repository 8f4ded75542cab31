//! An incomplete file: hidden, locked by the process that writes it, and removed with it. The lock of a
//! killed process ends with the process, so the next process recognises the abandoned file by its missing
//! lock and removes it.

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{Error, ErrorKind, Result, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use tempfile::NamedTempFile;

const PREFIX: &str = ".rdmc-";
const SUFFIX: &str = ".part";
/// Attempts to create a file that another process does not remove as abandoned before it is locked
const ATTEMPTS: u32 = 16;

/// A file that does not have its final name yet.
#[derive(Debug)]
pub(super) struct PartialFile {
    /// `None` once the file has its final name
    file: Option<NamedTempFile>,
}

impl PartialFile {
    /// Creates a file in a folder, and removes those that killed processes have left there. The file has the
    /// mode of any new file, 0666 less the umask.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        remove_abandoned(folder);
        for _ in 0..ATTEMPTS {
            let all = Permissions::from_mode(0o666);
            let made = tempfile::Builder::new()
                .prefix(PREFIX)
                .suffix(SUFFIX)
                .permissions(all)
                .tempfile_in(folder)?;
            let part = Self { file: Some(made) };
            match flock(part.file()?, FlockOperation::NonBlockingLockExclusive) {
                // Another process may have removed the file before it was locked.
                Ok(()) if part.is_in_place() => return Ok(part),
                // The file system has no locks, so no process ever removes a file as abandoned.
                Err(rustix::io::Errno::NOTSUP | rustix::io::Errno::NOLCK | rustix::io::Errno::NOSYS) => {
                    return Ok(part);
                }
                Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::other("new files are locked or removed by another process"))
    }

    pub(super) fn file(&self) -> Result<&File> {
        self.file.as_ref().map(NamedTempFile::as_file).ok_or_else(|| Error::from(ErrorKind::NotFound))
    }

    pub(super) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.file()?.write_all(bytes)
    }

    /// Gives the file its final name, unless that name exists.
    pub(super) fn persist(mut self, path: &Path) -> Result<()> {
        if !self.is_in_place() {
            return Err(Error::other("the file was removed or replaced before it was complete"));
        }
        match self.file.take() {
            Some(file) => file.persist_noclobber(path).map(drop).map_err(|error| error.error),
            None => Ok(()),
        }
    }

    /// Returns whether the file is still the one at its path.
    fn is_in_place(&self) -> bool {
        let Some(file) = &self.file else { return false };
        let there = file.path().symlink_metadata();
        there.and_then(|there| Ok(is_same(&there, &file.as_file().metadata()?))).unwrap_or(false)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // A file that another process has put in its place is not removed.
        if !self.is_in_place()
            && let Some(file) = self.file.take()
        {
            _ = file.keep();
        }
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Removes incomplete files in a folder that no process has locked.
fn remove_abandoned(folder: &Path) {
    // If the folder cannot be read, the next write to it fails with the reason.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_part = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        if is_part {
            // An abandoned file that cannot be removed is harmless.
            _ = remove_if_abandoned(&entry.path());
        }
    }
}

fn remove_if_abandoned(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let about = file.metadata()?;
    if !about.is_file() {
        return Ok(());
    }
    // The process that writes the file holds a lock on it.
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    if is_same(&path.symlink_metadata()?, &about) {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn entries(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Leaves a file behind as a killed process does: unlocked, but not removed.
    fn abandon(folder: &Path) -> String {
        let mut part = PartialFile::create(folder).unwrap();
        part.write_all(b"half of it").unwrap();
        let (_, path) = part.file.take().unwrap().keep().unwrap();
        path.file_name().unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn the_next_process_removes_files_of_a_killed_one() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let left = abandon(folder);
        let other = format!("{PREFIX}other{SUFFIX}");
        fs::write(folder.join("theirs"), "").unwrap();
        symlink("theirs", folder.join(&other)).unwrap();
        assert_eq!(entries(folder).len(), 3);
        let part = PartialFile::create(folder).unwrap();
        let names = entries(folder);
        assert!(!names.contains(&left) && names.contains(&other), "a link is not followed: {names:?}");
        // A file that is being written is not removed.
        let second = PartialFile::create(folder).unwrap();
        assert!(part.is_in_place() && second.is_in_place());
        drop((part, second));
        assert_eq!(entries(folder), [other.as_str(), "theirs"]);
    }

    #[test]
    fn a_replaced_file_is_neither_removed_nor_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for named in [false, true] {
            let part = PartialFile::create(folder).unwrap();
            let path = part.file.as_ref().unwrap().path().to_owned();
            fs::rename(&path, folder.join("elsewhere")).unwrap();
            fs::write(&path, "another process's").unwrap();
            if named {
                assert!(part.persist(&folder.join("it")).is_err());
            } else {
                drop(part);
            }
            assert_eq!(fs::read(&path).unwrap(), b"another process's");
            assert!(!folder.join("it").exists());
            fs::remove_file(path).unwrap();
        }
    }
}
