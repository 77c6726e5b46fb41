//! The collaset-operator binary.

use clap::Parser;
use collaset_operator::shell;
use podops_runtime::shell::{args::OperatorArgs, operator::Operator};

/// Keeps the Pods of CollaSets at the desired number and revision, and takes each Pod out of
/// service before it is updated or deleted
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(flatten)]
    operator: OperatorArgs,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut operator = Operator::start(shell::NAME, args.operator).await?;
    shell::start(&mut operator);
    operator.run().await
}
