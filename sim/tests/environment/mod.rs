//! Which seeds a test runs.

/// So many from the first on, or as the environment has it: `FROM=1000000 SEEDS=50000`.
pub(crate) fn seeds(count: u64) -> core::ops::Range<u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let from = read("FROM").unwrap_or(1);
    from..from + read("SEEDS").unwrap_or(count)
}
