//! The transition-rule-operator program.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    Ok(transition_rule_operator::shell::PROGRAM.run().await?)
}
