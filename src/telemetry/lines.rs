//! Every line that this process writes about itself passes through the rules for secrets, panics' messages too.

use std::io::{self, Write};
use std::sync::{Arc, LazyLock, OnceLock};

use crate::base::planted;
use crate::redact::{Redactor, Secrets};

/// The rules of the config, once it is read; the rules that are always in force, until then.
static CONFIGURED: OnceLock<Arc<Redactor>> = OnceLock::new();
static BUILT_IN: LazyLock<Arc<Redactor>> = LazyLock::new(Redactor::shared);

/// Has lines redacted by `redactor` from here on, so that their digests are those of the records. The first call of a
/// process decides.
pub fn redact_with(redactor: Arc<Redactor>) {
    CONFIGURED.get_or_init(|| redactor);
}

/// `text` without its secrets, for whatever is written beside the log lines.
#[must_use]
pub fn redacted(text: &str) -> String {
    if planted::armed("logs_unredacted") {
        return text.to_owned();
    }
    CONFIGURED.get().unwrap_or(&BUILT_IN).text(text, &mut Secrets::default())
}

/// A writer of whole lines, which leave it redacted.
pub(super) struct Redacting<W>(pub(super) W);

impl<W: Write> Write for Redacting<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(redacted(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A panic's message can hold what the caller wrote; the standard hook would print it as it is.
pub(super) fn redact_panics() {
    std::panic::set_hook(Box::new(|panicked| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let trace = std::backtrace::Backtrace::capture();
        let mut text = format!("thread {name:?} {panicked}\n");
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            text += &format!("{trace}\n");
        }
        io::stderr().write_all(redacted(&text).as_bytes()).unwrap_or(());
    }));
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(json: bool, ansi: bool) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt().with_writer(move || Redacting(writer.clone()));
        let write = || {
            let _span = tracing::info_span!("call", token = "hunter21", tool.name = "sql_query").entered();
            tracing::warn!(password = "hunter22", error = %"cannot reach postgres://u:hunter23@h/d", "a\nb");
            tracing::error!(cause = ?Some("Bearer hunter24hunter24"), "api_key: hunter25");
        };
        if json {
            tracing::subscriber::with_default(lines.json().finish(), write);
        } else {
            tracing::subscriber::with_default(lines.with_ansi(ansi).finish(), write);
        }
        let bytes = kept.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn no_line_shows_a_secret_in_any_format() {
        for (json, ansi) in [(false, false), (false, true), (true, false)] {
            let lines = lines(json, ansi);
            assert!(!lines.contains("hunter2"), "{lines}");
            assert_eq!(lines.matches("sql_query").count(), if json { 4 } else { 2 }, "{lines}");
            assert!(lines.matches("[redacted:").count() >= 5, "{lines}");
            assert!(lines.lines().count() >= 2, "{lines}");
        }
    }
}
