//! The lifecycle-operator program.

use clap::Parser;
use lifecycle_operator::shell;
use podops_runtime::shell::{args::OperatorArgs, operator::Operator};

/// Runs the PodOpsLifecycle protocol: takes Pods out of service before an operation and returns
/// them to service afterwards
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(flatten)]
    operator: OperatorArgs,
    #[command(flatten)]
    lifecycle: shell::LifecycleArgs,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut operator = Operator::start(shell::NAME, args.operator).await?;
    shell::start(&mut operator, &args.lifecycle)?;
    operator.run().await
}
