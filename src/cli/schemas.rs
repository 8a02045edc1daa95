//! `annals schemas`: writes what `schemas/` holds, checks it, and keeps what a release has frozen.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::{Failure, print};
use crate::event::{released, schema};

#[derive(Debug, Args)]
pub(super) struct SchemasArgs {
    /// The directory to write to, or to check.
    #[arg(long, value_name = "DIR", default_value = "schemas")]
    out: PathBuf,
    /// Writes nothing; says what in the directory is not what this version generates, or breaks with a released schema.
    #[arg(long, conflicts_with = "release")]
    check: bool,
    /// Keeps a copy of each schema that is new in this release, and lists it in RELEASED: it is frozen from then on.
    #[arg(long, value_name = "VERSION")]
    release: Option<String>,
}

pub(super) fn run(args: &SchemasArgs) -> Result<ExitCode, Failure> {
    if args.check {
        return check(&args.out);
    }
    let mut files = schema::files();
    if let Some(version) = &args.release {
        let path = args.out.join("RELEASED");
        let list = std::fs::read_to_string(&path)?;
        let (copies, lines) = released::release(version, &list);
        files.extend(copies);
        files.push(schema::SchemaFile { path: "RELEASED".into(), text: list + &lines });
    }
    for file in files {
        let path = args.out.join(&file.path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&path, &file.text)?;
        print(&format!("{}\n", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(dir: &Path) -> Result<ExitCode, Failure> {
    let read = |path: &str| std::fs::read(dir.join(path)).ok();
    let stale =
        schema::files().into_iter().filter(|file| read(&file.path).as_deref() != Some(file.text.as_bytes()));
    let mut found: Vec<String> =
        stale.map(|file| format!("schemas/{} is not current: run `annals schemas`", file.path)).collect();
    found.extend(released::check(read));
    for finding in &found {
        print(&format!("{finding}\n"))?;
    }
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
