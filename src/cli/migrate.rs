//! `fencegate migrate`: hand an object over, and watch the steps.

use std::{path::PathBuf, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{
    Done, Failed,
    call::{Call, Patience},
    cert, lease, output, runtime,
    way::{Shown, ShownBesideKey},
};
use crate::{
    api::{journal::JournalBody, migrations::MigrationBody},
    authority::{bls::SecretKey, json::hash_text},
    client::{ApiResponse, Client},
    clock::Clock,
    fence::LeaseSeq,
    table::{codec::JournalHead, ledger::journal::chain},
};

/// How often to ask for the migration's progress.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The object to hand over, such as `/data/users/`.
    #[arg(long, value_name = "OBJECT")]
    domain: String,
    /// Who gets it: the name of a [[requester]].
    #[arg(long, value_name = "HOLDER")]
    to: String,
    /// Who asks: the name of a [[requester]]; the next holder, if absent.
    #[arg(long = "as", value_name = "NAME")]
    requester: Option<String>,
    /// The secret key of the requester.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Which of the requester's keys it is: its key_epoch in the gate's settings.
    #[arg(long, value_name = "N", default_value_t = 1)]
    key_epoch: u32,
    /// The gate's authority.cluster_id.
    #[arg(long, value_name = "ID")]
    cluster: String,
    /// How long the new lease lasts, in milliseconds.
    #[arg(long, value_name = "MS")]
    ttl: Option<u64>,
    /// Why; it is kept with the migration.
    #[arg(long, default_value = "migration")]
    reason: String,
    /// Be the next holder too: compute the final state's hash from the journal, confirm it, and print the token.
    #[arg(long)]
    activate: bool,
    /// The gate's api: http on this machine, https elsewhere.
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8081",
        env = "FENCEGATE_API",
        hide_env_values = true
    )]
    api: String,
    #[command(flatten)]
    shown: ShownBesideKey,
    /// Print the migration, and then the lease, as the gate's own JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    patience: Patience,
}

/// What every step of the migration needs.
struct Handover {
    args: Args,
    key: SecretKey,
    client: Client,
    clock: Clock,
    /// How many steps were printed.
    shown: usize,
}

pub(super) fn run(args: Args) -> Done {
    let requester = args.requester.as_deref().unwrap_or(&args.to);
    if args.activate && requester != args.to {
        return Err(Failed::Said("--activate is for the next holder itself: leave --as out, or name it".to_owned()));
    }
    let key = cert::secret(&args.key)?;
    let client = Shown::from(args.shown.clone()).client(&args.api);
    let client = client.map_err(|fault| Failed::Said(fault.to_string()))?;
    let mut handover = Handover { args, key, client, clock: Clock::machine(), shown: 0 };
    runtime()?.block_on(handover.run())
}

fn segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn unknown(error: impl std::fmt::Display) -> Failed {
    Failed::Said(format!("the gate's answer is not what this program knows: {error}"))
}

impl Handover {
    async fn run(&mut self) -> Done {
        let requester = self.args.requester.clone().unwrap_or_else(|| self.args.to.clone());
        let mut request = json!({
            "type": "FENCE_REQUEST", "domain": self.args.domain, "reason": self.args.reason,
            "requester": requester, "next_holder": self.args.to, "timestamp": self.timestamp(),
            "cluster_id": self.args.cluster, "key_epoch": self.args.key_epoch,
        });
        if let Some(ttl) = self.args.ttl {
            request["ttl_ms"] = ttl.into();
        }
        let mut migration: MigrationBody = self.post("/v1/migrations", request).await?;
        if !self.args.json {
            let MigrationBody { migration_id, domain, next_holder, .. } = &migration;
            output::line(&format!("migration {migration_id}: {domain} to {next_holder}"));
        }
        loop {
            self.show(&migration);
            match migration.state.as_str() {
                "granted" if self.args.activate => return self.activate(&migration).await,
                "fencing" | "acknowledged" | "granted" => {}
                "active" => return self.end(&migration, Ok(())),
                ended => {
                    let why = format!("the migration has ended as {ended}: {}", migration.way_on);
                    return self.end(&migration, Err(Failed::Said(why)));
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            migration = self.get(&format!("/v1/migrations/{}", segment(&migration.migration_id))).await?;
        }
    }

    /// Prints the steps that are new since the last call.
    fn show(&mut self, migration: &MigrationBody) {
        if self.args.json {
            return;
        }
        for step in &migration.steps[self.shown.min(migration.steps.len())..] {
            let mark = if step.state == migration.state { "..." } else { "done" };
            output::line(&format!("  {:<22} {}  {mark}", step.state, step.at));
        }
        if self.shown < migration.steps.len() {
            output::line(&format!("    {}", migration.way_on));
        }
        self.shown = migration.steps.len();
    }

    fn end(&self, migration: &MigrationBody, done: Done) -> Done {
        if self.args.json {
            output::line(&serde_json::to_string(migration).unwrap_or_default());
        }
        done
    }

    /// Reads the journal, computes the hash of the final state, and confirms it.
    async fn activate(&mut self, migration: &MigrationBody) -> Done {
        let claimed = migration.state_hash.clone().unwrap_or_default();
        let computed = self.computed_hash(migration.writes.unwrap_or(0)).await?;
        if !self.args.json {
            let verdict = if computed == claimed {
                "the same as the one left behind"
            } else {
                "ANOTHER than the one left behind"
            };
            output::line(&format!("    computed {computed}: {verdict}"));
        }
        let grant = migration.grant.as_ref().ok_or_else(|| unknown("a granted migration without its grant"))?;
        let active = json!({
            "type": "LEASE_ACTIVE", "domain": grant.domain, "lease_id": grant.lease_id, "lease_seq": grant.lease_seq,
            "holder": self.args.to, "state_hash": computed, "timestamp": self.timestamp(),
            "cluster_id": self.args.cluster, "key_epoch": self.args.key_epoch,
        });
        let id = segment(&migration.migration_id);
        let answer: Value = self.post(&format!("/v1/migrations/{id}/active"), active).await?;
        let migration: MigrationBody = self.get(&format!("/v1/migrations/{id}")).await?;
        self.show(&migration);
        self.end(&migration, Ok(()))?;
        if self.args.json {
            output::line(&answer.to_string());
        } else {
            output::line(&format!("fence_token  {}", answer["fence_token"].as_str().unwrap_or("")));
        }
        Ok(())
    }

    /// The hash over the first `writes` entries of the journal, computed from the entries.
    async fn computed_hash(&self, writes: u64) -> Result<String, Failed> {
        let (mut hash, mut after) = (JournalHead::EMPTY.hash, 0);
        while after < writes {
            let path = format!("/v1/objects/{}/journal?after={after}", segment(&self.args.domain));
            let page: JournalBody = self.get(&path).await?;
            if page.trimmed {
                return Err(Failed::Said("the journal's oldest entries are gone (journal.keep), so the hash cannot be computed from it; compare the store itself, and confirm with POST /v1/migrations/{id}/active".to_owned()));
            }
            for entry in page.entries.iter().filter(|entry| entry.number <= writes) {
                hash = chain(&hash, entry.lease_seq.and_then(LeaseSeq::new), &entry.wrote().map_err(unknown)?);
                after = entry.number;
            }
            if page.entries.is_empty() {
                return Err(unknown("a journal that ends too soon"));
            }
        }
        Ok(hash_text(&hash))
    }

    fn timestamp(&self) -> String {
        self.clock.now().mark().to_string()
    }

    async fn post<T: serde::de::DeserializeOwned>(&self, path: &str, message: Value) -> Result<T, Failed> {
        let body = cert::signed(&self.key, message)?.to_string().into_bytes();
        read(&Call::post(path, Some(body)).within(&self.client, self.args.patience.span()).await?)
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, Failed> {
        read(&Call::get(path).within(&self.client, self.args.patience.span()).await?)
    }
}

fn read<T: serde::de::DeserializeOwned>(answer: &ApiResponse) -> Result<T, Failed> {
    if !answer.status.is_success() {
        return Err(Failed::Said(lease::explain(answer)));
    }
    serde_json::from_slice(&answer.body).map_err(unknown)
}
