//! The outbox's relay: what a dead process left is appended, and one bad row does not multiply the others.

use std::sync::Arc;

use annals::base::Tasks;
use annals::event::{Facts, KeyRevoked, Personal, Topic};
use annals::log::Log;
use annals::outbox::{Outbox, Relay, relay};
use uuid::Uuid;

use crate::projection::stand::{SOON, Stand};

/// Events on `annals.admin`.
async fn appended(stand: &Stand) -> u64 {
    let mut count = 0;
    for target in annals::event::TopicPartition::all().filter(|target| target.topic == Topic::Admin) {
        count += stand.log.count_after(target, None).await.unwrap();
    }
    count
}

async fn until(stand: &Stand, sql: &'static str, wanted: i64) {
    let wait = async {
        while stand.count(sql).await != wanted {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.expect("the outbox comes to hold what is wanted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_relayed_holds_the_later_ones_and_repeats_no_earlier_one() {
    let stand = Stand::start().await;
    let outbox = Outbox::new();
    let mut tx = annals::db::begin(&stand.writer).await.unwrap();
    for _ in 0..3 {
        let key_id = Uuid::new_v4();
        let facts = Facts::KeyRevoked(KeyRevoked {
            actor_subject_id: "local-operator".into(),
            actor_auth_method: annals::event::AuthMethod::Local,
            key_id,
        });
        let now = stand.lanes.clock().now();
        let sealed =
            stand.lanes.draft().build_once(now, &key_id.to_string(), &facts, &Personal::default()).unwrap();
        drop(outbox.insert(&mut tx, &sealed).await.unwrap());
    }
    let spoil = "UPDATE annals.outbox SET topic = 'annals.nothing' WHERE id = (SELECT max(id) - 1 FROM annals.outbox)";
    sqlx::query(spoil).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    let tasks = Tasks::new();
    let work = Relay { pool: stand.writer.clone(), lanes: Arc::clone(&stand.lanes), outbox: outbox.clone() };
    tasks.spawn("relay", relay(work, tasks.cancel_token().clone()));
    until(&stand, "SELECT count(*) FROM annals.outbox", 2).await;
    outbox.wake();
    let repair = "UPDATE annals.outbox SET topic = 'annals.admin' WHERE topic = 'annals.nothing'";
    sqlx::query(repair).execute(&stand.writer).await.unwrap();
    outbox.wake();
    until(&stand, "SELECT count(*) FROM annals.outbox", 0).await;
    tasks.stop().await;
    assert_eq!(appended(&stand).await, 3);
}
