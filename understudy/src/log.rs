//! Events for the operator: which are printed to standard error, and how.
//!
//! What a command was asked for goes to standard output, and the error that ends a command always goes to standard
//! error ([`crate::output::print_error`]). Everything else is an event of `tracing`. Workers emit none.

use std::fmt;
use std::io::IsTerminal as _;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Environment variable with the filter, for `--log`.
pub(crate) const ENV: &str = "UNDERSTUDY_LOG";

/// Returns whether standard error is systemd's journal, which takes the priority of a line from its start, and knows its
/// time (systemd.exec(5), `JOURNAL_STREAM`).
pub(crate) fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let stat = rustix::fs::fstat(std::io::stderr());
    stat.is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Returns a text with the priority of an error at the start of each line, for the journal.
pub(crate) fn journal_error(text: &str) -> String {
    with_priority(text, ERROR)
}

/// Priority of an error (`LOG_ERR`)
const ERROR: u8 = 3;

/// Returns a text with a priority at the start of each line (sd-daemon(3)).
fn with_priority(text: &str, priority: u8) -> String {
    let lines: Vec<_> = text.trim_end().split('\n').map(|line| format!("<{priority}>{line}")).collect();
    lines.join("\n")
}

/// Checks a filter in the syntax of `tracing_subscriber::EnvFilter`.
pub(crate) fn parse_filter(filter: &str) -> Result<String, String> {
    let help = "write off, error, warn, info, debug or trace, or such as warn,understudy::run=info";
    // The parser takes a misspelt level for the name of a module, which would silence all others.
    let is_misspelt =
        |directive: &&str| !directive.contains(['=', '[', ':']) && directive.parse::<LevelFilter>().is_err();
    if let Some(directive) = filter.split(',').find(is_misspelt) {
        return Err(format!("`{directive}` is no level; {help}"));
    }
    EnvFilter::try_new(filter).map(|_| filter.into()).map_err(|error| format!("{error}; {help}"))
}

/// Prints the events that pass `filter` to standard error from now on.
///
/// Panics if it is called twice, or if [`parse_filter`] refuses the filter.
pub(crate) fn init(filter: &str) {
    let stderr = std::io::stderr;
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(filter).expect("parse_filter has accepted it"))
        .with_writer(stderr)
        .with_ansi(
            stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        )
        // A closed standard error does not end a run.
        .log_internal_errors(false)
        .event_format(Lines((!is_journal()).then_some(SystemTime)))
        .init();
}

/// Format of an event: its time (UTC), its level unless that is info, and its text. Without a clock, the priority is in place
/// of both, for the journal.
struct Lines<T>(Option<T>);

impl<S, N, T> FormatEvent<S, N> for Lines<T>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    T: FormatTime,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (level, colour, priority) = match *event.metadata().level() {
            Level::ERROR => ("error", "31", ERROR),
            Level::WARN => ("warning", "33", 4),
            Level::INFO => ("", "", 6),
            Level::DEBUG => ("debug", "2", 7),
            Level::TRACE => ("trace", "2", 7),
        };
        let Some(clock) = &self.0 else {
            let mut text = String::new();
            context.format_fields(Writer::new(&mut text), event)?;
            return writeln!(writer, "{}", with_priority(&text, priority));
        };
        let ansi = writer.has_ansi_escapes();
        if ansi {
            write!(writer, "\x1b[2m")?;
        }
        clock.format_time(&mut writer)?;
        writer.write_str(if ansi { "\x1b[0m " } else { " " })?;
        match (level, ansi) {
            ("", _) => {}
            (level, true) => write!(writer, "\x1b[{colour}m{level}:\x1b[0m ")?,
            (level, false) => write!(writer, "{level}: ")?,
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};
    use tracing::{debug, error, info, warn};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{Layer as _, Registry};

    #[derive(Clone, Default)]
    struct Printed(Arc<Mutex<Vec<u8>>>);

    impl Write for Printed {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Clock of the tests
    struct Fixed;

    impl FormatTime for Fixed {
        fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
            writer.write_str("12:00")
        }
    }

    /// Returns what is printed of four events.
    fn printed(filter: &str, ansi: bool) -> String {
        printed_as(Lines(Some(Fixed)), filter, ansi)
    }

    fn printed_as(format: Lines<Fixed>, filter: &str, ansi: bool) -> String {
        let printed = Printed::default();
        let writer = printed.clone();
        let events = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_ansi(ansi)
            .event_format(format)
            .with_filter(EnvFilter::new(parse_filter(filter).unwrap()));
        tracing::subscriber::with_default(Registry::default().with(events), || {
            info!("Port a has its peer.");
            warn!("Port a has lost its peer.");
            error!("Cannot write {}.", "b");
            debug!(n = 1, "once");
        });
        let bytes = printed.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_time_and_levels_other_than_info_precede_the_text() {
        let all = "12:00 Port a has its peer.\n12:00 warning: Port a has lost its peer.\n12:00 error: Cannot write b.\n";
        assert_eq!(printed("info", false), all);
        assert_eq!(printed("debug", false), format!("{all}12:00 debug: once n=1\n"));
        assert_eq!(printed("error", false), "12:00 error: Cannot write b.\n");
        assert_eq!(printed("error", true), "\x1b[2m12:00\x1b[0m \x1b[31merror:\x1b[0m Cannot write b.\n");
        assert_eq!(printed("warn,understudy::log=off", false), "");
    }

    #[test]
    fn the_journal_takes_the_priority_from_each_line() {
        let all = "<6>Port a has its peer.\n<4>Port a has lost its peer.\n<3>Cannot write b.\n<7>once n=1\n";
        assert_eq!(printed_as(Lines(None), "debug", false), all);
        assert_eq!(journal_error("not valid\n  line 2\n"), "<3>not valid\n<3>  line 2");
    }

    #[test]
    fn a_level_that_does_not_exist_is_refused() {
        for filter in ["understudy=loud", "wran", "info,loud"] {
            let error = parse_filter(filter).unwrap_err();
            assert!(error.contains("write off, error, warn"), "{error}");
        }
        assert!(parse_filter("warn,understudy::run=info").is_ok());
    }
}
