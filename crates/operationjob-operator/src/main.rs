//! The operationjob-operator program.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    Ok(operationjob_operator::shell::PROGRAM.run().await?)
}
