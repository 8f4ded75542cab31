//! Problem reports of a configuration file: each problem with its position and a remedy.

use core::fmt::{self, Write};
use core::ops::Range;
use miette::{
    Diagnostic, LabeledSpan, MietteHandler, MietteHandlerOpts, NamedSource, ReportHandler, SourceCode,
};
use std::path::Path;
use textwrap::{WordSeparator, WordSplitter};

/// A problem in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Problem message: one sentence without a full stop
    pub message: String,
    /// Byte range of the invalid text; `None` if the problem is not at one position
    pub span: Option<Range<usize>>,
    /// Label under that range: a few words
    pub label: String,
    /// Remedy
    pub help: String,
    /// Another range that is part of the problem, with its label
    pub also: Option<(Range<usize>, String)>,
}

impl Problem {
    /// Returns a problem at the bytes `span`.
    pub fn at(span: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            span: Some(span),
            label: String::new(),
            help: String::new(),
            also: None,
        }
    }

    /// Returns a problem of the file as a whole.
    pub fn of_file(message: impl Into<String>) -> Self {
        Self { message: message.into(), span: None, label: String::new(), help: String::new(), also: None }
    }

    /// Sets the label under the range.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Sets the remedy.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: help.into(), ..self }
    }

    /// Adds another range that is part of the problem.
    #[must_use]
    pub fn also(self, span: Range<usize>, label: impl Into<String>) -> Self {
        Self { also: Some((span, label.into())), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.help))
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let words = |label: &str| (!label.is_empty()).then(|| label.to_owned());
        let here = self.span.clone().map(|span| LabeledSpan::new_primary_with_span(words(&self.label), span));
        let also = self.also.clone().map(|(span, label)| LabeledSpan::new_with_span(words(&label), span));
        here.is_some()
            .then(|| Box::new(here.into_iter().chain(also)) as Box<dyn Iterator<Item = LabeledSpan>>)
    }
}

/// All problems of a file.
#[derive(Debug)]
pub struct Report {
    name: String,
    text: NamedSource<String>,
    problems: Vec<Problem>,
}

/// A position in a file; line and column count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line
    pub line: usize,
    /// Column, in characters
    pub column: usize,
}

/// A problem in machine-readable form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding<'a> {
    /// Position
    pub position: Position,
    /// Problem message
    pub message: &'a str,
    /// Remedy
    pub help: &'a str,
}

impl Report {
    /// Returns a report on the file `path` with the content `text`. Sorts the problems by their position.
    pub fn new(path: &Path, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.span.as_ref().map_or(usize::MAX, |span| span.start));
        let name = path.display().to_string();
        Self { text: NamedSource::new(&name, text.to_owned()), name, problems }
    }

    /// Returns the problems with their positions, for JSON output.
    pub fn findings(&self) -> impl Iterator<Item = Finding<'_>> {
        self.problems.iter().map(|problem| Finding {
            position: self.place(problem),
            message: &problem.message,
            help: &problem.help,
        })
    }

    /// Returns the position of a problem; the first character if the problem is not at one position.
    fn place(&self, problem: &Problem) -> Position {
        let start = problem.span.as_ref().map_or(0, |span| span.start);
        let before = self.text.inner().get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Position {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().filter(|&c| c != '\u{feff}').count() + 1,
        }
    }

    /// Renders every problem with the lines around it, and the count of problems. The width is that of the
    /// terminal; colours are used if there is one.
    pub fn render(&self) -> String {
        self.rendered_by(MietteHandlerOpts::new())
    }

    /// Renders every problem for a terminal of another process: without colours, 100 columns wide.
    pub fn render_plain(&self) -> String {
        self.rendered_by(MietteHandlerOpts::new().force_graphical(true).color(false).width(100))
    }

    /// Renders the first problems for a log: plain, and without control characters of the file.
    pub fn render_for_log(&self, problems: usize) -> String {
        let options = MietteHandlerOpts::new().force_graphical(true).color(false).width(100);
        let text = self.rendered(options, problems);
        text.chars().filter(|&letter| letter == '\n' || !letter.is_control()).collect()
    }

    /// Renders the report with these options.
    pub fn rendered_by(&self, options: MietteHandlerOpts) -> String {
        self.rendered(options, usize::MAX)
    }

    fn rendered(&self, options: MietteHandlerOpts, problems: usize) -> String {
        let handler = unbroken_words(options).build();
        let mut text = String::new();
        for problem in self.problems.iter().take(problems) {
            let located = Located { problem, text: &self.text };
            let _ = writeln!(text, "{}", Rendered(&handler, &located));
        }
        match self.problems.as_slice() {
            // The message already names the file.
            [Problem { span: None, .. }] if self.text.inner().is_empty() => text,
            _ => text + &format!("{self}\n"),
        }
    }
}

/// Returns the options with lines that break at spaces only, so that paths and commands can be copied.
pub fn unbroken_words(options: MietteHandlerOpts) -> MietteHandlerOpts {
    options
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
}

/// A problem together with its file, so that it can be rendered on its own.
#[derive(Debug)]
struct Located<'a> {
    problem: &'a Problem,
    text: &'a NamedSource<String>,
}

impl fmt::Display for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem.fmt(f)
    }
}

impl std::error::Error for Located<'_> {}

impl Diagnostic for Located<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.problem.help()
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.problem.labels()
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(self.text)
    }
}

struct Rendered<'a>(&'a MietteHandler, &'a dyn Diagnostic);

impl fmt::Display for Rendered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug(self.1, f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.len() {
            1 => write!(f, "{} cannot be used: one thing is wrong", self.name),
            count => write!(f, "{} cannot be used: {count} things are wrong", self.name),
        }
    }
}

impl std::error::Error for Report {}

impl Diagnostic for Report {
    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.text)
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.problems.iter().map(|problem| problem as &dyn Diagnostic)))
    }
}
