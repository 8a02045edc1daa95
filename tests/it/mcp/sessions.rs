//! The record of sessions: one start before anybody uses it, one end for each reason, and none that is not told.

use std::time::Duration;

use annals::base::{Clock, SystemClock};
use annals::event::{Decoded, Facts, Kind, SessionEnd, SessionEnded, SessionStarted, Transport};
use annals::mcp::SessionLimits;

use super::harness::{
    ANN, ANN_TOO, Ask, BOB, Harness, Setup, initialize, key, legacy, legacy_call, modern_call, soon,
};
use crate::faulty_log::Fault;

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

fn delete(session: &str) -> Ask {
    legacy(session, "").method("DELETE")
}

impl Harness {
    async fn starts(&self) -> Vec<(SessionStarted, Decoded)> {
        let events = self.events().await.into_iter().filter_map(|event| match &event.facts {
            Facts::SessionStarted(facts) => Some((facts.clone(), event)),
            _ => None,
        });
        events.collect()
    }

    async fn ends(&self) -> Vec<(SessionEnded, Decoded)> {
        let events = self.events().await.into_iter().filter_map(|event| match &event.facts {
            Facts::SessionEnded(facts) => Some((facts.clone(), event)),
            _ => None,
        });
        events.collect()
    }

    /// Waits until `count` ends are recorded; gives their sessions and reasons.
    async fn until_ended(&self, count: usize) -> Vec<(String, SessionEnd)> {
        let wait = async {
            loop {
                let ends = self.ends().await;
                if ends.len() >= count {
                    return ends.into_iter().map(|(end, _)| (end.session_id, end.reason)).collect::<Vec<_>>();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("the ends of sessions", wait).await
    }

    /// Every session that started has one end at most, of the same owner, and none ended that did not start.
    async fn is_told_once(&self) {
        let (starts, ends) = (self.starts().await, self.ends().await);
        for (end, event) in &ends {
            let of: Vec<_> = starts.iter().filter(|(start, _)| start.session_id == end.session_id).collect();
            assert_eq!(of.len(), 1, "{end:?}");
            let (start, started) = of[0];
            assert_eq!((&start.subject_id, start.key_id), (&end.subject_id, end.key_id));
            assert_eq!(start.transport, end.transport);
            assert!(started.occurred_at <= event.occurred_at && end.started_at <= started.occurred_at);
            assert_eq!(ends.iter().filter(|(other, _)| other.session_id == end.session_id).count(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_answered_once_its_start_is_durable() {
    let server = Harness::start().await;
    server.log.set(Fault::Hold(Kind::SessionStarted));
    let ask = initialize().header("user-agent", "wire/1");
    let asking = server.send(&ask);
    tokio::pin!(asking);
    tokio::select! {
        got = &mut asking => panic!("answered before its start was durable: {got:?}"),
        () = soon("the start", server.log.handed_over(Kind::SessionStarted)) => {}
    }
    // A while in which an answer would come if it did not wait.
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut asking).await.is_err());
    server.log.release();
    let got = soon("the answer", asking).await;
    assert_eq!(got.status, 200);
    let (start, event) = server.starts().await.remove(0);
    assert_eq!(start.session_id, got.header("mcp-session-id"));
    let expected = SessionStarted {
        session_id: start.session_id.clone(),
        subject_id: "sub-ann".into(),
        auth_method: annals::event::AuthMethod::ApiKey,
        key_id: Some(uuid::Uuid::from_u128(1)),
        persona: "admin".into(),
        transport: Transport::Http,
        protocol_version: "2025-11-25".into(),
    };
    assert_eq!(start, expected);
    let personal = event.personal.unwrap();
    assert_eq!(personal.user_name.as_deref(), Some("ann"));
    assert_eq!(
        (personal.client_ip.as_deref(), personal.user_agent.as_deref()),
        (Some("127.0.0.1"), Some("wire/1"))
    );
    assert_eq!(personal.asserted.unwrap().get(), r#"{"clientInfo":{"name":"wire","version":"1"}}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_does_not_accept_opens_no_session() {
    let server = Harness::start().await;
    server.log.set(Fault::Refuse);
    let got = server.send(&initialize()).await;
    assert_eq!((got.status, got.header("mcp-session-id")), (503, ""), "{got:?}");
    assert_eq!(got.json()["error"]["code"], 1503);
    assert_eq!(got.json()["error"]["message"], "The audit log has no room; no session was opened.");
    assert!(!got.header("retry-after").is_empty());
    assert_eq!(got.json()["id"], 0);
    assert_eq!(server.mcp.session_count(), 0);
    server.log.set(Fault::None);
    // What may have been written has its end behind it.
    server.log.set(Fault::LoseAck(Kind::SessionStarted));
    let got = server.send(&initialize()).await;
    assert_eq!((got.status, got.header("mcp-session-id")), (503, ""), "{got:?}");
    assert_eq!(server.until_ended(1).await.len(), 1);
    assert_eq!(server.mcp.session_count(), 0);
    server.is_told_once().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_the_client_asked_for_is_durable_before_its_answer() {
    let server = Harness::start().await;
    let session = server.session(ANN).await;
    for (id, tool, arguments) in
        [("1", "sql_echo", "{}"), ("2", "no_such_tool", "{}"), ("3", "sql_echo", "[]")]
    {
        server.send(&legacy_call(&session, id, tool, arguments)).await;
    }
    server.send(&modern_call("sql_echo", "{}")).await;
    assert_eq!(server.send(&legacy(&session, PING)).await.status, 200);
    server.log.set(Fault::Hold(Kind::SessionEnded));
    let ask = delete(&session);
    let asking = server.send(&ask);
    tokio::pin!(asking);
    tokio::select! {
        got = &mut asking => panic!("answered before the end was durable: {got:?}"),
        () = soon("the end", server.log.handed_over(Kind::SessionEnded)) => {}
    }
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut asking).await.is_err());
    server.log.release();
    assert_eq!(soon("the answer", asking).await.status, 204);
    let (end, event) = server.ends().await.remove(0);
    assert_eq!(
        (end.session_id.as_str(), end.reason, end.calls),
        (session.as_str(), SessionEnd::ClientDelete, 3)
    );
    assert_eq!(event.personal.unwrap().user_name.as_deref(), Some("ann"));
    assert_eq!(server.send(&delete(&session)).await.status, 404);
    server.is_told_once().await;
    let of_session = server.endings().await;
    let of_session = of_session.iter().filter(|(_, call)| call.call.session_id.as_ref() == Some(&session));
    assert_eq!(of_session.count(), 3, "as many calls as its end says");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_the_log_refuses_is_recorded_later() {
    let server = Harness::start().await;
    let (one, two) = (server.session(ANN).await, server.session(BOB).await);
    server.log.set(Fault::Refuse);
    let got = server.send(&delete(&one)).await;
    assert_eq!(got.status, 503, "{got:?}");
    // It is over all the same; and that cannot be said, since it cannot be recorded.
    assert_eq!(server.send(&legacy(&one, PING)).await.status, 503);
    let (hash, mut record) = key(BOB);
    record.revoked = true;
    server.keys.load([(hash, record)]);
    let wait = async {
        while server.mcp.session_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the end of the other", wait).await;
    assert_eq!(server.ends().await.len(), 0);
    server.log.set(Fault::None);
    let mut ends = server.until_ended(2).await;
    ends.sort_by(|a, b| a.0.cmp(&b.0));
    let mut expected = [(one, SessionEnd::ClientDelete), (two, SessionEnd::Revoked)];
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(ends, expected);
    server.is_told_once().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_by_themselves_for_each_reason_once() {
    let sessions =
        SessionLimits { sessions_max: 100, sessions_per_key_max: 2, idle: Duration::from_secs(600) };
    let server = Harness::start_with(Setup { sessions, ..Setup::default() }).await;
    let (first, second) = (server.session(ANN).await, server.session(ANN).await);
    let third = server.session(ANN).await;
    assert_eq!(server.until_ended(1).await, [(first, SessionEnd::Evicted)]);
    let of_bob = server.session(BOB).await;
    let of_other_key = server.session(ANN_TOO).await;
    let (hash, mut record) = key(BOB);
    record.revoked = true;
    server.keys.load([(hash, record)]);
    assert!(server.until_ended(2).await.contains(&(of_bob, SessionEnd::Revoked)));
    let (hash, mut record) = key(ANN);
    record.expires_at = Some(SystemClock.now().plus_micros(50_000));
    server.keys.load([(hash, record)]);
    let ends = server.until_ended(4).await;
    for id in [second, third] {
        assert!(ends.contains(&(id, SessionEnd::Expired)), "{ends:?}");
    }
    assert_eq!(server.send(&legacy(&of_other_key, PING).key(ANN_TOO)).await.status, 200);
    soon("the end", server.mcp.end_sessions()).await;
    assert!(server.until_ended(5).await.contains(&(of_other_key, SessionEnd::Shutdown)));
    assert_eq!(server.mcp.session_count(), 0);
    assert_eq!(server.send(&initialize().key(ANN_TOO)).await.status, 503, "none starts any more");
    assert_eq!((server.starts().await.len(), server.ends().await.len()), (5, 5));
    server.is_told_once().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_ends_without_a_request() {
    let sessions = SessionLimits { idle: Duration::from_millis(200), ..Setup::default().sessions };
    let server = Harness::start_with(Setup { sessions, ..Setup::default() }).await;
    let busy = server.session(ANN).await;
    let slow = legacy_call(&busy, "1", "test_slow", "{}");
    let (got, ()) = soon("the answer", async {
        tokio::join!(server.send(&slow), async {
            server.until_started(1).await;
            let idle = server.session(BOB).await;
            assert_eq!(server.until_ended(1).await, [(idle, SessionEnd::Idle)]);
            server.go_on.send_replace(true);
        })
    })
    .await;
    assert_eq!(got.code(), 0, "one with a request in flight is not idle");
    let ends = server.until_ended(2).await;
    assert!(ends.contains(&(busy, SessionEnd::Idle)), "{ends:?}");
    let calls: Vec<_> = server.ends().await.into_iter().map(|(end, _)| end.calls).collect();
    assert_eq!(calls.iter().sum::<u64>(), 1);
    server.is_told_once().await;
}
