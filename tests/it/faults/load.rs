//! Clients that call without a pause, and what each call was told.

use std::sync::Arc;
use std::time::Duration;

use annals::base::Tasks;
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::harness::{Caller, PATIENCE, Server, call_id};

const CLIENTS: usize = 16;
/// How long a client that was refused waits before its next call: less than it was asked to.
const PAUSE: Duration = Duration::from_millis(20);
/// What a call is told that nothing was run for.
const REFUSALS: [&str; 4] = ["log_unavailable", "log_full", "log_busy", "shutting_down"];

/// What a call was told.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) id: Uuid,
    pub(super) tool: &'static str,
    pub(super) status: u16,
    /// Of the error, if it was one of the protocol.
    pub(super) code: Option<String>,
    pub(super) retry_after_s: Option<u64>,
    /// The tool itself failed.
    pub(super) is_error: bool,
}

impl Told {
    pub(super) fn is_refused(&self) -> bool {
        self.code.as_deref().is_some_and(|code| REFUSALS.contains(&code))
    }

    pub(super) fn is_unrecorded(&self) -> bool {
        self.code.as_deref() == Some("outcome_unrecorded")
    }

    /// An end that its record must show.
    pub(super) fn is_ended(&self) -> bool {
        !self.is_refused() && !self.is_unrecorded()
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    ended: usize,
    refused: usize,
    /// Calls without an answer.
    lost: usize,
}

/// See the module.
pub(super) struct Load {
    tasks: Tasks,
    enough: CancellationToken,
    told: Arc<Mutex<Vec<Told>>>,
    count: watch::Sender<Count>,
}

impl Load {
    pub(super) fn start(server: &Server) -> Self {
        Self::after(server, Vec::new())
    }

    /// Goes on after calls that were told `before`.
    pub(super) fn after(server: &Server, before: Vec<Told>) -> Self {
        let load = Self {
            tasks: Tasks::new(),
            enough: CancellationToken::new(),
            told: Arc::new(Mutex::new(before)),
            count: watch::Sender::default(),
        };
        for number in 0..CLIENTS {
            let (told, count, enough) = (load.told.clone(), load.count.clone(), load.enough.clone());
            let caller = Caller::new(server);
            load.tasks.spawn("client", async move {
                for n in number.. {
                    if enough.is_cancelled() {
                        return;
                    }
                    let Ok(answer) = call(&caller, n).await else {
                        count.send_modify(|count| count.lost += 1);
                        return;
                    };
                    let (refused, ended) = (answer.is_refused(), answer.is_ended());
                    told.lock().await.push(answer);
                    count.send_modify(|count| {
                        count.refused += usize::from(refused);
                        count.ended += usize::from(ended);
                    });
                    if refused {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            });
        }
        load
    }

    pub(super) fn ended(&self) -> usize {
        self.count.borrow().ended
    }

    /// Waits until this many more calls have ended.
    pub(super) async fn more_ended(&self, more: usize) {
        let wanted = self.count.borrow().ended + more;
        self.until("ended", |count| count.ended >= wanted).await;
    }

    /// Waits until this many more calls were refused.
    pub(super) async fn more_refused(&self, more: usize) {
        let wanted = self.count.borrow().refused + more;
        self.until("refused", |count| count.refused >= wanted).await;
    }

    async fn until(&self, what: &str, reached: impl Fn(&Count) -> bool) {
        let mut seen = self.count.subscribe();
        let wait = tokio::time::timeout(PATIENCE, seen.wait_for(|count| reached(count))).await;
        assert!(wait.is_ok(), "not enough calls were {what}: {:?}", *self.count.borrow());
    }

    /// Lets the calls under way end. Gives what each was told; all were told something.
    pub(super) async fn stop(self) -> Vec<Told> {
        let (told, lost) = self.abandon().await;
        assert_eq!(lost, 0, "calls without an answer");
        told
    }

    /// The same, for a server that may be gone. Also gives how many were told nothing.
    pub(super) async fn abandon(self) -> (Vec<Told>, usize) {
        self.enough.cancel();
        self.tasks.join().await;
        let lost = self.count.borrow().lost;
        (std::mem::take(&mut *self.told.lock().await), lost)
    }
}

async fn call(caller: &Caller, n: usize) -> reqwest::Result<Told> {
    let (tool, arguments) = match n % 3 {
        0 => ("platform_info", json!({ "purpose": format!("call {n}") })),
        1 => ("sql_query", json!({ "sql": "SELECT count(*) FROM customers", "purpose": "fault test" })),
        _ => ("no_such_tool", json!({})),
    };
    let answer = caller.answer(tool, arguments).await?;
    let status = answer.status().as_u16();
    let retry_after_s =
        answer.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
    let body: Value = answer.json().await?;
    let id = call_id(&body).unwrap_or_else(|| panic!("status {status}: {body}")).parse().unwrap();
    let code = body["error"]["data"]["code"].as_str().map(ToOwned::to_owned);
    let is_error = body["result"]["isError"] == true;
    Ok(Told { id, tool, status, code, retry_after_s, is_error })
}
