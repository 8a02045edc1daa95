//! The disk itself: it keeps what was synced, and does lose what was not.

use std::collections::BTreeSet;
use std::path::Path;

use super::super::Storage;
use super::Disk;

fn storage(disk: &Disk) -> Storage {
    Storage::simulated(Path::new("/simulated"), disk.clone())
}

/// What many power cuts leave of `name` after `work`.
fn left(name: &str, work: impl Fn(&Storage)) -> BTreeSet<Option<Vec<u8>>> {
    let outcome = |seed| {
        let disk = Disk::new(seed);
        let storage = storage(&disk);
        storage.create_dir().unwrap();
        work(&storage);
        disk.power_cut();
        storage.read(name).unwrap()
    };
    (0..400).map(outcome).collect()
}

/// A file of one sector of `x`, durable with its name.
fn sector(storage: &Storage) {
    storage.replace("file", &[b'x'; 512]).unwrap();
}

#[test]
fn what_was_synced_is_kept() {
    let left = left("file", |storage| {
        sector(storage);
        let file = storage.open_write("file").unwrap();
        file.write_at(b"later", 600).unwrap();
        file.sync_data().unwrap();
    });
    let whole = [vec![b'x'; 512], vec![0; 88], b"later".to_vec()].concat();
    assert_eq!(left, BTreeSet::from([Some(whole)]));
}

#[test]
fn sectors_that_were_not_synced_are_kept_or_lost_each_by_itself() {
    let left = left("file", |storage| {
        sector(storage);
        let file = storage.open_write("file").unwrap();
        file.write_at(&[b'y'; 1024], 0).unwrap();
    });
    let found =
        |bytes: Vec<u8>| assert!(left.contains(&Some(bytes.clone())), "never {:?}", bytes.chunks(512));
    let [x, y, zero] = [[b'x'; 512], [b'y'; 512], [0; 512]];
    for file in [vec![x], vec![y], vec![x, y], vec![y, y], vec![x, zero], vec![y, zero]] {
        found(file.concat());
    }
    assert_eq!(left.len(), 6);
}

/// A start that failed may have made it. Whatever the error is, a log in it could be gone after a power cut. Found by
/// the simulation.
#[test]
fn a_directory_whose_name_cannot_be_synced_is_not_built_on() {
    for seed in 0..40 {
        let disk = Disk::new(seed);
        let storage = storage(&disk);
        for spared in [1, 0] {
            disk.fail_after(spared, 1);
            assert!(storage.create_dir().is_err(), "seed {seed}: made, and its name is not durable");
        }
        storage.create_dir().unwrap();
    }
}

#[test]
fn a_data_sync_does_not_cover_a_cut() {
    let cut = |all: bool| {
        left("file", |storage| {
            sector(storage);
            let file = storage.open_write("file").unwrap();
            file.truncate(100).unwrap();
            if all { file.sync_all() } else { file.sync_data() }.unwrap();
        })
    };
    assert_eq!(cut(true), BTreeSet::from([Some(vec![b'x'; 100])]));
    let short = Some(vec![b'x'; 100]);
    let left = cut(false);
    assert!(left.contains(&short) && left.contains(&Some(vec![b'x'; 512])), "{} outcomes", left.len());
}

#[test]
fn names_that_were_not_synced_are_kept_or_lost_each_by_itself() {
    let pairs = |synced: bool| -> BTreeSet<(bool, bool)> {
        let outcome = |seed| {
            let disk = Disk::new(seed);
            let storage = storage(&disk);
            storage.create_dir().unwrap();
            sector(&storage);
            storage.replace("other", b"").unwrap();
            storage.rename("file", "moved").unwrap();
            storage.remove("other").unwrap();
            if synced {
                storage.sync_dir().unwrap();
            }
            disk.power_cut();
            let there = |name| storage.length(name).unwrap().is_some();
            assert!(there("file") != there("moved"), "a rename is whole or not at all");
            (there("moved"), there("other"))
        };
        (0..100).map(outcome).collect()
    };
    assert_eq!(pairs(true), BTreeSet::from([(true, false)]));
    assert_eq!(pairs(false).len(), 4);
}

#[test]
fn a_directory_whose_name_was_not_synced_may_be_gone_with_all_in_it() {
    let mut lost = 0;
    for seed in 0..100 {
        let disk = Disk::new(seed);
        let storage = storage(&disk);
        // The process is killed before or while it syncs the name, and the machine goes on.
        disk.stop_after(2, false);
        assert_eq!(storage.create_dir().unwrap_err().to_string(), "the machine is off");
        disk.restart();
        sector(&storage);
        disk.power_cut();
        lost += u32::from(storage.list().unwrap().is_empty());
        storage.create_dir().unwrap();
        sector(&storage);
        disk.power_cut();
        assert_eq!(storage.list().unwrap(), ["file"]);
    }
    assert!((5..95).contains(&lost), "{lost}");
}

#[test]
fn a_stopped_disk_does_nothing_until_it_is_started_again() {
    let disk = Disk::new(1);
    let storage = storage(&disk);
    storage.create_dir().unwrap();
    sector(&storage);
    disk.stop_after(1, false);
    assert!(storage.remove("file").is_err());
    assert!(storage.read("file").is_err() && storage.sync_dir().is_err() && storage.lock().is_err());
    disk.restart();
    storage.open_write("other").unwrap();
    assert!(storage.list().unwrap().contains(&"other".to_owned()));
}
