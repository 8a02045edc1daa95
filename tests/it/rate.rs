//! The limits of an API key on its calls, over the wire and with the whole server.

use annals::dispatch::Limits;
use annals::event::{ArgumentsLevel, Facts, Kind};
use serde_json::{Value, json};

use crate::harness::{Caller, Home, Server};
use crate::mcp::harness::{ANN, ANN_TOO, Ask, BOB, Got, Harness, Setup, legacy_call, modern_call};

/// The error that the tool result holds, and the header that goes with it.
fn refused(got: &Got) -> (Value, String) {
    let result = got.result();
    assert_eq!(result["isError"], true, "{got:?}");
    (result["_meta"]["io.annals/error"].clone(), got.header("retry-after").to_owned())
}

async fn start(dispatch: Limits) -> Harness {
    Harness::start_with(Setup { dispatch, ..Setup::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_over_the_rate_is_refused_before_its_intent_and_told_when_to_come_again() {
    let server = start(Limits { calls_per_minute: 2, calls_burst: 2, ..Limits::default() }).await;
    let session = server.session(ANN).await;
    let arguments = r#"{"secret":"of a caller who hammers"}"#;
    let echo = |key: &str| modern_call("sql_echo", "{}").key(key);
    for _ in 0..2 {
        assert_eq!(server.send(&echo(ANN)).await.result()["isError"], false);
    }
    let over = [
        modern_call("sql_echo", arguments),
        legacy_call(&session, "7", "sql_echo", arguments),
        // What else is wrong with it is not looked at.
        modern_call("no_such_tool", arguments),
    ];
    for ask in &over {
        let (error, retry_after) = refused(&server.send(ask).await);
        let seconds: u64 = retry_after.parse().unwrap();
        assert!((1..=30).contains(&seconds), "{seconds}");
        assert_eq!(
            (&error["code"], &error["category"], &error["retry_after_s"]),
            (&json!("rate_limited"), &json!("rate_limit"), &json!(seconds))
        );
    }
    for other in [ANN_TOO, BOB] {
        assert_eq!(server.send(&echo(other)).await.result()["isError"], false, "a key of its own");
    }
    let mut intents = 0;
    let mut denied = Vec::new();
    for event in server.events().await {
        match event.facts {
            Facts::Requested(_) => intents += 1,
            Facts::Terminal(Kind::ToolCallDenied, terminal) => {
                assert!(event.personal.unwrap().arguments.is_none(), "digest and size are enough");
                assert_eq!(terminal.call.arguments_level, ArgumentsLevel::Metadata);
                assert_eq!(terminal.call.arguments_bytes, arguments.len() as u64);
                denied.push(terminal.outcome.error.unwrap().code);
            }
            _ => {}
        }
    }
    assert_eq!((intents, denied), (4, vec!["rate_limited".to_owned(); 3]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_calls_all_run_is_refused_and_others_are_not() {
    let server = start(Limits { calls_in_flight_per_key_max: 1, ..Limits::default() }).await;
    let slow: Ask = modern_call("test_slow", "{}");
    let running = server.send(&slow);
    let meanwhile = async {
        server.until_started(1).await;
        let (error, retry_after) = refused(&server.send(&modern_call("sql_echo", "{}")).await);
        assert_eq!((&error["code"], retry_after.as_str()), (&json!("too_many_calls"), "1"));
        assert_eq!(error["message"], "1 calls of this API key run already.");
        let bobs = server.send(&modern_call("sql_echo", "{}").key(BOB)).await;
        assert_eq!(bobs.result()["isError"], false);
        server.go_on.send_replace(true);
    };
    let (answer, ()) = tokio::join!(running, meanwhile);
    assert_eq!(answer.result()["isError"], false);
    assert_eq!(server.send(&modern_call("sql_echo", "{}")).await.result()["isError"], false);
}

/// How many of five calls are refused for their rate.
async fn limited_of_five(server: &Server, key: &str) -> usize {
    let caller = Caller::with_key(server, key);
    let mut limited = 0;
    for _ in 0..5 {
        let (status, answer) = caller.call("platform_info", json!({})).await.unwrap();
        let code = &answer["result"]["_meta"]["io.annals/error"]["code"];
        assert!(status == 200 && (code.is_null() || code == "rate_limited"), "{status} {answer}");
        limited += usize::from(!code.is_null());
    }
    limited
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_without_a_rate_limit_is_exempt_and_shown_as_such() {
    let home = Home::new();
    let config = home.path().join("annals.yaml");
    std::fs::write(&config, "limits: {calls_per_minute: 1, calls_burst: 2}\n").unwrap();
    let args = ["--config", config.to_str().unwrap()];
    let server = home.serve(&args);
    let agent = home.key("agent", "analyst", &[]);
    let batch = home.key("batch", "analyst", &["--no-limit"]);
    assert_eq!(limited_of_five(&server, &agent).await, 3);
    assert_eq!(limited_of_five(&server, &batch).await, 0);
    assert_eq!(limited_of_five(&server, &server.admin_key).await, 0, "the key of the environment");
    let metrics = reqwest::get(&server.metrics_url).await.unwrap().text().await.unwrap();
    assert!(metrics.lines().any(|line| line == "annals_calls_rate_limited_total 3"), "{metrics}");

    let listed = home.annals(&["key", "list"]).stdout;
    let line = |name: &str| listed.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(line("batch").ends_with("active, no rate limit"), "{listed}");
    assert!(line("agent").ends_with("active"), "{listed}");
    assert!(server.terminate().success());
    let listed: Value = serde_json::from_str(&home.annals(&["key", "list", "--json"]).stdout).unwrap();
    let no_limit = |name: &str| {
        let keys = listed.as_array().unwrap();
        keys.iter().find(|key| key["name"] == name).unwrap()["no_limit"].clone()
    };
    assert_eq!((no_limit("batch"), no_limit("agent")), (json!(true), json!(false)));
    // Now the keys come from the store instead of the log.
    let server = home.serve(&args);
    assert_eq!(limited_of_five(&server, &batch).await, 0);
    assert_eq!(limited_of_five(&server, &agent).await, 3);
    assert!(server.terminate().success());
    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}
