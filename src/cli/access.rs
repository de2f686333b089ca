//! `fencegate access`: what a configuration allows whom, and bearer tokens.

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::{ConfigArgs, Done, Failed, load, output};
use crate::{
    access::{
        Access,
        identity::tokens::{self, Rows, instant},
        principal::{Kind, Principal},
        rules::Denied,
    },
    config::{Faults, IdentityKind, Operation, Settings},
    fence::{HolderId, ObjectId},
    files::Locked,
};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Say which grant of a configuration allows something, or why none does. Exits 1 where none does.
    Check(Check),
    /// Make, list and revoke bearer tokens. A running gate notices changes of the file by itself.
    #[command(subcommand)]
    Token(Token),
}

#[derive(Debug, clap::Args)]
pub(super) struct Check {
    #[command(flatten)]
    config: ConfigArgs,
    /// The principal, such as `system:serviceaccount:shop:api`.
    #[arg(long = "as", value_name = "PRINCIPAL")]
    principal: String,
    /// A group of the principal; may be given several times.
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    /// The identity source that the principal comes from. Left out: the first that can give such a name.
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// A part of the principal's identity that grants use, such as `pod.name=api-0`; may be given several times.
    #[arg(long = "with", value_name = "NAME=VALUE")]
    captures: Vec<String>,
    /// What it wants to do.
    #[arg(long = "do", value_name = "OPERATION")]
    operation: Operation,
    /// The object that it wants to do it to.
    #[arg(long)]
    object: String,
    /// The holder that it wants to be.
    #[arg(long)]
    holder: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Token {
    /// Make a token, add it to the file, and print it. It is printed this once: the file holds only its hash.
    New {
        /// The principal that the token names.
        name: String,
        /// The file, which is made if it is not there.
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
        /// A group of the principal; may be given several times.
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// When it expires, such as 2027-01-31T00:00:00Z. Left out: it does not.
        #[arg(long, value_name = "TIME")]
        expires_at: Option<String>,
    },
    /// List the tokens of a file: ids, names, when they expire. Never a token.
    List {
        /// The file.
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
    },
    /// Take a token out of the file, by its id, or all tokens of a name.
    Revoke {
        /// The id, as `list` prints it, or the name.
        #[arg(allow_hyphen_values = true)]
        which: String,
        /// The file.
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
    },
}

pub(super) fn run(command: Command) -> Done {
    match command {
        Command::Check(asked) => check(&asked),
        Command::Token(Token::New { name, file, groups, expires_at }) => add(&file, &name, groups, expires_at),
        Command::Token(Token::List { file }) => list(&file),
        Command::Token(Token::Revoke { which, file }) => revoke(&file, &which),
    }
}

fn check(asked: &Check) -> Done {
    let settings = load(&asked.config)?;
    let access = Access::new(&settings, None).map_err(|faults| Failed::Config(Faults(faults)))?;
    let who = principal(asked, &settings)?;
    let object = ObjectId::new(&asked.object).map_err(|fault| format!("--object: {fault}"))?;
    let holder =
        asked.holder.as_deref().map(HolderId::new).transpose().map_err(|fault| format!("--holder: {fault}"))?;
    let operation = asked.operation;
    match access.decide(&who, operation, &object, holder.as_ref()) {
        Ok(grant) => {
            output::line(&format!("allowed by the grant {grant:?}: {who} may {operation} {object}"));
            Ok(())
        }
        Err(denied) => {
            let why = match denied {
                Denied::Operation => format!("no grant lets {who} {operation}"),
                Denied::Object => format!("a grant lets {who} {operation}, but not {object}"),
                Denied::Holder(names) => {
                    let words: Vec<_> =
                        names.iter().map(|(root, separator)| format!("{root:?} or {root}{separator}...")).collect();
                    format!("{who} may {operation} {object}, but only as the holder {}", words.join(", "))
                }
            };
            Err(Failed::Said(format!("denied: {why}")))
        }
    }
}

/// The principal that is asked about.
fn principal(asked: &Check, settings: &Settings) -> Result<Principal, Failed> {
    let of = |wanted: &str| settings.identity.iter().find(|source| source.name == wanted);
    let sources: Vec<_> = match &asked.source {
        Some(name) => vec![of(name).ok_or_else(|| format!("--source: there is no [[identity]] named {name:?}"))?],
        None => settings.identity.iter().collect(),
    };
    let mut why = "there is no [[identity]] in this configuration, so no caller has a name".to_owned();
    for source in sources {
        let kind = match source.kind {
            IdentityKind::Tokens => Kind::Tokens,
            IdentityKind::Mtls => Kind::Mtls,
            IdentityKind::Kubernetes => Kind::Kubernetes,
            IdentityKind::Jwt => Kind::Jwt,
        };
        match Principal::new(kind, &source.name, &asked.principal) {
            Ok(who) => {
                let who = who.in_groups(asked.groups.iter().cloned());
                return asked.captures.iter().try_fold(who, |who, text| {
                    let (name, value) =
                        text.split_once('=').ok_or_else(|| format!("--with {text:?} is not NAME=VALUE"))?;
                    Ok(who.with(name, value))
                });
            }
            Err(fault) => why = format!("--as: {:?} {fault} ([[identity]] {:?})", asked.principal, source.name),
        }
    }
    Err(Failed::Said(why))
}

fn rows(file: &Path) -> Result<Rows, Failed> {
    tokens::read(file).map_err(Failed::Said)
}

/// The right to change a file of tokens. Another command that changes it waits.
fn lock(file: &Path) -> Result<Locked, Failed> {
    tokens::lock(file).map_err(|error| Failed::Said(format!("{}.lock: {error}", file.display())))
}

fn write(file: &Path, rows: &Rows) -> Done {
    tokens::write(file, rows).map_err(|error| Failed::Said(format!("{}: {error}", file.display())))
}

fn add(file: &Path, name: &str, groups: Vec<String>, expires_at: Option<String>) -> Done {
    expires_at.as_deref().map(instant).transpose().map_err(|what| format!("--expires-at: {what}"))?;
    let _locked = lock(file)?;
    let mut all = if file.exists() { rows(file)? } else { Rows::default() };
    let token = all.add(name, groups, expires_at)?;
    write(file, &all)?;
    output::line(&token);
    Ok(())
}

fn list(file: &Path) -> Done {
    let mut lines = vec![["ID", "NAME", "GROUPS", "EXPIRES"].map(str::to_owned).to_vec()];
    for row in rows(file)?.token {
        let expires = row.expires_at.unwrap_or_else(|| "-".to_owned());
        let groups = if row.groups.is_empty() { "-".to_owned() } else { row.groups.join(",") };
        lines.push(vec![row.id, row.name, groups, expires]);
    }
    output::columns(&lines);
    Ok(())
}

fn revoke(file: &Path, which: &str) -> Done {
    // Where there is no such file, no lock is left beside it.
    rows(file)?;
    let _locked = lock(file)?;
    let mut all = rows(file)?;
    let before = all.token.len();
    all.token.retain(|row| row.id != which && row.name != which);
    match before - all.token.len() {
        0 => Err(Failed::Said(format!("{} has no token with this id or name: {which}", file.display()))),
        revoked => {
            write(file, &all)?;
            output::line(&format!("revoked {revoked}"));
            Ok(())
        }
    }
}
