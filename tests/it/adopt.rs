//! A store and a log that do not belong together: found, said with what to do, and ended by `annals log adopt`.

use std::path::Path;

use annals::base::sha256;
use annals::db::Role;
use annals::log::embedded::durable_end;
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection};
use uuid::Uuid;

use crate::backup::{attached, caught_up, control, make_key, revoke_key, stop};
use crate::harness::{Caller, Home, Server};

async fn calls(caller: &Caller, count: usize) {
    for _ in 0..count {
        assert_eq!(caller.call("platform_info", json!({})).await.unwrap().0, 200);
    }
}

fn log_id(home: &Home) -> Uuid {
    durable_end(&home.data_dir().join("log")).unwrap().0.0
}

/// Asks until the server says that its store diverged.
async fn diverged(server: &Server) {
    let caller = Caller::new(server);
    let body =
        caller.get_until("/readyz", |body| (body["store"] == "log_diverged").then(|| body.clone())).await;
    let remedy = body["remedy"].as_str().unwrap();
    assert!(remedy.contains("`annals log adopt`") && remedy.contains("put back the log"), "{remedy}");
    assert!(server.log_text().contains("`annals log adopt`"));
    // Calls go on all the same.
    calls(&caller, 1).await;
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Adopts, serves again, and requires that everything holds and the rows of `old` are history.
async fn adopted(home: &Home, old: Uuid, [kept, gone]: &[String; 2]) {
    let planned = home.annals(&["log", "adopt"]);
    assert_eq!(planned.code, Some(2), "{}", planned.stdout);
    assert!(planned.stdout.contains(&format!("the rows of log {old} stay as history")), "{}", planned.stdout);
    assert!(planned.stderr.contains("nothing was changed"), "{}", planned.stderr);
    let before = home.annals(&["verify"]);
    assert_eq!(before.code, Some(1), "{}", before.stdout);
    let done = home.annals(&["log", "adopt", "--yes"]);
    assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
    assert!(done.stdout.contains(&format!("adopted    log {}", log_id(home))), "{}", done.stdout);
    let again = home.annals(&["log", "adopt", "--yes"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(again.stdout.contains("nothing to adopt"), "{}", again.stdout);

    let server = home.serve(&[]);
    control(home).await;
    let caller = Caller::new(&server);
    caller.get_until("/readyz", |body| (body["store"] == "ok").then_some(())).await;
    for (key, status) in [(kept, 200), (gone, 401)] {
        let answered = Caller::with_key(&server, key).call("platform_info", json!({})).await.unwrap();
        assert_eq!(answered.0, status, "{}", answered.1);
    }
    let report = caught_up(home).await;
    let note = format!("rows of log {old}, which is not here: not compared");
    assert!(report["notes"].to_string().contains(&note), "{report}");
    let path = "/api/v1/admin/audit/events?event_kind=admin.log_adopted";
    let event = |body: &Value| body["data"].as_array().unwrap().first().cloned();
    assert_eq!(caller.get_until(path, event).await["user_id"], "local-operator");
    stop(home, server);
    assert_eq!(home.annals(&["verify"]).code, Some(0));
}

/// Serves, makes a key and calls, and lets the rows catch up. Gives a key in force and one that was revoked.
async fn lived(home: &Home) -> [String; 2] {
    let server = home.serve(&[]);
    let changes = control(home).await;
    let made = make_key(&changes, "ann").await;
    let gone = make_key(&changes, "ben").await;
    revoke_key(&changes, gone.key_id).await;
    calls(&Caller::new(&server), 3).await;
    caught_up(home).await;
    stop(home, server);
    [made.key, gone.key]
}

#[tokio::test(flavor = "multi_thread")]
async fn another_log_is_found_and_adopted_with_the_old_rows_as_history() {
    let home = Home::new();
    let keys = lived(&home).await;
    let old = log_id(&home);
    std::fs::rename(home.data_dir().join("log"), home.path().join("lost")).unwrap();
    let server = home.serve_front(&[], &[]).await;
    diverged(&server).await;
    let running = home.annals(&["log", "adopt", "--yes"]);
    assert_eq!(running.code, Some(2));
    assert!(
        running.stderr.contains("a server runs on") && running.stderr.contains("stop it first"),
        "{}",
        running.stderr
    );
    stop(&home, server);
    let found = log_id(&home);
    assert_ne!(found, old);
    adopted(&home, old, &keys).await;
    assert_eq!(log_id(&home), found, "the log that was here is the one that was adopted");

    // What the event does not vouch for is found as ever.
    let server = home.serve(&[]);
    caught_up(&home).await;
    let mut owner = attached(&home).await.connect_options(Role::Owner).connect().await.unwrap();
    let forgeries = [
        (
            "INSERT INTO audit_v1.audit_events SELECT (jsonb_populate_record(e, jsonb_build_object('log_id',
                 '00000000-0000-0000-0000-000000000007'))).* FROM audit_v1.audit_events e ORDER BY position LIMIT 1",
            "DELETE FROM audit_v1.audit_events WHERE log_id = '00000000-0000-0000-0000-000000000007'",
            "a row of audit_events names log 00000000-0000-0000-0000-000000000007",
        ),
        (
            "UPDATE annals.api_keys SET roles = '{admin}' WHERE user_name = 'ann'",
            "UPDATE annals.api_keys SET roles = '{analyst}' WHERE user_name = 'ann'",
            "api_keys has another key",
        ),
        (
            "UPDATE annals.api_keys SET no_limit = false WHERE user_name = 'ann'",
            "UPDATE annals.api_keys SET no_limit = true WHERE user_name = 'ann'",
            "api_keys has another key",
        ),
        (
            "UPDATE annals.api_keys SET revoked_at = NULL WHERE user_name = 'ben'",
            "UPDATE annals.api_keys SET revoked_at = now() WHERE user_name = 'ben'",
            "was revoked here, and api_keys has it in force",
        ),
    ];
    for (forge, repair, says) in forgeries {
        sqlx::raw_sql(forge).execute(&mut owner).await.unwrap();
        let verified = home.annals(&["verify"]);
        assert_eq!(verified.code, Some(1), "{forge}: {}", verified.stdout);
        assert!(verified.stdout.contains(says), "{forge}: {}", verified.stdout);
        sqlx::raw_sql(repair).execute(&mut owner).await.unwrap();
    }
    let insert = "INSERT INTO annals.api_keys (key_id, subject_id, user_name, key_sha256, roles, created_at)
         VALUES (gen_random_uuid(), 's', 'eve', $1, '{admin}', '2020-01-01')";
    sqlx::query(insert).bind(sha256(b"eve").as_slice()).execute(&mut owner).await.unwrap();
    let verified = home.annals(&["verify"]);
    assert_eq!(verified.code, Some(1), "{}", verified.stdout);
    assert!(verified.stdout.contains("which no event made"), "{}", verified.stdout);
    owner.close().await.unwrap();
    stop(&home, server);
}

#[test]
fn where_no_store_is_none_is_made_by_looking() {
    let home = Home::new();
    std::fs::create_dir(home.data_dir()).unwrap();
    for command in [&["log", "adopt"][..], &["log", "adopt", "--yes"], &["verify"], &["key", "list"]] {
        let refused = home.annals(command);
        assert_eq!(refused.code, Some(3), "{command:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("there is no store in"), "{command:?}: {}", refused.stderr);
        assert!(!home.data_dir().join("pg").exists(), "{command:?}");
        assert!(!home.data_dir().join("log").exists(), "{command:?}");
    }
}

#[test]
fn root_takes_no_data_directory_away_from_its_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let home = Home::new();
    let keys = home.data_dir().join("keys");
    std::fs::create_dir_all(&keys).unwrap();
    std::os::unix::fs::chown(&keys, Some(65_534), None).unwrap();
    let free = ["serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
    let (backup, create) =
        (["backup", "--to", "/nonexistent"], ["key", "create", "--name", "x", "--role", "admin"]);
    for command in [&free[..], &backup, &create, &["key", "list"], &["verify"], &["log", "adopt"]] {
        let refused = home.annals(command);
        assert_eq!(refused.code, Some(3), "{command:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("of user id 65534"), "{command:?}: {}", refused.stderr);
    }
    for made in ["log", "pg"] {
        assert!(!home.data_dir().join(made).exists(), "{made}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_is_found_set_aside_and_never_gone_on_with() {
    let home = Home::new();
    let keys = lived(&home).await;
    let (log, saved) = (home.data_dir().join("log"), home.path().join("saved"));
    let old = log_id(&home);
    copy_dir(&log, &saved);
    let server = home.serve(&[]);
    control(&home).await;
    calls(&Caller::new(&server), 3).await;
    caught_up(&home).await;
    stop(&home, server);
    std::fs::remove_dir_all(&log).unwrap();
    copy_dir(&saved, &log);
    let server = home.serve_front(&[], &[]).await;
    diverged(&server).await;
    // What could not be restored is no backup.
    let place = home.path().join("backup");
    let refused = home.annals(&["backup", "--to", place.to_str().unwrap()]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("store and log do not belong together"), "{}", refused.stderr);
    assert!(!place.exists());
    stop(&home, server);
    let here = home.annals(&["log", "adopt"]);
    assert!(here.stdout.contains("is an older copy of log"), "{}", here.stdout);
    adopted(&home, old, &keys).await;
    assert_ne!(log_id(&home), old);
    let aside: Vec<String> = std::fs::read_dir(home.data_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(&format!("log-{old}-")))
        .collect();
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!(durable_end(&home.data_dir().join(&aside[0])).unwrap().0.0, old);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_comes_back_is_followed_again_when_it_is_whole() {
    let home = Home::new();
    let [key, _] = lived(&home).await;
    let (log, saved) = (home.data_dir().join("log"), home.path().join("saved"));
    let (whole, other) = (home.path().join("whole"), home.path().join("other"));
    let old = log_id(&home);
    copy_dir(&log, &saved);
    let server = home.serve(&[]);
    control(&home).await;
    calls(&Caller::new(&server), 3).await;
    caught_up(&home).await;
    stop(&home, server);
    std::fs::rename(&log, &whole).unwrap();
    // Without any log, too.
    let done = home.annals(&["log", "adopt", "--yes"]);
    assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
    let server = home.serve(&[]);
    control(&home).await;
    caught_up(&home).await;
    stop(&home, server);
    let between = log_id(&home);
    std::fs::rename(&log, &other).unwrap();

    copy_dir(&saved, &log);
    let planned = home.annals(&["log", "adopt"]);
    assert_eq!(planned.code, Some(2), "{}", planned.stdout);
    assert!(planned.stdout.contains(&format!("is an older copy of log {old}")), "{}", planned.stdout);
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::rename(&whole, &log).unwrap();
    let done = home.annals(&["log", "adopt", "--yes"]);
    assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
    assert!(done.stdout.contains(&format!("adopted    log {old}")), "{}", done.stdout);
    let server = home.serve(&[]);
    control(&home).await;
    assert_eq!(Caller::with_key(&server, &key).call("platform_info", json!({})).await.unwrap().0, 200);
    let report = caught_up(&home).await;
    let note = format!("rows of log {between}, which is not here: not compared");
    assert!(report["notes"].to_string().contains(&note), "{report}");
    assert!(!report["notes"].to_string().contains(&old.to_string()), "{report}");
    stop(&home, server);
}
