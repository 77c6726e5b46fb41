//! The `consist-conformance` program: what the author of an adapter runs.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Parser;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use podops_adapter::{
    client::Client,
    conformance::{Setup, Verdict, run},
};

/// Finds out whether an adapter of consist-operator keeps the protocol
#[derive(Parser)]
#[command(version, about)]
struct Args {
    /// Where the adapter is: `grpc://<host>:<port>`, `unix://<path>`, `http://…` or `https://…`
    #[arg(long)]
    target: String,
    /// What its users would tell it
    #[arg(long, default_value = "{}", value_name = "JSON")]
    params: String,
    /// The same for a second employer, whose traffic goes another way
    #[arg(long, value_name = "JSON")]
    other_params: Option<String>,
    /// Three addresses that traffic may be sent to
    #[arg(long, num_args = 3, value_names = ["A", "B", "C"],
        default_values = ["192.0.2.1", "192.0.2.2", "192.0.2.3"])]
    addresses: Vec<String>,
    /// How long what was wanted may take to be seen, in seconds
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    within: f64,
    /// A command that restarts the adapter and loses what it remembers
    #[arg(long, value_name = "COMMAND")]
    restart: Option<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let adapter = Client::at(&args.target, Duration::from_secs(10)).map_err(anyhow::Error::msg)?;
    let addresses = args.addresses.try_into().ok().context("there are three addresses")?;
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
        let (mark, why) = match &check.verdict {
            Verdict::Kept => ("✔", String::new()),
            Verdict::Broken(why) => ("✘", why.clone()),
            Verdict::Unknown(why) => ("?", why.clone()),
        };
        table.add_row([mark.to_owned(), check.what.to_owned(), why]);
    }
    #[allow(clippy::print_stdout, reason = "the table is what was asked for")]
    {
        println!("{table}");
    }
    let broken = checks.iter().filter(|c| matches!(c.verdict, Verdict::Broken(_))).count();
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
