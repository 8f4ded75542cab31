//! The machine as its file system describes it: `/proc`, `/sys` and similar, below a root directory that
//! tests replace.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A file system that describes a machine.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// Returns the machine that this program runs on.
    pub fn this() -> Self {
        Self::at("/")
    }

    /// Returns the machine whose file system is below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the location of an absolute path of the machine.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the text of a file without surrounding white space, or `None` if the file does not exist or is
    /// not readable.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = std::fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns whether a file or folder exists.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Returns the sorted names of a folder's entries; empty if the folder does not exist.
    pub fn list(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(folder)) else { return Vec::new() };
        let mut names: Vec<_> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the last component of a symbolic link's target, such as the name of a device's driver.
    pub fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Returns the CPUs that are online, or `None` if the kernel does not list them.
    pub fn online_cpus(&self) -> Option<BTreeSet<usize>> {
        parse_cpu_list(&self.read("/sys/devices/system/cpu/online")?)
    }
}

/// Upper bound of CPU numbers that a list may contain; Linux supports at most 8,192 CPUs
const MAX_CPUS: usize = 1 << 16;

/// Parses a CPU list in the kernel's format, such as `0-3,8`.
pub fn parse_cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Formats a CPU list in the kernel's format.
pub fn cpu_list(cpus: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let range = |&(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_round_trip() {
        for text in ["", "0", "0-3", "0,2", "0-3,8,10-11"] {
            assert_eq!(cpu_list(&parse_cpu_list(text).unwrap()), text);
        }
        assert_eq!(parse_cpu_list("3-1").unwrap().len(), 0);
        for wrong in ["x", "1-", "-1", "0-99999999999"] {
            assert_eq!(parse_cpu_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn paths_are_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        assert_eq!(machine.path("/proc/cpuinfo"), root.path().join("proc/cpuinfo"));
        assert_eq!(machine.online_cpus(), None);
        std::fs::create_dir_all(root.path().join("sys/devices/system/cpu")).unwrap();
        std::fs::write(root.path().join("sys/devices/system/cpu/online"), "0-1\n").unwrap();
        assert_eq!(machine.online_cpus(), Some([0, 1].into()));
        assert_eq!(machine.list("/sys/devices/system"), ["cpu"]);
        assert!(machine.has("/sys/devices/system/cpu/online"));
    }
}
