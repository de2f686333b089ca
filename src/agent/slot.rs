//! An object in use: this agent's standing with it, what its writers get, and how many writes to it are in flight.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde::Serialize;
use tokio::sync::{Notify, watch};

use super::{held::Held, holdings::Led};
use crate::{
    client::Progress,
    fence::{BootMs, Code, HolderId, ObjectId, code::Plane},
    kubernetes::api::LeaseName,
    problem::Problem,
};

/// This agent's standing with an object. The granter of its lease is the gate or a Kubernetes API server.
#[derive(Clone, Debug)]
pub(super) enum Standing {
    /// The granter was asked, and has not answered yet.
    Asking,
    Leading(Held),
    /// Another holder leads; its id, if known.
    Following(Option<HolderId>),
    /// The granter cannot be reached, or cannot grant now.
    Cut(String),
    /// The granter refuses.
    Refused(String),
    /// The granter is not asked for a while: the last leases were lost soon after their grant.
    Pausing(String),
}

/// An object in use.
pub(super) struct Slot {
    pub(super) object: ObjectId,
    pub(super) by: Option<LeaseName>,
    pub(super) up_front: bool,
    pub(super) standing: watch::Sender<Standing>,
    /// When it was last written to, on the boot clock.
    used_at: AtomicU64,
    writes: AtomicUsize,
    /// The lease must be given back: see [`Slot::give_way`].
    yields: Notify,
}

/// A write in flight to an object. Meanwhile its lease is not given back for lack of use.
pub(super) struct Writing(pub(super) Arc<Slot>);

impl Writing {
    pub(super) fn on(slot: Arc<Slot>) -> Self {
        slot.writes.fetch_add(1, Ordering::AcqRel);
        Self(slot)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.writes.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One object, as `GET /leader` shows it.
#[derive(Debug, Serialize)]
pub struct Shown {
    /// Whether this agent leads the object.
    pub leader: bool,
    /// Who leads it, if known.
    pub holder_id: Option<String>,
    pub lease_seq: Option<u64>,
    pub expires_in_ms: Option<u64>,
    /// The Kubernetes Lease that leads the object, if one does, and how often that Lease had changed hands when this
    /// agent took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes_lease: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<u32>,
    /// Why this agent does not lead, unless another holder does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Slot {
    pub(super) fn new(led: &Led, up_front: bool, now: BootMs) -> Arc<Self> {
        Arc::new(Self {
            object: led.object.clone(),
            by: led.by.clone(),
            up_front,
            standing: watch::Sender::new(Standing::Asking),
            used_at: AtomicU64::new(now.0),
            writes: AtomicUsize::new(0),
            yields: Notify::new(),
        })
    }

    /// Whether its lease may be given back: it is held, and was not taken up front.
    pub(super) fn may_give_way(&self) -> bool {
        !self.up_front && matches!(&*self.standing.borrow(), Standing::Leading(_))
    }

    /// Gives its lease back if no write is in flight, because a write to several objects cannot get another one of
    /// them.
    pub(super) fn give_way(&self) {
        self.yields.notify_one();
    }

    /// Keeps the lease that was just granted: a late call of [`Slot::give_way`] was for the lease before.
    pub(super) fn keep(&self) {
        let _ = pin!(self.yields.notified()).enable();
    }

    /// Returns when the lease must be given back.
    pub(super) async fn yielded(&self) {
        self.yields.notified().await;
    }

    /// Records that a writer wants the object.
    pub(super) fn touch(&self, now: BootMs) {
        self.used_at.store(now.0, Ordering::Release);
    }

    /// How many milliseconds ago a writer wanted the object last.
    pub(super) fn untouched_for(&self, now: BootMs) -> u64 {
        now.since(BootMs(self.used_at.load(Ordering::Acquire)))
    }

    /// Whether writes to it are in flight.
    pub(super) fn is_written(&self) -> bool {
        self.writes.load(Ordering::Acquire) > 0
    }

    /// Returns the standing once the granter has answered, or after `patience` that it has not. A lease that was just
    /// lost counts as not answered, since it is about to be asked for again.
    pub(super) async fn settled(&self, patience: Duration) -> Standing {
        let mut standing = self.standing.subscribe();
        let settled = standing.wait_for(|standing| match standing {
            Standing::Asking => false,
            Standing::Leading(held) => held.token().is_ok(),
            Standing::Following(_) | Standing::Cut(_) | Standing::Refused(_) | Standing::Pausing(_) => true,
        });
        match tokio::time::timeout(patience, settled).await {
            Ok(Ok(standing)) => standing.clone(),
            Ok(Err(_)) | Err(_) => Standing::Asking,
        }
    }

    pub(super) fn give_up_asking(&self) {
        self.standing.send_if_modified(|standing| {
            let is_asking = matches!(standing, Standing::Asking);
            if is_asking {
                *standing = Standing::Cut(self.is_silent());
            }
            is_asking
        });
    }

    pub(super) fn note_progress(&self, progress: &Progress) {
        self.standing.send_replace(match progress {
            Progress::Held { by } => Standing::Following(by.as_deref().and_then(|by| HolderId::new(by).ok())),
            Progress::Unreachable { why } => Standing::Cut(why.clone()),
        });
    }

    /// The granter's name for messages.
    fn granter(&self) -> &'static str {
        if self.by.is_some() { "the API server" } else { "the gate" }
    }

    pub(super) fn is_silent(&self) -> String {
        format!("{} has not answered yet", self.granter())
    }

    pub(super) fn unreachable(&self, why: &str) -> Problem {
        let what =
            format!("{} does not say whether this agent holds the object, and nothing was sent: {why}", self.granter());
        Problem::on(Plane::Data, Code::GateUnreachable, what).with_object(&self.object)
    }

    pub(super) fn shown(&self) -> Shown {
        let mut shown = Shown {
            leader: false,
            holder_id: None,
            lease_seq: None,
            expires_in_ms: None,
            kubernetes_lease: self.by.as_ref().map(ToString::to_string),
            lease_transitions: None,
            why: None,
        };
        match &*self.standing.borrow() {
            Standing::Leading(held) => match held.token() {
                Ok(_) => {
                    shown.leader = true;
                    shown.holder_id = Some(held.holder().to_owned());
                    match held {
                        Held::Gate(lease) => shown.lease_seq = Some(lease.seq()),
                        Held::Kubernetes(term) => shown.lease_transitions = Some(term.election().transitions),
                    }
                    shown.expires_in_ms = Some(held.left_ms());
                }
                Err(lost) => shown.why = Some(lost),
            },
            Standing::Following(leader) => shown.holder_id = leader.as_ref().map(ToString::to_string),
            Standing::Asking => shown.why = Some(self.is_silent()),
            Standing::Cut(why) | Standing::Refused(why) | Standing::Pausing(why) => shown.why = Some(why.clone()),
        }
        shown
    }
}
