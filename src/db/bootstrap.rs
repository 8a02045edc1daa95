//! Roles, databases and grants: everything that must be there before a migration can run. Every step may run again and
//! again, and each start sets right what somebody changed. No table is made here.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Row};

use super::keys::{Keys, scram_verifier};
use super::{Error, Role, SAMPLE_DATABASE, sample};

/// What one query of an agent may have in temporary files on the private server at most.
const QUERY_TEMP_FILES_MAX: &str = "512MB";

/// Bootstraps of several processes against one server take turns under this advisory lock ("annals" in ASCII).
const LOCK: i64 = 0x616e_6e61_6c73;
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);

/// Brings the private server into shape. `server` reaches it as superuser.
pub(super) async fn private(server: &PgConnectOptions, database: &str, keys: &Keys) -> Result<(), Error> {
    let mut connection = connect(server, "connect as superuser").await?;
    for role in Role::ALL {
        ensure_role(&mut connection, role, keys, server, true).await?;
    }
    create_database(&mut connection, database, Role::Owner).await?;
    create_database(&mut connection, SAMPLE_DATABASE, Role::SampleOwner).await?;
    let mut sql = String::new();
    for name in ["postgres", "template1", database, SAMPLE_DATABASE] {
        sql += &format!("REVOKE ALL ON DATABASE {name} FROM PUBLIC;");
    }
    for role in Role::ALL {
        let (own, other) =
            if role.is_sample() { (SAMPLE_DATABASE, database) } else { (database, SAMPLE_DATABASE) };
        let name = role.name();
        sql += &format!(
            "REVOKE ALL ON DATABASE {other} FROM {name}; GRANT CONNECT ON DATABASE {own} TO {name};"
        );
        sql += &format!("ALTER ROLE {name} IN DATABASE {own} RESET ALL;");
        sql += &settings(role);
        if role == Role::SampleReader {
            // Only a superuser may set it, and the role cannot lift it. The log lies on the same disk.
            sql += &format!("ALTER ROLE {name} SET temp_file_limit = '{QUERY_TEMP_FILES_MAX}';");
        }
    }
    execute(&mut connection, "grant access to the databases", sql).await?;
    close(connection).await;

    let mut connection = connect(&server.clone().database(database), "connect to the state database").await?;
    execute(&mut connection, "grant access to the schema public", schema_public(true)).await?;
    close(connection).await;

    let mut connection =
        connect(&server.clone().database(SAMPLE_DATABASE), "connect to the sample database").await?;
    sample::grant(&mut connection).await?;
    sample::harden_sample(&mut connection).await?;
    close(connection).await;

    for role in Role::ALL {
        let database = if role.is_sample() { SAMPLE_DATABASE } else { database };
        ensure_password(role, keys, server, database).await?;
    }
    Ok(())
}

/// Brings a server of the user's own into shape: its database, our roles. It has no sample database.
pub(super) async fn external(server: &PgConnectOptions, keys: &Keys) -> Result<(), Error> {
    let mut connection = connect(server, "connect to DATABASE_URL").await?;
    let database = check_external(&mut connection).await?;
    sqlx::query("SELECT pg_advisory_lock($1)")
        .bind(LOCK)
        .execute(&mut connection)
        .await
        .map_err(Error::sql("take turns with other processes"))?;
    let ours = || Role::ALL.into_iter().filter(|role| !role.is_sample());
    for role in ours() {
        ensure_role(&mut connection, role, keys, server, false).await?;
    }
    let quoted = quote(&database);
    let mut sql = format!("GRANT CREATE ON DATABASE {quoted} TO {};", Role::Owner.name());
    for role in ours() {
        sql += &format!("GRANT CONNECT ON DATABASE {quoted} TO {};", role.name());
        sql += &settings(role);
    }
    sql += &schema_public(false);
    execute(&mut connection, "grant rights to the roles of Annals", sql).await?;
    for role in ours() {
        ensure_password(role, keys, server, &database).await?;
    }
    close(connection).await;
    Ok(())
}

/// What a server of the user's own must be and allow; gives the database's name.
async fn check_external(connection: &mut PgConnection) -> Result<String, Error> {
    let row = sqlx::query(
        "SELECT current_setting('server_version_num')::int4 AS number, current_setting('server_version') AS version, \
                current_user::text AS role, current_database()::text AS database, \
                r.rolsuper OR r.rolcreaterole AS may_create_roles, \
                r.rolsuper OR pg_has_role(d.datdba, 'MEMBER') AS owns_database, \
                r.rolsuper OR pg_has_role(n.nspowner, 'USAGE') \
                  OR has_schema_privilege(n.oid, 'CREATE WITH GRANT OPTION') AS may_grant_public \
         FROM pg_roles r, pg_database d, pg_namespace n \
         WHERE r.rolname = current_user AND d.datname = current_database() AND n.nspname = 'public'",
    )
    .fetch_optional(connection)
    .await
    .map_err(Error::sql("read the version and the rights of DATABASE_URL"))?;
    let Some(row) = row else {
        return Err(Error::Url { cause: "its database has no schema \"public\"; create it".into() });
    };
    let get = Error::sql("read the version and the rights of DATABASE_URL");
    let read = || -> Result<_, sqlx::Error> {
        let version: (i32, String) = (row.try_get("number")?, row.try_get("version")?);
        let names: (String, String) = (row.try_get("role")?, row.try_get("database")?);
        let rights: [bool; 3] = [
            row.try_get("may_create_roles")?,
            row.try_get("owns_database")?,
            row.try_get("may_grant_public")?,
        ];
        Ok((version, names, rights))
    };
    let ((number, version), (role, database), rights) = read().map_err(get)?;
    if i64::from(number) < i64::from(super::VERSION_MIN) * 10_000 {
        return Err(Error::ServerVersion { version });
    }
    let quoted = quote(&role);
    let lacks = match rights {
        [false, ..] => format!("may not create roles; as a superuser: ALTER ROLE {quoted} CREATEROLE"),
        [_, false, _] => format!(
            "does not own the database {database:?}; as a superuser: ALTER DATABASE {} OWNER TO {quoted}",
            quote(&database)
        ),
        [.., false] => format!(
            "may not grant rights on the schema public; as a superuser: ALTER SCHEMA public OWNER TO {quoted}"
        ),
        [true, true, true] => return Ok(database),
    };
    Err(Error::Privilege { role, lacks })
}

/// Creates the role when it is missing; sets right, or refuses, one that may do too much.
async fn ensure_role(
    connection: &mut PgConnection,
    role: Role,
    keys: &Keys,
    server: &PgConnectOptions,
    is_superuser: bool,
) -> Result<(), Error> {
    const ATTRIBUTES: &str = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS";
    let name = role.name();
    let is_fine: Option<bool> = sqlx::query_scalar(
        "SELECT rolcanlogin AND NOT (rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls) \
         FROM pg_roles WHERE rolname = $1",
    )
    .bind(name)
    .fetch_optional(&mut *connection)
    .await
    .map_err(Error::sql("look at the roles"))?;
    match is_fine {
        Some(true) => Ok(()),
        Some(false) if is_superuser => {
            execute(connection, "correct a role", format!("ALTER ROLE {name} {ATTRIBUTES}")).await
        }
        Some(false) => Err(Error::Privilege {
            role: server.get_username().to_owned(),
            lacks: format!(
                "leads to a server where the role {name} may do more than Annals allows it; as a superuser: \
                 ALTER ROLE {name} {ATTRIBUTES}"
            ),
        }),
        None => {
            let verifier = scram_verifier(&keys.read_or_create(name)?);
            let sql = format!("CREATE ROLE {name} {ATTRIBUTES} PASSWORD '{verifier}'");
            execute(connection, "create a role", sql).await
        }
    }
}

/// Makes the password in `keys/` the role's. It is only set when it does not open the door already, so that
/// processes that share the keys do not disturb each other.
async fn ensure_password(
    role: Role,
    keys: &Keys,
    server: &PgConnectOptions,
    database: &str,
) -> Result<(), Error> {
    let password = keys.read_or_create(role.name())?;
    let options = server.clone().username(role.name()).password(&password).database(database);
    match connect(&options, "log in as a role of Annals").await {
        Ok(connection) => {
            close(connection).await;
            Ok(())
        }
        Err(Error::Sql { cause: sqlx::Error::Database(error), .. })
            if error.code().as_deref() == Some("28P01") =>
        {
            tracing::warn!(
                db.role = role.name(),
                "the role had another password than its file in keys/; set anew"
            );
            let mut connection = connect(server, "connect to set a password").await?;
            let sql = format!("ALTER ROLE {} PASSWORD '{}'", role.name(), scram_verifier(&password));
            execute(&mut connection, "set a role's password", sql).await?;
            close(connection).await;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// A role may change its own settings, so each start makes them what they must be.
fn settings(role: Role) -> String {
    let name = role.name();
    let mut sql = format!("ALTER ROLE {name} RESET ALL;");
    if role.is_read_only() {
        sql += &format!("ALTER ROLE {name} SET default_transaction_read_only = on;");
    }
    sql
}

/// The audit views live in `public`: the owner makes them there, the others look.
fn schema_public(is_private: bool) -> String {
    let owner = Role::Owner.name();
    let mut sql = String::new();
    if is_private {
        sql += "REVOKE ALL ON SCHEMA public FROM PUBLIC;";
    }
    sql += &format!("GRANT USAGE, CREATE ON SCHEMA public TO {owner};");
    for role in [Role::Writer, Role::Reader, Role::Auditor] {
        sql += &format!("GRANT USAGE ON SCHEMA public TO {};", role.name());
    }
    sql
}

async fn create_database(connection: &mut PgConnection, name: &str, owner: Role) -> Result<(), Error> {
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(name)
        .fetch_one(&mut *connection)
        .await
        .map_err(Error::sql("look at the databases"))?;
    if exists {
        return Ok(());
    }
    let sql = format!("CREATE DATABASE {name} OWNER {} TEMPLATE template0", owner.name());
    execute(connection, "create a database", sql).await
}

/// Connects, and does not wait for ever on a network that swallows what is sent.
pub(super) async fn connect(options: &PgConnectOptions, action: &'static str) -> Result<PgConnection, Error> {
    let silent = || sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
    let connection = tokio::time::timeout(CONNECT_WAIT_MAX, options.connect()).await;
    connection.unwrap_or_else(|_| Err(silent())).map_err(Error::sql(action))
}

pub(super) async fn close(connection: PgConnection) {
    if let Err(error) = connection.close().await {
        tracing::debug!(%error, "a connection did not close in good order");
    }
}

/// Runs SQL that is made of our own names and quoted identifiers only.
pub(super) async fn execute(
    connection: &mut PgConnection,
    action: &'static str,
    sql: String,
) -> Result<(), Error> {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.map(|_| ()).map_err(Error::sql(action))
}

/// `name` as an SQL identifier.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
