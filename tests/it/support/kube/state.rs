//! The Leases of a small kube-apiserver, and its rules: no sockets, no users. The rules are those of 1.20, and the
//! tests in `kubernetes::server` run against both.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use uuid::Uuid;

/// A refusal as a Status object describes it.
#[derive(Debug)]
pub struct Failure {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
}

impl Failure {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
    }

    fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    fn missing(name: &str) -> Self {
        Self::new(404, "NotFound", format!("leases.coordination.k8s.io {name:?} not found"))
    }

    fn invalid(name: &str, why: &str) -> Self {
        Self::new(422, "Invalid", format!("Lease.coordination.k8s.io {name:?} is invalid: {why}"))
    }

    fn conflict(name: &str, why: &str) -> Self {
        let head = format!("Operation cannot be fulfilled on leases.coordination.k8s.io {name:?}: ");
        Self::new(409, "Conflict", head + why)
    }

    pub fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        })
    }
}

const CHANGED: &str = "the object has been modified; please apply your changes to the latest version and try again";

#[derive(Clone)]
pub struct Event {
    pub revision: u64,
    pub kind: &'static str,
    pub object: Value,
}

/// The objects of a list or a watch.
#[derive(Clone, Default)]
pub struct Selection {
    pub namespace: Option<String>,
    pub name: Option<String>,
}

impl Selection {
    fn has(&self, object: &Value) -> bool {
        let is = |wanted: &Option<String>, field: &str| {
            wanted.as_deref().is_none_or(|wanted| object["metadata"][field] == wanted)
        };
        is(&self.namespace, "namespace") && is(&self.name, "name")
    }
}

/// All Leases, and what has happened to them since the last compaction.
pub struct State {
    pub namespaces: &'static [&'static str],
    /// One counter for all objects, as in etcd.
    pub revision: u64,
    /// The oldest revision from which a watch may begin.
    pub oldest: u64,
    leases: BTreeMap<(String, String), Value>,
    events: Vec<Event>,
}

impl State {
    pub fn new(namespaces: &'static [&'static str]) -> Self {
        Self { namespaces, revision: 1, oldest: 1, leases: BTreeMap::new(), events: vec![] }
    }

    pub fn get(&self, namespace: &str, name: &str) -> Result<Value, Failure> {
        let found = self.leases.get(&(namespace.to_owned(), name.to_owned()));
        found.cloned().ok_or_else(|| Failure::missing(name))
    }

    /// The selected Leases, each in the form of a single object.
    pub fn selected(&self, selection: &Selection) -> Vec<Value> {
        self.leases.values().filter(|lease| selection.has(lease)).cloned().collect()
    }

    pub fn list(&self, selection: &Selection) -> Value {
        let mut items = self.selected(selection);
        for item in &mut items {
            let item = item.as_object_mut().unwrap();
            item.remove("kind");
            item.remove("apiVersion");
        }
        let metadata = json!({ "resourceVersion": self.revision.to_string() });
        json!({ "kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "items": items })
    }

    /// The first event after a revision that is about a selected Lease.
    pub fn next(&self, after: u64, selection: &Selection) -> Option<Event> {
        self.events.iter().find(|event| event.revision > after && selection.has(&event.object)).cloned()
    }

    pub fn create(&mut self, namespace: &str, sent: &Value) -> Result<Value, Failure> {
        let name = sent["metadata"]["name"].as_str().unwrap_or_default();
        let lease = self.made_from(namespace, name, sent)?;
        if self.leases.contains_key(&(namespace.to_owned(), name.to_owned())) {
            let message = format!("leases.coordination.k8s.io {name:?} already exists");
            return Err(Failure::new(409, "AlreadyExists", message));
        }
        if named(sent, "resourceVersion").is_some() {
            return Err(Failure::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        Ok(self.put("ADDED", lease))
    }

    /// Makes a new object from the request's body.
    fn made_from(&self, namespace: &str, name: &str, sent: &Value) -> Result<Value, Failure> {
        if !self.namespaces.contains(&namespace) {
            return Err(Failure::new(404, "NotFound", format!("namespaces {namespace:?} not found")));
        }
        if named(sent, "namespace").is_some_and(|own| own != namespace) {
            return Err(Failure::bad("the namespace of the provided object does not match the namespace sent"));
        }
        let spec = checked_spec(name, sent)?;
        if name.is_empty() {
            return Err(Failure::invalid(name, "metadata.name: Required value: name or generateName is required"));
        }
        let mut metadata = json!({
            "name": name, "namespace": namespace, "uid": Uuid::new_v4().to_string(),
            // No client reads the time.
            "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        copy_notes(sent, &mut metadata);
        Ok(json!({ "kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "spec": spec }))
    }

    /// Replaces an object; `may_create` if a PUT may also make it.
    pub fn update(&mut self, namespace: &str, name: &str, sent: &Value, may_create: bool) -> Result<Value, Failure> {
        if sent["metadata"]["name"] != name {
            return Err(Failure::bad("the name of the object does not match the name on the URL"));
        }
        let spec = checked_spec(name, sent)?;
        let uid = named(sent, "uid");
        let Ok(before) = self.get(namespace, name) else {
            if let Some(uid) = uid {
                return Err(Failure::conflict(name, &unlike(uid, "")));
            }
            if !may_create {
                return Err(Failure::new(403, "Forbidden", "an update that creates needs the right to create"));
            }
            let lease = self.made_from(namespace, name, sent)?;
            return Ok(self.put("ADDED", lease));
        };
        let own = before["metadata"]["uid"].as_str().unwrap();
        if let Some(uid) = uid.filter(|uid| *uid != own) {
            return Err(Failure::conflict(name, &unlike(uid, own)));
        }
        let Some(version) = named(sent, "resourceVersion") else {
            let why = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update";
            return Err(Failure::invalid(name, why));
        };
        if version.parse::<u64>().is_err() {
            return Err(Failure::invalid(name, &format!("metadata.resourceVersion: Invalid value: {version:?}")));
        }
        if before["metadata"]["resourceVersion"] != version {
            return Err(Failure::conflict(name, CHANGED));
        }
        let mut after = before.clone();
        after["spec"] = spec;
        copy_notes(sent, &mut after["metadata"]);
        // An update without a difference makes no revision.
        if after == before { Ok(before) } else { Ok(self.put("MODIFIED", after)) }
    }

    pub fn delete(&mut self, namespace: &str, name: &str, options: &Value) -> Result<Value, Failure> {
        let lease = self.get(namespace, name)?;
        for field in ["uid", "resourceVersion"] {
            let own = lease["metadata"][field].as_str().unwrap();
            if let Some(wanted) = options["preconditions"][field].as_str().filter(|wanted| *wanted != own) {
                return Err(Failure::conflict(name, &unlike(wanted, own)));
            }
        }
        self.leases.remove(&(namespace.to_owned(), name.to_owned()));
        let uid = lease["metadata"]["uid"].clone();
        self.log("DELETED", lease);
        let details = json!({ "name": name, "group": "coordination.k8s.io", "kind": "leases", "uid": uid });
        Ok(json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details }))
    }

    /// Forgets everything before this instant. The revision rises, so that no watch is up to date.
    pub fn compact(&mut self) {
        self.revision += 1;
        self.oldest = self.revision;
        self.events.clear();
    }

    fn put(&mut self, kind: &'static str, lease: Value) -> Value {
        let field = |name: &str| lease["metadata"][name].as_str().unwrap().to_owned();
        let key = (field("namespace"), field("name"));
        let lease = self.log(kind, lease);
        self.leases.insert(key, lease.clone());
        lease
    }

    fn log(&mut self, kind: &'static str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.events.push(Event { revision: self.revision, kind, object: object.clone() });
        object
    }
}

/// A field of the sent metadata, unless it is empty.
fn named<'a>(sent: &'a Value, field: &str) -> Option<&'a str> {
    sent["metadata"][field].as_str().filter(|text| !text.is_empty())
}

fn unlike(wanted: &str, own: &str) -> String {
    format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {own}")
}

fn copy_notes(sent: &Value, metadata: &mut Value) {
    let metadata = metadata.as_object_mut().unwrap();
    for field in ["labels", "annotations", "ownerReferences", "finalizers"] {
        match &sent["metadata"][field] {
            Value::Null => metadata.remove(field),
            notes => metadata.insert(field.to_owned(), notes.clone()),
        };
    }
}

/// The spec without fields that a Lease does not have. Fails if the object is no Lease.
fn checked_spec(name: &str, sent: &Value) -> Result<Value, Failure> {
    for (field, wanted) in [("kind", "Lease"), ("apiVersion", "coordination.k8s.io/v1")] {
        if sent[field] != wanted {
            return Err(Failure::bad(format!("the object provided is unrecognized: {field} is {}", sent[field])));
        }
    }
    let mut spec = Map::new();
    for field in ["holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions"] {
        let value = &sent["spec"][field];
        let number = value.as_i64().filter(|number| i32::try_from(*number).is_ok());
        let fits = match field {
            "holderIdentity" => value.is_string(),
            "acquireTime" | "renewTime" => value.as_str().is_some_and(is_micro_time),
            _ => number.is_some(),
        };
        if value.is_null() {
            continue;
        }
        if !fits {
            return Err(Failure::bad(format!(
                "Lease in version \"v1\" cannot be handled as a Lease: {field}: {value}"
            )));
        }
        let least = if field == "leaseDurationSeconds" { 1 } else { 0 };
        if number.is_some_and(|number| number < least) {
            return Err(Failure::invalid(
                name,
                &format!("spec.{field}: Invalid value: {value}: must be at least {least}"),
            ));
        }
        spec.insert(field.to_owned(), value.clone());
    }
    Ok(Value::Object(spec))
}

/// RFC 3339 with exactly six digits after the point, as the real server demands.
fn is_micro_time(text: &str) -> bool {
    let digits = text.split_once('.').map_or(0, |(_, rest)| rest.bytes().take_while(u8::is_ascii_digit).count());
    digits == 6 && text.parse::<jiff::Timestamp>().is_ok()
}
