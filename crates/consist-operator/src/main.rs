//! The consist-operator program.

use clap::Parser;
use consist_operator::shell;
use podops_runtime::shell::{args::OperatorArgs, operator::Operator};

/// Drains a Pod's traffic before operations, and checks its traffic before it counts as available
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(flatten)]
    operator: OperatorArgs,
    #[command(flatten)]
    consist: shell::ConsistArgs,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut operator = Operator::start(shell::NAME, args.operator).await?;
    shell::start(&mut operator, &args.consist)?;
    operator.run().await
}
