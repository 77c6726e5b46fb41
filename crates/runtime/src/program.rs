//! The program of an operator: parse flags, start, run.

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser};

use crate::{
    args::OperatorArgs,
    operator::{Operator, OperatorError},
};

/// An operator as a program; `A` are its own flags.
pub struct Program<A> {
    /// Name of the program, of its Lease and of its field manager.
    pub name: &'static str,
    /// Description for `--help`.
    pub about: &'static str,
    /// Adds the operator's tasks to the process.
    pub start: fn(&mut Operator, &A) -> Result<(), OperatorError>,
}

/// Flags of an operator: those that all share, and its own.
#[derive(Parser)]
#[command(version)]
struct Cli<A: Args> {
    #[command(flatten)]
    shared: OperatorArgs,
    #[command(flatten)]
    own: A,
}

impl<A: Args> Program<A> {
    /// The program's command line.
    #[must_use]
    pub fn command(&self) -> clap::Command {
        Cli::<A>::command().name(self.name).about(self.about)
    }

    /// Runs the program until a signal or a failure.
    ///
    /// # Errors
    ///
    /// If it cannot start, or ends for any reason other than a signal.
    pub async fn run(&self) -> Result<(), OperatorError> {
        let mut matches = self.command().get_matches();
        let cli = Cli::<A>::from_arg_matches_mut(&mut matches).unwrap_or_else(|e| e.exit());
        let mut operator = Operator::start(self.name, cli.shared).await?;
        (self.start)(&mut operator, &cli.own)?;
        operator.run().await
    }
}
