//! Messages for TOML syntax errors, for users who do not write TOML every day.

use crate::report::Problem;
use core::ops::Range;

/// Returns the problems of a text that does not parse, at most one per line: further errors on a line are
/// mostly consequences of the first.
pub fn problems(text: &str, errors: &[toml::de::Error]) -> Vec<Problem> {
    let mut errors: Vec<_> =
        errors.iter().map(|error| (error.span().unwrap_or(0..0), error.message())).collect();
    errors.sort_by_key(|(span, _)| span.start);
    let mut lines = Vec::new();
    errors.retain(|(span, _)| {
        let line = line_of(text, span.start).start;
        let first = !lines.contains(&line);
        lines.push(line);
        first
    });
    // A list that is not closed takes the following lines for its elements.
    let unclosed = errors.iter().position(|(span, message)| {
        let before = &text[line_of(text, span.start).start..span.start];
        message.starts_with("missing comma") && before.trim().is_empty()
    });
    errors.truncate(unclosed.map_or(errors.len(), |last| last + 1));
    errors.into_iter().map(|(span, message)| problem(text, span, message)).collect()
}

fn line_of(text: &str, at: usize) -> Range<usize> {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let end = text[at..].find('\n').map_or(text.len(), |newline| at + newline);
    start..end
}

/// Returns the range of the word around an offset; words end at spaces, commas, brackets, braces and equals
/// signs.
fn word_at(text: &str, at: usize) -> Range<usize> {
    let ends = |c: char| c.is_whitespace() || ",[]{}=".contains(c);
    let start = text[..at].rfind(ends).map_or(0, |before| before + 1);
    let end = text[at..].find(ends).map_or(text.len(), |len| at + len);
    start..end
}

fn problem(text: &str, span: Range<usize>, message: &str) -> Problem {
    let is = |start: &str| message.starts_with(start);
    let line = text[line_of(text, span.start)].trim();
    let written = text.get(span.clone()).unwrap_or_default();
    let problem_at = |words: String| Problem::at(span.clone(), words);
    if is("string values must be quoted") {
        return unquoted(&span, written);
    }
    if is("invalid boolean") && matches!(written.to_ascii_lowercase().as_str(), "true" | "false") {
        return problem_at(format!("`{written}` is neither `true` nor `false`"))
            .label("unknown")
            .help("write `true` or `false` in lower case, or a string in quotes");
    }
    if is("duplicate key") {
        return problem_at(format!("`{written}` is defined twice")).label("again").help(
            if line.starts_with('[') {
                "merge the two tables; only tables in double brackets, such as [[port]], may be repeated"
            } else {
                "remove one of the two"
            },
        );
    }
    if is("key with no value") {
        let key = line.split([' ', ':', '\t']).next().unwrap_or_default();
        return problem_at("a key without a value".into())
            .label("no `=` here")
            .help(format!("write it with an equals sign: `{key} = ...`; strings are written in quotes"));
    }
    if is("extra `=`") {
        return problem_at("more than one equals sign".into()).label("extra `=`").help("write `key = value`");
    }
    if is("unclosed table") || is("unclosed array table") {
        return problem_at("the header of a table is not closed".into())
            .label("a bracket is missing, or there is extra text in it")
            .help("write a name in brackets, such as `[runtime]`, and [[port]] in double ones");
    }
    if is("missing comma") {
        return problem_at("a comma is missing between two elements, or the bracket after the last".into())
            .label("expected `,` or `]`")
            .help("put commas between the elements, and `]` after the last");
    }
    if is("invalid basic string") || is("invalid literal string") {
        return problem_at("a string is not closed".into())
            .label("closing quote is missing")
            .help("end it with a quote on the same line");
    }
    if is("missing escaped value") {
        return problem_at("unknown escape sequence after a backslash in a string".into())
            .label("unknown")
            .help("write `\\\\` for a backslash, or the string in single quotes");
    }
    if is("invalid unquoted key") && written == ":" {
        return problem_at("a key and its value are separated by `=`, not by `:`".into())
            .label("not an equals sign")
            .help(format!("write `{} = ...`", line.split(':').next().unwrap_or_default().trim()));
    }
    if is("unclosed array") {
        return problem_at("a list is not closed".into())
            .label("closing bracket is missing")
            .help("end it with `]`");
    }
    if is("unclosed inline table") {
        return problem_at("a table in braces is not closed".into())
            .label("closing brace is missing")
            .help("end it with `}`");
    }
    // Unquoted addresses look like times and numbers to the parser.
    let word = word_at(text, span.start);
    let is_value = ["boolean", "float", "integer", "time", "date"].iter().any(|kind| message.contains(kind));
    if is("invalid") && is_value && !text[word.clone()].contains(['"', '\'']) {
        return unquoted(&word, &text[word.clone()]);
    }
    if is("unexpected key or value") {
        return problem_at("unexpected text at the end of this line".into())
            .label("expected the end of the line here")
            .help(
                "write one `key = value` on a line, strings in quotes, and numbers without commas or units",
            );
    }
    if is("unexpected leading zero") {
        return problem_at("a number must not begin with a zero".into())
            .label("leading zero")
            .help("leave it out; an octal number is written `0o17`");
    }
    let message = message.trim_end_matches(", expected nothing").replace("array", "list");
    problem_at(format!("this is not TOML: {message}"))
        .label("here")
        .help("write `key = value` below a `[table]`, strings in quotes and lists in brackets")
}

fn unquoted(span: &Range<usize>, written: &str) -> Problem {
    let problem = Problem::at(span.clone(), format!("`{written}` has to be in quotes"));
    if matches!(written, "yes" | "no" | "on" | "off") {
        let meaning = matches!(written, "yes" | "on");
        return Problem { message: format!("`{written}` is neither `true` nor `false`"), ..problem }
            .label("unknown")
            .help(format!("write `{meaning}`, or put a string in quotes: `\"{written}\"`"));
    }
    if written.is_empty() {
        return Problem { message: "a value is missing".into(), ..problem }.label("nothing here").help(
            "write `key = value`: a number, `true` or `false`, a string in quotes, or a list in brackets",
        );
    }
    let digits = written.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if digits.len() < written.len() && digits.parse::<u64>().is_ok() {
        return Problem { message: format!("`{written}` is not a number"), ..problem }
            .label("has a unit")
            .help(format!("write the number alone: `{digits}`; the unit is in the name of the key"));
    }
    match written.split_once([' ', '\t']) {
        Some((value, rest)) if rest.trim_start().starts_with("//") => {
            Problem { message: "a comment begins with `#`".into(), ..problem }.label("not a comment").help(
                format!("write `{} # {}`", value.trim(), rest.trim_start().trim_start_matches(['/', ' '])),
            )
        }
        _ => problem.label("a string without quotes").help(format!("write `\"{written}\"`")),
    }
}
