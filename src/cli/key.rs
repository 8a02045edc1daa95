//! `annals key`: over the running server's socket or, when none runs, on the data directory itself.

use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;
use serde_json::Value;
use uuid::Uuid;

use super::{Common, Failure, existing, print, server, store};
use crate::app::Workbench;
use crate::auth::{Created, KeyError, Listed, NewKey, list_keys, local_principal};
use crate::base::{Clock, SystemClock, Timestamp};
use crate::db::Role;

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Makes a key and prints it once; only its SHA-256 is kept.
    Create {
        /// Whose it is; keys of one name share one subject in the audit.
        #[arg(long)]
        name: String,
        /// A role; may be given several times. Personas in the config map roles.
        #[arg(long = "role", required = true)]
        roles: Vec<String>,
        /// When it ends: an RFC 3339 time, or days from now such as 90d.
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
        /// Its calls have no rate limit: for a batch job of yours, never for an agent.
        #[arg(long)]
        no_limit: bool,
    },
    /// Lists keys, newest first.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Revokes a key; returns once the server refuses it.
    Revoke {
        /// The key's id, from `annals key list`.
        key_id: Uuid,
    },
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        crate::app::ControlError::from(error).into()
    }
}

pub(super) async fn run(common: &Common, command: KeyCommand) -> Result<ExitCode, Failure> {
    let text = match command {
        KeyCommand::Create { name, roles, expires, no_limit } => {
            let expires_at = expires.as_deref().map(|text| expiry(text, SystemClock.now())).transpose()?;
            create(common, &NewKey { name, roles, expires_at, no_limit }).await?
        }
        KeyCommand::List { json } => show_list(&list(common).await?, json)?,
        KeyCommand::Revoke { key_id } => revoke(common, key_id).await?,
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

async fn create(common: &Common, new: &NewKey) -> Result<String, Failure> {
    if let Some(server) = server(common).await? {
        let created: Created = server.request(Method::POST, "/v1/keys", Some(new)).await?;
        return Ok(show_created(&created));
    }
    let bench = bench(common).await?;
    let created = bench.keys.create(&local_principal(), new).await;
    bench.close().await?;
    Ok(show_created(&created?))
}

async fn revoke(common: &Common, key_id: Uuid) -> Result<String, Failure> {
    existing(common)?;
    if let Some(server) = server(common).await? {
        server.request::<Value>(Method::POST, &format!("/v1/keys/{key_id}/revoke"), None::<&Value>).await?;
    } else {
        let bench = bench(common).await?;
        let revoked = bench.keys.revoke(&local_principal(), key_id).await;
        bench.close().await?;
        revoked?;
    }
    Ok(format!("revoked {key_id}\n"))
}

/// Without a server it asks Postgres alone: looking at keys leaves no trace on the log.
async fn list(common: &Common) -> Result<Vec<Listed>, Failure> {
    let data_dir = existing(common)?;
    if let Some(server) = server(common).await? {
        return Ok(server.request(Method::GET, "/v1/keys", None::<&Value>).await?);
    }
    let config = common.load()?;
    let (postgres, _) = store(common, &config, &data_dir).await?;
    let keys = list_keys(&postgres.pool(Role::Writer)).await;
    postgres.stop().await?;
    Ok(keys?)
}

async fn bench(common: &Common) -> Result<Workbench, Failure> {
    let config = common.load()?;
    Ok(Workbench::open(&common.data_dir, &config, "key", |root| common.database(&config, root)).await?)
}

fn expiry(text: &str, now: Timestamp) -> Result<Timestamp, Failure> {
    const DAY_MICROS: i64 = 86_400_000_000;
    if let Some(days) = text.strip_suffix('d').and_then(|days| days.parse::<i64>().ok()) {
        let at = now.plus_micros(days.saturating_mul(DAY_MICROS));
        return if at.has_written_form() {
            Ok(at)
        } else {
            Err(Failure::usage(format!("--expires: {text} from now is not in the years 0 to 9999")))
        };
    }
    text.parse().map_err(|error| Failure::usage(format!("--expires: {error}, nor days like 90d")))
}

fn show_created(created: &Created) -> String {
    tracing::info!(key.id = %created.key_id, "key made; it is shown once");
    format!("{}\n", created.key)
}

fn show_list(keys: &[Listed], json: bool) -> Result<String, Failure> {
    if json {
        return serde_json::to_string_pretty(keys).map(|text| text + "\n").map_err(Failure::missing);
    }
    let mut text =
        format!("{:<36}  {:<20}  {:<16}  {:<27}  {}\n", "KEY ID", "NAME", "ROLES", "CREATED", "STATE");
    for key in keys {
        let state = match (key.revoked_at, key.expires_at) {
            (Some(at), _) => format!("revoked {at}"),
            (None, Some(end)) => format!("until {end}"),
            (None, None) => "active".to_owned(),
        };
        let state = if key.no_limit { format!("{state}, no rate limit") } else { state };
        let roles = key.roles.join(",");
        text += &format!(
            "{:<36}  {:<20}  {:<16}  {:<27}  {state}\n",
            key.key_id, key.name, roles, key.created_at
        );
    }
    Ok(text)
}
