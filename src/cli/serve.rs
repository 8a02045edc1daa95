//! `annals serve`.

use std::process::ExitCode;

use super::{Common, Failure, RoleArg, ServeArgs, fail, print};
use crate::app::{self, ServeOptions};

pub(super) async fn run(common: &Common, args: ServeArgs) -> Result<ExitCode, Failure> {
    let mut config = common.load()?;
    if args.role != RoleArg::All {
        return Err(Failure::usage(
            "--role edge and worker need a log that several processes can share; the embedded log belongs to one \
             process, which runs both: leave --role out",
        ));
    }
    config.listen = args.listen.unwrap_or(config.listen);
    config.metrics_listen = args.metrics_listen.unwrap_or(config.metrics_listen);
    let admin_key = args.admin_key.filter(|key| !key.is_empty());
    let (common, database) = (common.clone(), config.clone());
    let options = ServeOptions {
        data_dir: common.data_dir.clone(),
        config,
        sample: args.sample,
        admin_key,
        database: Box::new(move |root| common.database(&database, root)),
        print: |text| {
            if let Err(failure) = print(text) {
                fail(&failure);
            }
        },
    };
    app::serve(options)
        .await
        .map_err(|error| Failure { code: error.exit_code(), message: error.to_string() })?;
    Ok(ExitCode::SUCCESS)
}
