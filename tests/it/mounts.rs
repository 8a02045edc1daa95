//! Mounts that only the programs of one test see: a small disk, a read-only view of a directory.
//!
//! A helper process holds a mount namespace, in a user namespace of its own where the system gives one to ordinary
//! users, else as root without. It ends with the test, whose pipe it reads, and the mounts end with the last process in it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// See the module.
pub(crate) struct Mounts {
    holder: Child,
    own_users: bool,
}

impl Mounts {
    pub(crate) fn new() -> Self {
        let tried = Self::hold(true).or_else(|with_users| {
            Self::hold(false).map_err(|without| {
                format!(
                    "these tests mount a small disk in a namespace of their own, which this system does not give: as an \
                     ordinary user or root `unshare --user --map-root-user --mount` must work (it says: {with_users}), or as \
                     root `unshare --mount` (it says: {without})"
                )
            })
        });
        tried.unwrap_or_else(|message| panic!("{message}"))
    }

    fn hold(own_users: bool) -> Result<Self, String> {
        let mut command = Command::new("unshare");
        if own_users {
            command.args(["--user", "--map-root-user"]);
        }
        // A mount of the kind that is needed, so that a namespace without that right is told here.
        command.args(["--mount", "sh", "-ec", "mount -t tmpfs none /tmp; umount /tmp; echo held; exec cat"]);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = pipes.spawn().map_err(|error| error.to_string())?;
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        if said == "held\n" {
            return Ok(Self { holder, own_users });
        }
        let output = holder.wait_with_output().unwrap();
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// A command that runs `program` among the mounts, as the process that is spawned.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--mount"]);
        if self.own_users {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--").arg(program);
        command
    }

    /// Runs a shell script among the mounts, with `$1` and so on from `args`, to its good end.
    pub(crate) fn run(&self, script: &str, args: &[&Path]) {
        let output = self.command("sh").args(["-ec", script, "sh"]).args(args).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Where the test itself finds `path` as it is among the mounts.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(path.strip_prefix("/").unwrap())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.holder.kill().unwrap_or(());
        drop(self.holder.wait());
    }
}
