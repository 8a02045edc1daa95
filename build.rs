//! Rebuilds when a migration is added: they are compiled in, and the compiler only watches those it has seen.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
