//! `toolgate`: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser as _;
use toolgate::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
