//! The closer, on a real log and a real Postgres: what it closes, what it leaves, and what becomes of it.

use std::sync::Arc;

use annals::base::Tasks;
use annals::consumer::{Closer, CloserError, Metrics, Pass, StoreState};
use annals::db::Postgres;
use annals::dispatch::{Answer, Dispatch, Limits, Outcomes, Unrecorded, UnrecordedCall};
use annals::event::{Call, Decoded, Effect, Facts, Kind, Terminal, closure, closure_id};
use annals::log::{Lanes, Log, Position};
use annals::tools::Toolbox;
use annals::verify::FindingKind;
use uuid::Uuid;

use crate::db::server::options;
use crate::faulty_log::{Fault, FaultyLog};
use crate::projection::stand::{Run, Stand, lanes, terminal};
use crate::reading;
use crate::verify::verify;

const OPEN: &str = "SELECT count(*) FROM audit_v1.open_calls";
const CLOSED: &str = "SELECT count(*) FROM public.audit_logs WHERE event_kind = 'tool_call.interrupted'";
const LOGGED: &str = "SELECT count(*) FROM public.audit_logs";

/// A closer of a process start of its own, for which that of the stand is dead.
fn closer_of(stand: &Stand, lanes: &Arc<Lanes>, unrecorded: &Arc<Unrecorded>) -> Closer {
    Closer::new(Arc::clone(lanes), stand.writer.clone(), Arc::clone(unrecorded), Metrics::default())
}

fn closer(stand: &Stand) -> Closer {
    closer_of(stand, &Arc::new(lanes(&stand.log)), &Arc::default())
}

async fn working(stand: &Stand) -> Run {
    let mut run = stand.worker("w", true, |_| {});
    run.reached(StoreState::Ok).await;
    run
}

/// The ends of `call` on the log, in order.
async fn ends(stand: &Stand, call: &Call) -> Vec<(Decoded, Terminal)> {
    let of_call = |event: Decoded| match &event.facts {
        Facts::Terminal(kind, terminal) if kind.is_terminal() && terminal.call.call_id == call.call_id => {
            let terminal = terminal.clone();
            Some((event, terminal))
        }
        _ => None,
    };
    reading::events(&*stand.log).await.into_iter().filter_map(of_call).collect()
}

async fn end_kinds(stand: &Stand, call: &Call) -> Vec<Kind> {
    ends(stand, call).await.iter().map(|(event, _)| event.kind).collect()
}

/// Everything holds, but that nobody closed the lanes of the process starts that a test made up.
async fn holds(stand: &Stand) {
    let report = verify(stand).await;
    let wrong = report.findings.iter().any(|finding| finding.kind != FindingKind::LaneOpen);
    assert!(!wrong && report.open == 0, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_dead_process_is_closed_and_two_closers_make_one_row() {
    let stand = Stand::start().await;
    let run = working(&stand).await;
    let (call, _) = stand.call("s", None).await;
    stand.call("s", Some(Kind::ToolCallCompleted)).await;
    stand.caught_up().await;
    // Without a worker neither of the closers can see what the other one did.
    run.stop().await;
    let (mut one, mut two) = (closer(&stand), closer(&stand));
    // Both look before either writes.
    one.settle().await.unwrap();
    two.settle().await.unwrap();
    let (one, two) = tokio::join!(one.pass(), two.pass());
    let closed = Pass { closed: 1, more: false };
    assert_eq!((one.unwrap(), two.unwrap()), (closed, closed));
    let ends = ends(&stand, &call).await;
    let [(first, end), (second, _)] = ends.as_slice() else { panic!("{ends:?}") };
    assert_eq!((first.id, second.id), (closure_id(call.call_id), closure_id(call.call_id)));
    assert_eq!(first.facts, second.facts);
    assert_eq!(first.common.incarnation, stand.lanes.incarnation(), "nothing of the closer");
    assert_eq!(first.occurred_at, call.received_at.plus_micros(30_000_000), "the intent's deadline");
    assert_eq!((&end.call, end.outcome.effect), (&call, Some(Effect::Unknown)));
    let personal = first.personal.clone().unwrap();
    assert_eq!((personal.user_name.as_deref(), personal.purpose.as_deref()), (Some("ann"), Some("to count")));
    assert_eq!(personal.arguments.unwrap().get(), r#"{"sql":"SELECT 1","n":[1,2.50]}"#);
    let run = working(&stand).await;
    stand.caught_up().await;
    assert_eq!((stand.count(OPEN).await, stand.count(CLOSED).await), (0, 1));
    assert_eq!(run.metric("annals_projection_duplicate_events_total"), 1);
    let row: (String, Option<String>, Option<String>, Option<String>) = sqlx::query_as(
        "SELECT event_kind, error_code, effect, purpose FROM public.audit_logs WHERE call_id = $1",
    )
    .bind(call.call_id)
    .fetch_one(&stand.owner)
    .await
    .unwrap();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(row, ("tool_call.interrupted".into(), some("interrupted"), some("unknown"), some("to count")));
    holds(&stand).await;
    let again = closer(&stand).pass().await.unwrap();
    assert_eq!(again, Pass::default());
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_living_process_are_left_alone() {
    let stand = Stand::start().await;
    let run = working(&stand).await;
    let (call, _) = stand.call("s", None).await;
    stand.caught_up().await;
    let mut closer = closer_of(&stand, &stand.lanes, &Arc::default());
    let pass = closer.pass().await.unwrap();
    assert_eq!((pass, end_kinds(&stand, &call).await), (Pass::default(), vec![]));
    stand.record(&terminal(&call, Kind::ToolCallCompleted), "s", &annals::event::Personal::default()).await;
    stand.caught_up().await;
    assert_eq!(closer.pass().await.unwrap(), Pass::default());
    assert_eq!(end_kinds(&stand, &call).await, [Kind::ToolCallCompleted]);
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_closed_before_what_stood_on_the_log_is_applied() {
    let stand = Stand::start().await;
    let run = working(&stand).await;
    let (call, _) = stand.call("s", None).await;
    let (open, _) = stand.call("s", None).await;
    stand.caught_up().await;
    run.stop().await;
    // Its end is on the log, and the rows do not know yet.
    stand.record(&terminal(&call, Kind::ToolCallCompleted), "s", &annals::event::Personal::default()).await;
    let mut closer = closer(&stand);
    assert_eq!(closer.pass().await.unwrap(), Pass { closed: 0, more: true });
    assert_eq!(end_kinds(&stand, &call).await, [Kind::ToolCallCompleted]);
    let run = working(&stand).await;
    stand.caught_up().await;
    assert_eq!(closer.pass().await.unwrap(), Pass { closed: 1, more: false });
    assert_eq!(end_kinds(&stand, &call).await, [Kind::ToolCallCompleted]);
    assert_eq!(end_kinds(&stand, &open).await, [Kind::ToolCallInterrupted]);
    stand.caught_up().await;
    holds(&stand).await;
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_is_closed_while_its_process_lives() {
    let stand = Stand::start().await;
    let run = working(&stand).await;
    let (call, receipt) = stand.call("s", None).await;
    let (living, _) = stand.call("s", None).await;
    stand.caught_up().await;
    run.stop().await;
    let unrecorded = Arc::new(Unrecorded::default());
    let target = crate::projection::stand::target_of(Kind::ToolCallRequested, "s");
    // Up to the record behind: an end that was on its way would stand there.
    let through_seq = Some(receipt.seq + 2);
    assert!(unrecorded.add(UnrecordedCall { call_id: call.call_id, target, through_seq }));
    let mut closer = closer_of(&stand, &stand.lanes, &unrecorded);
    assert_eq!(closer.pass().await.unwrap().closed, 0);
    let (_, _) = stand.call("s", None).await;
    assert_eq!(closer.pass().await.unwrap().closed, 0, "on the log, but not applied");
    let run = working(&stand).await;
    stand.caught_up().await;
    assert_eq!(closer.pass().await.unwrap(), Pass { closed: 1, more: true });
    assert_eq!(end_kinds(&stand, &call).await, [Kind::ToolCallInterrupted]);
    assert_eq!(end_kinds(&stand, &living).await, []);
    stand.caught_up().await;
    assert_eq!((closer.pass().await.unwrap(), unrecorded.all()), (Pass::default(), vec![]));
    assert_eq!(end_kinds(&stand, &call).await, [Kind::ToolCallInterrupted]);
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_was_written_after_all_is_the_only_end() {
    let stand = Stand::start().await;
    let run = working(&stand).await;
    let log = Arc::new(FaultyLog::new(Arc::clone(&stand.log) as Arc<dyn Log>));
    let lanes = Arc::new(Lanes::new(
        Arc::clone(&log) as Arc<dyn Log>,
        Arc::new(annals::base::SystemClock),
        "default",
    ));
    let outcomes = Outcomes::default();
    let toolbox = Arc::new(Toolbox::default().with(crate::dispatch::puppet()));
    let tasks = Tasks::new();
    let dispatch = Dispatch::with_outcomes(
        Arc::clone(&lanes),
        toolbox,
        Limits::default(),
        tasks.clone(),
        outcomes.clone(),
    );
    log.set(Fault::LoseAck(Kind::ToolCallCompleted));
    let request = crate::dispatch::request_at(
        annals::base::Clock::now(&annals::base::SystemClock),
        r#"{"do":"answer"}"#,
    );
    let call_id = request.call_id;
    let answer = dispatch.call(request).await;
    assert!(matches!(answer, Answer::OutcomeUnrecorded(_)), "{answer:?}");
    let waiting: Vec<Uuid> = outcomes.unrecorded.all().iter().map(|call| call.call_id).collect();
    assert_eq!(waiting, [call_id], "it waits to be settled");
    let mut closer = closer_of(&stand, &lanes, &outcomes.unrecorded);
    stand.caught_up().await;
    assert_eq!(closer.pass().await.unwrap(), Pass::default());
    assert_eq!(outcomes.unrecorded.all(), []);
    let kinds: Vec<Kind> = reading::events(&*stand.log).await.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Kind::ToolCallRequested, Kind::ToolCallCompleted]);
    assert_eq!((stand.count(OPEN).await, stand.count(LOGGED).await), (0, 1));
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_erased_does_not_come_back_in_a_closure() {
    let stand = Stand::start().await;
    let run = working(&stand).await;
    let (call, _) = stand.call("s", None).await;
    stand.caught_up().await;
    sqlx::query("UPDATE audit_v1.audit_personal SET personal_token = NULL, user_name = NULL")
        .execute(&stand.superuser().await)
        .await
        .unwrap();
    assert_eq!(closer(&stand).pass().await.unwrap().closed, 1);
    let ends = ends(&stand, &call).await;
    let personal = serde_json::to_string(&ends[0].0.personal).unwrap();
    assert_eq!((ends.len(), personal.as_str()), (1, "{}"));
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closure_behind_the_end_is_a_note_and_not_how_the_call_ended() {
    let stand = Stand::start().await;
    let run = working(&stand).await;
    let (_, end) = stand.call("s", Some(Kind::ToolCallCompleted)).await;
    let target = crate::projection::stand::target_of(Kind::ToolCallRequested, "s");
    let mut reader = stand.log.reader(&[(target, None)]).unwrap();
    let intent = reader.next(1).await.unwrap().remove(0);
    assert!(intent.position < Position(end.position.0));
    stand.lanes.record(closure(target, &intent.frame.body).unwrap()).await.unwrap();
    stand.caught_up().await;
    assert_eq!((stand.count(CLOSED).await, stand.count(LOGGED).await), (0, 1));
    let report = verify(&stand).await;
    assert!(report.is_clean(), "{report}");
    let note = "1 closures stand behind the end of their call: the end before counts";
    assert!(report.notes.contains(&note.to_owned()), "{report}");
    run.stop().await;
    stand.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closures_wait_for_a_store_that_is_away() {
    let mut stand = Stand::start().await;
    let run = working(&stand).await;
    let (call, _) = stand.call("s", None).await;
    stand.caught_up().await;
    let mut closer = closer(&stand);
    stand.server.postgres.clone().stop().await.unwrap();
    let error = closer.pass().await.unwrap_err();
    assert!(matches!(error, CloserError::Database(_)), "{error}");
    assert_eq!(end_kinds(&stand, &call).await, []);
    let again = Postgres::start(options(stand.server.data_dir.path())).await.unwrap();
    stand.server.postgres = again;
    stand.caught_up().await;
    assert_eq!(closer.pass().await.unwrap().closed, 1);
    assert_eq!(end_kinds(&stand, &call).await, [Kind::ToolCallInterrupted]);
    run.stop().await;
    stand.stop().await;
}
