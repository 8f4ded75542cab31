//! The supported part of Redis's protocol (RESP 2): commands as clients send them, and responses.

/// Most words of a command
const MAX_WORDS: usize = 16;
/// Longest word (bytes)
const MAX_WORD_LEN: usize = 1 << 20;
/// Longest line (bytes)
const MAX_LINE_LEN: usize = 1 << 16;

/// A violation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ProtocolError(&'static str);

/// A parsed value and how many bytes of the input it took; `None` if more input is needed.
type Parsed<T> = Result<Option<(T, usize)>, ProtocolError>;

/// Parses the commands of a connection as their bytes arrive. Every byte is examined once, however the input
/// is split: the parsed words of an incomplete command are kept.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    input: Vec<u8>,
    /// Number of input bytes that have been parsed
    at: usize,
    /// Number of bytes after those that are known to contain no end of a line
    searched: usize,
    /// Words of the current command, and how many more are expected; `None` between two commands
    words: Vec<Vec<u8>>,
    words_expected: Option<usize>,
    /// Length of the next word (bytes), once it is known
    word: Option<usize>,
    /// Number of bytes that were compared with an end of a line
    #[cfg(test)]
    compared: usize,
}

impl Parser {
    /// Appends received bytes to the input.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        // The remainder is part of one line or word.
        self.input.drain(..self.at);
        self.at = 0;
        self.input.extend(bytes);
    }

    /// Returns the next command, if it is complete: an array of bulk strings, or the words of a line, as
    /// typed into `nc`. A line without words is an empty command.
    ///
    /// # Errors
    /// If the input is not a command. Nothing after it can be parsed.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, ProtocolError> {
        loop {
            let Some(words_expected) = self.words_expected else {
                let Some(line) = self.line()? else { return Ok(None) };
                let line = &self.input[line];
                let Some(count) = line.strip_prefix(b"*") else {
                    let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
                    return Ok(Some(words.map(<[u8]>::to_vec).collect()));
                };
                self.words_expected = Some(length(count, MAX_WORDS)?.unwrap_or(0));
                continue;
            };
            if words_expected == 0 {
                self.words_expected = None;
                return Ok(Some(core::mem::take(&mut self.words)));
            }
            if let Some(len) = self.word {
                let Some(word) = bulk(len, &self.input[self.at..])? else { return Ok(None) };
                self.words.push(word);
                self.at += len + 2;
                (self.word, self.words_expected) = (None, Some(words_expected - 1));
            } else {
                let Some(line) = self.line()? else { return Ok(None) };
                let head = self.input[line].strip_prefix(b"$").ok_or(ProtocolError("expected '$'"))?;
                let len = length(head, MAX_WORD_LEN)?;
                self.word =
                    Some(len.ok_or(ProtocolError(
                        "a null bulk string is not allowed as a word; write its length",
                    ))?);
            }
        }
    }

    /// Parses a line. Returns its range in the input, without its end.
    fn line(&mut self) -> Result<Option<core::ops::Range<usize>>, ProtocolError> {
        let from = self.at + self.searched;
        let end = self.input[from..].iter().position(|byte| *byte == b'\n');
        #[cfg(test)]
        {
            self.compared += end.map_or(self.input.len() - from, |end| end + 1);
        }
        let len = self.searched + end.unwrap_or(self.input.len() - from);
        if len >= MAX_LINE_LEN {
            return Err(ProtocolError("the line is too long"));
        }
        if end.is_none() {
            self.searched = len;
            return Ok(None);
        }
        let (begin, end) = (self.at, self.at + len);
        (self.at, self.searched) = (end + 1, 0);
        let cr_len = usize::from(self.input[begin..end].ends_with(b"\r"));
        Ok(Some(begin..end - cr_len))
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// `OK`, `PONG`
    Simple(&'static str),
    /// An error. It begins with a word in capitals by which programs identify the kind of error.
    Error(String),
    Number(i64),
    /// A value, or null
    Bulk(Option<Vec<u8>>),
}

impl Value {
    /// Returns an error without a specific kind.
    pub(crate) fn error(text: impl core::fmt::Display) -> Self {
        Self::Error(format!("ERR {text}"))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Simple(text) => out.extend(format!("+{text}\r\n").into_bytes()),
            Self::Error(text) => out.extend(format!("-{}\r\n", text.replace(['\r', '\n'], " ")).into_bytes()),
            Self::Number(number) => out.extend(format!(":{number}\r\n").into_bytes()),
            Self::Bulk(None) => out.extend(b"$-1\r\n"),
            Self::Bulk(Some(bytes)) => word(bytes, out),
        }
    }

    /// Decodes a response, as a client.
    pub(crate) fn decode(input: &[u8]) -> Parsed<Self> {
        let Some((line, at)) = line(input)? else { return Ok(None) };
        let Some((kind, rest)) = line.split_first() else { return Err(ProtocolError("empty response")) };
        let text = || String::from_utf8_lossy(rest).into_owned();
        let value = match kind {
            b'+' => Self::Simple(if rest == b"PONG" { "PONG" } else { "OK" }),
            b'-' => Self::Error(text()),
            b':' => Self::Number(text().parse().map_err(|_| ProtocolError("invalid number"))?),
            b'$' => {
                let Some(len) = length(rest, MAX_WORD_LEN)? else { return Ok(Some((Self::Bulk(None), at))) };
                return Ok(bulk(len, &input[at..])?.map(|bytes| (Self::Bulk(Some(bytes)), at + len + 2)));
            }
            _ => return Err(ProtocolError("unknown kind of response")),
        };
        Ok(Some((value, at)))
    }
}

/// Encodes a command, as a client.
pub(crate) fn encode_command(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend(format!("*{}\r\n", words.len()).into_bytes());
    for bytes in words {
        word(bytes, out);
    }
}

fn word(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend(format!("${}\r\n", bytes.len()).into_bytes());
    out.extend(bytes);
    out.extend(b"\r\n");
}

/// Returns the first line without its end, and its length with it.
fn line(input: &[u8]) -> Parsed<&[u8]> {
    let Some(end) = input.iter().take(MAX_LINE_LEN).position(|byte| *byte == b'\n') else {
        return if input.len() >= MAX_LINE_LEN {
            Err(ProtocolError("the line is too long"))
        } else {
            Ok(None)
        };
    };
    let line = &input[..end];
    Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1)))
}

/// Parses a length. Returns `None` if it is negative, which stands for null.
fn length(digits: &[u8], most: usize) -> Result<Option<usize>, ProtocolError> {
    let number = core::str::from_utf8(digits).ok().and_then(|text| text.parse::<i64>().ok());
    match usize::try_from(number.ok_or(ProtocolError("invalid length"))?) {
        Ok(len) if len > most => Err(ProtocolError("the length is too large")),
        Ok(len) => Ok(Some(len)),
        Err(_) => Ok(None),
    }
}

/// Returns the bytes that a length announces, if they and the following end of line are complete.
fn bulk(len: usize, input: &[u8]) -> Result<Option<Vec<u8>>, ProtocolError> {
    let Some((bytes, end)) = input.get(..len + 2).map(|bytes| bytes.split_at(len)) else { return Ok(None) };
    if end == b"\r\n" { Ok(Some(bytes.to_vec())) } else { Err(ProtocolError("expected the end of a line")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses the first command of these bytes. Returns it, and how many bytes it took.
    fn command(input: &[u8]) -> Parsed<Vec<Vec<u8>>> {
        let mut parser = Parser::default();
        parser.feed(input);
        Ok(parser.next()?.map(|words| (words, parser.at)))
    }

    #[test]
    fn every_byte_is_examined_once_however_the_input_is_split() {
        let word = vec![b'x'; 10_000];
        let mut bytes = Vec::new();
        encode_command(&[b"SET", &word, &word], &mut bytes);
        bytes.extend(vec![b'y'; MAX_LINE_LEN - 2]);
        bytes.extend(b"\n");
        for piece in [1, 7, 1460, bytes.len()] {
            let mut parser = Parser::default();
            let mut commands = Vec::new();
            for piece in bytes.chunks(piece) {
                parser.feed(piece);
                commands.extend(core::iter::from_fn(|| parser.next().unwrap()));
            }
            assert_eq!(commands.len(), 2, "in pieces of {piece}");
            assert_eq!(commands[0], [b"SET".to_vec(), word.clone(), word.clone()]);
            assert!(parser.compared < MAX_LINE_LEN + 100, "{} comparisons", parser.compared);
        }
    }

    fn words(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn arrays_of_bulk_strings_and_typed_lines_are_commands() {
        let bytes = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n\0x\r\n*1\r\n";
        assert_eq!(command(bytes), Ok(Some((words(&["SET", "k", "\r\n\0x"]), bytes.len() - 4))));
        assert_eq!(command(b"  set k  v\r\nGET"), Ok(Some((words(&["set", "k", "v"]), 12))));
        assert_eq!(command(b"\n"), Ok(Some((vec![], 1))));
        assert_eq!(command(b"*0\r\n"), Ok(Some((vec![], 4))));
        assert_eq!(command(b"*-1\r\n"), Ok(Some((vec![], 5))));
    }

    #[test]
    fn invalid_input_is_distinguished_from_incomplete_input() {
        for invalid in [
            "*x\r\n",
            "*17\r\n",
            "*99999999999999999999\r\n",
            "*1\r\n:1\r\n",
            "*1\r\n$-1\r\n",
            "*1\r\n$\r\n",
            "*1\r\n$2000000\r\n",
            "*1\r\n$1\r\nxy\r\n",
        ] {
            assert!(command(invalid.as_bytes()).is_err(), "{invalid:?}");
        }
        assert!(command(&vec![b'x'; MAX_LINE_LEN]).is_err());
        assert_eq!(command(&vec![b'x'; MAX_LINE_LEN - 1]), Ok(None));
        assert!(Value::decode(b"?\r\n").is_err() && Value::decode(b"\r\n").is_err());
    }

    #[test]
    fn an_error_is_a_single_line() {
        let mut bytes = Vec::new();
        Value::error("a\r\nb").encode(&mut bytes);
        assert_eq!(bytes, b"-ERR a  b\r\n");
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            prop::sample::select(vec!["OK", "PONG"]).prop_map(Value::Simple),
            "[A-Z]{1,5} [ -~]{0,20}".prop_map(Value::Error),
            any::<i64>().prop_map(Value::Number),
            prop::option::of(prop::collection::vec(any::<u8>(), 0..40)).prop_map(Value::Bulk),
        ]
    }

    proptest! {
        #[test]
        fn commands_round_trip_and_a_prefix_is_incomplete(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..MAX_WORDS),
            cut in 0.0..1.0,
        ) {
            let mut bytes = Vec::new();
            encode_command(&words.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut bytes);
            prop_assert_eq!(command(&bytes[..(bytes.len() as f64 * cut) as usize]), Ok(None));
            let len = bytes.len();
            bytes.extend(b"*2\r\n$");
            prop_assert_eq!(command(&bytes), Ok(Some((words, len))));
        }

        #[test]
        fn commands_do_not_depend_on_how_the_input_is_split(
            bytes in prop::collection::vec(prop::sample::select(b"*$1230\r\nx ".to_vec()), 0..60),
            piece in 1usize..8,
        ) {
            let read = |piece: usize| {
                let (mut parser, mut commands) = (Parser::default(), Vec::new());
                for piece in bytes.chunks(piece) {
                    parser.feed(piece);
                    loop {
                        match parser.next() {
                            Ok(Some(words)) => commands.push(words),
                            Ok(None) => break,
                            Err(invalid) => return (commands, Some(invalid)),
                        }
                    }
                }
                (commands, None)
            };
            prop_assert_eq!(read(piece), read(bytes.len().max(1)));
        }

        #[test]
        fn responses_round_trip_and_a_prefix_is_incomplete(value in value(), cut in 0.0..1.0) {
            let mut bytes = Vec::new();
            value.encode(&mut bytes);
            prop_assert_eq!(Value::decode(&bytes[..(bytes.len() as f64 * cut) as usize]), Ok(None));
            let len = bytes.len();
            prop_assert_eq!(Value::decode(&bytes), Ok(Some((value, len))));
        }

        #[test]
        fn arbitrary_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(prop::sample::select(b"*$:+-012\r\nxS ".to_vec()), 0..60)) {
            if let Ok(Some((_, len))) = command(&bytes) {
                prop_assert!(len <= bytes.len());
            }
            if let Ok(Some((_, len))) = Value::decode(&bytes) {
                prop_assert!(len <= bytes.len());
            }
        }
    }
}
