//! A file with the last configuration that was read from etcd and was in effect, for a start without etcd.
//!
//! Its first line is a TOML comment with the key, the revision, and the length and hash of the file. An operator may write
//! a file without that line, which is for any key.

use sha2::{Digest as _, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

const HEAD: &str = "# Written by understudy: ";

/// Returns the hash of a configuration.
pub(super) fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// Returns the first line. Its hash is that of the rest of it and of the text.
fn head(key: &str, revision: u64, text: &str) -> String {
    let about = format!("key {key:?}, revision {revision}, {} bytes", text.len());
    let hash = Sha256::digest(format!("{about}\n{text}"));
    format!("{HEAD}{about}, SHA-256 {hash:x}\n")
}

/// Reads the configuration of a key. Returns `None` if there is no file. The error is a text for users.
pub(super) fn read(path: &Path, key: &str) -> Result<Option<String>, String> {
    let shown = path.display();
    let content = match fs::read_to_string(path) {
        Ok(content) => content,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read {shown}: {error}")),
    };
    let (line, text) = content.split_once('\n').unwrap_or((&content, ""));
    if !line.starts_with(HEAD) {
        return if line.contains(", SHA-256 ") {
            Err(format!("{shown} is damaged"))
        } else {
            Ok(Some(content))
        };
    }
    let revision = line.split(", revision ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    let expected = head(key, revision.unwrap_or(0), text);
    if expected.trim_end() == line {
        Ok(Some(text.to_owned()))
    } else if line.starts_with(&format!("{HEAD}key {key:?},")) {
        Err(format!("{shown} is damaged"))
    } else {
        Err(format!("{shown} has the configuration of another key"))
    }
}

/// Replaces the configuration. After a crash the file is either the old or the new one.
pub(super) fn write(path: &Path, key: &str, revision: u64, text: &str) -> io::Result<()> {
    let mut new_path = path.as_os_str().to_owned();
    new_path.push(".new");
    let new_path = Path::new(&new_path);
    // A crash may have left one.
    match fs::remove_file(new_path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new_path);
    let written = file.and_then(|mut file| {
        file.write_all(head(key, revision, text).as_bytes())?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new_path, path)
    });
    if written.is_err() {
        // What is left of it would be replaced later.
        _ = fs::remove_file(new_path);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &str = "/understudy/rack1";

    #[test]
    fn a_configuration_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache.toml");
        assert_eq!(read(&path, KEY), Ok(None));
        for text in ["", "a = 1", "# \u{e9}\n[x]\n\n"] {
            write(&path, KEY, 7, text).unwrap();
            assert_eq!(read(&path, KEY), Ok(Some(text.into())));
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no other file is left");
        let error = read(&path, "/understudy/rack2").unwrap_err();
        assert!(error.contains("of another key"), "{error}");
        fs::write(folder.path().join("cache.toml.new"), "of a crash").unwrap();
        write(&path, KEY, 8, "a = 2").unwrap();
        assert_eq!(read(&path, KEY), Ok(Some("a = 2".into())));
        let damaged = fs::read_to_string(&path).unwrap().replace("Written", "Wrttten");
        fs::write(&path, damaged).unwrap();
        assert!(read(&path, KEY).unwrap_err().contains("is damaged"));
        fs::write(&path, "[runtime]\n").unwrap();
        assert_eq!(read(&path, KEY), Ok(Some("[runtime]\n".into())), "an operator has written it");
        assert!(read(folder.path(), KEY).unwrap_err().contains("cannot read"));
        assert!(write(&folder.path().join("none/cache.toml"), KEY, 7, "a = 1").is_err());
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_not_used(cut in 0_usize..200, flip in 0_usize..200, bit in 0_u8..7) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("cache.toml");
            write(&path, KEY, 70, "[runtime]\nworkers = [1]\n[[port]]\nname = \"a\"\n").unwrap();
            let whole = fs::read(&path).unwrap();
            let mut damaged = whole[..whole.len() - cut.min(whole.len() - HEAD.len())].to_vec();
            let at = HEAD.len() + flip % (damaged.len() - HEAD.len()).max(1);
            if let Some(byte) = damaged.get_mut(at) {
                *byte ^= 1 << bit;
            }
            prop_assume!(damaged != whole);
            fs::write(&path, damaged).unwrap();
            prop_assert!(read(&path, KEY).is_err());
        }
    }
}
