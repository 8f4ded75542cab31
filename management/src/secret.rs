//! The secret that all nodes and controllers of a network share.

use core::fmt;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Shortest secret, in bytes
const MIN: usize = 16;
/// Longest file that is read, in bytes
const MAX: u64 = 4096;
const CONTEXT: &str = "understudy management 2026-11 shared secret";

/// The shared secret. Its `Debug` output does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(blake3::Hash);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read
    #[error("cannot read the secret {path}: {error}; create it with: openssl rand -hex 32 > {path}")]
    Io {
        /// The file
        path: PathBuf,
        /// The operating system's reason
        error: std::io::Error,
    },
    /// Other users may read or write the file
    #[error("other users may use the secret {path} (mode {mode:04o}); run: chmod 600 {path}")]
    Mode {
        /// The file
        path: PathBuf,
        /// Its mode
        mode: u32,
    },
    /// The secret is too short or too long
    #[error(
        "a secret of {0} bytes; write {MIN} to {MAX} bytes that cannot be guessed, such as the output of: openssl \
         rand -hex 32"
    )]
    Len(usize),
}

impl Secret {
    /// Derives the secret from bytes that cannot be guessed.
    ///
    /// # Errors
    /// [`SecretError::Len`] if there are fewer than 16 bytes, or more than 4,096.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        if bytes.len() < MIN || bytes.len() as u64 > MAX {
            return Err(SecretError::Len(bytes.len()));
        }
        Ok(Self(blake3::derive_key(CONTEXT, bytes).into()))
    }

    /// Reads the secret from a file, without the line's end.
    ///
    /// # Errors
    /// The file cannot be read, is readable or writable by other users, or has fewer than 16 bytes.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let io = |error| SecretError::Io { path: path.into(), error };
        let file = std::fs::File::open(path).map_err(io)?;
        let mode = file.metadata().map_err(io)?.permissions().mode() & 0o7777;
        if mode & 0o066 != 0 {
            return Err(SecretError::Mode { path: path.into(), mode });
        }
        let mut bytes = Vec::new();
        file.take(MAX + 1).read_to_end(&mut bytes).map_err(io)?;
        Self::new(bytes.trim_ascii_end())
    }

    /// Returns the key.
    pub(crate) fn key(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8], mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn a_secret_is_read_without_the_end_of_its_line() {
        let with = Secret::read(file(b"0123456789abcdef\n", 0o600).path()).unwrap();
        assert_eq!(with, Secret::read(file(b"0123456789abcdef", 0o400).path()).unwrap());
        assert_ne!(with, Secret::new(b"0123456789abcdeF").unwrap());
        assert_eq!(format!("{with:?}"), "Secret");
    }

    #[test]
    fn a_short_long_open_or_missing_secret_is_refused_by_name() {
        for (bytes, mode, text) in [
            (&b"0123456789abcde\n\n"[..], 0o600, "a secret of 15 bytes"),
            (b"", 0o600, "a secret of 0 bytes"),
            (&[b'x'; 5000], 0o600, "a secret of 4097 bytes"),
            (b"0123456789abcdef", 0o640, "(mode 0640); run: chmod 600"),
            (b"0123456789abcdef", 0o604, "(mode 0604); run: chmod 600"),
            (b"0123456789abcdef", 0o602, "(mode 0602); run: chmod 600"),
        ] {
            let error = Secret::read(file(bytes, mode).path()).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let error = Secret::read(Path::new("/nonexistent/secret")).unwrap_err().to_string();
        assert!(error.contains("cannot read the secret /nonexistent/secret"), "{error}");
    }
}
