//! Unix sockets in the file system: created for one user, replaced when stale, and removed only by their
//! creator.

use socket2::{SockAddr, Socket};
use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Time to wait for another process that creates a socket in the same folder, and interval of attempts, in ms
const LOCK_TIMEOUT_MS: u64 = 2_000;
const RETRY_MS: u64 = 10;
/// Maximum number of connections that wait to be accepted
const BACKLOG: i32 = 128;

/// A socket on which this process listens. Dropping it removes its path, unless another socket has the path
/// by then.
#[derive(Debug)]
pub struct ListeningSocket {
    path: PathBuf,
    /// Device and inode of the socket's path
    identity: (u64, u64),
}

/// The reason why a socket could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The folder cannot be opened, or stays locked
    #[error("folder: {0}")]
    Folder(io::Error),
    /// The path is that of another kind of file
    #[error("the path exists and is not a socket")]
    Taken,
    /// Another process listens on the socket
    #[error("another process listens on it")]
    InUse,
    /// Any other error
    #[error(transparent)]
    Other(#[from] io::Error),
}

impl ListeningSocket {
    /// Binds `socket` to `path` and listens. Only this user can connect; if `open`, any user can. A socket on
    /// which no process listens is replaced.
    ///
    /// The kernel takes the mode of the new path from the socket's own mode, which can be set before it is
    /// bound.
    ///
    /// # Errors
    /// [`ListenError`] if the path is in use or cannot be created.
    pub fn listen(socket: &Socket, path: &Path, open: bool) -> Result<Self, ListenError> {
        let address = SockAddr::unix(path)?;
        // Two processes that start at the same time must not each take the other's new socket for a stale
        // one. They share the folder, and a lock on it ends with the process.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let _lock = lock(folder, LOCK_TIMEOUT_MS).map_err(ListenError::Folder)?;
        match path.symlink_metadata() {
            Ok(file) if !file.file_type().is_socket() => return Err(ListenError::Taken),
            Ok(_) => match Socket::new(socket.domain()?, socket.r#type()?, None)?.connect(&address) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                Ok(()) => return Err(ListenError::InUse),
                Err(error) => return Err(error.into()),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        rustix::fs::fchmod(socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .map_err(io::Error::from)?;
        socket.bind(&address)?;
        let place = Self { path: path.to_owned(), identity: identity(&path.symlink_metadata()?) };
        if open {
            fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        }
        socket.listen(BACKLOG)?;
        Ok(place)
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        if self.path.symlink_metadata().is_ok_and(|file| identity(&file) == self.identity) {
            _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the identity of a file: its device and inode.
pub(crate) fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Locks a folder until the returned file is closed. Any process that can read a folder can hold its lock, so
/// the wait is limited. On a file system without locks, the folder is returned unlocked.
#[allow(clippy::disallowed_methods, reason = "waits for another instance that starts at the same time")]
fn lock(folder: &Path, timeout_ms: u64) -> io::Result<File> {
    let folder = File::open(folder)?;
    for _ in 0..timeout_ms / RETRY_MS {
        match folder.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(RETRY_MS)),
            Err(TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => return Err(error),
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(folder),
        }
    }
    Err(io::Error::other("another process holds its lock"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};

    fn socket() -> Socket {
        Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap()
    }

    #[test]
    fn stale_socket_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        let (first, second) = (socket(), socket());
        let place = ListeningSocket::listen(&first, &path, false).unwrap();
        assert!(matches!(ListeningSocket::listen(&second, &path, false), Err(ListenError::InUse)));
        // As a killed process leaves it
        core::mem::forget(place);
        drop(first);
        assert!(path.exists());
        let _place = ListeningSocket::listen(&second, &path, false).unwrap();
        socket().connect(&SockAddr::unix(&path).unwrap()).unwrap();
    }

    #[test]
    fn other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert!(matches!(ListeningSocket::listen(&socket(), &file, false), Err(ListenError::Taken)));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        let nowhere = folder.path().join("none/m.sock");
        assert!(matches!(ListeningSocket::listen(&socket(), &nowhere, false), Err(ListenError::Folder(_))));
    }

    #[test]
    fn only_the_user_can_connect_unless_the_socket_is_open() {
        let folder = tempfile::tempdir().unwrap();
        for (name, open, mode) in [("own", false, 0o600), ("open", true, 0o666)] {
            let (socket, path) = (socket(), folder.path().join(name));
            let _place = ListeningSocket::listen(&socket, &path, open).unwrap();
            assert_eq!(path.symlink_metadata().unwrap().mode() & 0o777, mode);
        }
    }

    #[test]
    fn path_of_another_socket_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        let (first, second) = (socket(), socket());
        let place = ListeningSocket::listen(&first, &path, false).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        let other = ListeningSocket::listen(&second, &path, false).unwrap();
        drop(place);
        assert!(path.exists());
        drop(other);
        assert!(!path.exists());
    }

    #[test]
    fn wait_for_a_locked_folder_is_limited() {
        let dir = tempfile::tempdir().unwrap();
        let timeout_ms = 3 * RETRY_MS;
        let first = lock(dir.path(), timeout_ms).unwrap();
        let error = lock(dir.path(), timeout_ms).unwrap_err();
        assert_eq!(error.to_string(), "another process holds its lock");
        drop(first);
        lock(dir.path(), timeout_ms).unwrap();
    }
}
