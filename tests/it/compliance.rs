//! The audit over MCP: what an auditor finds, that finding it is in the audit, and who may not.

use std::collections::BTreeSet;

use annals::event::{Decoded, Facts, Kind};
use serde_json::{Value, json};

use crate::harness::{Caller, Home, Server, call_id};
use crate::reading;

const EVENTS: &str = "/api/v1/admin/audit/events";

fn with_role(home: &Home, server: &Server, role: &str) -> Caller {
    Caller::with_key(server, &home.key(role, role, &[]))
}

/// The structured result of a call that must succeed, and the call's id.
async fn ask(caller: &Caller, tool: &str, arguments: Value) -> (Value, String) {
    let (status, answer) = caller.call(tool, arguments).await.unwrap();
    assert_eq!((status, &answer["result"]["isError"]), (200, &json!(false)), "{answer}");
    (answer["result"]["structuredContent"].clone(), call_id(&answer).unwrap().to_owned())
}

/// The error of a call that must fail.
async fn refused(caller: &Caller, tool: &str, arguments: Value) -> Value {
    let (status, answer) = caller.call(tool, arguments).await.unwrap();
    assert_eq!((status, &answer["result"]["isError"]), (200, &json!(true)), "{answer}");
    serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap()
}

async fn until_total(caller: &Caller, query: &str, total: u64) {
    let path = format!("{EVENTS}/count?{query}");
    caller.get_until(&path, |count| (count["total"] == total).then_some(())).await;
}

/// What the log says of one principal's events, by their kinds.
fn of_user(server: &Server, user: &str) -> Vec<Decoded> {
    let events = reading::events_in(&server.data_dir.join("log"));
    let named = |event: &Decoded| {
        event.personal.as_ref().is_some_and(|personal| personal.user_name.as_deref() == Some(user))
    };
    events.into_iter().filter(named).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_auditor_investigates_and_its_readings_are_in_the_audit() {
    let home = Home::new();
    let server = home.serve(&[]);
    let (admin, auditor) = (Caller::new(&server), with_role(&home, &server, "auditor"));
    let analyst = with_role(&home, &server, "analyst");
    ask(&analyst, "platform_info", json!({ "purpose": "a look around" })).await;
    for _ in 0..2 {
        let error = refused(&analyst, "audit_search", json!({})).await;
        assert_eq!(error["code"], "tool_not_allowed", "{error}");
    }
    until_total(&admin, "user_id=analyst", 3).await;

    let (found, search) =
        ask(&auditor, "audit_search", json!({ "user": "analyst", "start_time": "-24h", "end_time": "now" }))
            .await;
    assert_eq!(
        (&found["total"], &found["total_text"], &found["total_capped"]),
        (&json!(3), &json!("3"), &json!(false))
    );
    assert_eq!(found["next_cursor"], Value::Null);
    let lines: Vec<_> = found["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            ["event", "tool", "persona", "success", "category", "reason"].map(|member| line[member].clone())
        })
        .collect();
    let denied = json!(["tool_call.denied", "audit_search", "analyst", false, "authz", "tool_not_allowed"]);
    let done = json!(["tool_call.completed", "platform_info", "analyst", true, null, null]);
    assert_eq!(json!(lines), json!([denied, denied, done]), "newest first");

    let first = &found["events"][2];
    let (event, one) = ask(&auditor, "audit_event", json!({ "id": first["call_id"] })).await;
    assert_eq!((&event["event_id"], &event["purpose"]), (&first["event_id"], &json!("a look around")));
    let (_, over_rest) =
        admin.get(&format!("{EVENTS}/{}", first["event_id"].as_str().unwrap())).await.unwrap();
    assert_eq!(event, over_rest, "the same over both");

    let (by_reason, _) = ask(
        &auditor,
        "audit_search",
        json!({ "reason": "tool_not_allowed", "category": "authz", "limit": 1 }),
    )
    .await;
    assert_eq!((&by_reason["total"], by_reason["events"].as_array().unwrap().len()), (&json!(2), 1));
    let (none, _) = ask(&auditor, "audit_search", json!({ "user": "nobody" })).await;
    assert_eq!((&none["events"], &none["total"]), (&json!([]), &json!(0)));

    let (counts, _) =
        ask(&auditor, "audit_overview", json!({ "user": "analyst", "start_time": "-1h" })).await;
    let group = |shares: &[(&str, u64)]| {
        let listed: Vec<_> =
            shares.iter().map(|(name, count)| json!({ "name": name, "count": count })).collect();
        json!({ "shares": listed, "total": shares.len() })
    };
    assert_eq!(counts["total"], 3);
    assert_eq!(counts["by_tool"], group(&[("audit_search", 2), ("platform_info", 1)]));
    assert_eq!(counts["by_persona"], group(&[("analyst", 3)]));
    assert_eq!(counts["by_event"], group(&[("tool_call.denied", 2), ("tool_call.completed", 1)]));
    assert_eq!(counts["by_reason"], group(&[("tool_not_allowed", 2)]));
    let (none, _) = ask(&auditor, "audit_overview", json!({ "user": "nobody" })).await;
    assert_eq!((&none["total"], &none["by_tool"]), (&json!(0), &json!({ "shares": [], "total": 0 })));

    // Each of these readings is an event of its own beside its call, and durable before it.
    let events = of_user(&server, "auditor");
    let read = |event: &Decoded| match &event.facts {
        Facts::AuditQueried(read) => Some((read.view.clone(), read.authorized)),
        _ => None,
    };
    let mut views: Vec<_> = events.iter().filter_map(read).collect();
    views.sort();
    let of = |view: &str| (view.to_owned(), true);
    assert_eq!(
        views,
        [of("event"), of("events"), of("events"), of("events"), of("overview"), of("overview")]
    );
    for call in [search, one] {
        let (_, row) = auditor.get(&format!("{EVENTS}/{call}")).await.unwrap();
        let row = if row["event_kind"].is_string() {
            row
        } else {
            auditor.get_until(&format!("{EVENTS}/{call}"), |row| Some(row.clone())).await
        };
        assert_eq!((&row["event_kind"], &row["user_id"]), (&json!("tool_call.completed"), &json!("auditor")));
    }
    assert_eq!(home.annals(&["verify"]).code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_walks_every_event_exactly_once() {
    let home = Home::new();
    let server = home.serve(&[]);
    let admin = Caller::new(&server);
    let mut calls = BTreeSet::new();
    for _ in 0..11 {
        calls.insert(ask(&admin, "platform_info", json!({})).await.1);
    }
    until_total(&admin, "tool_name=platform_info", 11).await;
    let mut asked = json!({ "tool": "platform_info", "start_time": "-1h", "end_time": "now", "limit": 3 });
    let mut walked = Vec::new();
    loop {
        let (page, _) = ask(&admin, "audit_search", asked.clone()).await;
        assert_eq!(page["total"], 11, "of all pages");
        walked.extend(
            page["events"]
                .as_array()
                .unwrap()
                .iter()
                .map(|line| line["call_id"].as_str().unwrap().to_owned()),
        );
        if page["next_cursor"].is_null() {
            break;
        }
        for (argument, member) in
            [("cursor", "next_cursor"), ("start_time", "start_time"), ("end_time", "end_time")]
        {
            asked[argument] = page[member].clone();
        }
    }
    assert_eq!((walked.len(), walked.iter().cloned().collect::<BTreeSet<_>>()), (11, calls));
    let other =
        refused(&admin, "audit_search", json!({ "tool": "sql_query", "cursor": asked["cursor"] })).await;
    assert_eq!(other["code"], "bad_cursor", "{other}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_or_cannot_be_read_is_refused_with_its_event() {
    let home = Home::new();
    let config = home.path().join("annals.yaml");
    let persona = "personas:\n  curious:\n    roles: [curious]\n    tools: { allow: ['audit_*'] }\n    reads_audit: false\n";
    std::fs::write(&config, persona).unwrap();
    let server = home.serve(&["--config", config.to_str().unwrap()]);
    let made = home.annals(&[
        "key",
        "create",
        "--name",
        "curious",
        "--role",
        "curious",
        "--config",
        config.to_str().unwrap(),
    ]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let curious = Caller::with_key(&server, made.stdout.trim_end());
    let id = "0198c0de-0000-7000-8000-000000000000";
    for (tool, arguments) in
        [("audit_search", json!({})), ("audit_overview", json!({})), ("audit_event", json!({ "id": id }))]
    {
        let error = refused(&curious, tool, arguments).await;
        assert_eq!(
            (&error["code"], &error["category"]),
            (&json!("audit_not_allowed"), &json!("authz")),
            "{tool}"
        );
    }
    let events = of_user(&server, "curious");
    let refusals =
        events.iter().filter(|event| matches!(&event.facts, Facts::AuditQueried(read) if !read.authorized));
    assert_eq!(refusals.count(), 3);
    assert_eq!(events.iter().filter(|event| event.kind == Kind::ToolCallFailed).count(), 3);

    let admin = Caller::new(&server);
    let error = refused(&admin, "audit_event", json!({ "id": id })).await;
    assert_eq!(error["code"], "event_not_found", "{error}");
    for (arguments, code) in [
        (json!({ "start_time": "yesterday" }), "argument_invalid"),
        (json!({ "event": "tool_call.requested" }), "argument_invalid"),
        (json!({ "limit": 201 }), "argument_invalid"),
        (json!({ "user": 7 }), "argument_invalid"),
        (json!({ "start_time": "now", "end_time": "-1h" }), "argument_invalid"),
        (json!({ "users": "ann" }), "argument_unknown"),
    ] {
        let error = refused(&admin, "audit_search", arguments.clone()).await;
        assert_eq!(error["code"], code, "{arguments}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_is_said_and_never_an_empty_answer() {
    let home = Home::new();
    let nowhere = ["--database-url", "postgres://nobody@127.0.0.1:1/none"];
    let server = home.serve_front(&nowhere, &[]).await;
    let admin = Caller::new(&server);
    let id = "0198c0de-0000-7000-8000-000000000000";
    for (tool, arguments) in
        [("audit_search", json!({})), ("audit_overview", json!({})), ("audit_event", json!({ "id": id }))]
    {
        let error = refused(&admin, tool, arguments).await;
        assert_eq!(
            (&error["code"], &error["retry_after_s"]),
            (&json!("store_unavailable"), &json!(5)),
            "{tool}: {error}"
        );
    }
}
