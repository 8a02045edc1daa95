//! Writes that a power cut tore: what was never acknowledged is cut, and nothing else.

use super::*;
use crate::log::embedded::{OpenError, segment};

/// A log whose last records were written while its watermark still said `old`.
struct Torn {
    _dir: TempDir,
    options: Options,
    written: Vec<Stored>,
    watermark: Vec<u8>,
}

/// Five records, the watermark's bytes, then one write for each of `writes` with that many records.
async fn torn(writes: &[u64]) -> Torn {
    let dir = TempDir::new().unwrap();
    let options = Options { segment_bytes: 8 * 1024, ..options(&dir) };
    let gate = Arc::new(Gate::default());
    let log = observed(&options, gate.observer());
    let mut written = Vec::new();
    for seq in 0..5 {
        written.push(append(&log, frame(0, seq, 50)).await);
    }
    let watermark = std::fs::read(options.dir.join("watermark")).unwrap();
    let mut seq = 5;
    for &records in writes {
        // A plug keeps the writer busy until all records of the next write wait.
        gate.shut();
        let plug = frame(1, seq, 20);
        let plugged = send(&log, plug.clone()).await;
        gate.arrived();
        let mut acks = Vec::new();
        for _ in 0..records {
            let frame = frame(0, seq, 50);
            acks.push((send(&log, frame.clone()).await, frame));
            seq += 1;
        }
        gate.open();
        written.push(Stored { position: plugged.await.unwrap(), frame: plug });
        for (ack, frame) in acks {
            written.push(Stored { position: ack.await.unwrap(), frame });
        }
    }
    drop(log);
    Torn { _dir: dir, options, written, watermark }
}

impl Torn {
    /// A copy in which the power cut lost the newer watermark.
    fn copy(&self) -> (TempDir, Options, PathBuf) {
        let (dir, options) = copy(&self.options);
        std::fs::write(options.dir.join("watermark"), &self.watermark).unwrap();
        let (_, path) = segments(&options).pop().unwrap();
        (dir, options, path)
    }

    fn base(&self) -> u64 {
        segments(&self.options).last().unwrap().0
    }

    /// The place of a record in the newest segment's file.
    fn range(&self, index: usize) -> std::ops::Range<usize> {
        let stored = &self.written[index];
        let start = usize::try_from(stored.position.0 - self.base()).unwrap();
        start..start + 116 + stored.frame.body.len()
    }
}

#[tokio::test]
async fn the_last_record_torn_at_any_byte_is_cut() {
    let torn = torn(&[1]).await;
    let last = torn.written.len() - 1;
    let range = torn.range(last);
    for kept in 0..range.len() {
        let (_dir, options, path) = torn.copy();
        edit(&path, |bytes| {
            bytes[range.start + kept..].fill(0);
            if kept % 2 == 0 {
                bytes.truncate(range.start + kept);
            }
        });
        let bytes = std::fs::read(&path).unwrap();
        let written = bytes[range.start..].iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
        assert_eq!(scan(&options), (torn.written[..last].to_vec(), None), "{kept} bytes, before opening");
        let (log, recovered) = open(&options);
        assert_eq!(recovered.torn_bytes, written as u64, "{kept} bytes");
        if kept % 8 == 0 {
            append(&log, torn.written[last].frame.clone()).await;
            log.close().await.unwrap();
            let (found, error) = scan(&options);
            assert_eq!((found.len(), error), (last + 1, None));
            assert_eq!(found[..last], torn.written[..last]);
        }
    }
}

#[tokio::test]
async fn a_write_whose_pages_came_back_in_any_order_is_cut_from_its_first_gap() {
    let torn = torn(&[4]).await;
    let first = torn.written.len() - 4;
    for lost in first..first + 4 {
        let (_dir, options, path) = torn.copy();
        edit(&path, |bytes| bytes[torn.range(lost)].fill(0));
        let end = torn.range(first + 3).end;
        let behind = if lost == first + 3 { 0 } else { end - torn.range(lost).start };
        assert_eq!(scan(&options), (torn.written[..lost].to_vec(), None));
        let (log, recovered) = open(&options);
        assert_eq!(recovered.torn_bytes, behind as u64, "record {lost} is lost");
        log.close().await.unwrap();
        assert_eq!(scan(&options), (torn.written[..lost].to_vec(), None));
    }
}

#[tokio::test]
async fn a_gap_before_a_later_write_is_damage_even_without_a_watermark() {
    let torn = torn(&[3, 2]).await;
    // The last of the first write: what was written later proves that it was durable.
    let lost = torn.written.len() - 2 - 1 - 1;
    for keep_watermark in [true, false] {
        let (_dir, options, path) = torn.copy();
        if !keep_watermark {
            std::fs::remove_file(options.dir.join("watermark")).unwrap();
        }
        edit(&path, |bytes| bytes[torn.range(lost)][20] ^= 1);
        let error = EmbeddedLog::open(options.clone(), Arc::new(SystemClock)).err().unwrap();
        let OpenError::Corrupt { offset, .. } = error else { panic!("{error}") };
        assert_eq!(offset, torn.range(lost).start as u64);
        if keep_watermark {
            let at = torn.written[lost].position.0;
            assert_eq!(damage(scan(&options).1), (segment::name(torn.base()), at - torn.base(), at));
        }
    }
}

#[tokio::test]
async fn a_damaged_length_does_not_hide_the_records_behind_it() {
    let torn = torn(&[1, 1]).await;
    let lost = torn.written.len() - 4;
    for length in [u32::MAX, 0, 13, 1_000] {
        let (_dir, options, path) = torn.copy();
        edit(&path, |bytes| {
            let start = torn.range(lost).start;
            bytes[start + 4..start + 8].copy_from_slice(&length.to_be_bytes());
        });
        let error = EmbeddedLog::open(options, Arc::new(SystemClock)).err().unwrap();
        assert!(
            matches!(error, OpenError::Corrupt { offset, .. } if offset == torn.range(lost).start as u64)
        );
    }
}

#[tokio::test]
async fn what_a_watermark_vouches_for_is_never_cut() {
    let torn = torn(&[1]).await;
    let last = torn.written.len() - 1;
    let (_dir, options, path) = torn.copy();
    std::fs::copy(torn.options.dir.join("watermark"), options.dir.join("watermark")).unwrap();
    edit(&path, |bytes| bytes[torn.range(last)].fill(0));
    let before = std::fs::read(&path).unwrap();
    let error = EmbeddedLog::open(options.clone(), Arc::new(SystemClock)).err().unwrap();
    assert!(matches!(error, OpenError::Corrupt { offset, .. } if offset == torn.range(last).start as u64));
    assert!(std::fs::read(&path).unwrap() == before);
}
