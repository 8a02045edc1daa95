//! The private server: made, started, adopted and stopped in `<data-dir>/pg`. It listens on a Unix socket only and
//! lets nobody in without a password, not even while it is being made. It knows nothing of roles, databases and tables.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::Error;
use super::binaries::Binaries;
use super::bootstrap::close;
use super::keys::{Keys, sync_directory, write_secret};
use super::lock;
use super::process::{self, PidFile};
use super::run_as::RunAs;
use super::socket_dir::{self, PORT};

/// The first superuser. Only bootstrap uses it.
pub(super) const SUPERUSER: &str = "postgres";

const INIT_WAIT_MAX: Duration = Duration::from_secs(120);
/// How long a server may give no answer at all.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How long it may answer that it is still recovering.
const RECOVERY_MAX: Duration = Duration::from_secs(120);
const ATTEMPT_MAX: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);
/// A fast shutdown, then an immediate one; both fit the eight seconds that an exit may take.
const FAST_WAIT_MAX: Duration = Duration::from_secs(4);
const IMMEDIATE_WAIT_MAX: Duration = Duration::from_secs(2);
/// Private memory of one of the server's processes at most: a query may make several values of 1 GB, and copies of each.
#[cfg(target_os = "linux")]
const PROCESS_MEMORY_MAX: u64 = 1024 * 1024 * 1024;
const LOG_BYTES_MAX: u64 = 8 * 1024 * 1024;
const LOG_TAIL_BYTES: u64 = 4 * 1024;

/// What differs from the server's own defaults. On the command line, where a changed file cannot undo it.
const SETTINGS: [&str; 17] = [
    "listen_addresses=",
    "unix_socket_permissions=0700",
    "fsync=on",
    "full_page_writes=on",
    "password_encryption=scram-sha-256",
    "shared_buffers=128MB",
    "max_connections=60",
    "max_wal_size=512MB",
    "wal_compression=on",
    "jit=off",
    "timezone=UTC",
    "log_timezone=UTC",
    "logging_collector=off",
    "log_destination=stderr",
    // Statements and their values may hold what people asked; the log of the server is no place for them.
    "log_min_error_statement=panic",
    "log_parameter_max_length_on_error=0",
    "log_checkpoints=off",
];

/// A private server that runs.
#[derive(Debug)]
pub(super) struct Running {
    pg: PathBuf,
    pid: u32,
    /// Where its socket is.
    pub(super) socket_dir: PathBuf,
    /// Set when this process started it and so must collect it.
    child: Mutex<Option<Child>>,
}

/// What was found on a data directory.
enum Found {
    Nothing,
    /// Ours, and it lets us in.
    Usable(Box<Running>),
    /// A server runs, but is of no use, for this reason.
    Closed(Error),
}

/// Why a server that should run does not let us in.
enum NotReady {
    Ended,
    Silent,
    Password,
    Sql(sqlx::Error),
}

impl Running {
    /// Starts the server of `data_dir`, a real path, or adopts the one that runs there. Call it only while the
    /// transition lock is held.
    pub(super) async fn start(data_dir: &Path, pg_bin: Option<&Path>, keys: &Keys) -> Result<Self, Error> {
        let pg = data_dir.join("pg");
        match Self::find(&pg, keys).await? {
            Found::Usable(running) => {
                tracing::info!(process.pid = running.pid, "adopted the private Postgres that was running");
                return Ok(*running);
            }
            // Stopping it would hurt those that use it and help nobody: the next would not let us in either.
            Found::Closed(error) if lock::is_used(data_dir)? => return Err(error),
            Found::Closed(_) | Found::Nothing => stop_all(&pg).await?,
        }
        let data_version = data_version(&pg)?;
        let binaries = Binaries::find(pg_bin, data_version.as_deref()).await?;
        let run_as = RunAs::choose().await?;
        run_as.open_way(data_dir)?;
        match data_version {
            None => initialise(data_dir, &pg, &binaries, &run_as, keys).await?,
            Some(data) if data != binaries.major.to_string() => {
                return Err(Error::MajorVersion {
                    data,
                    binaries: binaries.major,
                    directory: pg,
                    bin: binaries.bin,
                });
            }
            Some(_) => own(&pg, &run_as)?,
        }
        launch(data_dir, pg, &binaries, &run_as, keys).await
    }

    /// The server that runs on `data_dir`, if one does.
    pub(super) async fn adopt(data_dir: &Path, keys: &Keys) -> Result<Option<Self>, Error> {
        match Self::find(&data_dir.join("pg"), keys).await? {
            Found::Usable(running) => Ok(Some(*running)),
            Found::Closed(error) => Err(error),
            Found::Nothing => Ok(None),
        }
    }

    async fn find(pg: &Path, keys: &Keys) -> Result<Found, Error> {
        let Some(file) = PidFile::read(pg).filter(|file| process::serves(file.pid, pg)) else {
            return Ok(Found::Nothing);
        };
        let closed = |cause: String| Ok(Found::Closed(start_error(cause, pg.join("server.log"))));
        let running = format!("process {} runs on its data", file.pid);
        // A server that has only just begun to start has not written its socket yet.
        let Some(socket_dir) = file.socket_dir.map(PathBuf::from).or_else(|| socket_dir::noted(pg)) else {
            return closed(format!("{running} without a socket"));
        };
        let options = super_options(&socket_dir, keys)?;
        let mut connection = match await_ready(&options, || process::serves(file.pid, pg)).await {
            Ok(connection) => connection,
            Err(NotReady::Ended) => return Ok(Found::Nothing),
            Err(NotReady::Password) => {
                return Ok(Found::Closed(Error::Password { path: keys.path(SUPERUSER) }));
            }
            Err(NotReady::Silent) => return closed(format!("{running} and does not answer")),
            Err(NotReady::Sql(cause)) => return closed(format!("{running} and answers: {cause}")),
        };
        let identifier: i64 = sqlx::query_scalar("SELECT system_identifier FROM pg_control_system()")
            .fetch_one(&mut connection)
            .await
            .map_err(Error::sql("read the system identifier"))?;
        close(connection).await;
        if system_identifier(pg)? != identifier {
            return closed(format!("{running} and serves the data of another directory"));
        }
        let pg = pg.to_owned();
        Ok(Found::Usable(Box::new(Self { pg, pid: file.pid, socket_dir, child: Mutex::new(None) })))
    }

    /// Stops it: sessions are ended, a checkpoint is written. Returns when no process on its data is left.
    pub(super) async fn stop(&self) -> Result<(), Error> {
        let mut child = self.child.lock().await;
        stop_pids(&[self.pid], &self.pg, child.as_mut()).await?;
        *child = None;
        // Should ours have been killed, another process may have started one since.
        stop_all(&self.pg).await?;
        socket_dir::clean(&self.pg, &self.socket_dir);
        Ok(())
    }
}

/// How the superuser reaches the server behind `socket_dir`.
pub(super) fn super_options(socket_dir: &Path, keys: &Keys) -> Result<PgConnectOptions, Error> {
    let password = keys.read(SUPERUSER)?.ok_or_else(|| Error::Password { path: keys.path(SUPERUSER) })?;
    Ok(super::local_options(socket_dir).username(SUPERUSER).password(&password).database("postgres"))
}

/// The major version that the data in `pg` belongs to; none when there is no data yet.
fn data_version(pg: &Path) -> Result<Option<String>, Error> {
    let path = pg.join("PG_VERSION");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let is_empty = match std::fs::read_dir(pg) {
                Ok(mut entries) => entries.next().is_none(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
                Err(error) => return Err(Error::io("read", pg)(error)),
            };
            if is_empty { Ok(None) } else { Err(Error::Foreign { directory: pg.to_owned() }) }
        }
        Err(error) => Err(Error::io("read", &path)(error)),
    }
}

/// The number that Postgres gave this data directory when it was made: the first field of its control file, in every
/// version and in the machine's byte order.
fn system_identifier(pg: &Path) -> Result<i64, Error> {
    let path = pg.join("global/pg_control");
    let mut bytes = [0; 8];
    std::fs::File::open(&path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(Error::io("read", &path))?;
    Ok(i64::from_ne_bytes(bytes))
}

/// Makes the data directory beside its place and renames it there, so that it exists whole or not at all.
async fn initialise(
    data_dir: &Path,
    pg: &Path,
    binaries: &Binaries,
    run_as: &RunAs,
    keys: &Keys,
) -> Result<(), Error> {
    let workshop = data_dir.join("pg.new");
    if workshop.exists() {
        std::fs::remove_dir_all(&workshop).map_err(Error::io("remove", &workshop))?;
    }
    create_private(&workshop, run_as)?;
    let password_file = workshop.join("password");
    write_secret(&password_file, &keys.read_or_create(SUPERUSER)?)?;
    run_as.give(&password_file)?;
    let made = workshop.join("data");
    let program = binaries.program("initdb");
    let mut command = run_as.command(&program);
    command
        .args(["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--data-checksums", "-U", SUPERUSER])
        .arg("--pwfile")
        .arg(&password_file)
        .arg("-D")
        .arg(&made)
        .current_dir(&workshop)
        .stdin(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    let output = output_of(command, &program).await?;
    std::fs::remove_file(&password_file).map_err(Error::io("remove", &password_file))?;
    if let Some(output) = output {
        return Err(Error::Init { output });
    }
    std::fs::rename(&made, pg).map_err(Error::io("rename into place", pg))?;
    std::fs::remove_dir_all(&workshop).map_err(Error::io("remove", &workshop))?;
    sync_directory(data_dir)
}

/// Runs `command`; what it wrote when it failed.
async fn output_of(mut command: Command, program: &Path) -> Result<Option<String>, Error> {
    let Ok(output) = tokio::time::timeout(INIT_WAIT_MAX, command.output()).await else {
        return Ok(Some(format!("no end after {} s", INIT_WAIT_MAX.as_secs())));
    };
    let output = output.map_err(|cause| Error::Run { program: program.to_owned(), cause })?;
    if output.status.success() {
        return Ok(None);
    }
    let written = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&written);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let tail = lines.get(lines.len().saturating_sub(8)..).unwrap_or_default().join("\n");
    Ok(Some(format!("{}: {tail}", output.status)))
}

/// A directory that only the server's user can enter.
fn create_private(directory: &Path, run_as: &RunAs) -> Result<(), Error> {
    DirBuilder::new().mode(0o700).create(directory).map_err(Error::io("create", directory))?;
    run_as.give(directory)
}

/// Makes the files of an existing `pg` the property of whom the server runs as now: root may have run it in a
/// namespace before and cannot any more, or the reverse.
fn own(pg: &Path, run_as: &RunAs) -> Result<(), Error> {
    let owner = std::fs::metadata(pg).map_err(Error::io("look at", pg))?.uid();
    if owner == run_as.owner_uid() || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let gid = match run_as {
        RunAs::User(user) => user.gid,
        RunAs::Ourselves | RunAs::Namespace { .. } => rustix::process::getegid().as_raw(),
    };
    let mut left = vec![pg.to_owned()];
    while let Some(path) = left.pop() {
        std::os::unix::fs::lchown(&path, Some(run_as.owner_uid()), Some(gid))
            .map_err(Error::io("change the owner of", &path))?;
        if std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            let entries = std::fs::read_dir(&path).map_err(Error::io("read", &path))?;
            left.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    Ok(())
}

/// Starts the server on an existing directory on which none runs, and waits until it lets us in.
async fn launch(
    data_dir: &Path,
    pg: PathBuf,
    binaries: &Binaries,
    run_as: &RunAs,
    keys: &Keys,
) -> Result<Running, Error> {
    let socket_dir = socket_dir::prepare(data_dir, &pg, run_as)?;
    // No server runs here. A file left by a killed one may name a process id that somebody else has by now, and
    // the server would take that for another server.
    for stale in
        ["postmaster.pid"].map(|name| pg.join(name)).into_iter().chain(socket_dir::files(&socket_dir))
    {
        match std::fs::remove_file(&stale) {
            Ok(()) => tracing::info!(file.path = %stale.display(), "removed what a killed Postgres left"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("remove", &stale)(error)),
        }
    }
    let options = super_options(&socket_dir, keys)?;
    let log = pg.join("server.log");
    let program = binaries.program("postgres");
    let mut child = spawn(&pg, &socket_dir, &log, run_as.command(&program))
        .map_err(|cause| Error::Run { program: program.clone(), cause })?;
    let Some(pid) = child.id() else {
        return Err(start_error("it ended at once".into(), log));
    };
    let mut ending = None;
    let ready = await_ready(&options, || {
        ending = child.try_wait().ok().flatten();
        ending.is_none()
    })
    .await;
    let failure = match ready {
        Ok(connection) => {
            close(connection).await;
            return Ok(Running { pg, pid, socket_dir, child: Mutex::new(Some(child)) });
        }
        Err(NotReady::Ended) => {
            let status = ending.map_or_else(String::new, |status| format!(" ({status})"));
            return Err(start_error(format!("it ended{status}"), log));
        }
        Err(NotReady::Silent) => {
            start_error(format!("it does not let anybody in after {} s", SILENCE_MAX.as_secs()), log)
        }
        Err(NotReady::Password) => Error::Password { path: keys.path(SUPERUSER) },
        Err(NotReady::Sql(cause)) => Error::Sql { action: "connect to the private server", cause },
    };
    stop_pids(&[pid], &pg, Some(&mut child)).await?;
    Err(failure)
}

/// Spawns the server in a process group of its own: a ctrl-C at the terminal is for us, and we stop the server last.
fn spawn(pg: &Path, socket_dir: &Path, log: &Path, mut command: Command) -> std::io::Result<Child> {
    if std::fs::metadata(log).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        std::fs::rename(log, log.with_extension("log.1"))?;
    }
    let output = OpenOptions::new().append(true).create(true).mode(0o600).open(log)?;
    command.arg("-D").arg(pg).arg("-p").arg(PORT.to_string());
    command.arg("-c").arg(socket_dir::setting(socket_dir));
    for setting in SETTINGS {
        command.arg("-c").arg(setting);
    }
    command
        .current_dir(pg)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()
        .inspect(bound_memory)
}

/// Bounds the memory of each process of the server that starts as `child`, which its own settings cannot do.
#[cfg(target_os = "linux")]
fn bound_memory(child: &Child) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) else { return };
    let limit = Rlimit { current: Some(PROCESS_MEMORY_MAX), maximum: Some(PROCESS_MEMORY_MAX) };
    if let Err(error) = prlimit(Some(pid), Resource::Data, limit) {
        tracing::warn!(error = %error, "the memory of the private Postgres's processes is not bounded");
    }
}

/// Other systems have no such limit on another process.
#[cfg(not(target_os = "linux"))]
fn bound_memory(_: &Child) {}

fn start_error(cause: String, log: PathBuf) -> Error {
    let tail = tail_of(&log).unwrap_or_else(|error| format!("(unreadable: {error})"));
    Error::Start { cause, log, tail }
}

fn tail_of(log: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// Tries to connect until the server lets us in, `is_alive` says no, or it stays silent or recovering for too long.
async fn await_ready(
    options: &PgConnectOptions,
    mut is_alive: impl FnMut() -> bool,
) -> Result<PgConnection, NotReady> {
    let mut silence = Duration::ZERO;
    let mut recovery = Duration::ZERO;
    loop {
        match tokio::time::timeout(ATTEMPT_MAX, options.connect()).await {
            Ok(Ok(connection)) => return Ok(connection),
            Err(_) => silence += ATTEMPT_MAX,
            Ok(Err(sqlx::Error::Database(error))) => match error.code().as_deref() {
                // Starting up or shutting down; no connection left for us right now.
                Some("57P03" | "53300") => recovery += POLL,
                Some("28P01" | "28000") => return Err(NotReady::Password),
                _ => return Err(NotReady::Sql(sqlx::Error::Database(error))),
            },
            Ok(Err(sqlx::Error::Io(_) | sqlx::Error::Protocol(_))) => silence += POLL,
            Ok(Err(error)) => return Err(NotReady::Sql(error)),
        }
        if !is_alive() {
            return Err(NotReady::Ended);
        }
        if silence >= SILENCE_MAX || recovery >= RECOVERY_MAX {
            return Err(NotReady::Silent);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Stops whatever serves `pg`, postmaster first, so that a new server finds nobody in its shared memory.
async fn stop_all(pg: &Path) -> Result<(), Error> {
    if let Some(file) = PidFile::read(pg).filter(|file| process::serves(file.pid, pg)) {
        tracing::info!(process.pid = file.pid, "stopping the private Postgres");
        stop_pids(&[file.pid], pg, None).await?;
    }
    let orphans = process::all_that_serve(pg);
    if orphans.is_empty() {
        return Ok(());
    }
    tracing::warn!(processes = ?orphans, "stopping what a killed private Postgres left running");
    stop_pids(&orphans, pg, None).await
}

/// SIGINT, and when that takes too long SIGQUIT. `child` is collected as it ends, should it be one of `pids`.
async fn stop_pids(pids: &[u32], pg: &Path, mut child: Option<&mut Child>) -> Result<(), Error> {
    for (signal, wait_max) in [(Signal::INT, FAST_WAIT_MAX), (Signal::QUIT, IMMEDIATE_WAIT_MAX)] {
        for &pid in pids.iter().filter(|&&pid| process::serves(pid, pg)) {
            process::signal(pid, signal);
        }
        let has_ended = match child.as_deref_mut() {
            Some(child) => tokio::time::timeout(wait_max, child.wait()).await.is_ok(),
            None => process::ended(pids, pg, wait_max).await,
        };
        if has_ended {
            return Ok(());
        }
    }
    Err(Error::Stop { pid: pids.first().copied().unwrap_or_default() })
}

/// Sets `directory` to mode 0700 and its server's user; used for directories that may exist already.
pub(super) fn protect(directory: &Path, run_as: &RunAs) -> Result<(), Error> {
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700))
        .map_err(Error::io("change the mode of", directory))?;
    run_as.give(directory)
}
