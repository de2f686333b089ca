//! `fencegate token`

use clap::Subcommand;

use super::{Done, Failed, output};
use crate::fence::FenceToken;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show what a token says: its object and number. Never its secret.
    Inspect {
        /// The token, or - to read it from standard input.
        token: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// A token from the command line; `-` reads it from standard input, where `ps` does not see it.
pub(super) fn given(token: &str) -> Result<String, Failed> {
    if token != "-" {
        return Ok(token.to_owned());
    }
    let read = std::io::read_to_string(std::io::stdin());
    Ok(read.map_err(|error| Failed::Said(format!("standard input: {error}")))?.trim().to_owned())
}

pub(super) fn run(command: &Command) -> Done {
    let Command::Inspect { token, json } = command;
    let token = FenceToken::parse(&given(token)?).map_err(|fault| fault.to_string())?;
    if *json {
        let shown = serde_json::json!({ "object_id": token.object.as_str(), "lease_seq": token.seq.get() });
        output::line(&shown.to_string());
    } else {
        output::line(&format!("object_id  {}\nlease_seq  {}", token.object, token.seq));
    }
    Ok(())
}
