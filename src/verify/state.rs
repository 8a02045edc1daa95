//! Compares what the projection remembers beside its rows with what follows from the log: lane heads, once, open calls.
//!
//! Each of these decides what becomes a row later, so a changed one is a fault before any row is.

use std::collections::{HashMap, HashSet};

use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::report::{Finding, FindingKind};
use super::rows::RowCheck;
use crate::base::Timestamp;
use crate::event::TopicPartition;
use crate::projection::audit::{Audit, OpenCall};

/// A fact of the state under its key, as text.
type Facts = HashMap<String, (Option<TopicPartition>, u64, String)>;

/// Compares all three, once everything that was applied is in `rows`.
pub(super) async fn compare(rows: &mut RowCheck, found: &mut Vec<Finding>) -> Result<(), sqlx::Error> {
    let expected = heads_expected(rows);
    let actual = heads_actual(rows).await?;
    differences("lane_heads", &expected, &actual, found);
    let expected = once_expected(rows);
    let actual = once_actual(rows).await?;
    differences("once", &expected, &actual, found);
    if rows.installed {
        let expected = open_expected(rows);
        let actual = open_actual(rows).await?;
        differences("open_calls", &expected, &actual, found);
    }
    Ok(())
}

fn differences(table: &str, expected: &Facts, actual: &Facts, found: &mut Vec<Finding>) {
    let mut finding = |(target, position, _): &(Option<TopicPartition>, u64, String), detail: String| {
        found.push(Finding {
            kind: FindingKind::State,
            topic: target.map(|target| target.topic.name().to_owned()),
            partition: target.map(|target| target.partition),
            position: *position,
            file: None,
            offset: None,
            detail,
        });
    };
    for (key, fact) in expected {
        match actual.get(key) {
            None => finding(fact, format!("{table} misses {key}")),
            Some(other) if other.2 != fact.2 => {
                finding(fact, format!("{table} has {} for {key}, the log gives {}", other.2, fact.2));
            }
            Some(_) => {}
        }
    }
    for (key, fact) in actual {
        if !expected.contains_key(key) {
            finding(fact, format!("{table} has {key}, which does not follow from the log"));
        }
    }
}

fn parse_target(topic: &str, partition: i32) -> Option<TopicPartition> {
    Some(TopicPartition { topic: topic.parse().ok()?, partition: u32::try_from(partition).ok()? })
}

fn applied(rows: &RowCheck, target: Option<TopicPartition>) -> u64 {
    target.and_then(|target| rows.checkpoints.get(&target)).map_or(0, |applied| applied.position.0)
}

fn heads_expected(rows: &RowCheck) -> Facts {
    let log = rows.log;
    rows.heads
        .iter()
        .map(|((target, incarnation), head)| {
            let key = format!("lane {target} of {incarnation} on log {log}");
            let fact = format!("event {} with link {}", head.seq, hex::encode(head.link));
            (key, (Some(*target), applied(rows, Some(*target)), fact))
        })
        .collect()
}

async fn heads_actual(rows: &mut RowCheck) -> Result<Facts, sqlx::Error> {
    let found = sqlx::query(
        "SELECT log_id, topic, partition, incarnation, seq, link FROM annals.lane_heads
         WHERE projection = $1 AND version = $2",
    )
    .bind(Audit::NAME)
    .bind(Audit::VERSION)
    .fetch_all(rows.connection())
    .await?;
    let (mut facts, mut older) = (Facts::new(), 0);
    let known: HashSet<Uuid> = rows.heads.keys().map(|(_, incarnation)| *incarnation).collect();
    let before: HashMap<_, _> =
        rows.start.heads.iter().map(|head| ((head.target, head.incarnation), head)).collect();
    let known_before: HashSet<Uuid> = rows.start.heads.iter().map(|head| head.incarnation).collect();
    for row in found {
        let topic: String = row.try_get("topic")?;
        let partition: i32 = row.try_get("partition")?;
        let (log, incarnation): (Uuid, Uuid) = (row.try_get("log_id")?, row.try_get("incarnation")?);
        if rows.history.contains(&log) {
            continue;
        }
        let (seq, link): (i64, Vec<u8>) = (row.try_get("seq")?, row.try_get("link")?);
        let target = parse_target(&topic, partition);
        let lane = target.map(|target| (target, incarnation));
        if rows.start.first.0 > 0
            && log == rows.log.0
            && lane.is_some_and(|lane| !rows.heads.contains_key(&lane))
        {
            let head = lane.and_then(|lane| before.get(&lane));
            let is_head = head.is_some_and(|head| i64::try_from(head.seq) == Ok(seq) && head.link == *link);
            // A lane that ended before the log's start is not known any more.
            let is_older = !known.contains(&incarnation) && !known_before.contains(&incarnation);
            if is_head || is_older {
                older += u64::from(is_older);
                continue;
            }
        }
        let key = format!("lane {topic}/{partition} of {incarnation} on log {log}");
        let fact = format!("event {seq} with link {}", hex::encode(link));
        facts.insert(key, (target, applied(rows, target), fact));
    }
    rows.older_state += older;
    Ok(facts)
}

fn once_expected(rows: &RowCheck) -> Facts {
    rows.once
        .iter()
        .map(|((source, id), content)| (format!("event {id} of {source}"), (None, 0, hex::encode(content))))
        .collect()
}

async fn once_actual(rows: &mut RowCheck) -> Result<Facts, sqlx::Error> {
    let found = sqlx::query(
        "SELECT source, event_id, content FROM annals.once WHERE projection = $1 AND version = $2",
    )
    .bind(Audit::NAME)
    .bind(Audit::VERSION)
    .fetch_all(rows.connection())
    .await?;
    let mut facts = Facts::new();
    for row in &found {
        let (source, id): (String, Uuid) = (row.try_get("source")?, row.try_get("event_id")?);
        let content: Vec<u8> = row.try_get("content")?;
        // The id says when the event was made.
        let made = id.get_timestamp().map(|made| made.to_unix()).and_then(|(seconds, nanos)| {
            let micros = i64::try_from(seconds).ok()?.checked_mul(1_000_000)?;
            Some(Timestamp::from_micros(micros.checked_add(i64::from(nanos / 1_000))?))
        });
        let entry = (source, id);
        // The id of a closure does not say when. A row that goes missing because of a forged entry is found as missing.
        let is_older = match made {
            Some(made) => rows.is_before_start(made),
            None => id.get_version_num() == 5 && rows.start.first.0 > 0,
        };
        if is_older && !rows.once.contains_key(&entry) {
            rows.older_state += 1;
            continue;
        }
        let (source, id) = entry;
        facts.insert(format!("event {id} of {source}"), (None, 0, hex::encode(content)));
    }
    Ok(facts)
}

fn open_fact(call: &OpenCall) -> String {
    format!(
        "the intent at {} by {} for {} recorded {} with deadline {}",
        call.position, call.incarnation, call.tenant, call.recorded_at, call.deadline
    )
}

fn open_entry(log: Uuid, call: &OpenCall) -> (String, (Option<TopicPartition>, u64, String)) {
    let key = format!("call {} of {}/{} on log {log}", call.call_id, call.topic, call.partition);
    let target = parse_target(&call.topic, call.partition);
    (key, (target, u64::try_from(call.position).unwrap_or(0), open_fact(call)))
}

fn open_expected(rows: &RowCheck) -> Facts {
    rows.open.iter().map(|call| open_entry(rows.log.0, call)).collect()
}

async fn open_actual(rows: &mut RowCheck) -> Result<Facts, sqlx::Error> {
    let sql = format!(
        "SELECT log_id, topic, partition, call_id, position, incarnation, tenant, recorded_at, deadline
         FROM {}.open_calls",
        Audit::SCHEMA
    );
    let found = sqlx::query(AssertSqlSafe(sql)).fetch_all(rows.connection()).await?;
    let (mut facts, mut older) = (Facts::new(), 0);
    for row in &found {
        let call = OpenCall {
            topic: row.try_get("topic")?,
            partition: row.try_get("partition")?,
            call_id: row.try_get("call_id")?,
            position: row.try_get("position")?,
            incarnation: row.try_get("incarnation")?,
            tenant: row.try_get("tenant")?,
            recorded_at: row.try_get("recorded_at")?,
            deadline: row.try_get("deadline")?,
        };
        let log: Uuid = row.try_get("log_id")?;
        if rows.history.contains(&log) {
            continue;
        }
        if log == rows.log.0 && u64::try_from(call.position).is_ok_and(|at| at < rows.start.first.0) {
            older += 1;
            continue;
        }
        facts.extend([open_entry(log, &call)]);
    }
    rows.older_state += older;
    Ok(facts)
}
