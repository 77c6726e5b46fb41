//! Program of transition-rule-operator.

use clap::Parser;
use podops_runtime::shell::{args::OperatorArgs, operator::Operator};
use transition_rule_operator::shell;

/// Permits operations on Pods according to PodTransitionRules
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(flatten)]
    operator: OperatorArgs,
    #[command(flatten)]
    rules: shell::RuleArgs,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut operator = Operator::start(shell::NAME, args.operator).await?;
    shell::start(&mut operator, &args.rules)?;
    operator.run().await
}
