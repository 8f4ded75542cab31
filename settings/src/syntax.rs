//! Messages for TOML syntax errors, for users who do not write TOML every day.

use crate::report::Problem;
use core::ops::Range;

/// Returns the problems of a text that does not parse, at most one per line: further errors on a line are
/// mostly consequences of the first. The parser only says where; what is wrong follows from the text there.
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
    let mut errors = errors.into_iter().map(|(span, message)| (Place::of(text, span), message));
    let mut problems = Vec::new();
    for (place, message) in &mut errors {
        // A list that is not closed takes the following lines for its elements.
        let unclosed = place.in_list() && place.written().is_empty() && place.is_first_on_its_line();
        problems.push(place.problem(message));
        if unclosed {
            break;
        }
    }
    problems
}

/// Place of an error, and what surrounds it.
struct Place<'a> {
    text: &'a str,
    span: Range<usize>,
    /// Start of the statement: a header, or a key with its value, which may have several lines
    statement: usize,
    /// Brackets that are open there, with their offsets
    open: Vec<(char, usize)>,
    /// Whether a string is open there
    in_string: bool,
}

impl<'a> Place<'a> {
    fn of(text: &'a str, span: Range<usize>) -> Self {
        let mut place = Self { text, span, statement: 0, open: Vec::new(), in_string: false };
        let (mut quote, mut escaped, mut in_comment) = (None, false, false);
        for (at, c) in text[..place.span.start].char_indices() {
            if c == '\n' {
                // Strings of several lines are not used in configuration files.
                (quote, escaped, in_comment) = (None, false, false);
                if place.open.is_empty() || place.is_header() {
                    place.open.clear();
                    place.statement = at + 1;
                }
            } else if let Some(end) = quote {
                if c == end && !escaped {
                    quote = None;
                }
                escaped = c == '\\' && end == '"' && !escaped;
            } else if !in_comment {
                match c {
                    '#' => in_comment = true,
                    '"' | '\'' => quote = Some(c),
                    '[' | '{' => place.open.push((c, at)),
                    ']' | '}' => _ = place.open.pop(),
                    _ => {}
                }
            }
        }
        place.in_string = quote.is_some();
        place
    }

    /// Text that the parser complains about; empty if something is missing
    fn written(&self) -> &'a str {
        self.text.get(self.span.clone()).unwrap_or_default()
    }

    fn is_header(&self) -> bool {
        self.text[self.statement..].trim_start_matches([' ', '\t']).starts_with('[')
    }

    fn in_list(&self) -> bool {
        !self.is_header() && self.open.last().is_some_and(|(bracket, _)| *bracket == '[')
    }

    fn is_first_on_its_line(&self) -> bool {
        self.text[line_of(self.text, self.span.start).start..self.span.start].trim().is_empty()
    }

    /// Text of the innermost key and value, up to the error
    fn before(&self) -> &'a str {
        let braces =
            self.open.last().filter(|(bracket, _)| *bracket == '{').map_or(self.statement, |(_, at)| at + 1);
        let before = &self.text[braces..self.span.start];
        if braces == self.statement { before } else { before.rsplit(',').next().unwrap_or(before) }
    }

    /// Rest of the line, without a comment
    fn after(&self) -> &'a str {
        let rest = &self.text[self.span.end..line_of(self.text, self.span.end).end];
        rest.split('#').next().unwrap_or_default().trim()
    }

    fn problem(&self, message: &str) -> Problem {
        let (before, written) = (self.before(), self.written());
        if self.is_header() {
            return self.header_problem();
        }
        if self.in_string {
            return self.string_problem();
        }
        if self.in_list() && written.is_empty() {
            return self.list_problem();
        }
        if !self.in_list() && !before.contains('=') {
            return self.key_problem(message);
        }
        let value = before.split_once('=').map_or("", |(_, value)| value).trim();
        if !self.in_list() && written == "=" && value.is_empty() {
            return self.at("more than one equals sign").label("extra `=`").help("write `key = value`");
        }
        self.value_problem(value, message)
    }

    fn at(&self, message: impl Into<String>) -> Problem {
        Problem::at(self.span.clone(), message)
    }

    fn header_problem(&self) -> Problem {
        let before = &self.text[self.statement..self.span.start];
        if !self.written().is_empty() {
            return self.at(format!("`{}` is defined twice", self.written())).label("again").help(
                "merge the two tables; only tables in double brackets, such as [[port]], may be repeated",
            );
        }
        if before.matches('[').count() == before.matches(']').count() {
            return self.trailing();
        }
        self.at("the header of a table is not closed")
            .label("a bracket is missing, or there is extra text in it")
            .help("write a name in brackets, such as `[runtime]`, and [[port]] in double ones")
    }

    fn string_problem(&self) -> Problem {
        if self.text[..self.span.start].ends_with('\\') {
            return self
                .at("unknown escape sequence after a backslash in a string")
                .label("unknown")
                .help("write `\\\\` for a backslash, or the string in single quotes");
        }
        self.at("a string is not closed")
            .label("closing quote is missing")
            .help("end it with a quote on the same line")
    }

    fn list_problem(&self) -> Problem {
        let rest =
            self.text[self.span.start..].lines().map(|line| line.split('#').next().unwrap_or_default());
        if rest.map(str::trim).all(str::is_empty) {
            return self
                .at("a list is not closed")
                .label("closing bracket is missing")
                .help("end it with `]`");
        }
        self.at("a comma is missing between two elements, or the bracket after the last")
            .label("expected `,` or `]`")
            .help("put commas between the elements, and `]` after the last")
    }

    /// Returns the problem of a key, before its equals sign.
    fn key_problem(&self, message: &str) -> Problem {
        let (before, written) = (self.before(), self.written());
        let key = before.trim();
        if written == ":" {
            return self
                .at("a key and its value are separated by `=`, not by `:`")
                .label("not an equals sign")
                .help(format!("write `{key} = ...`"));
        }
        if !written.is_empty() && self.after().starts_with(['=', '.']) {
            return self
                .at(format!("`{written}` is defined twice"))
                .label("again")
                .help("remove one of the two");
        }
        if !key.is_empty() && written.is_empty() {
            let key = key.split([' ', ':', '\t']).next().unwrap_or_default();
            return self
                .at("a key without a value")
                .label("no `=` here")
                .help(format!("write it with an equals sign: `{key} = ...`; strings are written in quotes"));
        }
        self.not_toml(message)
    }

    /// Returns the problem of a value, of which `value` is the part before the error.
    fn value_problem(&self, value: &str, message: &str) -> Problem {
        let written = self.written();
        let word = word_at(self.text, self.span.start);
        let whole = &self.text[word.clone()];
        if written.eq_ignore_ascii_case("true") || written.eq_ignore_ascii_case("false") {
            return self
                .at(format!("`{written}` is neither `true` nor `false`"))
                .label("unknown")
                .help("write `true` or `false` in lower case, or a string in quotes");
        }
        if whole.len() > 1 && whole.starts_with('0') && whole.bytes().all(|digit| digit.is_ascii_digit()) {
            return self
                .at("a number must not begin with a zero")
                .label("leading zero")
                .help("leave it out; an octal number is written `0o17`");
        }
        if written.contains([' ', '\t']) {
            return unquoted(&self.span, written);
        }
        if written.is_empty() && value.is_empty() && (whole.is_empty() || whole.starts_with('#')) {
            return unquoted(&self.span, "");
        }
        let is_complete = whole.parse::<f64>().is_ok() && !whole.ends_with('.') || !whole.contains(value);
        if written.is_empty() && is_complete && !value.is_empty() {
            return if self.open.is_empty() { self.trailing() } else { self.unclosed_table() };
        }
        // Unquoted addresses look like times and numbers to the parser.
        if whole.is_empty() || whole.contains(['"', '\'']) {
            return self.not_toml(message);
        }
        unquoted(&word, whole)
    }

    fn unclosed_table(&self) -> Problem {
        self.at("a table in braces is not closed").label("closing brace is missing").help("end it with `}`")
    }

    fn trailing(&self) -> Problem {
        self.at("unexpected text at the end of this line")
            .label("expected the end of the line here")
            .help("write one `key = value` on a line, strings in quotes, and numbers without commas or units")
    }

    fn not_toml(&self, message: &str) -> Problem {
        self.at(format!("this is not TOML: {message}"))
            .label("here")
            .help("write `key = value` below a `[table]`, strings in quotes and lists in brackets")
    }
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
