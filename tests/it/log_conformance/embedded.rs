//! The embedded engine, with segments so small that every test rolls through some.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annals::base::SystemClock;
use annals::log::embedded::{EmbeddedLog, Options};
use annals::log::{Log, Stored};
use futures::FutureExt;
use futures::future::BoxFuture;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Backend, Limits, Place};

/// What stands before the body in a frame.
const BEFORE_BODY_BYTES: u64 = 116;

pub(super) struct Embedded;

impl Backend for Embedded {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn place(&self, limits: Limits) -> Box<dyn Place> {
        Box::new(Directory { dir: tempfile::tempdir().unwrap(), limits })
    }
}

struct Directory {
    dir: tempfile::TempDir,
    limits: Limits,
}

impl Directory {
    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn copy(&self) -> PathBuf {
        self.dir.path().join("copy")
    }
}

impl Place for Directory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Log>> {
        let options = Options {
            dir: self.log(),
            segment_bytes: 32 * 1024,
            in_flight_records_max: self.limits.records,
            in_flight_bytes_max: self.limits.bytes,
            reserve_wait: self.limits.wait,
            append_wait: std::time::Duration::from_secs(60),
        };
        async move {
            let opened = tokio::task::spawn_blocking(|| EmbeddedLog::open(options, Arc::new(SystemClock)));
            opened.await.unwrap().unwrap().0 as Arc<dyn Log>
        }
        .boxed()
    }

    fn change(&self, stored: &Stored) {
        let bases = std::fs::read_dir(self.log()).unwrap().filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".seg").map(|base| base.parse::<u64>().unwrap())
        });
        let base = bases.filter(|base| *base <= stored.position.0).max().unwrap();
        let path = self.log().join(format!("{base:020}.seg"));
        let file = File::options().read(true).write(true).open(path).unwrap();
        let offset = stored.position.0 - base + BEFORE_BODY_BYTES;
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        assert_eq!(byte[0], stored.frame.body[0], "the place of the body");
        file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    }

    fn keep(&self) {
        copy(&self.log(), &self.copy());
    }

    fn put_back(&self) {
        std::fs::remove_dir_all(self.log()).unwrap();
        copy(&self.copy(), &self.log());
    }

    fn writes_fail(&self, fail: bool) {
        let Rlimit { maximum, .. } = getrlimit(Resource::Fsize);
        let current = if fail { Some(0) } else { maximum };
        setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
