//! `fencegate lease`

use std::time::Duration;

use clap::Subcommand;
use http::Method;
use http_body_util::BodyExt;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use super::{
    Done, Failed,
    call::{self, Call, Patience},
    output, runtime, token,
    way::Way,
};
use crate::{
    client::{ApiResponse, Client},
    wire::{AcquireRequest, GrantBody, LeaseBody, LeaseList, ObjectBody, RenewRequest},
};

/// The gate, and how to print.
#[derive(Debug, clap::Args)]
pub(super) struct Common {
    #[command(flatten)]
    way: Way,
    /// Print the gate's own JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    patience: Patience,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Acquire a lease and print its fence token.
    ///
    /// Send the token with every write, in the header Fence-Token, and renew at a third of the ttl.
    Acquire {
        /// What to lock, such as `users` or `/data/users/`.
        #[arg(long)]
        object: String,
        /// Who you are; unique per process.
        #[arg(long)]
        holder: String,
        /// How long it lasts, in milliseconds, unless it is renewed.
        #[arg(long, value_name = "MS")]
        ttl: Option<u64>,
        /// Queue for so long, in milliseconds, if it is held.
        #[arg(long, value_name = "MS")]
        wait: Option<u64>,
        /// Your own name for this call: repeat it after a lost answer to get the same lease.
        #[arg(long)]
        request_id: Option<String>,
        /// Take your own live lease over, as after a restart.
        #[arg(long)]
        takeover: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Renew a lease.
    Renew {
        /// The lease's id, as `acquire` printed it.
        lease_id: String,
        /// Who you are, as when it was acquired.
        #[arg(long)]
        holder: String,
        /// The lease's token, or - to read it from standard input.
        #[arg(long)]
        token: String,
        /// How long it lasts from now on, in milliseconds, unless it is renewed again.
        #[arg(long, value_name = "MS")]
        ttl: Option<u64>,
        /// Get a new number and token; tokens given away before stop working.
        #[arg(long)]
        rotate: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Release a lease. The next caller in the queue gets the object.
    Release {
        /// The lease's id, as `acquire` printed it.
        lease_id: String,
        /// The lease's token, or - to read it from standard input.
        #[arg(long)]
        token: String,
        #[command(flatten)]
        common: Common,
    },
    /// Show one lease.
    Get {
        /// The lease's id, as `acquire` printed it.
        lease_id: String,
        #[command(flatten)]
        common: Common,
    },
    /// List leases; ended ones are kept for a day.
    List {
        /// Objects whose id begins so.
        #[arg(long, default_value = "")]
        prefix: String,
        /// Leases of this holder.
        #[arg(long)]
        holder: Option<String>,
        /// Leases in this state: held, draining, expired, released or fenced.
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Print who holds what, then lease events as they happen, until interrupted.
    Watch {
        /// Objects whose id begins so.
        #[arg(long, default_value = "")]
        prefix: String,
        /// How long the stream may be silent, in milliseconds: a gate without news sends a sign of life every 15 s.
        #[arg(long, value_name = "MS", default_value_t = 45_000)]
        silence: u64,
        #[command(flatten)]
        common: Common,
    },
}

pub(super) fn run(command: Command) -> Done {
    match command {
        Command::Acquire { object, holder, ttl, wait, request_id, takeover, common } => {
            let body = AcquireRequest {
                object_id: object,
                holder_id: holder,
                ttl_ms: ttl,
                wait_ms: wait,
                request_id,
                takeover: takeover.then_some(true),
            };
            let patience = common.patience.span() + Duration::from_millis(wait.unwrap_or(0));
            let body = Some(serde_json::to_vec(&body).unwrap_or_default());
            let answer = call(&common, Call::post("/v1/leases", body), patience)?;
            if let Ok(GrantBody { warning: Some(warning), .. }) = serde_json::from_slice(&answer.body) {
                output::complain(&format!("warning: {warning}"));
            }
            show(&common, &answer, show_grant)
        }
        Command::Renew { lease_id, holder, token, ttl, rotate, common } => {
            let token = token::given(&token)?;
            let body =
                RenewRequest { fence_token: token, holder_id: holder, ttl_ms: ttl, rotate: rotate.then_some(true) };
            let path = format!("/v1/leases/{}/renew", encode(&lease_id));
            let body = Some(serde_json::to_vec(&body).unwrap_or_default());
            show(&common, &call(&common, Call::post(&path, body), common.patience.span())?, show_grant)
        }
        Command::Release { lease_id, token, common } => {
            let token = token::given(&token)?;
            let path = format!("/v1/leases/{}", encode(&lease_id));
            let headers = [("Fence-Token", token.as_str())];
            let release = Call { method: Method::DELETE, path: &path, headers: &headers, body: None };
            let answer = call(&common, release, common.patience.span())?;
            show(&common, &answer, |object: &ObjectBody| {
                output::line(&format!(
                    "released; {} has no holder, its fence stays {}",
                    object.object_id, object.fence
                ));
            })
        }
        Command::Get { lease_id, common } => {
            let path = format!("/v1/leases/{}", encode(&lease_id));
            show(&common, &call(&common, Call::get(&path), common.patience.span())?, show_lease)
        }
        Command::List { prefix, holder, state, common } => list(&prefix, holder.as_deref(), state.as_deref(), &common),
        Command::Watch { prefix, silence, common } => watch(&prefix, Duration::from_millis(silence), &common),
    }
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn client(common: &Common) -> Result<Client, Failed> {
    common.way.client().map_err(|fault| Failed::Said(fault.to_string()))
}

fn call(common: &Common, what: Call<'_>, span: Duration) -> Result<ApiResponse, Failed> {
    let answer = runtime()?.block_on(what.within(&client(common)?, span))?;
    if answer.status.is_success() {
        return Ok(answer);
    }
    if common.json {
        output::line(&String::from_utf8_lossy(&answer.body));
        return Err(Failed::Quietly);
    }
    Err(Failed::Said(explain(&answer)))
}

/// A refusal in one line: its code and what to do.
pub(super) fn explain(answer: &ApiResponse) -> String {
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    match (problem["code"].as_str(), problem["detail"].as_str()) {
        (Some(code), Some(detail)) => format!("{code}: {detail}"),
        _ => format!("the gate answered {}", answer.status),
    }
}

fn show<T: DeserializeOwned>(common: &Common, answer: &ApiResponse, print: impl FnOnce(&T)) -> Done {
    if common.json {
        output::line(&String::from_utf8_lossy(&answer.body));
        return Ok(());
    }
    let body: T = serde_json::from_slice(&answer.body)
        .map_err(|error| Failed::Said(format!("the gate's answer is not what this program knows: {error}")))?;
    print(&body);
    Ok(())
}

fn show_grant(grant: &GrantBody) {
    show_lease(&grant.lease);
    output::line(&format!("fence_token  {}", grant.fence_token));
}

fn show_lease(lease: &LeaseBody) {
    let mut rows = vec![
        ("object_id", lease.object_id.clone()),
        ("lease_seq", lease.lease_seq.to_string()),
        ("lease_id", lease.lease_id.clone()),
        ("holder_id", lease.holder_id.clone()),
        ("state", state_name(lease)),
        ("acquired_at", lease.acquired_at.clone()),
        ("expires_at", lease.expires_at.clone()),
    ];
    rows.extend(lease.ended_at.clone().map(|at| ("ended_at", at)));
    rows.extend(lease.reason.clone().map(|reason| ("reason", reason)));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    output::columns(&rows);
}

fn state_name(lease: &LeaseBody) -> String {
    serde_json::to_value(lease.state).ok().and_then(|state| state.as_str().map(str::to_owned)).unwrap_or_default()
}

fn list(prefix: &str, holder: Option<&str>, state: Option<&str>, common: &Common) -> Done {
    let mut rows = vec![["OBJECT", "SEQ", "STATE", "HOLDER", "EXPIRES", "LEASE"].map(str::to_owned).to_vec()];
    let mut cursor: Option<String> = None;
    loop {
        let mut path = format!("/v1/leases?prefix={}", encode(prefix));
        for (name, value) in [("holder_id", holder), ("state", state), ("cursor", cursor.as_deref())] {
            if let Some(value) = value {
                path = format!("{path}&{name}={}", encode(value));
            }
        }
        let answer = call(common, Call::get(&path), common.patience.span())?;
        let page: LeaseList = serde_json::from_slice(&answer.body)
            .map_err(|error| Failed::Said(format!("the gate's answer is not what this program knows: {error}")))?;
        for lease in &page.leases {
            if common.json {
                output::line(&serde_json::to_string(lease).unwrap_or_default());
                continue;
            }
            let (id, seq) = (lease.object_id.clone(), lease.lease_seq.to_string());
            let (holder, expires) = (lease.holder_id.clone(), lease.expires_at.clone());
            rows.push(vec![id, seq, state_name(lease), holder, expires, lease.lease_id.clone()]);
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if !common.json {
        output::columns(&rows);
    }
    Ok(())
}

fn watch(prefix: &str, silence: Duration, common: &Common) -> Done {
    let (client, patience) = (client(common)?, common.patience.span());
    runtime()?.block_on(async {
        let path = format!("/v1/watch?prefix={}", encode(prefix));
        let opened = tokio::time::timeout(patience, client.open(Method::GET, &path, &[], None)).await;
        let opened = opened.map_err(|_| call::late(&client, patience, true))?;
        let (status, mut body) = opened.map_err(|fault| Failed::Said(fault.to_string()))?;
        if !status.is_success() {
            let whole = tokio::time::timeout(patience, body.collect()).await;
            let whole = whole.map_err(|_| call::late(&client, patience, true))?;
            let body = whole.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            return Err(Failed::Said(explain(&ApiResponse { status, body })));
        }
        // The stream has every change from here on.
        show_held(&client, prefix, common).await?;
        let mut bytes: Vec<u8> = vec![];
        let silent = |_| {
            let what = format!("the gate has been silent for {} ms, and is gone or hangs", silence.as_millis());
            Failed::Said(format!("{what}: watch again, and see what has changed meanwhile by `fencegate lease list`"))
        };
        while let Some(frame) = tokio::time::timeout(silence, body.frame()).await.map_err(silent)? {
            let frame = frame.map_err(|error| Failed::Said(format!("the stream broke: {error}")))?;
            bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = bytes.windows(2).position(|pair| pair == b"\n\n") {
                show_event(&String::from_utf8_lossy(&bytes[..end]), common.json);
                bytes.drain(..end + 2);
            }
        }
        Err(Failed::Said("the gate ended the stream; it is stopping".to_owned()))
    })
}

/// Prints the leases that are held now as events.
async fn show_held(client: &Client, prefix: &str, common: &Common) -> Done {
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/leases?state=held&prefix={}{cursor}", encode(prefix));
        let answer = Call::get(&path).within(client, common.patience.span()).await?;
        if !answer.status.is_success() {
            return Err(Failed::Said(explain(&answer)));
        }
        let page: LeaseList = serde_json::from_slice(&answer.body)
            .map_err(|error| Failed::Said(format!("the gate's answer is not what this program knows: {error}")))?;
        for lease in &page.leases {
            let data = serde_json::to_string(lease).unwrap_or_default();
            show_event(&format!("event: held\ndata: {data}"), common.json);
        }
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={}", encode(&next)),
            None => return Ok(()),
        }
    }
}

fn show_event(event: &str, json: bool) {
    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name).map(str::trim_start));
    let (Some(kind), Some(data)) = (field("event:"), field("data:")) else { return };
    if json {
        output::line(&format!("{{\"event\":{},\"data\":{data}}}", serde_json::Value::from(kind)));
        return;
    }
    if kind == "reset" {
        output::line("reset     some events were missed; list the leases to see where they stand");
        return;
    }
    let data: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
    let text = |name: &str| data[name].as_str().unwrap_or("").to_owned();
    output::line(&format!("{kind:<9} {}  seq {}  {}", text("object_id"), data["lease_seq"], text("holder_id")));
}
