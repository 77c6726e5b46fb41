//! The lifecycle-operator program.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    Ok(lifecycle_operator::shell::PROGRAM.run().await?)
}
