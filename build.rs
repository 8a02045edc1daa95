//! Rebuilds when a migration is added: they are compiled in, and the compiler only watches those it has seen.

#[expect(clippy::print_stdout, reason = "this is how a build script speaks to cargo")]
fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
