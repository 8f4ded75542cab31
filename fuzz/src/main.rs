//! Writes the first inputs of a fuzz target into a new folder: `understudy-fuzz TARGET FOLDER`.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use understudy_fuzz::{corpus, target};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [name, folder] = &arguments[..] else {
        eprintln!("usage: understudy-fuzz TARGET FOLDER");
        return ExitCode::from(2);
    };
    if target(name).is_none() {
        let names = understudy_fuzz::TARGETS.map(|(name, _)| name).join(", ");
        eprintln!("there is no target {name:?}; the targets are {names}");
        return ExitCode::from(2);
    }
    match corpus::write(name, Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{folder}: {error}");
            ExitCode::FAILURE
        }
    }
}
