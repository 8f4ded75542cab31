//! Counts the instructions of the hot paths and compares them with `bench/benches/instructions.toml`: `make
//! instructions`.
//!
//! The program runs itself once for each path under `valgrind --tool=callgrind`, which counts between the
//! beginning and the end of [`measured_section`]. Valgrind's processor has neither VPCLMULQDQ nor AVX-512,
//! whatever the machine has, so the ICRC is computed by PCLMULQDQ, 16 bytes at a time, at all lengths. (A CPU
//! with VPCLMULQDQ processes 32 bytes at a time, and 64 of packets from 336 bytes on if it has AVX-512, too.)

mod paths;
mod process;

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use understudy_tests::instructions::{Comparison, Conditions, Counts, total};

/// Greatest number of instructions of a reliable message of 1Pipe, in those of a best-effort one: in the paper,
/// reliable delivery takes 25 % of the throughput (section 7.1, figure 8a)
const MAX_RELIABLE_RATIO: f64 = 1.33;

/// Runs the work that callgrind counts. No other function's name may contain the name of this one.
#[inline(never)]
fn measured_section(work: &mut dyn FnMut(usize), times: usize) {
    for n in 0..times {
        work(n);
    }
}

/// Returns the CPU features that the code detects at run time, or is compiled for.
fn features() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let found = [
            ("sse4.1", is_x86_feature_detected!("sse4.1")),
            ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
            ("avx2", is_x86_feature_detected!("avx2")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("vpclmulqdq", is_x86_feature_detected!("vpclmulqdq")),
            ("compiled for avx2", cfg!(target_feature = "avx2")),
            ("compiled for pclmulqdq", cfg!(target_feature = "pclmulqdq")),
        ];
        let found: Vec<_> = found.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect();
        format!("x86_64: {}", found.join(", "))
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH.to_owned()
}

/// Returns the first line that a program prints, or `unknown`.
fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").trim().to_owned()
}

/// Counts one path. Returns the instructions per unit, and the CPU features with which they were counted.
///
/// # Errors
/// If valgrind is missing, the path fails, or nothing was counted.
fn count(name: &str) -> Result<(f64, String), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("callgrind.out");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*measured_section*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args(["--measure", name])
        // The environment is on the stack, and shifts the addresses below it.
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    let output = command
        .output()
        .map_err(|error| format!("cannot run valgrind: {error}; install Debian's package valgrind"))?;
    let (output_text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let failed = |what: &str| format!("{name}: {what}\n{output_text}{errors}");
    if !output.status.success() {
        return Err(failed("the path did not do the work to be counted").into());
    }
    let (units, features) =
        output_text.trim().split_once(' ').ok_or_else(|| failed("the path printed no number of units"))?;
    let total = total(&std::fs::read_to_string(&out)?).filter(|total| *total > 0);
    let total = total
        .ok_or_else(|| failed("callgrind counted nothing; check that measured_section is not inlined"))?;
    Ok((total as f64 / units.parse::<f64>()?, features.to_owned()))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().position(|argument| argument == "--measure") {
        Some(at) => measure(arguments.get(at + 1).map_or("", String::as_str)),
        None => all(arguments.iter().any(|argument| argument == "--renew")),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one path. Its preparation is not counted.
fn measure(name: &str) -> Result<ExitCode, Box<dyn Error>> {
    let path = paths::ALL.iter().find(|path| path.name == name).ok_or("no path of this name")?;
    let mut prepared = (path.prepare)();
    measured_section(&mut *prepared.work, prepared.times);
    (prepared.check)()?;
    println!("{} {}", prepared.units, features());
    Ok(ExitCode::SUCCESS)
}

/// Counts all paths, and compares them with the baseline or writes a new one.
fn all(renew: bool) -> Result<ExitCode, Box<dyn Error>> {
    let mut here = Counts {
        conditions: Conditions {
            rustc: first_line("rustc", &["-V"]),
            libc: first_line("getconf", &["GNU_LIBC_VERSION"]),
            valgrind: first_line("valgrind", &["--version"]),
            features: String::new(),
        },
        ..Counts::default()
    };
    for (n, path) in paths::ALL.iter().enumerate() {
        eprint!("\r\x1b[K{} of {}: {}", n + 1, paths::ALL.len(), path.name);
        let (count, features) = count(path.name)?;
        here.paths.insert(path.name.to_owned(), count);
        here.conditions.features = features;
    }
    eprint!("\r\x1b[K");
    let ratio = paths::reliable_ratio(&here.paths);
    println!(
        "A reliable message of 1Pipe takes {ratio:.3} times the instructions of a best-effort one, at sender and receiver \
         together (1Pipe, figure 8a); at most {MAX_RELIABLE_RATIO}."
    );
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.toml");
    if renew {
        std::fs::write(&file, here.file())?;
        println!("{}", here.file());
        return Ok(ExitCode::SUCCESS);
    }
    let baseline = std::fs::read_to_string(&file)?;
    let comparison = Comparison::new(&Counts::parse(&baseline)?, &here);
    print!("{}", comparison.text());
    let passes = comparison.passes() && ratio <= MAX_RELIABLE_RATIO;
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
