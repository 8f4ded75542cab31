//! Wording of messages: lists, and suggestions for misspelt words.

/// Joins items as in a sentence: ``` `a`, `b` or `c` ```.
pub fn one_of<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> String {
    listed(items, "or")
}

/// Joins items as in a sentence: ``` `a`, `b` and `c` ```.
pub fn all_of<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> String {
    listed(items, "and")
}

fn listed<S: AsRef<str>>(items: impl IntoIterator<Item = S>, last: &str) -> String {
    let items: Vec<String> = items.into_iter().map(|item| format!("`{}`", item.as_ref())).collect();
    match items.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [head @ .., tail] => format!("{} {last} {tail}", head.join(", ")),
    }
}

/// Returns the candidate closest to `word`, if one is close enough to suggest.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Minimum length of a prefix that identifies a word, as `memory` does `memory_mb`
    const MIN_PREFIX: usize = 3;
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    let max_distance = word.chars().count() / 3;
    let distance = |candidate: &str| {
        let candidate = plain(candidate);
        let short = word.len().min(candidate.len());
        if short >= MIN_PREFIX && (candidate.starts_with(&word) || word.starts_with(&candidate)) {
            return Some(1);
        }
        Some(strsim::osa_distance(&word, &candidate)).filter(|&distance| distance <= max_distance)
    };
    let close = candidates.into_iter().filter_map(|candidate| Some((distance(candidate)?, candidate)));
    close.min_by_key(|&(distance, _)| distance).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_like_sentences() {
        assert_eq!(one_of::<&str>([]), "");
        assert_eq!(one_of(["a"]), "`a`");
        assert_eq!(one_of(["a", "b"]), "`a` or `b`");
        assert_eq!(all_of(["a", "b", "c"]), "`a`, `b` and `c`");
    }

    #[test]
    fn misspelt_words_are_recognised() {
        let keys = ["mtu", "name", "memory_mb", "af_packet", "pci", "workers"];
        for (word, meaning) in [
            ("mtuu", Some("mtu")),
            ("MTU", Some("mtu")),
            ("mut", Some("mtu")),
            ("af-packet", Some("af_packet")),
            ("afpacket", Some("af_packet")),
            ("memory", Some("memory_mb")),
            ("worker", Some("workers")),
            ("cpus", None),
            ("x", None),
        ] {
            assert_eq!(closest(word, keys), meaning, "{word}");
        }
    }
}
