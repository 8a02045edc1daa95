//! `annals key`: over the running server's socket or, when none runs, on the data directory itself.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;
use uuid::Uuid;

use super::{Common, Failure, print};
use crate::app::{ControlClient, DataDir, RunFile, Workbench};
use crate::auth::{Created, KeyError, Listed, NewKey, local_principal};
use crate::base::{Clock, SystemClock, Timestamp};

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

enum Reach {
    Server(ControlClient),
    DataDir(Box<Workbench>),
}

pub(super) async fn run(common: &Common, command: KeyCommand) -> Result<ExitCode, Failure> {
    let new = match &command {
        KeyCommand::Create { name, roles, expires } => {
            let expires_at = expires.as_deref().map(|text| expiry(text, SystemClock.now())).transpose()?;
            Some(NewKey { name: name.clone(), roles: roles.clone(), expires_at })
        }
        KeyCommand::List { .. } | KeyCommand::Revoke { .. } => None,
    };
    if new.is_none() && !common.data_dir.is_dir() {
        return Err(Failure::usage(format!("there is no data directory {}", common.data_dir.display())));
    }
    let reach = reach(common).await?;
    let outcome = match (&reach, command, new) {
        (Reach::Server(client), KeyCommand::Create { .. }, Some(new)) => {
            let created: Created = client.request(hyper::Method::POST, "/v1/keys", Some(&new)).await?;
            show_created(&created)
        }
        (Reach::DataDir(bench), KeyCommand::Create { .. }, Some(new)) => {
            bench.keys.create(&local_principal(), &new).await.map(|created| show_created(&created))?
        }
        (Reach::Server(client), KeyCommand::List { json }, _) => show_list(
            &client.request::<Vec<Listed>>(hyper::Method::GET, "/v1/keys", None::<&Value>).await?,
            json,
        )?,
        (Reach::DataDir(bench), KeyCommand::List { json }, _) => show_list(&bench.keys.list().await?, json)?,
        (Reach::Server(client), KeyCommand::Revoke { key_id }, _) => {
            let path = format!("/v1/keys/{key_id}/revoke");
            client.request::<Value>(hyper::Method::POST, &path, None::<&Value>).await?;
            format!("revoked {key_id}\n")
        }
        (Reach::DataDir(bench), KeyCommand::Revoke { key_id }, _) => {
            bench.keys.revoke(&local_principal(), key_id).await?;
            format!("revoked {key_id}\n")
        }
        (_, KeyCommand::Create { .. }, None) => return Err(Failure::usage("no key to make")),
    };
    if let Reach::DataDir(bench) = reach {
        bench.close().await?;
    }
    print(&outcome)?;
    Ok(ExitCode::SUCCESS)
}

async fn reach(common: &Common) -> Result<Reach, Failure> {
    let config = common.load()?;
    if let Ok(data_dir) = DataDir::open(&common.data_dir)
        && let Some(run) = RunFile::read(&data_dir.run_file())?
        && let Some(client) = ControlClient::connect(&run).await
    {
        return Ok(Reach::Server(client));
    }
    let bench = Workbench::open(&common.data_dir, &config, |root| common.database(&config, root)).await?;
    Ok(Reach::DataDir(Box::new(bench)))
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
        let roles = key.roles.join(",");
        text += &format!(
            "{:<36}  {:<20}  {:<16}  {:<27}  {state}\n",
            key.key_id, key.name, roles, key.created_at
        );
    }
    Ok(text)
}
