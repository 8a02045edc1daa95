//! `pg_dump` and `pg_restore` on our schemas: which program, how it reaches the server, and what it said when it failed.
//!
//! Nothing here decides when a dump is consistent with anything else.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::process::Command;

use super::binaries::{self, major_of};
use super::bootstrap::{close, connect, execute};
use super::{Error, Options, Postgres, Role};

/// What belongs to Annals in its database, as patterns of `pg_dump`. The views in `public` are made again by the
/// projection.
const SCHEMAS: [&str; 2] = ["annals", "audit_v*"];
/// A program that only prints its version answers at once.
const VERSION_WAIT_MAX: Duration = Duration::from_secs(10);
/// Lines that are kept of what a failed program wrote.
const OUTPUT_LINES_MAX: usize = 8;

/// What a dump depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The server's major version.
    pub postgres: u32,
    /// The newest migration of the state tables that was applied.
    pub schema: i64,
}

/// The newest migration that this program knows.
#[must_use]
pub fn schema_version() -> i64 {
    super::migrator().iter().map(|migration| migration.version).max().unwrap_or_default()
}

impl Postgres {
    /// The versions of the server and of the state tables.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub async fn versions(&self) -> Result<Versions, Error> {
        let mut connection = connect(&self.connect_options(Role::Owner), "connect as annals_owner").await?;
        let row: (i32, i64) = sqlx::query_as(
            "SELECT current_setting('server_version_num')::int4 / 10000, max(version) FROM annals.migrations",
        )
        .fetch_one(&mut connection)
        .await
        .map_err(Error::sql("read the versions"))?;
        close(connection).await;
        Ok(Versions { postgres: u32::try_from(row.0).unwrap_or_default(), schema: row.1 })
    }

    /// Writes our schemas as `snapshot` (of `pg_export_snapshot`, held open by the caller) sees them into the file
    /// `to`, in the custom format of `pg_dump`.
    ///
    /// # Errors
    /// [`Error::NoProgram`], [`Error::Program`], [`Error::Sql`], [`Error::Run`].
    pub async fn dump(
        &self,
        snapshot: &str,
        lock_wait: Duration,
        to: &Path,
        pg_bin: Option<&Path>,
    ) -> Result<(), Error> {
        let program = find("pg_dump", self.versions().await?.postgres, pg_bin).await?;
        let mut command = self.client(&program);
        command.args(["--format=custom", "--no-password"]);
        command.args(SCHEMAS.map(|schema| format!("--schema={schema}")));
        command
            .arg(format!("--snapshot={snapshot}"))
            .arg(format!("--lock-wait-timeout={}", lock_wait.as_millis()))
            .arg("--file")
            .arg(to);
        run(command, &program).await
    }

    /// Puts the dump `from` in the place of our empty state tables, all of it or nothing, and runs the migrations that
    /// it lacks.
    ///
    /// # Errors
    /// As [`Postgres::dump`]; [`Error::Migrate`].
    pub async fn load(&self, from: &Path, pg_bin: Option<&Path>) -> Result<(), Error> {
        let program = find("pg_restore", self.versions().await?.postgres, pg_bin).await?;
        let mut connection = connect(&self.connect_options(Role::Owner), "connect as annals_owner").await?;
        // The migrations also made what no dump holds: default privileges. The tables come with the dump.
        let sql = "DROP SCHEMA annals CASCADE".to_owned();
        execute(&mut connection, "make room for the dump's tables", sql).await?;
        close(connection).await;
        let mut command = self.client(&program);
        let database = self.inner.database.replace('\\', "\\\\").replace('\'', "\\'");
        command
            .args(["--no-owner", "--exit-on-error", "--single-transaction", "--no-password"])
            .arg(format!("--dbname=dbname='{database}'"))
            .arg(from);
        run(command, &program).await?;
        self.migrate().await
    }

    /// `program` as a client of our server, as the owner of our schemas. The password is in its environment only.
    fn client(&self, program: &Path) -> Command {
        let options = &self.inner.base;
        let host = options.get_socket().map_or_else(|| options.get_host().into(), |dir| dir.clone().into());
        let password = self.inner.passwords.get(&Role::Owner).cloned().unwrap_or_default();
        let settings: [(&str, OsString); 7] = [
            ("PGHOST", host),
            ("PGPORT", options.get_port().to_string().into()),
            ("PGDATABASE", self.inner.database.clone().into()),
            ("PGUSER", Role::Owner.name().into()),
            ("PGPASSWORD", password.into()),
            ("PGSSLMODE", ssl_mode(options).into()),
            ("PGCONNECT_TIMEOUT", "10".into()),
        ];
        let mut command = Command::new(program);
        // Whatever else the environment says of certificates stays; what names another server or role must not.
        for name in ["PGSERVICE", "PGHOSTADDR", "PGOPTIONS", "PGPASSFILE", "DATABASE_URL", "ANNALS_ADMIN_KEY"]
        {
            command.env_remove(name);
        }
        command.envs(settings).env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}

/// Whether the database at `options.url` already holds a store of Annals; never for the private server.
///
/// # Errors
/// [`Error::Url`], [`Error::Sql`].
pub async fn is_taken(options: &Options) -> Result<bool, Error> {
    let Some(url) = &options.url else { return Ok(false) };
    let mut connection = connect(&super::external_options(url)?, "connect to DATABASE_URL").await?;
    let taken = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'annals' OR nspname LIKE 'audit\\_v%')",
    )
    .fetch_one(&mut connection)
    .await
    .map_err(Error::sql("look at the schemas"))?;
    close(connection).await;
    Ok(taken)
}

fn ssl_mode(options: &PgConnectOptions) -> &'static str {
    match options.get_ssl_mode() {
        PgSslMode::Disable => "disable",
        PgSslMode::Allow => "allow",
        PgSslMode::Prefer => "prefer",
        PgSslMode::Require => "require",
        PgSslMode::VerifyCa => "verify-ca",
        PgSslMode::VerifyFull => "verify-full",
    }
}

/// The `program` of the server's own major version, else the next newer one: an older one refuses the server.
async fn find(program: &str, server: u32, given: Option<&Path>) -> Result<PathBuf, Error> {
    let places = match given {
        Some(bin) => vec![bin.to_owned()],
        None => binaries::client_places(),
    };
    let mut usable = Vec::new();
    let mut seen = Vec::new();
    for path in places.iter().map(|bin| bin.join(program)) {
        match version(&path).await {
            Some(major) if major >= server => usable.push((major, path)),
            Some(major) => seen.push(format!("{} is version {major}", path.display())),
            None if given.is_some() => seen.push(format!("{} does not run", path.display())),
            None => {}
        }
    }
    // The first of the lowest version, in the order of the places.
    let best = usable.iter().map(|(major, _)| *major).min();
    let found = usable.into_iter().find(|(major, _)| Some(*major) == best).map(|(_, path)| path);
    found.ok_or_else(|| Error::NoProgram {
        program: program.to_owned(),
        server,
        seen: if seen.is_empty() { "none was found".to_owned() } else { seen.join("; ") },
    })
}

async fn version(program: &Path) -> Option<u32> {
    let run = Command::new(program).arg("--version").stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(VERSION_WAIT_MAX, run).await.ok()?.ok()?;
    major_of(&String::from_utf8_lossy(&output.stdout))
}

async fn run(mut command: Command, program: &Path) -> Result<(), Error> {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().await;
    let output = output.map_err(|cause| Error::Run { program: program.to_owned(), cause })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let tail = lines.get(lines.len().saturating_sub(OUTPUT_LINES_MAX)..).unwrap_or_default().join("\n");
    Err(Error::Program { program: program.to_owned(), output: format!("{}: {tail}", output.status) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_without_the_program_is_named_with_the_version_that_is_needed() {
        let empty = tempfile::tempdir().unwrap();
        let error = find("pg_dump", 15, Some(empty.path())).await.unwrap_err();
        let path = empty.path().join("pg_dump");
        assert_eq!(
            error.to_string(),
            format!(
                "no pg_dump of version 15 or later was found ({} does not run); install it with `apt-get install \
                 postgresql-client`, or name its directory in ANNALS_PG_BIN",
                path.display()
            )
        );
        assert_eq!(error.kind(), super::super::ErrorKind::Missing);
    }

    #[tokio::test]
    async fn an_older_program_is_refused_with_its_version() {
        let bin = tempfile::tempdir().unwrap();
        let path = bin.path().join("pg_dump");
        std::fs::write(&path, "#!/bin/sh\necho 'pg_dump (PostgreSQL) 14.9'\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let error = find("pg_dump", 15, Some(bin.path())).await.unwrap_err();
        assert!(error.to_string().contains(&format!("({} is version 14)", path.display())), "{error}");
        assert_eq!(find("pg_dump", 14, Some(bin.path())).await.unwrap(), path);
    }
}
