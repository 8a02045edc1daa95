//! The server's end of `annals stdio`: a stream on the control socket that carries the messages of one client, a line each.
//!
//! The process forwards what its client writes; an empty line says that the client wrote its last message. Lines to the
//! process are answers for its client, but for the last one: `!` and how the stream ended, as JSON. A stream that ends
//! without it was cut. The key is checked for each message, so that one that was revoked meanwhile is not served.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::ControlError;
use crate::auth::{Auth, AuthError, Persona, Presented, Principal};
use crate::base::Tasks;
use crate::dispatch::Client;
use crate::event::Transport;
use crate::mcp::{self, Caller, Outline, StdioStream, Step};
use crate::refusal::{Place, Reason, Surface};

/// What the stream is upgraded to.
pub(super) const PROTOCOL: &str = "annals-stdio";
/// What carries the key that the process was given.
pub(super) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Says how long a line may be, bytes.
pub(super) const LINE_BYTES_MAX: HeaderName = HeaderName::from_static("annals-line-bytes-max");
/// What the last line begins with.
pub(super) const END: u8 = b'!';

/// How long the process may take nothing of what is written to it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a process that comes while the server starts waits for the keys.
const KEYS_WAIT: Duration = Duration::from_secs(10);
/// Answers that wait to be written.
const ANSWERS_MAX: usize = 16;

/// What the streams share.
#[derive(Clone)]
pub(super) struct Stdio {
    pub(super) mcp: mcp::Server,
    pub(super) auth: Arc<Auth>,
    pub(super) limits: StdioLimits,
    /// Runs the streams.
    pub(super) tasks: Tasks,
    /// Fires when the server takes nothing more.
    pub(super) stop: CancellationToken,
}

/// Bounds of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StdioLimits {
    /// One message, bytes.
    pub(super) line_bytes_max: usize,
    /// Calls of one process whose answers it has not taken; further messages wait.
    pub(super) in_flight_max: usize,
}

/// One process, once its key was good.
struct Connection {
    stdio: Stdio,
    key: HeaderValue,
    principal: Arc<Principal>,
}

/// Where messages come in, as events say it.
const ROUTE: &str = "stdio";

/// Why nothing more is read.
enum Ending {
    /// The client wrote its last message.
    Finished,
    /// The process is gone.
    Vanished,
    /// The server stops.
    Stopping,
    /// The key is not good any more.
    Refused(String),
}

/// Takes one process, which is refused when its key is.
pub(super) async fn open(stdio: Stdio, mut request: Request) -> Result<Response, ControlError> {
    let key = request.headers().get(API_KEY).cloned().unwrap_or_else(|| HeaderValue::from_static(""));
    let (principal, _) = authenticate_at_start(&stdio, &key).await.map_err(|error| match error {
        AuthError::Unauthenticated(refusal) => refused(refusal.message),
        AuthError::Unavailable { refusal, .. } => ControlError {
            exit_code: 3,
            message: format!("{} Try again in a moment; `/readyz` says what is not well.", refusal.message),
        },
    })?;
    let upgrade = hyper::upgrade::on(&mut request);
    let line_bytes_max = HeaderValue::from(stdio.limits.line_bytes_max);
    let tasks = stdio.tasks.clone();
    let connection = Connection { stdio, key, principal };
    tasks.spawn("stdio stream", connection.serve(upgrade));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    headers.insert(LINE_BYTES_MAX, line_bytes_max);
    Ok(response)
}

fn refused(message: String) -> ControlError {
    let message = format!(
        "{message} Make a key with `annals key create --name NAME --role ROLE` and give it in ANNALS_API_KEY"
    );
    ControlError { exit_code: 3, message }
}

/// Clients start their processes when they start themselves, which may be while the server does.
async fn authenticate_at_start(
    stdio: &Stdio,
    key: &HeaderValue,
) -> Result<(Arc<Principal>, Arc<Persona>), AuthError> {
    let mut changes = stdio.auth.key_changes();
    let until_known = async {
        loop {
            match authenticate(stdio, key).await {
                Err(AuthError::Unavailable { refusal, .. }) if refusal.reason == Reason::KeysLoading => {}
                known => return known,
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    match tokio::time::timeout(KEYS_WAIT, until_known).await {
        Ok(known) => known,
        Err(_) => authenticate(stdio, key).await,
    }
}

async fn authenticate(stdio: &Stdio, key: &HeaderValue) -> Result<(Arc<Principal>, Arc<Persona>), AuthError> {
    let client = Client::default();
    let presented = Presented {
        authorization: None,
        api_key: Some(key.as_bytes()),
        place: Place { route: ROUTE, surface: Surface::Mcp, transport: Transport::Stdio },
        client: &client,
    };
    stdio.auth.authenticate(presented).await
}

impl Connection {
    async fn serve(self, upgrade: OnUpgrade) {
        match upgrade.await {
            Ok(stream) => self.exchange(TokioIo::new(stream)).await,
            Err(error) => tracing::debug!(error = %error, "a stdio process went away as it began"),
        }
    }

    async fn exchange(self, stream: impl AsyncRead + AsyncWrite + Send + 'static) {
        let (read, write) = tokio::io::split(stream);
        let (answers, to_write) = mpsc::channel(ANSWERS_MAX);
        let broken = CancellationToken::new();
        let writing = self.stdio.tasks.spawn("stdio answers", write_all(write, to_write, broken.clone()));
        let mut lines = Lines { read: BufReader::new(read), bytes_max: self.stdio.limits.line_bytes_max };
        let messages = StdioStream::new(self.stdio.mcp.clone());
        let room = Arc::new(Semaphore::new(self.stdio.limits.in_flight_max));
        let ending = tokio::select! {
            ending = self.take_all(&mut lines, &messages, &room, &answers) => ending,
            () = broken.cancelled() => Ending::Vanished,
        };
        let all = u32::try_from(self.stdio.limits.in_flight_max).unwrap_or(u32::MAX);
        let end = match ending {
            Ending::Vanished => {
                messages.vanished();
                None
            }
            Ending::Finished => {
                // Whoever has asked its last question still waits for the answers.
                tokio::select! {
                    _ = room.acquire_many(all) => {}
                    () = lines.until_cut() => messages.vanished(),
                    () = broken.cancelled() => messages.vanished(),
                }
                Some(ControlError { exit_code: 0, message: String::new() })
            }
            Ending::Stopping => {
                drop(room.acquire_many(all).await);
                Some(ControlError {
                    exit_code: 3,
                    message: "the server stopped; start it with `annals serve`".into(),
                })
            }
            Ending::Refused(message) => {
                drop(room.acquire_many(all).await);
                Some(refused(message))
            }
        };
        // A session of a server that stops ends with the others.
        if !self.stdio.stop.is_cancelled()
            && let Err(unrecorded) = messages.end(&self.principal).await
        {
            tracing::warn!(cause = %unrecorded.error.message, "the end of a session is recorded later");
        }
        if let Some(end) = end {
            let mut line = vec![END];
            line.extend(serde_json::to_vec(&end).expect("a code and a text are plain JSON"));
            drop(answers.send(line.into()).await);
        }
        drop(answers);
        drop(writing.await);
    }

    async fn take_all(
        &self,
        lines: &mut Lines<impl AsyncRead + Unpin>,
        messages: &StdioStream,
        room: &Arc<Semaphore>,
        answers: &mpsc::Sender<Bytes>,
    ) -> Ending {
        loop {
            let line = tokio::select! {
                () = self.stdio.stop.cancelled() => return Ending::Stopping,
                line = lines.next() => line,
            };
            let said = match line {
                Line::Cut => return Ending::Vanished,
                Line::Whole(line) if line.is_empty() => return Ending::Finished,
                Line::TooLong | Line::Whole(_) => {
                    let whole = if let Line::Whole(line) = &line { Some(line.as_slice()) } else { None };
                    let received_at = self.stdio.mcp.now();
                    let (principal, persona) = match authenticate(&self.stdio, &self.key).await {
                        Ok(known) => known,
                        Err(error) => match self.turn_away(whole, error, messages, answers).await {
                            Some(ending) => return ending,
                            None => continue,
                        },
                    };
                    let transport = Transport::Stdio;
                    let (client, route) = (Client::default(), ROUTE.to_owned());
                    let caller = Caller { principal, persona, client, received_at, transport, route };
                    let step = match whole {
                        Some(line) => messages.take(line, caller).await,
                        None => messages.too_long(self.stdio.limits.line_bytes_max, &caller).await,
                    };
                    match step {
                        Step::Silent => None,
                        Step::Answer(answer) => Some(answer),
                        Step::Run(running) => {
                            let place = Arc::clone(room).acquire_owned().await;
                            let answers = answers.clone();
                            self.stdio.mcp.spawn("stdio call", async move {
                                if let Some(answer) = running.await {
                                    drop(answers.send(answer).await);
                                }
                                drop::<Result<OwnedSemaphorePermit, _>>(place);
                            });
                            None
                        }
                    }
                }
            };
            if let Some(said) = said
                && answers.send(said).await.is_err()
            {
                return Ending::Vanished;
            }
        }
    }

    /// Says why a message is not served; gives how the stream ends, if it does.
    async fn turn_away(
        &self,
        line: Option<&[u8]>,
        error: AuthError,
        messages: &StdioStream,
        answers: &mpsc::Sender<Bytes>,
    ) -> Option<Ending> {
        let (refusal, ends) = match error {
            AuthError::Unauthenticated(refusal) => {
                messages.refused(refusal.reason, &self.principal);
                (refusal, true)
            }
            AuthError::Unavailable { refusal, .. } => (refusal, false),
        };
        if let Some(Outline::Request { id, .. }) = line.map(Outline::read)
            && let Some(answer) = mcp::refusal_of(&id, &refusal)
        {
            drop(answers.send(answer).await);
        }
        ends.then_some(Ending::Refused(refusal.message))
    }
}

/// Writes answers, each on a line, until there are no more; `broken` fires when the process does not take them.
async fn write_all(
    mut write: impl AsyncWrite + Unpin,
    mut answers: mpsc::Receiver<Bytes>,
    broken: CancellationToken,
) {
    while let Some(answer) = answers.recv().await {
        let written = async {
            write.write_all(&answer).await?;
            write.write_all(b"\n").await?;
            write.flush().await
        };
        if !matches!(tokio::time::timeout(WRITE_TIMEOUT, written).await, Ok(Ok(()))) {
            broken.cancel();
            return;
        }
    }
    if let Err(error) = write.shutdown().await {
        tracing::debug!(error = %error, "a stdio process was gone before its stream was closed");
    }
}

/// What comes next of a stream of lines.
enum Line {
    /// Without its end.
    Whole(Vec<u8>),
    /// Over the limit; the rest of it was passed over.
    TooLong,
    /// The stream ended or failed.
    Cut,
}

struct Lines<R> {
    read: BufReader<R>,
    bytes_max: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    async fn next(&mut self) -> Line {
        let Some(line) = self.part(self.bytes_max + 1).await else { return Line::Cut };
        let Some(line) = line.strip_suffix(b"\n") else {
            while let Some(rest) = self.part(64 * 1024).await {
                if rest.ends_with(b"\n") {
                    return Line::TooLong;
                }
            }
            return Line::Cut;
        };
        Line::Whole(line.to_owned())
    }

    /// Up to the next line end, or `bytes_max`; `None` when the stream ends.
    async fn part(&mut self, bytes_max: usize) -> Option<Vec<u8>> {
        let mut part = Vec::new();
        let bytes_max_u64 = u64::try_from(bytes_max).unwrap_or(u64::MAX);
        let read = (&mut self.read).take(bytes_max_u64).read_until(b'\n', &mut part).await.ok()?;
        (read == bytes_max || part.ends_with(b"\n")).then_some(part)
    }

    /// Resolves when the other end is gone; what it still writes is passed over.
    async fn until_cut(&mut self) {
        while !matches!(self.next().await, Line::Cut) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_over_the_limit_is_passed_over_and_the_next_is_read() {
        let text = b"1234\n12345\n\n123456789012\n1\n12";
        let mut lines = Lines { read: BufReader::with_capacity(3, &text[..]), bytes_max: 4 };
        let mut seen = Vec::new();
        loop {
            match lines.next().await {
                Line::Whole(line) => seen.push(String::from_utf8(line).unwrap()),
                Line::TooLong => seen.push("too long".into()),
                Line::Cut => break,
            }
        }
        assert_eq!(seen, ["1234", "too long", "", "too long", "1"]);
    }
}
