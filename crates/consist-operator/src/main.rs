//! The consist-operator program.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    Ok(consist_operator::shell::PROGRAM.run().await?)
}
