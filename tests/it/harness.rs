//! Starts the real binary on a data directory of its own and cleans up after it by process id.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::mounts::Mounts;
use annals::app::RunFile;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The longest a start or a stop may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) const ADMIN_KEY: &str = "test-admin-key-of-the-harness";
pub(crate) const MODERN: &str = "2026-07-28";

/// A data directory that outlives several servers. Dropping it stops what still runs there.
pub(crate) struct Home {
    dir: tempfile::TempDir,
    /// Where its programs run, if not beside the test.
    mounts: Option<Mounts>,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self::among(None)
    }

    /// Its programs run among mounts of their own, which nobody else sees.
    pub(crate) fn with_mounts() -> Self {
        Self::among(Some(Mounts::new()))
    }

    fn among(mounts: Option<Mounts>) -> Self {
        Self { dir: tempfile::Builder::new().prefix("annals-it-").tempdir().unwrap(), mounts }
    }

    /// See [`Home::with_mounts`].
    pub(crate) fn mounts(&self) -> &Mounts {
        self.mounts.as_ref().expect("a home with mounts of its own")
    }

    /// Where the test finds `path` as its programs see it.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        self.mounts.as_ref().map_or_else(|| path.to_owned(), |mounts| mounts.seen(path))
    }

    fn command(&self, args: &[&str]) -> Command {
        command(self.mounts.as_ref(), &self.data_dir(), args)
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `annals ARGS` to its end.
    pub(crate) fn annals(&self, args: &[&str]) -> Finished {
        let output = self.command(args).output().unwrap();
        Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// A new key of `role`, made by `annals key create` with the options `more`.
    pub(crate) fn key(&self, name: &str, role: &str, more: &[&str]) -> String {
        let made = self.annals(&[&["key", "create", "--name", name, "--role", role], more].concat());
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        made.stdout.trim_end().to_owned()
    }

    /// `annals stdio` with `key` in its environment, not started yet.
    pub(crate) fn stdio(&self, key: Option<&str>) -> Command {
        let mut command = self.command(&["stdio"]);
        if let Some(key) = key {
            command.env("ANNALS_API_KEY", key);
        }
        command
    }

    /// As [`Home::annals`], with a stdout that takes nothing.
    pub(crate) fn annals_on_full_disk(&self, args: &[&str]) -> Finished {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = self.command(args).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        Finished { code: output.status.code(), stdout: String::new(), stderr }
    }

    /// Starts `annals serve ARGS` and waits until it says that it is ready.
    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        let mut server = self.spawn(args, &[]);
        server.read_banner();
        server
    }

    /// Runs `annals serve` where it must not come up, to its end.
    pub(crate) async fn serve_in_vain(&self) -> Finished {
        let args = ["serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        let mut command = tokio::process::Command::from(self.command(&args));
        command.env("ANNALS_ADMIN_KEY", ADMIN_KEY).kill_on_drop(true);
        let ended = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = ended.expect("serve came up, or hangs").unwrap();
        Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// As [`Home::serve`] with variables in its environment, and without waiting for its store.
    pub(crate) async fn serve_front(&self, args: &[&str], variables: &[(&str, &str)]) -> Server {
        let mut server = self.spawn(args, variables);
        server.wait_for_run_file().await;
        server
    }

    fn spawn(&self, args: &[&str], variables: &[(&str, &str)]) -> Server {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        all.extend(args);
        Server::spawn(self.data_dir(), self.command(&all), variables)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A killed server leaves its Postgres running, to be adopted by the next; there is no next.
        let pid_file = self.data_dir().join("pg/postmaster.pid");
        let Some(pid) =
            std::fs::read_to_string(pid_file).ok().and_then(|text| text.lines().next()?.parse().ok())
        else {
            return;
        };
        if let Some(pid) = Pid::from_raw(pid) {
            kill_process(pid, Signal::QUIT).unwrap_or(());
        }
    }
}

#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

fn command(mounts: Option<&Mounts>, data_dir: &Path, args: &[&str]) -> Command {
    let annals = env!("CARGO_BIN_EXE_annals");
    let mut command = mounts.map_or_else(|| Command::new(annals), |mounts| mounts.command(annals));
    command.args(args).arg("--data-dir").arg(data_dir).stdin(Stdio::null());
    for variable in [
        "ANNALS_CONFIG",
        "ANNALS_LISTEN",
        "ANNALS_METRICS_LISTEN",
        "ANNALS_ADMIN_KEY",
        "ANNALS_API_KEY",
        "DATABASE_URL",
    ] {
        command.env_remove(variable);
    }
    command
}

/// A running `annals serve`.
pub(crate) struct Server {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    pub(crate) data_dir: PathBuf,
    pub(crate) url: String,
    pub(crate) metrics_url: String,
    pub(crate) admin_key: String,
    /// What it printed until it was ready.
    pub(crate) banner: String,
}

impl Server {
    fn spawn(data_dir: PathBuf, mut command: Command, variables: &[(&str, &str)]) -> Self {
        let log = data_dir.with_extension("log");
        let stderr = std::fs::File::options().create(true).append(true).open(log).unwrap();
        command.env("ANNALS_ADMIN_KEY", ADMIN_KEY).envs(variables.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        Self {
            child,
            stdout,
            data_dir,
            url: String::new(),
            metrics_url: String::new(),
            admin_key: ADMIN_KEY.into(),
            banner: String::new(),
        }
    }

    /// Reads what it prints up to the end of the banner.
    pub(crate) fn read_banner(&mut self) {
        let mut lines = self.stdout.take().unwrap();
        while !self.banner.contains("/api/v1/admin/audit/events?limit=5") {
            let before = self.banner.len();
            lines.read_line(&mut self.banner).unwrap();
            if self.banner.len() == before {
                let status = self.child.wait().unwrap();
                panic!("serve ended with {status}:\n{}", self.log_text());
            }
        }
        self.read_run_file();
        assert!(!self.url.is_empty(), "no run.json of this process");
    }

    async fn wait_for_run_file(&mut self) {
        let wait = async {
            while self.url.is_empty() {
                assert!(self.child.try_wait().unwrap().is_none(), "serve ended:\n{}", self.log_text());
                tokio::time::sleep(Duration::from_millis(10)).await;
                self.read_run_file();
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("a run.json of this process");
    }

    fn read_run_file(&mut self) {
        if let Some(run) = RunFile::read(&self.data_dir.join("run.json")).unwrap()
            && run.pid == self.child.id()
        {
            (self.url, self.metrics_url) = (run.url, run.metrics_url);
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }

    /// SIGKILL, and wait until the process is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and wait for the end.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        kill_process(self.pid(), Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }

    /// SIGTERM; the exit status when it ends within `at_most`.
    pub(crate) async fn terminate_within(&mut self, at_most: Duration) -> Option<ExitStatus> {
        kill_process(self.pid(), Signal::TERM).unwrap();
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(at_most, ended).await.ok()
    }

    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(self.data_dir.with_extension("log")).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().unwrap_or(());
            drop(self.child.wait());
        }
    }
}

/// A caller over plain HTTP, in the newest revision.
#[derive(Clone)]
pub(crate) struct Caller {
    http: reqwest::Client,
    url: String,
    key: String,
}

impl Caller {
    pub(crate) fn new(server: &Server) -> Self {
        Self::with_key(server, &server.admin_key)
    }

    pub(crate) fn with_key(server: &Server, key: &str) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self { http, url: server.url.clone(), key: key.to_owned() }
    }

    /// One `tools/call`; the HTTP status and the JSON-RPC answer.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> reqwest::Result<(u16, Value)> {
        let answer = self.answer(tool, arguments).await?;
        let status = answer.status().as_u16();
        Ok((status, answer.json().await?))
    }

    /// The same, before its body is read.
    pub(crate) async fn answer(&self, tool: &str, arguments: Value) -> reqwest::Result<reqwest::Response> {
        let body = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": tool, "arguments": arguments, "_meta": {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {} } }
        });
        self.http
            .post(format!("{}/mcp", self.url))
            .bearer_auth(&self.key)
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", MODERN)
            .header("mcp-method", "tools/call")
            .header("mcp-name", tool)
            .json(&body)
            .send()
            .await
    }

    /// One GET; the HTTP status and the JSON body.
    pub(crate) async fn get(&self, path: &str) -> reqwest::Result<(u16, Value)> {
        let answer = self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.key).send().await?;
        let status = answer.status().as_u16();
        Ok((status, answer.json().await?))
    }

    /// Asks until the answer has this status, at most [`PATIENCE`].
    pub(crate) async fn get_until_status(&self, path: &str, status: u16) {
        let wait = async {
            while self.get(path).await.map(|(status, _)| status).ok() != Some(status) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .unwrap_or_else(|_| panic!("{path} did not come to {status}"));
    }

    /// Asks until `found` gives something, at most [`PATIENCE`].
    pub(crate) async fn get_until<T>(&self, path: &str, found: impl Fn(&Value) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Ok((200, body)) = self.get(path).await
                    && let Some(found) = found(&body)
                {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .unwrap_or_else(|_| panic!("{path} did not come to show it"))
    }
}

/// The call id that an answer cites.
pub(crate) fn call_id(answer: &Value) -> Option<&str> {
    answer["result"]["_meta"]["io.annals/call_id"].as_str().or(answer["error"]["data"]["call_id"].as_str())
}
