//! What the writer allocates. The test plays the writer's thread, so that this can be told from what its callers do.

use tokio::task::JoinSet;

use super::super::{Parts, WriterEnd};
use super::*;

/// Allocations of a turn of the writer that finds so many records waiting, whose callers are tasks that it wakes.
fn allocations_of_a_turn(records: u64) -> u64 {
    let dir = TempDir::new().unwrap();
    let limits = Options {
        segment_bytes: 4 << 20,
        in_flight_records_max: 1024,
        in_flight_bytes_max: 1 << 20,
        ..options(&dir)
    };
    let storage = Storage::new(&limits.dir);
    let (log, parts, _) = EmbeddedLog::assemble(&limits, Arc::new(SystemClock), storage).unwrap();
    let Parts { mut writer, commands, .. } = parts;
    let _end = WriterEnd(log.shared.clone());
    let log = Arc::new(log);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut counted = 0;
    // The first turn starts the segment and lets the buffers grow.
    for turn in 0..2 {
        let mut callers = JoinSet::new();
        runtime.block_on(async {
            for number in 0..records {
                let log = log.clone();
                let seq = turn * records + number;
                callers.spawn(async move {
                    append(&log, frame(u32::try_from(number % 3).unwrap(), seq, 500)).await
                });
            }
            // Each caller runs until it waits for its ack.
            while log.stats().in_flight_records.get() < i64::try_from(records).unwrap() {
                assert!(callers.try_join_next().is_none(), "a caller did not come to wait");
                tokio::task::yield_now().await;
            }
        });
        let first = commands.try_recv().unwrap();
        let allocated = allocation_counter::measure(|| assert!(writer.turn(first, &commands)));
        assert_eq!(log.stats().in_flight_records.get(), 0);
        runtime.block_on(callers.join_all());
        counted = allocated.count_total;
    }
    counted
}

#[test]
fn the_writer_allocates_nothing_for_a_record() {
    // The watermark's bytes, whatever the number of records.
    assert_eq!(allocations_of_a_turn(1), 1);
    assert_eq!(allocations_of_a_turn(100), 1);
    // More come only with the marks of the sparse index, one in 256 KiB.
    assert_eq!(allocations_of_a_turn(1_000), 7);
}
