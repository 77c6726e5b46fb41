//! The `consist-conformance` program: checks an adapter and prints the results as a table.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Parser;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use podops_adapter::{
    client::Client,
    conformance::{Setup, Verdict, run},
};

/// Checks whether an adapter conforms to the adapter protocol of consist-operator
#[derive(Parser)]
#[command(version, about)]
struct Args {
    /// Address of the adapter: `grpc://<host>:<port>`, `unix://<path>`, `http://…` or `https://…`
    #[arg(long)]
    target: String,
    /// Parameters of the employer, as in the annotation backend-params
    #[arg(long, default_value = "{}", value_name = "JSON")]
    params: String,
    /// Parameters of a second employer with separate traffic; enables the isolation check
    #[arg(long, value_name = "JSON")]
    other_params: Option<String>,
    /// Three addresses that traffic may be routed to
    #[arg(long, num_args = 3, value_names = ["A", "B", "C"],
        default_values = ["192.0.2.1", "192.0.2.2", "192.0.2.3"])]
    addresses: Vec<String>,
    /// Time within which a desired state must be observed, in seconds
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    within: f64,
    /// Shell command that restarts the adapter without its state; enables the restart check
    #[arg(long, value_name = "COMMAND")]
    restart: Option<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let adapter = Client::at(&args.target, Duration::from_secs(10))?;
    let addresses =
        args.addresses.try_into().ok().context("--addresses requires three addresses")?;
    let setup = Setup {
        params: args.params,
        other_params: args.other_params,
        addresses,
        within: Duration::try_from_secs_f64(args.within).context("--within")?,
        restart: args.restart,
    };
    let checks = run(&adapter, &setup).await;
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    for check in &checks {
        let (mark, reason) = match &check.verdict {
            Verdict::Passed => ("✔", String::new()),
            Verdict::Failed(reason) => ("✘", reason.clone()),
            Verdict::Skipped(reason) => ("?", reason.clone()),
        };
        table.add_row([mark.to_owned(), check.name.to_owned(), reason]);
    }
    #[allow(clippy::print_stdout, reason = "the table is the output")]
    {
        println!("{table}");
    }
    let failed = checks.iter().filter(|c| matches!(c.verdict, Verdict::Failed(_))).count();
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
