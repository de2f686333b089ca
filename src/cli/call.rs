//! Calls of a running gate's ports. Each has a time limit: the program on that port may not be a gate, or may hang.

use std::time::Duration;

use http::Method;

use super::{Failed, runtime};
use crate::client::{ApiResponse, Client};

/// How long a gate may take to answer a short call, before a call that may take long.
const HELLO: Duration = Duration::from_secs(10);

/// The limit on short calls.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Patience {
    /// How long to wait for the gate's answer to a call, in milliseconds.
    #[arg(long = "timeout", value_name = "MS", default_value_t = 10_000)]
    ms: u64,
}

impl Patience {
    pub(super) fn span(self) -> Duration {
        Duration::from_millis(self.ms)
    }
}

/// A call without its time limit.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) headers: &'a [(&'a str, &'a str)],
    pub(super) body: Option<Vec<u8>>,
}

impl<'a> Call<'a> {
    pub(super) fn get(path: &'a str) -> Self {
        Self { method: Method::GET, path, headers: &[], body: None }
    }

    pub(super) fn post(path: &'a str, body: Option<Vec<u8>>) -> Self {
        Self { method: Method::POST, path, headers: &[], body }
    }

    /// Makes the call, and waits this long for its answer.
    pub(super) async fn within(self, client: &Client, span: Duration) -> Result<ApiResponse, Failed> {
        let Self { method, path, headers, body } = self;
        let is_read = method == Method::GET;
        let answer = tokio::time::timeout(span, client.call(method, path, headers, body)).await;
        let answer = answer.map_err(|_| late(client, span, is_read))?;
        answer.map_err(|fault| Failed::Said(fault.to_string()))
    }

    /// Makes a call that may take long, after a short call to `hello` was answered.
    pub(super) fn at_length(self, client: &Client, hello: &str, span: Duration) -> Result<ApiResponse, Failed> {
        runtime()?.block_on(async {
            Call::get(hello).within(client, HELLO).await?;
            self.within(client, span).await
        })
    }
}

/// The error for an answer that did not come in time.
pub(super) fn late(client: &Client, span: Duration, is_read: bool) -> Failed {
    let done = if is_read { "" } else { ". What was asked for may have been done, or may be done yet: look first" };
    Failed::Said(format!(
        "{} did not answer within {} ms{done}. Is a gate listening there, and is its disk well? --timeout MS waits longer",
        client.url(),
        span.as_millis()
    ))
}
