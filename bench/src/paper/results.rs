//! Results in a folder: a file for each figure, written when it is done, so that a run that was interrupted goes on where it was.

use super::figure::{Figure, Outcome, Settings};
use miette::{Context as _, IntoDiagnostic as _, Report};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// What a file says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The program that measured: its version and the digest of its file
    pub program: String,
    /// Its commit, if that is known
    pub commit: Option<String>,
    /// How it was run
    pub settings: Settings,
    /// What repeats it
    pub command: String,
    /// CPU time that it took
    pub cpu_seconds: f64,
    /// What was found
    pub outcome: Outcome,
}

/// A folder of results.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    program: String,
}

impl Store {
    /// The results in a folder, which is made if there is none, of this program.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(folder: &Path, program: &str) -> Result<Self, Report> {
        fs::create_dir_all(folder)
            .into_diagnostic()
            .wrap_err_with(|| format!("results cannot be kept in {}", folder.display()))?;
        Ok(Self { folder: folder.into(), program: program.into() })
    }

    /// Where it is
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, figure: &Figure, settings: &Settings) -> PathBuf {
        self.folder.join(format!("{}.json", figure.file_name(settings)))
    }

    /// What this program has found about a figure with these settings, if it has. What cannot be read is as good as not there.
    pub fn find(&self, figure: &Figure, settings: &Settings) -> Option<Record> {
        let text = fs::read_to_string(self.path(figure, settings)).ok()?;
        let record: Record = serde_json::from_str(&text).ok()?;
        (record.program == self.program && record.settings == *settings).then_some(record)
    }

    /// Keeps a result: the whole of it or, if the machine goes down, what was there before.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, figure: &Figure, record: &Record) -> Result<(), Report> {
        let path = self.path(figure, &record.settings);
        let text = serde_json::to_string(record).into_diagnostic()?;
        write(&path, &text)
    }

    /// Forgets what is known of a figure with these settings.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn forget(&self, figure: &Figure, settings: &Settings) -> Result<(), Report> {
        match fs::remove_file(self.path(figure, settings)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).into_diagnostic(),
            _ => Ok(()),
        }
    }
}

/// Writes a file beside its place, and moves it there.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Report> {
    let failed = || format!("{} cannot be written", path.display());
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).into_diagnostic().wrap_err_with(failed)?;
    file.write_all(text.as_bytes()).into_diagnostic().wrap_err_with(failed)?;
    let file = file.persist(path).into_diagnostic().wrap_err_with(failed)?;
    // Such a file is for its owner alone; this one is for everybody.
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.set_permissions(all).into_diagnostic().wrap_err_with(failed)
}
