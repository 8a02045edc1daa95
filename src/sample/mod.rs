//! wip
pub const DESCRIPTION: &str = "x";
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct Error;
pub struct Loaded {
    pub rows: u64,
}
pub async fn ensure(_: &sqlx::PgPool) -> Result<Loaded, Error> {
    Ok(Loaded { rows: 0 })
}
