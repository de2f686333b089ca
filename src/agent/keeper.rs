//! The task that keeps one object's lease: it asks for the lease, holds it, asks again when it is lost, and gives it
//! back. Where a Kubernetes Lease leads the object, the task follows the election on it.

use std::{sync::Arc, time::Duration};

use super::{
    campaigns::Seat,
    held::Held,
    holdings::{Holdings, Phase},
    slot::{Slot, Standing},
};
use crate::{
    client::{Lease, Lost, NotHad, Wanted},
    fence::HolderId,
    wire::LeaseState,
};

/// Wait after a refusal that will hardly change soon.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
/// How long a question who leads may take.
const LOOK: Duration = Duration::from_secs(5);

/// Follows the election of an object's seat until the object is no longer wanted.
pub(super) async fn follow(holdings: Arc<Holdings>, slot: Arc<Slot>, seat: Seat) {
    let mut standing = seat.standing();
    loop {
        let now = standing.borrow_and_update().clone();
        let leads = matches!(now, Standing::Leading(_));
        slot.standing.send_replace(now);
        tokio::select! {
            // The sender lives as long as the seat.
            _ = standing.changed() => continue,
            () = holdings.reached(if leads { Phase::Releasing } else { Phase::Draining }) => {}
            () = holdings.idle(&slot, leads) => {}
        }
        if holdings.forget(&slot) {
            return;
        }
    }
}

/// Keeps one object's lease, until it is given back.
pub(super) async fn keep(holdings: Arc<Holdings>, slot: Arc<Slot>) {
    loop {
        let goes_on = match ask(&holdings, &slot).await {
            Ok(lease) => match lead(&holdings, &slot, Arc::new(lease)).await {
                None => false,
                Some(loss) => pause(&holdings, &slot, &loss).await,
            },
            Err(NotHad::Refused(why)) => {
                tracing::error!(object = %slot.object, %why, "the gate grants no lease");
                slot.standing.send_replace(Standing::Refused(why.to_string()));
                // Ask again only while writers still want the object.
                tokio::select! {
                    () = tokio::time::sleep(REFUSED_PAUSE) => slot.up_front,
                    () = holdings.reached(Phase::Draining) => false,
                }
            }
            Err(NotHad::GivenUp | NotHad::Held { .. } | NotHad::Unreachable { .. }) => false,
        };
        if !goes_on {
            if holdings.forget(&slot) {
                return;
            }
            slot.standing.send_replace(Standing::Asking);
        }
    }
}

/// Waits for the lease, and finds out meanwhile who holds it.
async fn ask(holdings: &Holdings, slot: &Slot) -> Result<Lease, NotHad> {
    let given_up = || async {
        tokio::select! {
            () = holdings.reached(Phase::Draining) => {}
            () = holdings.idle(slot, false) => {}
        }
    };
    let holder = tokio::select! {
        holder = holdings.name.known(|unknown| drop(slot.standing.send_replace(unknown))) => holder,
        () = given_up() => return Err(NotHad::GivenUp),
    };
    let wanted = Wanted::new(slot.object.clone(), holder).with_ttl_ms(holdings.settings.ttl_ms);
    tokio::select! {
        acquired = holdings.api.acquire_unless(&wanted, |progress| slot.note_progress(progress), given_up()) => acquired,
        never = follow_holder(holdings, slot) => match never {},
    }
}

/// The holder may change while this agent waits in the queue.
async fn follow_holder(holdings: &Holdings, slot: &Slot) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(Duration::from_millis((holdings.settings.ttl_ms / 3).max(100))).await;
        let Ok(object) = holdings.api.get_object(slot.object.as_str(), LOOK).await else { continue };
        let held = object.lease.filter(|lease| lease.state == LeaseState::Held);
        let leader = held.and_then(|lease| HolderId::new(&lease.holder_id).ok());
        slot.standing.send_if_modified(|standing| match standing {
            Standing::Following(known) if *known != leader && leader.is_some() => {
                *standing = Standing::Following(leader);
                true
            }
            _ => false,
        });
    }
}

/// How a lease was lost.
struct Loss {
    why: Lost,
    held_ms: u64,
    ttl_ms: u64,
}

/// Waits before a lost lease is asked for again, if a pause is due. `gate.url` and `gate.api` may be two gates, and
/// the gate then refuses every lease; without a pause the agent would ask as fast as it is refused. Returns whether
/// to ask for the lease.
async fn pause(holdings: &Holdings, slot: &Slot, loss: &Loss) -> bool {
    let Some(pause) = holdings.histories.lost(&slot.object, loss.held_ms, loss.ttl_ms, holdings.now()) else {
        return true;
    };
    let why = format!(
        "the last lease was lost {} ms after it was granted, and so was the one before: {}. The next one is asked for after {} ms",
        loss.held_ms,
        loss.why,
        pause.as_millis()
    );
    tracing::warn!(object = %slot.object, why, "the agent waits before it asks for this lease again");
    slot.standing.send_replace(Standing::Pausing(why));
    let goes_on = tokio::select! {
        () = tokio::time::sleep(pause) => true,
        () = holdings.reached(Phase::Draining) => false,
    };
    slot.standing.send_replace(Standing::Asking);
    goes_on
}

/// Holds the lease. Returns how it was lost, or `None` where it was given back.
async fn lead(holdings: &Holdings, slot: &Slot, lease: Arc<Lease>) -> Option<Loss> {
    tracing::info!(object = %slot.object, lease_seq = lease.seq(), "leading");
    if let Some(warning) = lease.warning() {
        tracing::error!(object = %slot.object, warning, "writes to this object will be refused: give this agent the gate's own routes");
    }
    let begun = holdings.now();
    slot.keep();
    slot.standing.send_replace(Standing::Leading(Held::Gate(Arc::clone(&lease))));
    let lost = loop {
        tokio::select! {
            why = lease.lost() => break Some(why),
            () = holdings.reached(Phase::Releasing) => break None,
            () = holdings.idle(slot, true) => if holdings.retire(slot) { break None },
            () = slot.yielded() => if holdings.retire(slot) {
                tracing::info!(object = %slot.object, "the lease is given back: writes to this object and another one are refused again and again, since another holder has the other one");
                holdings.histories.gave_way(&slot.object, holdings.now());
                break None;
            },
        }
    };
    let held_ms = holdings.now().since(begun);
    if let Some(why) = &lost {
        tracing::warn!(object = %slot.object, lease_seq = lease.seq(), %why, "the lease was lost");
        holdings.metrics.lost(why.reason());
    }
    slot.standing.send_replace(match &lost {
        // The gate does not answer, so writers do not wait for it.
        Some(why @ Lost::Deadline { last: Some(_) }) => Standing::Cut(why.to_string()),
        _ => Standing::Asking,
    });
    // If only this side has given up the lease, the gate may still count it as held. A write to two objects that was
    // refused for one of them can lead to this.
    if matches!(lost, None | Some(Lost::Deadline { .. } | Lost::Write { .. }))
        && let Err(failed) = lease.release().await
    {
        tracing::warn!(object = %slot.object, why = %failed, "a lease was not released; it stays held until it runs out");
    }
    lost.map(|why| Loss { why, held_ms, ttl_ms: lease.ttl_ms() })
}
