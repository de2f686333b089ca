//! `fencegate table`

use std::{path::PathBuf, time::Duration};

use clap::Subcommand;

use super::{ConfigArgs, Done, Failed, call::Call, load, output, way::Shown};
use crate::{
    clock::Clock,
    config::{Fault, Faults},
    table::{Table, backup, data_folder::table_folder, open, rocks::RocksTable, verify},
    wire::BackupRequest,
};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a new, empty fence table and its key.
    ///
    /// This is your word that there was none before: a gate on a new table knows no fence. It never changes a table
    /// that exists already.
    Init(ConfigArgs),
    /// Count what the table holds. Works while a gate is running on it.
    Stats {
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read every row, and check that rows agree with each other. Works while a gate is running.
    Verify(ConfigArgs),
    /// Copy the table into a new folder.
    ///
    /// With --api, a running gate copies its own table (the folder is on its machine). With
    /// --config, a table that no gate is using is copied. The key is not copied.
    Backup {
        /// The folder to make.
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
        /// The configuration file of a gate that is not running.
        #[arg(long, value_name = "FILE", required_unless_present = "api", conflicts_with = "api")]
        config: Option<PathBuf>,
        /// A running gate.
        #[arg(long, value_name = "URL")]
        api: Option<String>,
        #[command(flatten)]
        shown: Shown,
        /// How long to wait for a running gate to have made its copy, in milliseconds.
        #[arg(long, value_name = "MS", default_value_t = 600_000)]
        timeout: u64,
    },
    /// Put a backup where the gate's table belongs.
    ///
    /// The backup does not know the leases granted after it, so the restored table starts a new incarnation: every
    /// fence rises beyond them, every lease is void, and a new key is made.
    Restore {
        #[command(flatten)]
        config: ConfigArgs,
        /// The backup's folder.
        #[arg(long, value_name = "FOLDER")]
        from: PathBuf,
        /// First set an existing table aside.
        #[arg(long)]
        replace: bool,
        /// No lease had a higher lease_seq than this one: your word, where the data folder is empty or does not read.
        ///
        /// `fencegate_table_floor` in your metrics is right, and so is the newest lease_seq that you can find, of any
        /// object: in a writer's log, or in the Fence-Seq that the store was sent.
        #[arg(long, value_name = "LEASE_SEQ")]
        above: Option<u64>,
    },
}

fn at_table(what: impl std::fmt::Display) -> Failed {
    Failed::Config(Faults(vec![Fault::new("table.path", what.to_string())]))
}

pub(super) fn run(command: Command) -> Done {
    match command {
        Command::Init(config) => {
            let path = load(&config)?.table.path;
            open::init(&path).map_err(at_table)?;
            output::line(&format!("made a new fence table in {}", path.display()));
            Ok(())
        }
        Command::Stats { config, json } => stats(&config, json),
        Command::Verify(config) => verify(&config),
        Command::Backup { to, config, api, shown, timeout } => match (config, api) {
            (_, Some(api)) => backup_running(&to, &api, &shown, Duration::from_millis(timeout)),
            (Some(config), None) => backup_stopped(&to, &ConfigArgs { config }),
            (None, None) => Err(Failed::Said("say --api or --config".to_owned())),
        },
        Command::Restore { config, from, replace, above } => {
            restore(&load(&config)?.table.path, &from, backup::How { replace, above })
        }
    }
}

fn restore(data: &std::path::Path, from: &std::path::Path, how: backup::How) -> Done {
    let restored = backup::restore(from, data, how, Clock::machine().now()).map_err(at_table)?;
    let incarnation = restored.incarnation;
    output::line(&format!(
        "restored as incarnation {incarnation}: every lease is void, and every new one has a lease_seq above {}",
        incarnation.floor()
    ));
    if let Some(aside) = restored.set_aside {
        output::line(&format!("the table that was there is in {}", aside.display()));
    }
    if let Some(error) = restored.not_noted {
        output::line(&format!(
            "{} cannot be written, so it does not say that it was restored: {error}",
            from.display()
        ));
    }
    Ok(())
}

fn open_table(config: &ConfigArgs) -> Result<RocksTable, Failed> {
    let path = load(config)?.table.path;
    let folder = table_folder(&path);
    if !RocksTable::exists(&folder) {
        return Err(at_table(open::why_missing(&path)));
    }
    // The gate may be in the middle of a record, or may change its log right now. Real damage shows on every attempt.
    let mut attempt = RocksTable::open_read_only(&folder);
    for _ in 0..ATTEMPTS {
        if attempt.is_err() {
            attempt = RocksTable::open_read_only(&folder);
        }
    }
    attempt.map_err(at_table)
}

/// How often to open a table that a gate is writing, before it counts as damaged.
const ATTEMPTS: usize = 20;

fn stats(config: &ConfigArgs, json: bool) -> Done {
    let table = open_table(config)?;
    let progress = output::Progress::new("rows");
    let report = verify::walk(&table, false, |n| progress.at(n)).map_err(at_table)?;
    drop(progress);
    let (incarnation, run, clean) = verify::about(&table).map_err(at_table)?;
    let sizes = table.stats();
    if json {
        let shown = serde_json::json!({
            "rows": report.rows, "incarnation": incarnation.number(), "floor": incarnation.floor().get(),
            "run": run, "clean": clean,
            "sst_bytes": sizes.sst_bytes, "memtable_bytes": sizes.memtable_bytes,
        });
        output::line(&shown.to_string());
        return Ok(());
    }
    let mut rows: Vec<Vec<String>> =
        report.rows.iter().map(|(family, count)| vec![(*family).to_owned(), count.to_string()]).collect();
    rows.push(vec!["incarnation".to_owned(), incarnation.to_string()]);
    rows.push(vec!["floor".to_owned(), incarnation.floor().to_string()]);
    rows.push(vec!["run".to_owned(), run.to_string()]);
    rows.push(vec!["ended in good order".to_owned(), if clean { "yes" } else { "no, or it is running" }.to_owned()]);
    rows.push(vec!["table files, bytes".to_owned(), sizes.sst_bytes.to_string()]);
    rows.push(vec!["in memory, bytes".to_owned(), sizes.memtable_bytes.to_string()]);
    output::columns(&rows);
    Ok(())
}

fn verify(config: &ConfigArgs) -> Done {
    let table = open_table(config)?;
    let progress = output::Progress::new("rows");
    let report = verify::walk(&table, true, |n| progress.at(n)).map_err(at_table)?;
    drop(progress);
    let rows: u64 = report.rows.values().sum();
    if report.fault_count == 0 {
        output::line(&format!("{rows} rows, all sound"));
        return Ok(());
    }
    report.faults.iter().for_each(|fault| output::line(fault));
    Err(Failed::Said(format!(
        "{rows} rows, {} of them not sound. Writes to objects whose row cannot be read are refused; to make them possible again, restore a backup",
        report.fault_count
    )))
}

fn backup_stopped(to: &std::path::Path, config: &ConfigArgs) -> Done {
    let path = load(config)?.table.path;
    let folder = table_folder(&path);
    if !RocksTable::exists(&folder) {
        return Err(at_table(open::why_missing(&path)));
    }
    let _lock = open::lock(&path).map_err(|fault| {
        at_table(format!("{fault}, or say --api instead of --config to copy a running gate's table"))
    })?;
    // A lost tail is recorded in the table's folder, and the next start allows for it.
    let (table, _) = RocksTable::open(&folder).map_err(at_table)?;
    backup::create(&table as &dyn Table, to).map_err(|fault| fault.to_string())?;
    output::line(&format!("backed up to {}", to.display()));
    Ok(())
}

fn backup_running(to: &std::path::Path, api: &str, shown: &Shown, span: Duration) -> Done {
    let client = shown.client(api).map_err(|fault| fault.to_string())?;
    let body = serde_json::to_vec(&BackupRequest { folder: to.display().to_string() }).unwrap_or_default();
    let answer = Call::post("/v1/backups", Some(body)).at_length(&client, "/v1/openapi.json", span)?;
    if !answer.status.is_success() {
        return Err(Failed::Said(super::lease::explain(&answer)));
    }
    output::line(&format!("backed up to {}", to.display()));
    Ok(())
}
