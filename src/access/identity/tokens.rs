//! Bearer tokens of a file. The file has no token in it, only salted hashes, and is read again when it has changed.
//!
//! A token is `fga1.ID.SECRET`. The id finds the row, the secret has 256 random bits, so one round of SHA-256 over salt
//! and secret is enough. `fencegate access token` makes rows and takes them out.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Verdict;
use crate::{
    access::principal::{Kind, Principal},
    fence::WallMs,
    files::{self, Locked},
    tls::renewed::Renewed,
};

const PREFIX: &str = "fga1.";
const ID_BYTES: usize = 9;
const SECRET_BYTES: usize = 32;
const SALT_BYTES: usize = 16;
/// The bits of users who are neither the owner nor in the group. Kubernetes sets group bits on volumes.
const OTHER_USERS: u32 = 0o007;
/// The capture that names a principal's row, so that a revoked token can be told from another one of the same name.
const ROW: &str = "token.id";

/// A file of tokens, as it is now.
pub struct Tokens(Renewed<Rows>);

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rows {
    pub token: Vec<Row>,
}

/// One token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub id: String,
    /// The principal.
    pub name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// RFC 3339; none: it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    pub salt: String,
    /// Of salt and secret, in hex.
    pub sha256: String,
}

impl Tokens {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be used; the text never quotes it.
    pub fn new(file: &Path) -> Result<Self, (&'static str, String)> {
        if file.as_os_str().is_empty() {
            return Err(("file", "must name the file that `fencegate access token new` writes".to_owned()));
        }
        let path = file.to_owned();
        let read = move || read(&path).map_err(|what| ("file", what));
        Renewed::new("bearer tokens", vec![file.to_owned()], read).map(Self)
    }

    pub(super) fn identify(&self, source: &str, bearer: &str, now: WallMs) -> Verdict {
        let Some(rest) = bearer.strip_prefix(PREFIX) else { return Verdict::NotMine };
        match self.0.get().find(rest) {
            None => Verdict::Refused("this bearer token is not known: it was revoked, or is another gate's".to_owned()),
            Some(row) => match row.principal(source) {
                Err(what) => Verdict::Refused(what),
                Ok(who) if who.is_over(now) => Verdict::Refused("this bearer token has expired".to_owned()),
                Ok(who) => Verdict::Is(who),
            },
        }
    }
}

impl Rows {
    /// The row of the token with this id and secret. Takes as long for a wrong secret as for the right one.
    fn find(&self, rest: &str) -> Option<&Row> {
        let (id, secret) = rest.split_once('.')?;
        let secret = BASE64_URL_SAFE_NO_PAD.decode(secret).ok().filter(|secret| secret.len() == SECRET_BYTES)?;
        let row = self.token.iter().find(|row| row.id == id)?;
        let wanted = hex::decode(&row.sha256).ok()?;
        bool::from(hash(&row.salt, &secret).ct_eq(&wanted)).then_some(row)
    }

    /// Adds a token. Returns its text, which is nowhere else.
    ///
    /// # Errors
    /// When the name is no principal's, or the system gives no random numbers.
    pub fn add(&mut self, name: &str, groups: Vec<String>, expires_at: Option<String>) -> Result<String, String> {
        let mut id = [0; ID_BYTES];
        let (mut secret, mut salt) = ([0; SECRET_BYTES], [0; SALT_BYTES]);
        for bytes in [&mut id[..], &mut secret[..], &mut salt[..]] {
            getrandom::fill(bytes).map_err(|error| format!("the system gives no random numbers: {error}"))?;
        }
        let (id, salt) = (BASE64_URL_SAFE_NO_PAD.encode(id), hex::encode(salt));
        let sha256 = hex::encode(hash(&salt, &secret));
        let row = Row { id, name: name.to_owned(), groups, expires_at, salt, sha256 };
        row.principal("")?;
        let text = format!("{PREFIX}{}.{}", row.id, BASE64_URL_SAFE_NO_PAD.encode(secret));
        self.token.push(row);
        Ok(text)
    }
}

fn hash(salt: &str, secret: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(salt.as_bytes()).chain_update(secret).finalize().into()
}

impl Row {
    fn principal(&self, source: &str) -> Result<Principal, String> {
        if self.name.contains('/') {
            return Err(format!("the name {:?} has a slash in it", self.name));
        }
        let who = Principal::new(Kind::Tokens, source, &self.name);
        let who = who.map_err(|fault| format!("the name {:?} {fault}", self.name))?;
        let who = who.in_groups(self.groups.iter().cloned()).with(ROW, &self.id);
        Ok(match &self.expires_at {
            None => who,
            Some(text) => who.until(instant(text)?),
        })
    }
}

/// An instant in RFC 3339.
///
/// # Errors
/// When the text is none.
pub fn instant(text: &str) -> Result<WallMs, String> {
    let read =
        text.parse::<jiff::Timestamp>().map_err(|_| format!("{text:?} is not a time such as 2027-01-31T00:00:00Z"))?;
    Ok(WallMs(u64::try_from(read.as_millisecond()).unwrap_or(0)))
}

/// Reads a file of tokens.
///
/// # Errors
/// When others may read it, or it is not as `fencegate access token` writes it. The text never quotes it.
pub fn read(path: &Path) -> Result<Rows, String> {
    let at = path.display();
    let found = fs::metadata(path).map_err(|error| format!("{at}: {error}"))?;
    if found.mode() & OTHER_USERS != 0 {
        return Err(format!("{at} is open to all users (mode {:03o}): run chmod 600 {at}", found.mode() & 0o777));
    }
    let text = fs::read_to_string(path).map_err(|error| format!("{at}: {error}"))?;
    let rows: Rows =
        toml::from_str(&text).map_err(|error| format!("{at} is not a file of tokens: {}", error.message()))?;
    for (place, row) in rows.token.iter().enumerate() {
        let what = |what: String| format!("{at}: token {} (id {}): {what}", place + 1, row.id);
        row.principal("").map_err(what)?;
        if rows.token[..place].iter().any(|each| each.id == row.id) {
            return Err(what("its id is there twice".to_owned()));
        }
        if hex::decode(&row.sha256).map_or(0, |bytes| bytes.len()) != 32 {
            return Err(what("sha256 is not 64 hex digits".to_owned()));
        }
    }
    Ok(rows)
}

/// Puts a file of tokens in the place of the present one, in one step.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, rows: &Rows) -> io::Result<()> {
    let text = toml::to_string(rows).map_err(|error| io::Error::other(error.to_string()))?;
    files::write_whole(path, text.as_bytes())
}

/// The right to change a file of tokens: to read it, and to put another one in its place.
///
/// # Errors
/// When the file beside it cannot be locked.
pub fn lock(path: &Path) -> io::Result<Locked> {
    Locked::beside(path)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, path::PathBuf, thread};

    use super::*;

    const NOW: WallMs = WallMs(1_800_000_000_000);

    fn file(rows: &Rows) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        write(&path, rows).unwrap();
        (folder, path)
    }

    fn name_by(tokens: &Tokens, bearer: &str, now: WallMs) -> Result<String, String> {
        match tokens.identify("file", bearer, now) {
            Verdict::Is(who) => Ok(who.name().to_owned()),
            Verdict::Refused(why) => Err(why),
            Verdict::NotMine | Verdict::Unavailable(_) => Err("not mine".to_owned()),
        }
    }

    #[test]
    fn a_token_names_its_principal_and_nothing_of_it_is_in_the_file() {
        let mut rows = Rows::default();
        let one = rows.add("backup", vec!["ops".to_owned()], None).unwrap();
        let other = rows.add("etl", vec![], None).unwrap();
        let (_folder, path) = file(&rows);
        let tokens = Tokens::new(&path).unwrap();
        assert_eq!(name_by(&tokens, &one, NOW).as_deref(), Ok("backup"));
        assert_eq!(name_by(&tokens, &other, NOW).as_deref(), Ok("etl"));
        let secret = one.rsplit('.').next().unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains(secret));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn every_other_text_is_refused() {
        let mut rows = Rows::default();
        let token = rows.add("backup", vec![], None).unwrap();
        let other = rows.add("etl", vec![], None).unwrap();
        let (_folder, path) = file(&rows);
        let tokens = Tokens::new(&path).unwrap();
        for at in PREFIX.len()..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(name_by(&tokens, &changed, NOW).is_err(), "byte {at}");
        }
        let id = |text: &str| text.split('.').nth(1).unwrap().to_owned();
        let secret = |text: &str| text.split('.').nth(2).unwrap().to_owned();
        for text in [
            format!("fga1.{}.{}", id(&token), secret(&other)),
            format!("fga1.{}.", id(&token)),
            format!("{token}="),
            format!("{token}A"),
            "fga1.".to_owned(),
            "fga1..".to_owned(),
        ] {
            assert!(name_by(&tokens, &text, NOW).is_err(), "{text}");
        }
        assert_eq!(name_by(&tokens, "eyJhbGciOi.x.y", NOW), Err("not mine".to_owned()));
    }

    #[test]
    fn an_expired_or_revoked_token_names_no_one() {
        let mut rows = Rows::default();
        let token = rows.add("backup", vec![], Some("2027-01-15T08:00:00Z".to_owned())).unwrap();
        let (_folder, path) = file(&rows);
        let tokens = Tokens::new(&path).unwrap();
        let ends = instant("2027-01-15T08:00:00Z").unwrap();
        assert_eq!(name_by(&tokens, &token, WallMs(ends.0 - 1)).as_deref(), Ok("backup"));
        assert!(name_by(&tokens, &token, ends).unwrap_err().contains("expired"));
        let Verdict::Is(who) = tokens.identify("file", &token, WallMs(ends.0 - 1)) else { panic!("known") };
        assert!(!who.is_over(WallMs(ends.0 - 1)) && who.is_over(ends));
        write(&path, &Rows::default()).unwrap();
        assert!(name_by(&tokens, &token, WallMs(0)).unwrap_err().contains("not known"));
    }

    #[test]
    fn a_file_with_a_fault_is_refused_at_the_start_and_ignored_later() {
        let mut rows = Rows::default();
        let token = rows.add("backup", vec![], None).unwrap();
        let (_folder, path) = file(&rows);
        let tokens = Tokens::new(&path).unwrap();
        for bad in
            ["[[token]]\nid = 'x'", "nonsense = 1", "[[", "[[token]]\nid='a'\nname='system:x'\nsalt='s'\nsha256=''"]
        {
            fs::write(&path, bad).unwrap();
            assert!(Tokens::new(&path).is_err(), "{bad}");
            assert_eq!(name_by(&tokens, &token, NOW).as_deref(), Ok("backup"), "the last usable ones stay in use");
        }
        write(&path, &rows).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        let fault = Tokens::new(&path).map(drop).unwrap_err();
        assert!(fault.1.contains("chmod 600"), "{fault:?}");
        for name in ["", "a/b", "system:x", "spiffe:x", "a b"] {
            assert!(Rows::default().add(name, vec![], None).is_err(), "{name}");
        }
    }

    #[test]
    fn changes_at_the_same_time_lose_no_token() {
        let (_folder, path) = file(&Rows::default());
        thread::scope(|scope| {
            for n in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    let _locked = lock(path).unwrap();
                    let mut rows = read(path).unwrap();
                    rows.add(&format!("writer-{n}"), vec![], None).unwrap();
                    write(path, &rows).unwrap();
                });
            }
        });
        assert_eq!(read(&path).unwrap().token.len(), 8);
    }

    #[test]
    fn what_a_write_that_was_cut_short_has_left_behind_is_not_used() {
        let (_folder, path) = file(&Rows::default());
        let next = PathBuf::from(format!("{}.new", path.display()));
        fs::write(&next, "left behind").unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o644)).unwrap();
        write(&path, &Rows::default()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path), Ok(Rows::default()));
    }
}
