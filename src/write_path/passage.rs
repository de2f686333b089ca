//! A write on its way: the version of its route that it goes by, and its place among those in flight, if
//! its route judges at all. Both are told together what becomes of it.

use super::inflight::{Denied, InFlight};
use crate::{
    fence::{ObjectId, Permit},
    table::{flight::Cancel, generation::Entered},
};

/// A write on its way.
pub struct Passage {
    entered: Entered,
    admitted: Admitted,
}

/// A write that was let go on.
pub enum Admitted {
    Judged(InFlight),
    /// Nobody judges it, or not in earnest.
    Unjudged(ObjectId),
}

impl Passage {
    #[inline]
    #[must_use]
    pub fn new(entered: Entered, admitted: Admitted) -> Self {
        Self { entered, admitted }
    }

    fn in_flight(&self) -> Option<&InFlight> {
        match &self.admitted {
            Admitted::Judged(in_flight) => Some(in_flight),
            Admitted::Unjudged(_) => None,
        }
    }

    /// The first of the objects that it goes to.
    #[must_use]
    pub fn object(&self) -> &ObjectId {
        match &self.admitted {
            Admitted::Judged(in_flight) => in_flight.permit().object(),
            Admitted::Unjudged(object) => object,
        }
    }

    /// A number for the first of its objects, to tell it from others that are written to at the same time; `None` where
    /// nobody has judged the write, so that its object may be invented.
    #[must_use]
    pub fn object_number(&self) -> Option<u64> {
        self.in_flight().map(|in_flight| in_flight.place().number())
    }

    /// A newer version of its route has taken over: what has not been sent by then is not.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.entered.is_retired()
    }

    /// Waits until that is so.
    pub async fn retired(&self) {
        self.entered.retired().await;
    }

    /// Whether something of it may be on its way to the store.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.entered.is_at_risk()
    }

    /// The permit for the first of its objects, if it was judged.
    #[must_use]
    pub fn permit(&self) -> Option<&Permit> {
        self.in_flight().map(InFlight::permit)
    }

    /// The permits for all of its objects, one by one.
    pub fn each_permit(&self, told: impl FnMut(&Permit)) {
        if let Some(in_flight) = self.in_flight() {
            in_flight.each_permit(told);
        }
    }

    /// Whether it was judged, and counts as in flight.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.in_flight().is_some()
    }

    /// The commit point: from here on it may land.
    ///
    /// # Errors
    /// With why it may not go on; nothing that completes it may be sent then.
    pub fn commit(&self) -> Result<(), Denied> {
        self.in_flight().map_or(Ok(()), InFlight::commit)
    }

    /// Judges the write once more before part of it is sent, but not its end. An advance tells it to stop.
    ///
    /// # Errors
    /// With why it may not go on; nothing of it may be sent then.
    pub fn begin_stream(&self) -> Result<Option<Cancel>, Denied> {
        self.in_flight().map(InFlight::begin_stream).transpose()
    }

    /// From here on something of it may be sent.
    pub fn begin(&self) {
        self.entered.begin();
    }

    /// Nothing of it has left, and nothing will: it may be tried on another connection.
    pub fn back_out(&self) {
        self.entered.settle();
        self.in_flight().inspect(|in_flight| in_flight.back_out());
    }

    /// The store has answered for it.
    pub fn settle(&self) {
        self.entered.settle();
        self.in_flight().inspect(|in_flight| in_flight.settle());
    }

    /// The store throws away what it has of it.
    pub fn cancel(&self) {
        self.entered.settle();
        self.in_flight().inspect(|in_flight| in_flight.cancel());
    }

    /// Its connection is gone, and nobody knows what became of it.
    pub fn lose(&self) {
        self.entered.lose();
        self.in_flight().inspect(|in_flight| in_flight.lose());
    }
}
