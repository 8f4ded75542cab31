//! Search for a seed that finds a planted bug. It begins with the seed that found the bug last, which a file names,
//! so that a test does not run all seeds before it each time.

use core::fmt::Debug;
use core::ops::Range;

/// Runs the seeds `all` until one finds a planted bug. Returns it with what it found.
///
/// The first one is that of the line `suite seed bug` in `known`, if there is one. If it finds nothing any more, because
/// the code has changed, all others follow from the first on, and the line can be replaced: each seed that finds a bug
/// is printed as such a line after `planted: `. With the environment variable `FROM`, which selects seeds of `make soak`,
/// the search begins with the first seed.
///
/// # Panics
/// If the seed in `known` is not in `all`, or is no number.
pub fn find<T>(
    known: &str,
    suite: &str,
    bug: &dyn Debug,
    all: Range<u64>,
    mut run: impl FnMut(u64) -> Option<T>,
) -> Option<(u64, T)> {
    let name = format!("{bug:?}");
    let of_bug = |line: &str| {
        let (seed, bug) = line.strip_prefix(suite)?.strip_prefix(' ')?.split_once(' ')?;
        (bug == name).then(|| seed.parse::<u64>().unwrap_or_else(|_| panic!("invalid seed in {line:?}")))
    };
    let first = known.lines().find_map(of_bug).filter(|_| std::env::var_os("FROM").is_none());
    if let Some(first) = first {
        assert!(
            all.contains(&first),
            "seed {first} of {suite} {name} is not one of {all:?}; remove its line"
        );
    }
    let others = all.filter(|seed| Some(*seed) != first);
    let found = first.into_iter().chain(others).find_map(|seed| run(seed).map(|found| (seed, found)))?;
    println!("planted: {suite} {} {name}", found.0);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn a_search_begins_with_the_known_seed_and_continues_with_all_others() {
        let tried = |known: &str, finds: u64| {
            let mut tried = Vec::new();
            let found = find(known, "suite", &"Bug", 1..6, |seed| {
                tried.push(seed);
                (seed == finds).then_some(())
            });
            (tried, found)
        };
        let known = "other 2 \"Bug\"\nsuite 3 \"Other\"\nsuite 4 \"Bug\"\n";
        assert_eq!(tried(known, 4), (vec![4], Some((4, ()))));
        assert_eq!(tried(known, 2), (vec![4, 1, 2], Some((2, ()))));
        assert_eq!(tried(known, 9), (vec![4, 1, 2, 3, 5], None));
        assert_eq!(tried("", 2), (vec![1, 2], Some((2, ()))));
    }

    #[test]
    #[should_panic(expected = "remove its line")]
    fn a_known_seed_outside_of_the_search_is_refused() {
        find("suite 7 \"Bug\"", "suite", &"Bug", 1..6, |_| Some(()));
    }
}
