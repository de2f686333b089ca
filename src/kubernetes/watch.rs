//! The watch of a namespace's Leases. It begins with a list. It begins again with a list whenever it breaks off, and
//! when the API server no longer has the position that the watch had reached.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::{self, Event, watcher};

use super::{
    api::{LeaseName, Seen},
    lease_observer::LeaseObserver,
};

/// How long one request lasts before it is repeated: a dead connection is noticed soon after.
const LASTS_S: u32 = 60;
/// The pause between two attempts. kube's backoff would never grow here: every event resets it, and a watcher sends
/// an event before each list, also when the API server is unreachable.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Watches a namespace until the task is stopped.
pub async fn run(lease_observer: Arc<LeaseObserver>, namespace: String) {
    let mut pause = PAUSE_MIN;
    lease_observer.metrics().watching(&namespace, false);
    loop {
        let Some(cluster) = lease_observer.cluster() else { return };
        let mut events = Box::pin(watcher(cluster.leases(&namespace), watcher::Config::default().timeout(LASTS_S)));
        let mut listed = HashSet::new();
        let broken = loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    if matches!(event, Event::InitDone) {
                        pause = PAUSE_MIN;
                        lease_observer.metrics().watching(&namespace, true);
                    }
                    apply_watch_event(&lease_observer, &namespace, event, &mut listed);
                }
                Ok(None) => break "it has ended".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        lease_observer.metrics().watching(&namespace, false);
        tracing::warn!(namespace, why = broken, "the watch of Leases broke off; it begins anew");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn apply_watch_event(
    lease_observer: &Arc<LeaseObserver>,
    namespace: &str,
    event: Event<Lease>,
    listed: &mut HashSet<String>,
) {
    let name = |lease: &Lease| lease.metadata.name.clone().unwrap_or_default();
    let place = |lease: &Lease| LeaseName { namespace: namespace.to_owned(), name: name(lease) };
    match event {
        Event::Init => listed.clear(),
        Event::InitApply(lease) => {
            listed.insert(name(&lease));
            lease_observer.watch_shows(&place(&lease), Seen::of(&lease).ok());
        }
        Event::InitDone => lease_observer.watch_lists(namespace, listed),
        // A Lease that cannot be understood differs from every known state, so it is read.
        Event::Apply(lease) => lease_observer.watch_shows(&place(&lease), Seen::of(&lease).ok()),
        Event::Delete(lease) => lease_observer.watch_shows(&place(&lease), None),
    }
}
