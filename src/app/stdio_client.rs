//! The process' end of `annals stdio`: opens the stream that `app/stdio.rs` serves.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::header;
use hyper::http::StatusCode;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, BufReader, ReadHalf, WriteHalf};
use tokio::net::UnixStream;

use super::stdio::{API_KEY, END, LINE_BYTES_MAX, PROTOCOL};
use super::{ControlError, RunFile};
use crate::base::Tasks;

type Stream = TokioIo<hyper::upgrade::Upgraded>;

/// A stream to the running server.
pub struct StdioClient {
    /// The answers.
    pub from_server: FromServer,
    /// Takes messages, a line each; an empty one says that there are no more.
    pub to_server: WriteHalf<Stream>,
    /// How long a line may be, bytes.
    pub line_bytes_max: usize,
    /// The connection's task is one of these.
    pub tasks: Tasks,
}

/// The lines of the server.
pub struct FromServer {
    read: BufReader<ReadHalf<Stream>>,
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StdioEnd {
    /// As the server said it.
    Said(ControlError),
    /// The server went away.
    Cut,
}

impl StdioClient {
    /// Opens a stream to the server that `run` describes, with the API key `key`. `None` when nobody listens there.
    ///
    /// # Errors
    /// [`ControlError`] when the server refuses the key, or what went wrong on the way.
    pub async fn connect(run: &RunFile, key: &str) -> Result<Option<Self>, ControlError> {
        let broken = |error: &dyn std::fmt::Display| ControlError {
            exit_code: 3,
            message: format!("the running server did not answer on its socket: {error}"),
        };
        let Ok(stream) = UnixStream::connect(&run.socket).await else { return Ok(None) };
        let request = hyper::Request::post("/v1/stdio")
            .header(header::HOST, "annals")
            .header(header::AUTHORIZATION, format!("Bearer {}", run.token))
            .header(API_KEY, key)
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, PROTOCOL)
            .body(Empty::<Bytes>::new())
            .map_err(|_| ControlError {
                exit_code: 2,
                message: "ANNALS_API_KEY holds no API key: those are visible ASCII characters".into(),
            })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
        let tasks = Tasks::new();
        tasks.spawn("connection to the server", connection.with_upgrades());
        let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let (status, headers) = (response.status(), response.headers());
        let line_bytes_max =
            headers.get(LINE_BYTES_MAX).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let body = response.into_body().collect().await.map_err(|error| broken(&error))?.to_bytes();
            let said = if status == StatusCode::UNPROCESSABLE_ENTITY {
                serde_json::from_slice(&body).ok()
            } else {
                None
            };
            return Err(said.unwrap_or_else(|| broken(&status)));
        }
        let line_bytes_max =
            line_bytes_max.ok_or_else(|| broken(&"it does not say how long a line may be"))?;
        let stream = hyper::upgrade::on(response).await.map_err(|error| broken(&error))?;
        let (read, to_server) = tokio::io::split(TokioIo::new(stream));
        let from_server = FromServer { read: BufReader::new(read) };
        Ok(Some(Self { from_server, to_server, line_bytes_max, tasks }))
    }
}

impl FromServer {
    /// The next answer, without the line's end.
    ///
    /// # Errors
    /// [`StdioEnd`] when there are no more. Half a line is none.
    pub async fn next(&mut self) -> Result<Bytes, StdioEnd> {
        let mut line = Vec::new();
        let read = self.read.read_until(b'\n', &mut line).await;
        if read.is_err() || line.pop() != Some(b'\n') {
            return Err(StdioEnd::Cut);
        }
        match line.split_first() {
            Some((&END, end)) => Err(serde_json::from_slice(end).map_or(StdioEnd::Cut, StdioEnd::Said)),
            _ => Ok(line.into()),
        }
    }
}
