//! The ServiceAccounts of a small kube-apiserver, their projected tokens, and what it says of a token (TokenReview): no
//! sockets, no users. The rules are those of 1.20, and the tests in `kubernetes::server` run against both.
//!
//! Tokens are JWTs, signed with a key of the fake's own: only the fake checks them.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use uuid::Uuid;

use super::{Who, state::Failure};

/// The audiences of tokens for the API server itself, of both servers. Tokens of users have these.
pub const API_AUDIENCES: [&str; 2] = ["https://kubernetes.test", "users.test"];
/// A user whose token has the form of a JWT. It may do nothing.
pub const PERSON: &str = "person";

const KEY: &[u8] = b"the key of the fake API server";
/// The shortest life of a token that the API server gives out, in seconds.
const SECONDS_MIN: u64 = 600;

/// What a path names besides Leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Leases,
    Reviews,
    Accounts,
    Tokens,
    Pods,
}

impl Resource {
    /// Its name and its group.
    pub fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Leases => ("leases", "coordination.k8s.io"),
            Self::Reviews => ("tokenreviews", "authentication.k8s.io"),
            Self::Accounts => ("serviceaccounts", ""),
            Self::Tokens => ("serviceaccounts/token", ""),
            Self::Pods => ("pods", ""),
        }
    }

    /// The resource, the namespace and the name in a path.
    pub fn of(path: &str) -> Option<(Self, Option<&str>, Option<&str>)> {
        match path.split('/').skip(1).collect::<Vec<_>>()[..] {
            ["apis", "coordination.k8s.io", "v1", "leases"] => Some((Self::Leases, None, None)),
            ["apis", "coordination.k8s.io", "v1", "namespaces", at, "leases"] => Some((Self::Leases, Some(at), None)),
            ["apis", "coordination.k8s.io", "v1", "namespaces", at, "leases", name] => {
                Some((Self::Leases, Some(at), Some(name)))
            }
            ["apis", "authentication.k8s.io", "v1", "tokenreviews"] => Some((Self::Reviews, None, None)),
            ["api", "v1", "namespaces", at, "serviceaccounts"] => Some((Self::Accounts, Some(at), None)),
            ["api", "v1", "namespaces", at, "serviceaccounts", name] => Some((Self::Accounts, Some(at), Some(name))),
            ["api", "v1", "namespaces", at, "serviceaccounts", of, "token"] => Some((Self::Tokens, Some(at), Some(of))),
            ["api", "v1", "namespaces", at, "pods"] => Some((Self::Pods, Some(at), None)),
            _ => None,
        }
    }
}

/// The token of [`PERSON`]: it never ends.
pub fn token_of_a_person() -> String {
    let part = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let payload = json!({ "aud": [API_AUDIENCES[1]], "exp": 4_102_444_800_u64, "sub": PERSON });
    format!("{}.{}.{}", part(json!({ "alg": "RS256" })), part(payload), BASE64_URL_SAFE_NO_PAD.encode("signed"))
}

type Key = (String, String);

/// ServiceAccounts and pods, each with its uid.
#[derive(Default)]
pub struct Accounts {
    accounts: BTreeMap<Key, String>,
    /// And the name of its ServiceAccount.
    pods: BTreeMap<Key, (String, String)>,
}

impl Accounts {
    pub fn create_account(&mut self, namespace: &str, sent: &Value) -> Result<Value, Failure> {
        let (name, uid) = (name_of("ServiceAccount", sent)?, Uuid::new_v4().to_string());
        let key = (namespace.to_owned(), name.to_owned());
        if self.accounts.contains_key(&key) {
            return Err(Failure::new(409, "AlreadyExists", format!("serviceaccounts {name:?} already exists")));
        }
        self.accounts.insert(key, uid.clone());
        Ok(object("ServiceAccount", namespace, name, &uid))
    }

    pub fn delete_account(&mut self, namespace: &str, name: &str) -> Result<Value, Failure> {
        let removed = self.accounts.remove(&(namespace.to_owned(), name.to_owned()));
        removed.ok_or_else(|| missing("serviceaccounts", name))?;
        Ok(json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }))
    }

    pub fn create_pod(&mut self, namespace: &str, sent: &Value) -> Result<Value, Failure> {
        let (name, uid) = (name_of("Pod", sent)?, Uuid::new_v4().to_string());
        let account = sent["spec"]["serviceAccountName"].as_str().unwrap_or("default");
        self.uid(namespace, account)?;
        self.pods.insert((namespace.to_owned(), name.to_owned()), (uid.clone(), account.to_owned()));
        Ok(object("Pod", namespace, name, &uid))
    }

    fn uid(&self, namespace: &str, account: &str) -> Result<&String, Failure> {
        let found = self.accounts.get(&(namespace.to_owned(), account.to_owned()));
        found.ok_or_else(|| missing("serviceaccounts", account))
    }

    /// The answer to a TokenRequest.
    pub fn token(&self, namespace: &str, account: &str, sent: &Value) -> Result<Value, Failure> {
        let uid = self.uid(namespace, account)?;
        let spec = &sent["spec"];
        let seconds = spec["expirationSeconds"].as_u64().unwrap_or(3_600);
        if seconds < SECONDS_MIN {
            let why = "spec.expirationSeconds: Invalid value: may not specify a duration less than 10 minutes";
            return Err(Failure::new(422, "Invalid", why));
        }
        let audiences = texts(&spec["audiences"]);
        let audiences = if audiences.is_empty() { vec![API_AUDIENCES[0].to_owned()] } else { audiences };
        let mut own = json!({ "namespace": namespace, "serviceaccount": { "name": account, "uid": uid } });
        if spec["boundObjectRef"]["kind"] == "Pod" {
            own["pod"] = self.bound(namespace, account, &spec["boundObjectRef"])?;
        }
        let now = seconds_now();
        let subject = format!("system:serviceaccount:{namespace}:{account}");
        let token = signed(&json!({
            "aud": audiences, "exp": now + seconds, "iat": now, "nbf": now, "iss": API_AUDIENCES[0], "sub": subject,
            "kubernetes.io": own,
        }));
        Ok(json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": spec,
            "status": { "token": token },
        }))
    }

    fn bound(&self, namespace: &str, account: &str, to: &Value) -> Result<Value, Failure> {
        let name = to["name"].as_str().unwrap_or_default();
        let found = self.pods.get(&(namespace.to_owned(), name.to_owned()));
        let (uid, of) = found.ok_or_else(|| missing("pods", name))?;
        if of != account {
            return Err(Failure::new(400, "BadRequest", "cannot bind token to a pod of a different serviceaccount"));
        }
        Ok(json!({ "name": name, "uid": uid }))
    }

    /// The answer to a TokenReview.
    pub fn review(&self, sent: &Value) -> Result<Value, Failure> {
        let token = sent["spec"]["token"].as_str().unwrap_or_default();
        if sent["kind"] != "TokenReview" || token.is_empty() {
            return Err(Failure::new(400, "BadRequest", "token is required for TokenReview in authentication"));
        }
        let wanted = texts(&sent["spec"]["audiences"]);
        let wanted = if wanted.is_empty() { API_AUDIENCES.map(str::to_owned).to_vec() } else { wanted };
        let user = Who::ALL.into_iter().find(|who| who.token() == token).map(Who::user);
        let user = user.or_else(|| (token == token_of_a_person()).then_some(PERSON));
        let found = match user {
            Some(user) => Ok((
                json!({ "username": user, "groups": ["system:authenticated"] }),
                API_AUDIENCES.map(str::to_owned).to_vec(),
            )),
            None => self.owner(token),
        };
        let found = found.and_then(|(user, audiences)| {
            let both: Vec<_> = audiences.into_iter().filter(|each| wanted.contains(each)).collect();
            if both.is_empty() { Err("the token is for other audiences") } else { Ok((user, both)) }
        });
        let status = match found {
            Ok((user, audiences)) => json!({ "authenticated": true, "user": user, "audiences": audiences }),
            Err(why) => json!({ "user": {}, "error": format!("invalid bearer token, {why}") }),
        };
        Ok(json!({
            "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": sent["spec"],
            "status": status,
        }))
    }

    /// The user whose projected token this is, and its audiences.
    fn owner(&self, token: &str) -> Result<(Value, Vec<String>), &'static str> {
        let claims = verified(token).ok_or("its signature is wrong")?;
        if claims["exp"].as_u64().unwrap_or(0) <= seconds_now() {
            return Err("it has expired");
        }
        let own = &claims["kubernetes.io"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, account) = (text(&own["namespace"]), text(&own["serviceaccount"]["name"]));
        if self.uid(&namespace, &account).ok() != Some(&text(&own["serviceaccount"]["uid"])) {
            return Err("its service account has been deleted");
        }
        let mut user = json!({
            "username": claims["sub"], "uid": own["serviceaccount"]["uid"],
            "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{namespace}"), "system:authenticated"],
        });
        if own["pod"].is_object() {
            user["extra"] = json!({
                "authentication.kubernetes.io/pod-name": [own["pod"]["name"]],
                "authentication.kubernetes.io/pod-uid": [own["pod"]["uid"]],
            });
        }
        Ok((user, texts(&claims["aud"])))
    }
}

#[allow(clippy::disallowed_methods, reason = "the API server has a clock of its own")]
fn seconds_now() -> u64 {
    jiff::Timestamp::now().as_second().unsigned_abs()
}

fn mac(text: &str) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(KEY).unwrap().chain_update(text)
}

fn signed(claims: &Value) -> String {
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&json!({ "alg": "HS256", "kid": "fake" })), part(claims));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(mac(&text).finalize().into_bytes());
    format!("{text}.{signature}")
}

/// The claims of a token that this server has signed.
fn verified(token: &str) -> Option<Value> {
    let (text, signature) = token.rsplit_once('.')?;
    mac(text).verify_slice(&BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?).ok()?;
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text.split_once('.')?.1).ok()?).ok()
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn name_of<'a>(kind: &str, sent: &'a Value) -> Result<&'a str, Failure> {
    let name = sent["metadata"]["name"].as_str().filter(|_| sent["kind"] == kind && sent["apiVersion"] == "v1");
    name.ok_or_else(|| Failure::new(400, "BadRequest", format!("the object provided is no {kind} with a name")))
}

fn object(kind: &str, namespace: &str, name: &str, uid: &str) -> Value {
    json!({ "kind": kind, "apiVersion": "v1", "metadata": { "namespace": namespace, "name": name, "uid": uid } })
}

fn missing(resource: &str, name: &str) -> Failure {
    Failure::new(404, "NotFound", format!("{resource} {name:?} not found"))
}
