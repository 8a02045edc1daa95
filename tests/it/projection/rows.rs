//! Which rows events become.

use annals::consumer::StoreState;
use annals::event::Kind;
use sqlx::Row;

use super::stand::Stand;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_becomes_two_events_one_audit_log_row_and_leaves_nothing_open() {
    let stand = Stand::start().await;
    let mut run = stand.worker("w1", true, |_| {});
    let (call, receipt) = stand.call("session-1", Some(Kind::ToolCallCompleted)).await;
    let (open, _) = stand.call("session-2", None).await;
    stand.caught_up().await;
    assert_eq!(run.reached(StoreState::Ok).await, "");

    let auditor = stand.server.postgres.pool(annals::db::Role::Auditor);
    let rows = sqlx::query("SELECT * FROM public.audit_logs").fetch_all(&auditor).await.unwrap();
    let [row] = rows.as_slice() else { panic!("one row, got {}", rows.len()) };
    assert_eq!(row.get::<String, _>("id"), call.call_id.to_string());
    assert_eq!(row.get::<String, _>("user_id"), "ann");
    assert_eq!(row.get::<Option<bool>, _>("success"), Some(true));
    assert_eq!(row.get::<Option<i64>, _>("request_chars"), Some(31));
    let events: i64 =
        sqlx::query_scalar("SELECT count(*) FROM public.audit_events").fetch_one(&auditor).await.unwrap();
    assert_eq!(events, 3);
    let (body, link): (String, Vec<u8>) = sqlx::query_as(
        "SELECT body_head || personal_token || body_tail, link FROM public.audit_events WHERE event_kind = 'tool_call.completed'",
    )
    .fetch_one(&auditor)
    .await
    .unwrap();
    let target = super::stand::target_of(Kind::ToolCallCompleted, "session-1");
    let stored = annals::log::Log::frame_at(&*stand.log, target, receipt.position).await.unwrap();
    assert_eq!(body.as_bytes(), &stored.frame.body[..]);
    assert_eq!(link, receipt.link);
    let still: Vec<uuid::Uuid> =
        sqlx::query_scalar("SELECT call_id FROM audit_v1.open_calls").fetch_all(&stand.owner).await.unwrap();
    assert_eq!(still, [open.call_id]);
    auditor.close().await;
    run.stop().await;
    stand.stop().await;
}
