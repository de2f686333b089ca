//! `fencegate drain`

use std::time::Duration;

use super::{Done, Failed, call::Call, output};
use crate::client::Client;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The gate's ops port, on this machine.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464")]
    ops: String,
    /// How long to wait until the gate is idle, in milliseconds. Give more than the gate's own shutdown.deadline_ms,
    /// which is how long the gate waits.
    #[arg(long, value_name = "MS", default_value_t = 300_000)]
    timeout: u64,
}

pub(super) fn run(args: &Args) -> Done {
    let client = Client::new(&args.ops).map_err(|fault| fault.to_string())?;
    let answer = Call::post("/drain", None).at_length(&client, "/livez", Duration::from_millis(args.timeout))?;
    let text = String::from_utf8_lossy(&answer.body).trim().to_owned();
    if !answer.status.is_success() {
        return Err(Failed::Said(format!("the gate did not drain: {} {text}", answer.status)));
    }
    output::line(&text);
    Ok(())
}
