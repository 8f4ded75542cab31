//! Folder of results: one file for each figure, written when its experiment is done, so that an interrupted
//! run can be resumed.

use super::figure::{Figure, Outcome, Settings};
use miette::{Context as _, IntoDiagnostic as _, Report};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Content of a file of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Program that measured: its version and the digest of its file
    pub program: String,
    /// Its commit, if known
    pub commit: Option<String>,
    /// Options of the run
    pub settings: Settings,
    /// Command that repeats the run
    pub command: String,
    /// CPU time of the run, in seconds
    pub cpu_seconds: f64,
    /// Result
    pub outcome: Outcome,
}

/// A folder of results.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    program: String,
}

impl Store {
    /// Opens a folder for results of this program. Creates the folder if it does not exist.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn open(folder: &Path, program: &str) -> Result<Self, Report> {
        fs::create_dir_all(folder).into_diagnostic().wrap_err_with(|| {
            format!(
                "cannot create the folder {} for results; choose another one by `--results`",
                folder.display()
            )
        })?;
        Ok(Self { folder: folder.into(), program: program.into() })
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, figure: &Figure, settings: &Settings) -> PathBuf {
        self.folder.join(format!("{}.json", figure.file_name(settings)))
    }

    /// Returns this program's result for a figure with these settings, if there is one. A file that cannot be
    /// parsed counts as missing.
    pub fn load(&self, figure: &Figure, settings: &Settings) -> Option<Record> {
        let text = fs::read_to_string(self.path(figure, settings)).ok()?;
        let record: Record = serde_json::from_str(&text).ok()?;
        (record.program == self.program && record.settings == *settings).then_some(record)
    }

    /// Stores a result atomically: after a crash, the file has either the new content or the old one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, figure: &Figure, record: &Record) -> Result<(), Report> {
        let path = self.path(figure, &record.settings);
        let text = serde_json::to_string(record).into_diagnostic()?;
        write(&path, &text)
    }

    /// Removes the result for a figure with these settings.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, figure: &Figure, settings: &Settings) -> Result<(), Report> {
        match fs::remove_file(self.path(figure, settings)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).into_diagnostic(),
            _ => Ok(()),
        }
    }
}

/// Writes a file atomically: to a temporary file in the same folder, which is renamed.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Report> {
    let failed = || format!("cannot write {}", path.display());
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).into_diagnostic().wrap_err_with(failed)?;
    file.write_all(text.as_bytes()).into_diagnostic().wrap_err_with(failed)?;
    let file = file.persist(path).into_diagnostic().wrap_err_with(failed)?;
    // Temporary files are private to their owner; the result is readable by all users.
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.set_permissions(all).into_diagnostic().wrap_err_with(failed)
}
