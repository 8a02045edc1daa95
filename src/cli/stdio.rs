//! `annals stdio`: MCP on standard input and output, forwarded to the running server. Stdout has nothing but its answers.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use clap::Args;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};

use super::{Common, Failure};
use crate::app::{DataDir, RunFile, StdioClient, StdioEnd};
use crate::mcp::{Outline, answered_id, server_gone};

/// Lines that wait between the parts of this process.
const LINES_MAX: usize = 16;

#[derive(Debug, Clone, Args)]
pub(super) struct StdioArgs {
    /// The API key to call with; make one with `annals key create`.
    #[arg(long, env = "ANNALS_API_KEY", hide = true, hide_env_values = true)]
    api_key: Option<String>,
}

pub(super) async fn run(common: &Common, args: StdioArgs) -> Result<ExitCode, Failure> {
    let key = args.api_key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty()).ok_or_else(|| {
        Failure::usage(
            "ANNALS_API_KEY is not set: make a key with `annals key create --name NAME --role ROLE` and give it in that \
             variable",
        )
    })?;
    let run = match DataDir::open(&common.data_dir) {
        Ok(data_dir) => RunFile::read(&data_dir.run_file()).map_err(|error| {
            let path = data_dir.run_file().display().to_string();
            Failure::missing(format!(
                "cannot read {path}: {error}; run this as the user that runs `annals serve`"
            ))
        })?,
        Err(_) => None,
    };
    let client = match &run {
        Some(run) => StdioClient::connect(run, &key).await?,
        None => None,
    };
    let Some(client) = client else {
        let data_dir = common.data_dir.display();
        return Err(Failure::missing(format!(
            "no server runs on {data_dir}: start one with `annals serve --data-dir {data_dir}`, or name the data directory of \
             the one that runs in --data-dir"
        )));
    };
    forward(client).await
}

/// Requests without an answer so far, by their ids in one form.
#[derive(Default)]
struct Open(Mutex<HashMap<Box<str>, Asked>>);

/// What was asked under one id.
struct Asked {
    /// How often; all but the first are refused.
    times: usize,
    /// The id as the client wrote it.
    id: Box<str>,
}

impl Open {
    fn note(&self, outline: Outline) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match outline {
            Outline::Request { id, plain } => open.entry(plain).or_insert(Asked { times: 0, id }).times += 1,
            Outline::Cancel(plain) => drop(open.remove(&plain)),
            Outline::Other => {}
        }
    }

    fn answered(&self, plain: &str) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asked) = open.get_mut(plain) {
            asked.times -= 1;
            if asked.times == 0 {
                open.remove(plain);
            }
        }
    }

    /// An error for each.
    fn lost(&self) -> Vec<Bytes> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.drain().filter_map(|(_, asked)| server_gone(&asked.id)).collect()
    }
}

async fn forward(client: StdioClient) -> Result<ExitCode, Failure> {
    let StdioClient { mut from_server, mut to_server, line_bytes_max, tasks } = client;
    let open = std::sync::Arc::new(Open::default());
    let (out, written) = stdout()?;
    let mut lines = stdin(line_bytes_max)?;
    let noted = std::sync::Arc::clone(&open);
    tasks.spawn("stdin to server", async move {
        while let Some(line) = lines.recv().await {
            noted.note(Outline::read(&line));
            if to_server.write_all(&line).await.is_err() {
                return;
            }
        }
        // An empty line: the client has asked its last question. Should the server be gone, the reader below sees it.
        drop(to_server.write_all(b"\n").await);
        // Held open: its end would say that this process is gone.
        std::future::pending::<()>().await;
    });
    let end = loop {
        let line = match from_server.next().await {
            Ok(line) => line,
            Err(end) => break end,
        };
        if let Some(id) = answered_id(&line) {
            open.answered(&id);
        }
        if out.send(line).await.is_err() {
            // The client takes no more answers; the server sees that this process ends.
            return Ok(ExitCode::SUCCESS);
        }
    };
    for error in open.lost() {
        drop(out.send(error).await);
    }
    drop(out);
    drop(written.await);
    match end {
        StdioEnd::Said(end) if end.exit_code == 0 => Ok(ExitCode::SUCCESS),
        StdioEnd::Said(end) => Err(end.into()),
        StdioEnd::Cut => Err(Failure::missing(
            "the server went away; what became of open calls is in the audit. Start it again with `annals serve`",
        )),
    }
}

/// Reads standard input on a thread of its own, which the end of the process does not wait for. Lines come with their end;
/// one over the limit comes as much of it as shows that it is.
fn stdin(line_bytes_max: usize) -> Result<mpsc::Receiver<Vec<u8>>, Failure> {
    let (sender, lines) = mpsc::channel(LINES_MAX);
    let read = move || {
        let mut input = BufReader::new(std::io::stdin());
        while let Some(line) = next_line(&mut input, line_bytes_max) {
            if !line.trim_ascii().is_empty() && sender.blocking_send(line).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("stdin".into()).spawn(read)?;
    Ok(lines)
}

/// The next line with its end; what the client did not end itself counts as a line too. `None` at the end.
fn next_line(input: &mut impl BufRead, bytes_max: usize) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let most = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    while line.is_empty() {
        match input.by_ref().take(most).read_until(b'\n', &mut line) {
            Ok(0) => return None,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
            Ok(_) => {}
        }
    }
    if !line.ends_with(b"\n") {
        if line.len() > bytes_max {
            input.skip_until(b'\n').ok()?;
        }
        line.push(b'\n');
    }
    Some(line)
}

/// Writes to standard output on a thread of its own; the second resolves when everything is out, or cannot be.
fn stdout() -> Result<(mpsc::Sender<Bytes>, oneshot::Receiver<()>), Failure> {
    let (sender, mut lines) = mpsc::channel::<Bytes>(LINES_MAX);
    let (done, written) = oneshot::channel();
    let write = move || {
        let mut output = std::io::stdout().lock();
        while let Some(line) = lines.blocking_recv() {
            let whole = output.write_all(&line).and_then(|()| output.write_all(b"\n"));
            if whole.and_then(|()| output.flush()).is_err() {
                break;
            }
        }
        drop(done);
    };
    std::thread::Builder::new().name("stdout".into()).spawn(write)?;
    Ok((sender, written))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_with_their_end_and_long_ones_show_that_they_are() {
        let mut input = BufReader::with_capacity(3, &b"1234\n123456789\n\n12345678"[..]);
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input, 4) {
            lines.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(lines, ["1234\n", "12345\n", "\n", "12345\n"]);
    }

    #[test]
    fn what_was_not_answered_is_known_by_its_id() {
        let open = Open::default();
        let ask = |id: &str| open.note(Outline::Request { id: id.into(), plain: id.into() });
        ask("1");
        ask("1");
        ask("2");
        ask("3");
        open.answered("1");
        open.answered("2");
        open.note(Outline::Cancel("3".into()));
        let lost = open.lost();
        assert_eq!(lost.iter().filter_map(|line| answered_id(line)).collect::<Vec<_>>(), ["1".into()]);
    }
}
