//! `fencegate drain`

use http::Method;

use super::{Done, Failed, output, runtime};
use crate::client::Client;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The gate's ops port, on this machine.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464")]
    ops: String,
}

pub(super) fn run(args: &Args) -> Done {
    let client = Client::new(&args.ops).map_err(|fault| fault.to_string())?;
    let answer =
        runtime()?.block_on(client.call(Method::POST, "/drain", &[], None)).map_err(|fault| fault.to_string())?;
    let text = String::from_utf8_lossy(&answer.body).trim().to_owned();
    if !answer.status.is_success() {
        return Err(Failed::Said(format!("the gate did not drain: {} {text}", answer.status)));
    }
    output::line(&text);
    Ok(())
}
