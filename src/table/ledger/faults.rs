//! Test faults in lease changes. `Record::step` is pure and knows none, so a fault changes the record that the step
//! gets, or removes a part of its effects.

use std::sync::Arc;

use crate::{
    failpoints::{self, Fault},
    fence::{Effect, Event, Record, State},
};

/// The record that a step gets: the newest. With [`Fault::NoStep4Check`], the end of a drain gets the record as its
/// own advance left it, even where another one has overtaken that.
pub(super) fn shown(newest: Record, event: &Event) -> Record {
    match event {
        Event::Drained { seq, advance, .. } if failpoints::on(Fault::NoStep4Check) => {
            Record { fence: (*seq).into(), state: State::Draining { advance: *advance, opens: None }, ..newest }
        }
        _ => newest,
    }
}

/// The effects of a step of `before`. With [`Fault::NoFloors`], the Lease that led the object before is forgotten.
pub(super) fn said(before: &Record, mut effects: Vec<Effect>) -> Vec<Effect> {
    if !failpoints::on(Fault::NoFloors) {
        return effects;
    }
    for effect in &mut effects {
        if let Effect::Store(Record { elected: Some(elected), .. }) = effect
            && let Some(known) = before.elected.as_deref()
            && known.election.uid != elected.election.uid
        {
            Arc::make_mut(elected).floors.clone_from(&known.floors);
        }
    }
    effects
}
