//! `annals log dump`: the stored events, as they are.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Common, Failure, open, unreadable};
use crate::base::{Timestamp, nearest};
use crate::event::{PARTITIONS, Topic};
use crate::log::embedded::{Scanned, ScannedItem};
use crate::log::{Position, ReadError};

/// How every topic's name starts.
const PREFIX: &str = "annals.";

#[derive(Debug, Args)]
pub(in crate::cli) struct DumpArgs {
    /// Only events of this topic, such as annals.tool-calls.
    #[arg(long, value_parser = topic)]
    topic: Option<Topic>,
    /// Only events of this partition.
    #[arg(long, value_parser = clap::value_parser!(u32).range(..i64::from(PARTITIONS)))]
    partition: Option<u32>,
    /// Only events at this position or behind it.
    #[arg(long, value_name = "POS", default_value_t = 0)]
    from: u64,
    /// At most so many events.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

/// One line.
#[derive(Serialize)]
struct Line<'a> {
    /// Where the event stands in the log.
    position: u64,
    /// The same as a file and a byte in it.
    file: &'a str,
    offset: u64,
    topic: Topic,
    partition: u32,
    incarnation: Uuid,
    seq: u64,
    recorded_at: Timestamp,
    /// SHA-256 of the body, hexadecimal.
    content: String,
    /// The lane's link, hexadecimal.
    link: String,
    /// The body byte for byte, so that its digest can be taken again.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a RawValue>,
    /// The body when it is not JSON, or JSON that no line can hold byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

pub(super) fn run(common: &Common, args: &DumpArgs) -> Result<ExitCode, Failure> {
    let mut scanner = open(common)?;
    let first = scanner.start().first;
    if args.from > 0 && args.from < first.0 {
        return Err(unreadable(ReadError::Dropped { position: Position(args.from), first }));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut damage = None;
    while left > 0 {
        match scanner.next() {
            Ok(Some(scanned)) => match write(&mut out, args, &scanned) {
                Ok(written) => left -= u64::from(written),
                Err(error) => return lost(&error),
            },
            Ok(None) => break,
            Err(error) => {
                damage = Some(error);
                break;
            }
        }
    }
    // What was read stands before what could not be.
    let flushed = out.flush();
    if let Some(error) = damage {
        return Err(unreadable(error));
    }
    flushed.map_or_else(|error| lost(&error), |()| Ok(ExitCode::SUCCESS))
}

/// Whether the event was wanted and so was written.
fn write(out: &mut impl Write, args: &DumpArgs, scanned: &Scanned) -> io::Result<bool> {
    let ScannedItem::Event(stored) = &scanned.item else { return Ok(false) };
    let frame = &stored.frame;
    let target = frame.target;
    let wanted = args.topic.is_none_or(|topic| topic == target.topic)
        && args.partition.is_none_or(|partition| partition == target.partition)
        && stored.position.0 >= args.from;
    if !wanted {
        return Ok(false);
    }
    let body = exact_json(&frame.body);
    let line = Line {
        position: stored.position.0,
        file: &scanned.file,
        offset: scanned.offset,
        topic: target.topic,
        partition: target.partition,
        incarnation: frame.incarnation,
        seq: frame.seq,
        recorded_at: frame.recorded_at,
        content: hex::encode(frame.content),
        link: hex::encode(frame.link),
        body,
        body_base64: body.is_none().then(|| STANDARD.encode(&frame.body)),
    };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")?;
    Ok(true)
}

/// `body` as a JSON value of the very same bytes, if it is one and stays on its line.
fn exact_json(body: &[u8]) -> Option<&RawValue> {
    let value: &RawValue = serde_json::from_slice(body).ok()?;
    (value.get().len() == body.len() && !body.contains(&b'\n') && !body.contains(&b'\r')).then_some(value)
}

/// Whoever reads may have read enough.
fn lost(error: &io::Error) -> Result<ExitCode, Failure> {
    if error.kind() == ErrorKind::BrokenPipe {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::missing(format!("cannot write to stdout: {error}")))
    }
}

fn topic(name: &str) -> Result<Topic, String> {
    name.parse().map_err(|_| {
        // All have the prefix in common, so only what follows it tells how near a name is.
        let own = |name| str::strip_prefix(name, PREFIX).unwrap_or(name);
        let names = Topic::ALL.map(Topic::name);
        let lower = name.to_lowercase();
        let near = nearest(own(&lower), names.map(own));
        let near = near.map_or_else(String::new, |near| format!("; did you mean {PREFIX}{near}?"));
        format!("there is no such topic{near} (topics: {})", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_is_none_is_refused_with_the_nearest() {
        for (given, near) in [
            ("annals.tool-call", "annals.tool-calls"),
            ("tool-calls", "annals.tool-calls"),
            ("system", "annals.system"),
            ("Annals.Admin", "annals.admin"),
        ] {
            let error = topic(given).unwrap_err();
            assert!(error.contains(&format!("did you mean {near}?")), "{given}: {error}");
        }
        let error = topic("zzz").unwrap_err();
        assert!(!error.contains("did you mean"), "{error}");
        assert!(error.contains("annals.tool-calls, annals.sessions, annals.oauth"), "{error}");
    }

    #[test]
    fn only_json_that_keeps_its_bytes_on_one_line_is_given_as_json() {
        for body in [r#"{"a":1.00000000000000000001,"a":2}"#, "7", "\"\\u0000 ü\"", "null"] {
            assert_eq!(exact_json(body.as_bytes()).map(RawValue::get), Some(body));
        }
        for body in [&b""[..], b"{", b"{\n}", b"[1,\r2]", b" 1", b"1 ", b"\xff", b"\"\xff\"", b"{} {}"] {
            assert!(exact_json(body).is_none(), "{}", body.escape_ascii());
        }
    }
}
