//! Making, starting, adopting and stopping the private server.

use annals::db::{Postgres, Role};
use sqlx::{ConnectOptions, Connection};

use super::server::{TestServer, options, processes_of};

async fn one(postgres: &Postgres, role: Role, sql: &'static str) -> i32 {
    let mut connection = postgres.connect_options(role).connect().await.expect("a connection");
    let value = sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect("a value");
    connection.close().await.expect("a closed connection");
    value
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_server_starts_and_stops_and_keeps_what_was_written() {
    let server = TestServer::start().await;
    let mut writer = server.postgres.connect_options(Role::Writer).connect().await.unwrap();
    sqlx::query("INSERT INTO annals.once VALUES ('p', 1, 's', gen_random_uuid(), sha256('a'))")
        .execute(&mut writer)
        .await
        .unwrap();
    writer.close().await.unwrap();
    server.postgres.clone().stop().await.unwrap();
    assert_eq!(processes_of(server.data_dir.path()), Vec::<u32>::new());
    let again = Postgres::start(options(server.data_dir.path())).await.unwrap();
    assert_eq!(one(&again, Role::Reader, "SELECT count(*)::int4 FROM annals.once").await, 1);
    again.stop().await.unwrap();
}
