//! The instance-operator program.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    Ok(instance_operator::shell::PROGRAM.run().await?)
}
