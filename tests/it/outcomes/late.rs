//! What a tool gives after its call has ended, in one process with a tool that does as it is told.

use std::sync::Arc;

use annals::base::{Category, Tasks};
use annals::dispatch::Answer;
use annals::event::{Decoded, Effect, Facts, Kind, Terminal};

use crate::dispatch::{SOON, Stage, events, kinds, request, stage, until_started};
use crate::faulty_log::Fault;

/// A call of the puppet that was cancelled once it ran, and answered.
async fn cancelled(stage: &Stage, told: &str) {
    let call = request(stage, &format!(r#"{{"do":"{told}"}}"#));
    let (cancel, dispatch) = (call.cancel.clone(), Arc::clone(&stage.dispatch));
    let answer = Tasks::new().spawn("call", async move { dispatch.call(call).await });
    until_started(stage).await;
    cancel.cancel();
    let answer = answer.await.unwrap();
    assert!(
        matches!(&answer, Answer::Cancelled(error) if error.code() == "cancelled_by_caller"),
        "{answer:?}"
    );
}

/// The one late event behind the call's end.
fn late(events: &[Decoded]) -> Terminal {
    let kinds: Vec<Kind> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Kind::ToolCallRequested, Kind::ToolCallCancelled, Kind::ToolCallLate]);
    let [_, Facts::Terminal(_, end), Facts::Terminal(_, late)] =
        [&events[0].facts, &events[1].facts, &events[2].facts]
    else {
        panic!("{events:?}")
    };
    assert_eq!(end.call, late.call);
    late.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_gives_after_its_end_is_one_late_event() {
    for (told, category, code) in [
        ("wait_for_cancel", None, None),
        ("fail_after_cancel", Some(Category::Upstream), Some("connection_unreachable")),
        ("panic_after_cancel", Some(Category::Internal), Some("panic")),
    ] {
        let stage = stage();
        cancelled(&stage, told).await;
        tokio::time::timeout(SOON, stage.tasks.join()).await.unwrap();
        let events = events(&stage).await;
        let outcome = late(&events).outcome;
        let error = outcome.error.as_ref().map(|error| (error.category, error.code.as_str()));
        assert_eq!(error, category.zip(code), "{told}");
        let result = br#"{"secret":"the result"}"#;
        let digest = code.is_none().then(|| stage.lanes.draft().redactor.digest(result));
        assert_eq!((outcome.result_hmac, outcome.effect), (digest, None), "{told}");
        let bytes = if code.is_none() { result.len() as u64 } else { 0 };
        assert_eq!(outcome.response_bytes, bytes, "{told}");
        let personal = events[2].personal.clone().unwrap();
        assert_eq!(personal.error_message.is_some(), code.is_some(), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_obeys_leaves_nothing_late() {
    let stage = stage();
    cancelled(&stage, "obey_cancel").await;
    tokio::time::timeout(SOON, stage.tasks.join()).await.unwrap();
    assert_eq!(kinds(&stage).await, [Kind::ToolCallRequested, Kind::ToolCallCancelled]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_does_not_stop_is_dropped_and_its_effect_is_unknown() {
    let stage = stage();
    cancelled(&stage, "ignore_cancel").await;
    // A process that stops waits for it a moment only.
    tokio::time::timeout(SOON, stage.tasks.stop()).await.unwrap();
    let outcome = late(&events(&stage).await).outcome;
    let error = outcome.error.map(|error| (error.category, error.code));
    assert_eq!(error, Some((Category::Internal, "tool_dropped".to_owned())));
    assert_eq!(outcome.effect, Some(Effect::Unknown));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_late_waits_for_a_log_that_refuses() {
    let stage = stage();
    let call = request(&stage, r#"{"do":"wait_for_cancel"}"#);
    let (cancel, dispatch) = (call.cancel.clone(), Arc::clone(&stage.dispatch));
    let answer = Tasks::new().spawn("call", async move { dispatch.call(call).await });
    until_started(&stage).await;
    // The end has its room already; what is late has none.
    stage.log.set(Fault::Refuse);
    cancel.cancel();
    assert!(matches!(answer.await.unwrap(), Answer::Cancelled(_)));
    tokio::time::timeout(SOON, stage.log.refused()).await.expect("something asks for room");
    assert_eq!(kinds(&stage).await, [Kind::ToolCallRequested, Kind::ToolCallCancelled]);
    stage.log.set(Fault::None);
    tokio::time::timeout(SOON, stage.tasks.join()).await.unwrap();
    assert_eq!(late(&events(&stage).await).outcome.error, None);
}
