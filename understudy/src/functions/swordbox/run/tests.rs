//! The journal: connections that were added and not removed survive restarts, whatever happened to the end of
//! the file.

use super::journal::Journal;
use super::writer::Order;
use rocev2::Qpn;
use std::fs;
use std::path::{Path, PathBuf};
use swordbox::Connection;
use tempfile::TempDir;

fn connection(n: u32) -> Connection {
    let client =
        if n.is_multiple_of(2) { [10, 0, 0, 1].into() } else { [0xfd00, 0, 0, 0, 0, 0, 0, 1].into() };
    Connection { server: ([10, 0, 0, 9].into(), Qpn::new(0x11)), client: (client, Qpn::new(n)) }
}

impl Journal {
    fn add(&mut self, connection: Connection) -> std::io::Result<()> {
        self.write(&[Order::Add(connection)])
    }

    fn remove(&mut self, connection: Connection) {
        _ = self.write(&[Order::Remove(connection)]);
    }
}

fn journal_path() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("swordbox.journal");
    (folder, path)
}

fn open(path: &Path) -> Journal {
    Journal::open(path).unwrap_or_else(|error| panic!("{error}"))
}

fn live(path: &Path) -> Vec<Connection> {
    open(path).live().collect()
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap().lines().count()
}

#[test]
fn added_connections_survive_a_restart_unless_removed() {
    let (_folder, path) = journal_path();
    let mut journal = open(&path);
    for n in 1..=4 {
        journal.add(connection(n)).unwrap();
    }
    journal.add(connection(2)).unwrap();
    journal.remove(connection(3));
    journal.remove(connection(99));
    drop(journal);
    assert_eq!(lines(&path), 1 + 5 + 1);
    let expected = live(&path);
    assert_eq!(expected.len(), 3);
    assert!([1, 2, 4].into_iter().all(|n| expected.contains(&connection(n))), "{expected:?}");
    // Opening the journal has shortened the file without changing its contents.
    assert_eq!(lines(&path), 1 + 3);
    assert_eq!(live(&path), expected);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.ends_with("+ 10.0.0.9 0x11 fd00::1 0x1\n"), "{text}");
}

#[test]
fn a_truncated_journal_keeps_all_complete_lines() {
    let (_folder, path) = journal_path();
    let mut journal = open(&path);
    journal.add(connection(1)).unwrap();
    journal.add(connection(2)).unwrap();
    drop(journal);
    let whole = fs::read_to_string(&path).unwrap();
    let second = whole.trim_end().rfind('\n').unwrap() + 1;
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let known = usize::from(cut >= second) + usize::from(cut == whole.len());
        assert_eq!(live(&path).len(), known, "{:?}", &whole[..cut]);
    }
}

#[test]
fn a_file_that_is_not_a_journal_is_not_changed() {
    for (text, line) in [
        ("[swordbox]\n", 1),
        ("a word", 1),
        (
            "# Connections of understudy's Swordbox whose two sides differ. Leave it to the program.\n+ 1 2 3 4\n",
            2,
        ),
        ("+ 10.0.0.9 0x11 10.0.0.1 0x1\n", 1),
    ] {
        let (_folder, path) = journal_path();
        fs::write(&path, text).unwrap();
        let error = Journal::open(&path).err().unwrap();
        assert!(error.ends_with(&format!("line {line} is not a connection")), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    let folder = tempfile::tempdir().unwrap();
    let error = Journal::open(folder.path()).err().unwrap();
    assert!(error.contains("Is a directory"), "{error}");
}

#[test]
fn a_journal_is_used_by_one_process_at_a_time() {
    let (_folder, path) = journal_path();
    let mut journal = open(&path);
    let error = Journal::open(&path).err().unwrap();
    assert!(error.ends_with("another process uses it"), "{error}");
    journal.add(connection(1)).unwrap();
    drop(journal);
    assert_eq!(live(&path), [connection(1)]);
}

#[test]
fn a_link_beside_the_journal_is_not_followed() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let (folder, path) = journal_path();
    let precious = folder.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    symlink(&precious, folder.path().join("swordbox.journal.new")).unwrap();
    open(&path).add(connection(1)).unwrap();
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    assert_eq!(live(&path), [connection(1)]);
    assert_eq!(path.symlink_metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_journal_is_rewritten_when_most_lines_are_obsolete() {
    let (_folder, path) = journal_path();
    let mut journal = open(&path);
    journal.add(connection(1)).unwrap();
    for n in 2..3000 {
        journal.add(connection(n)).unwrap();
        journal.remove(connection(n));
    }
    assert!(lines(&path) < 1100, "{}", lines(&path));
    assert!(Journal::open(&path).is_err(), "the new file is locked, too");
    drop(journal);
    assert_eq!(live(&path), [connection(1)]);
}

#[test]
fn a_connection_that_cannot_be_written_is_not_added() {
    let (folder, path) = journal_path();
    let mut journal = open(&path);
    journal.add(connection(1)).unwrap();
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(journal.add(connection(2)).is_err());
    assert!(journal.add(connection(3)).is_err());
    journal.remove(connection(1));
    fs::create_dir(folder.path()).unwrap();
    journal.add(connection(4)).unwrap();
    drop(journal);
    assert_eq!(live(&path), [connection(4)]);
}
