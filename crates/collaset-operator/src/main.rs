//! The collaset-operator program.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    Ok(collaset_operator::shell::PROGRAM.run().await?)
}
