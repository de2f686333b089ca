//! `fencegate cert`: keys, proofs of possession, and signed messages.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use clap::Subcommand;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{ConfigArgs, Done, Failed, load, output};
use crate::{
    authority::{
        Authority,
        bls::{Claimed, PublicKey, SecretKey, Signature, are_all_by},
        json::{AcknowledgedMessage, ActiveMessage, CertificateMessage, FenceRequestMessage, GrantMessage, Message},
        key_file, sign,
        statement::{Kind, Statement},
        unique::Unique,
    },
    fence::ObjectId,
};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a secret key in a new file (mode 0600), and print its public key and proof of possession.
    ///
    /// Put both into [[issuer]] or [[requester]]; the file goes to the signer.
    Keygen {
        /// The file to make. It must not exist yet.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a key's public key and proof of possession.
    Pop {
        /// The secret key's file.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Sign messages: FENCE_CERTIFICATE, LEASE_GRANT, FENCE_REQUEST, LEASE_ACTIVE, FENCE_ACKNOWLEDGED.
    ///
    /// Reads JSON objects, one after the other, and prints each with its `signature`, one per line.
    Sign {
        /// The secret key's file.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The messages, or - for standard input.
        #[arg(value_name = "FILE", default_value = "-")]
        messages: PathBuf,
    },
    /// Check the signatures of messages, against a gate's issuers and requesters or against one public key.
    ///
    /// Messages of one kind are checked together, which is faster than one by one.
    Verify {
        /// The gate's configuration, with its issuers and requesters.
        #[arg(long, value_name = "FILE", required_unless_present = "public_key")]
        config: Option<PathBuf>,
        /// The key to check against, whichever signer a message names.
        #[arg(long, value_name = "KEY", conflicts_with = "config")]
        public_key: Option<String>,
        /// The messages, or - for standard input.
        #[arg(value_name = "FILE", default_value = "-")]
        messages: PathBuf,
    },
    /// Show what a message says, and the bytes that are signed.
    Show {
        /// The message, or - for standard input.
        #[arg(value_name = "FILE", default_value = "-")]
        message: PathBuf,
    },
}

pub(super) fn run(command: Command) -> Done {
    match command {
        Command::Keygen { out, json } => {
            let key = SecretKey::generate().map_err(|error| Failed::Said(format!("no random numbers: {error}")))?;
            key_file::create(&out, &key).map_err(|fault| Failed::Said(fault.to_string()))?;
            show_key(&key, json);
            Ok(())
        }
        Command::Pop { key, json } => {
            show_key(&secret(&key)?, json);
            Ok(())
        }
        Command::Sign { key, messages } => {
            let key = secret(&key)?;
            each_message(&messages, |message| {
                output::line(&signed(&key, message)?.to_string());
                Ok(())
            })
        }
        Command::Verify { config, public_key, messages } => verify(config, public_key.as_deref(), &messages),
        Command::Show { message } => each_message(&message, show),
    }
}

/// An issuer's or requester's secret key.
pub(super) fn secret(path: &Path) -> Result<SecretKey, Failed> {
    key_file::read(path).map_err(|fault| Failed::Said(fault.to_string()))
}

fn show_key(key: &SecretKey, json: bool) {
    let (public, proof) = (key.public().to_string(), key.prove_possession().to_string());
    if json {
        return output::line(&serde_json::json!({ "public_key": public, "proof_of_possession": proof }).to_string());
    }
    output::line(&format!("public_key = \"{public}\""));
    output::line(&format!("proof_of_possession = \"{proof}\""));
}

/// Reads messages one after the other, and handles each before it waits for the next.
fn each_message(path: &Path, mut each: impl FnMut(Value) -> Done) -> Done {
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let file = File::open(path).map_err(|error| Failed::Said(format!("{}: {error}", path.display())))?;
        Box::new(BufReader::new(file))
    };
    let mut count = 0;
    for message in serde_json::Deserializer::from_reader(source).into_iter::<Unique>() {
        let Unique(message) = message.map_err(|error| Failed::Said(format!("not a message: {error}")))?;
        each(message)?;
        count += 1;
    }
    if count == 0 { Err(Failed::Said("there is no message".to_owned())) } else { Ok(()) }
}

fn kind_of(message: &Value) -> Result<Kind, Failed> {
    let name = message["type"].as_str().unwrap_or("");
    let known = || Kind::ALL.map(Kind::name).join(", ");
    let found = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| Failed::Said(format!("type: {name:?} cannot be signed; there are {}", known())))
}

/// Calls a function with a message as its own kind.
macro_rules! as_its_kind {
    ($message:expr, $does:ident($($argument:expr),*)) => {
        match kind_of(&$message)? {
            Kind::FenceRequest => $does::<FenceRequestMessage>($message, $($argument),*),
            Kind::FenceCertificate => $does::<CertificateMessage>($message, $($argument),*),
            Kind::FenceAcknowledged => $does::<AcknowledgedMessage>($message, $($argument),*),
            Kind::LeaseGrant => $does::<GrantMessage>($message, $($argument),*),
            Kind::LeaseActive => $does::<ActiveMessage>($message, $($argument),*),
        }
    };
}

fn read<M: Message + DeserializeOwned>(message: Value) -> Result<M, Failed> {
    serde_path_to_error::deserialize(message)
        .map_err(|error| Failed::Said(format!("{}: {}", error.path(), error.inner())))
}

/// The message with its signature.
pub(super) fn signed(key: &SecretKey, message: Value) -> Result<Value, Failed> {
    as_its_kind!(message, sign_one(key))
}

fn sign_one<M: Message + Serialize + DeserializeOwned>(message: Value, key: &SecretKey) -> Result<Value, Failed> {
    let unsigned: M = read(message)?;
    let statement = unsigned.statement().map_err(|fault| Failed::Said(format!("{}: {}", fault.field, fault.what)))?;
    serde_json::to_value(M::of(&sign(key, statement))).map_err(|error| Failed::Said(error.to_string()))
}

/// The part of a message that is checked.
struct Signed {
    kind: Kind,
    bytes: Vec<u8>,
    signature: Signature,
    name: String,
    key_epoch: u32,
    domain: ObjectId,
}

fn read_signed<M: Message + DeserializeOwned>(message: Value, (): ()) -> Result<Signed, Failed> {
    let text = |field: &str| message[field].as_str().unwrap_or("").to_owned();
    let name = ["issuer", "requester", "holder"].into_iter().map(text).find(|name| !name.is_empty());
    let key_epoch = message["key_epoch"].as_u64().and_then(|epoch| u32::try_from(epoch).ok()).unwrap_or(0);
    let domain = ObjectId::new(&text("domain")).map_err(|fault| Failed::Said(format!("domain: {fault}")))?;
    let read: M = read(message)?;
    let signed = read.signed().map_err(|fault| Failed::Said(format!("{}: {}", fault.field, fault.what)))?;
    let (bytes, signature) = (signed.statement.bytes(), signed.signature);
    Ok(Signed { kind: M::Statement::KIND, bytes, signature, name: name.unwrap_or_default(), key_epoch, domain })
}

fn verify(config: Option<PathBuf>, public_key: Option<&str>, messages: &Path) -> Done {
    let one: Option<PublicKey> = public_key
        .map(|text| text.parse().map_err(|fault| Failed::Said(format!("--public-key {fault}"))))
        .transpose()?;
    let authority = match config {
        Some(config) => {
            let settings = load(&ConfigArgs { config })?;
            Authority::new(&settings).map_err(|faults| Failed::Config(crate::config::Faults(faults)))?
        }
        None => Authority::default(),
    };
    let mut all = vec![];
    each_message(messages, |message| {
        all.push(as_its_kind!(message, read_signed(()))?);
        Ok(())
    })?;
    let verdicts = judge(&all, &authority, one.as_ref())?;
    for (signed, verdict) in all.iter().zip(&verdicts) {
        let Signed { kind, name, key_epoch, domain, .. } = signed;
        let about = format!("{} of {domain} by {name}, epoch {key_epoch}", kind.name());
        match verdict {
            Ok(()) => output::line(&format!("valid    {about}")),
            Err(why) => output::line(&format!("INVALID  {about}: {why}")),
        }
    }
    if verdicts.iter().all(Result::is_ok) { Ok(()) } else { Err(Failed::Quietly) }
}

/// Checks the messages of one kind together; if one is wrong, checks them one by one.
fn judge(all: &[Signed], authority: &Authority, one: Option<&PublicKey>) -> Result<Vec<Result<(), String>>, Failed> {
    let keys: Vec<Result<&PublicKey, String>> = all
        .iter()
        .map(|signed| match one {
            Some(key) => Ok(key),
            None => authority.signer(signed.kind, &signed.name, signed.key_epoch, &signed.domain),
        })
        .collect();
    let mut verdicts: Vec<Result<(), String>> = keys.iter().map(|key| key.clone().map(drop)).collect();
    for kind in Kind::ALL {
        let of_kind = || all.iter().zip(&keys).enumerate().filter(|(_, (signed, _))| signed.kind == kind);
        let claims: Vec<Claimed<'_>> = of_kind()
            .filter_map(|(_, (signed, key))| {
                let key = *key.as_ref().ok()?;
                Some(Claimed { key, bytes: &signed.bytes, signature: &signed.signature })
            })
            .collect();
        let hold = are_all_by(kind, &claims).map_err(|error| Failed::Said(format!("no random numbers: {error}")))?;
        if hold {
            continue;
        }
        for (place, (signed, key)) in of_kind() {
            if let Ok(key) = key
                && !signed.signature.is_by(key, kind, &signed.bytes)
            {
                verdicts[place] = Err("the signature does not hold".to_owned());
            }
        }
    }
    Ok(verdicts)
}

fn show(message: Value) -> Done {
    as_its_kind!(message, show_one(()))
}

fn show_one<M: Message + Serialize + DeserializeOwned>(message: Value, (): ()) -> Done {
    let read: M = read(message)?;
    let statement = read.statement().map_err(|fault| Failed::Said(format!("{}: {}", fault.field, fault.what)))?;
    let bytes = statement.bytes();
    let fields = serde_json::to_value(&read).map_err(|error| Failed::Said(error.to_string()))?;
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut rows: Vec<Vec<String>> =
        fields.as_object().into_iter().flatten().map(|(name, value)| vec![name.clone(), text(value)]).collect();
    let size = bytes.len() + Signature::BYTES;
    rows.push(vec!["signed bytes".to_owned(), hex::encode(&bytes)]);
    rows.push(vec!["size".to_owned(), format!("{} bytes, {size} with the signature", bytes.len())]);
    output::columns(&rows);
    Ok(())
}
