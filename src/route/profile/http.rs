//! A store that is plain HTTP or WebDAV: the method says what a request does, and the path to which object.

use http::Method;

use super::Second;
use crate::{
    failpoints::{self, Fault},
    route::fields::Marks,
};

pub(super) const UNSETTLING: [u16; 6] = [202, 408, 499, 502, 503, 504];

/// GET, HEAD and OPTIONS read. Every other method writes, also an unknown one.
pub(super) fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// PUT, POST and PATCH write one resource only. Any other method may reach below.
pub(super) fn reaches_below(method: &Method) -> bool {
    !matches!(*method, Method::PUT | Method::POST | Method::PATCH)
}

/// COPY and MOVE write to their Destination too. Some stores read it with other methods.
pub(super) fn second(marks: Marks<'_>) -> Option<Second> {
    let has_destination = marks.have(Marks::DESTINATION) && !failpoints::on(Fault::NoDestination);
    has_destination.then_some(Second::Destination)
}
