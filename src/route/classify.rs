//! What a request is: a read, a write to one object or several, or a request that is not forwarded. Pure.
//!
//! The order of the checks of a request's form is here; `form` has the checks, `fields` the headers that mean
//! something, `source` the tokens of each source of leases, `profile` which requests read, and what a write reaches.
//! CONNECT, TRACE and upgrades are refused. So is everything that could make a store see another method than the gate
//! did.

use std::borrow::Cow;

use http::{HeaderMap, Uri, header, request::Parts};

pub use super::fields::{FENCE_HOLDER, FENCE_IDENTITY, FENCE_TOKEN};
use super::{
    Route, Routes,
    canonical::{self, Ambiguous, Segments},
    doubt::Doubt,
    fields::{DESTINATION, IDEMPOTENCY_KEY, Marks, token_field},
    form,
    profile::Second,
};
use crate::{
    config::{GateSettings, Profile},
    failpoints::{self, Fault},
    fence::{
        Code, FenceToken, ObjectId,
        idempotency::{IdempotencyKey, KeyFault},
        outside::Claim,
        token::TokenFault,
        verdict::Presented,
        write::ReadOnly,
    },
};

/// What a request is.
#[derive(Debug)]
pub enum Class<'a> {
    Read {
        store: usize,
        /// Its route allows a body.
        may_have_body: bool,
        read: ReadOnly,
    },
    Write(Write<'a>),
}

/// A write, and the objects that it goes to.
#[derive(Debug)]
pub struct Write<'a> {
    pub route: &'a Route,
    pub target: Target<'a>,
    /// A second object that it writes to. Nearly always empty.
    pub others: Vec<Target<'a>>,
    /// The client may wait for a 100 Continue before it sends the body.
    pub asks_first: bool,
    /// The client's own name for the write, where its route uses such keys.
    pub key: Option<IdempotencyKey>,
}

/// An object that a write goes to, and the token for it.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// The object's id.
    pub object: Cow<'a, str>,
    pub brought: Brought<'a>,
}

/// What a write brought for an object.
#[derive(Clone, Debug)]
pub enum Brought<'a> {
    /// A token, as it came. Code that has the object's record can compare it with the right one, unread.
    Text(&'a str),
    Read(Presented),
}

impl Target<'_> {
    /// The object's id, as an owned value.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        ObjectId::new(&self.object).expect("a route names objects by valid ids only")
    }

    /// The target, as an owned value.
    #[must_use]
    pub fn into_owned(self) -> Target<'static> {
        let presented = self.presented();
        Target { object: Cow::Owned(self.object.into_owned()), brought: Brought::Read(presented) }
    }

    /// The token, where it is of a source of leases outside the gate.
    #[must_use]
    pub fn claim(&self) -> Option<&Claim> {
        match &self.brought {
            Brought::Read(Presented::Outside(claim)) => Some(claim),
            Brought::Text(_) | Brought::Read(_) => None,
        }
    }

    /// The same, for what becomes known of it.
    pub fn claim_mut(&mut self) -> Option<&mut Claim> {
        match &mut self.brought {
            Brought::Read(Presented::Outside(claim)) => Some(claim),
            Brought::Text(_) | Brought::Read(_) => None,
        }
    }

    /// What the write presents for the object, parsed.
    #[must_use]
    pub fn presented(&self) -> Presented {
        match &self.brought {
            Brought::Text(text) => Presented::read(text, &self.object),
            Brought::Read(presented) => presented.clone(),
        }
    }
}

/// Why a request is not forwarded, before any token is judged.
#[derive(Debug, PartialEq, Eq)]
pub struct Unfit {
    pub code: Code,
    pub detail: Cow<'static, str>,
    pub field: Option<&'static str>,
    /// It is not certain where the next request begins, or what follows cannot be trusted, so the connection is closed.
    pub closes: bool,
}

pub(super) fn unfit(code: Code, detail: impl Into<Cow<'static, str>>) -> Unfit {
    Unfit { code, detail: detail.into(), field: None, closes: false }
}

fn invalid(field: &'static str, detail: &'static str) -> Unfit {
    Unfit { code: Code::RequestInvalid, detail: detail.into(), field: Some(field), closes: false }
}

/// A refusal because two parsers could read the request in two ways.
pub(super) fn doubtful(field: &'static str, detail: &'static str) -> Unfit {
    Unfit { closes: true, ..invalid(field, detail) }
}

impl From<Doubt> for Unfit {
    fn from(doubt: Doubt) -> Self {
        let (field, what) = doubt.what();
        doubtful(field, what)
    }
}

/// The refusal of a read with a body. A store that does not read the body would take it for its next request.
#[must_use]
pub fn body_on_read(field: &'static str) -> Unfit {
    doubtful(
        field,
        "GET, HEAD and OPTIONS have no body here: a store that does not read it would take it for another request. A route for a store that does can say bodies_on_reads = true",
    )
}

/// Says what a request is.
///
/// # Errors
/// With the reason why it is not forwarded.
pub fn classify<'a>(head: &'a Parts, routes: &'a Routes, limits: &GateSettings) -> Result<Class<'a>, Unfit> {
    let marks = Marks::of(&head.headers);
    form::check(head, marks, limits)?;
    let segments = segments_of(head.uri.path());
    let found = segments.as_ref().ok().and_then(|segments| routes.find(segments));
    if found.as_ref().map_or(Profile::default(), |(route, _)| route.profile).is_read(head) {
        let route = found.map(|(route, _)| route);
        let may_have_body = route.is_some_and(|route| route.bodies_on_reads);
        if !may_have_body {
            form::check_no_body(&head.headers, marks)?;
        }
        let (store, read) = (route.map_or(0, |route| route.store), ReadOnly::classified());
        return Ok(Class::Read { store, may_have_body, read });
    }
    form::check_rewrite(marks)?;
    let segments = segments.as_ref().map_err(|why| {
        unfit(Code::PathAmbiguous, format!("two servers could read this path in two ways: {}", why.what()))
    })?;
    let unmapped = || unfit(Code::ObjectUnmapped, "no route says which object this path belongs to");
    let (route, captures) = found.ok_or_else(unmapped)?;
    let object = route.object(&captures).ok_or_else(unmapped)?;
    check_reach(head, segments, route, routes)?;
    let second = match route.profile.second(marks) {
        Some(Second::Destination) => destination(head, route, routes)?,
        None => None,
    };
    let second = second.filter(|second| *second != object);
    let asks_first = marks.have(Marks::EXPECT);
    let key = if marks.have(Marks::KEY) && route.idempotency { Some(key(&head.headers)?) } else { None };
    Ok(Class::Write(match second {
        Some(_) if !route.source.has_gate_tokens() => {
            let what = "this write goes to two objects, and a token that is not the gate's own is for one";
            return Err(unfit(Code::LeaseObjectMismatch, what));
        }
        None => {
            let brought = route.source.brought(&head.headers, marks, &captures)?;
            Write { route, target: Target { object, brought }, others: vec![], asks_first, key }
        }
        Some(second) => {
            let [target, other] = presented_for([object, second], &head.headers, marks);
            Write { route, target, others: vec![other], asks_first, key }
        }
    }))
}

/// A path's segments, where it is read in one way only.
fn segments_of(path: &str) -> Result<Segments<'_>, Ambiguous> {
    if failpoints::on(Fault::AnyPath) {
        return Ok(path.split('/').skip(1).map(Cow::Borrowed).collect());
    }
    canonical::segments(path)
}

/// Refuses a write that could reach objects below its own.
fn check_reach(head: &Parts, path: &[Cow<'_, str>], route: &Route, routes: &Routes) -> Result<(), Unfit> {
    if route.profile.reaches_below(head)
        && let Some(below) = routes.below(path, route)
    {
        let what = format!("objects of route {:?} lie below this path; write to them one by one", below.name);
        return Err(unfit(Code::ObjectUnmapped, what));
    }
    Ok(())
}

/// The object of the second path that a write names (COPY, MOVE), by the same route.
fn destination(head: &Parts, of: &Route, routes: &Routes) -> Result<Option<Cow<'static, str>>, Unfit> {
    let mut destinations = head.headers.get_all(DESTINATION).iter();
    let (Some(destination), second) = (destinations.next(), destinations.next()) else { return Ok(None) };
    let ambiguous = || unfit(Code::PathAmbiguous, "two servers could read the Destination in two ways");
    let text = destination.to_str().map_err(|_| ambiguous())?;
    let uri: Uri = text.parse().map_err(|_| ambiguous())?;
    let host = head.headers.get(header::HOST).map(http::HeaderValue::as_bytes);
    let host = head.uri.authority().map(|host| host.as_str().as_bytes()).or(host);
    let is_elsewhere = uri
        .authority()
        .is_some_and(|authority| host.is_none_or(|host| !host.eq_ignore_ascii_case(authority.as_str().as_bytes())));
    // Some stores do not cut off a query or a fragment.
    if second.is_some() || is_elsewhere || text.contains(['?', '#', '@']) {
        return Err(ambiguous());
    }
    let segments = canonical::segments(uri.path()).map_err(|_| ambiguous())?;
    let found = routes.find(&segments);
    if let Some((route, captures)) = found
        && route.place == of.place
        && let Some(object) = route.object(&captures)
    {
        check_reach(head, &segments, route, routes)?;
        return Ok(Some(Cow::Owned(object.into_owned())));
    }
    Err(unfit(Code::LeaseObjectMismatch, "the Destination belongs to another route, or to none"))
}

/// The client's own name for a write.
fn key(headers: &HeaderMap) -> Result<IdempotencyKey, Unfit> {
    let mut fields = headers.get_all(IDEMPOTENCY_KEY).iter();
    let key = match (fields.next(), fields.next()) {
        (Some(field), None) => IdempotencyKey::parse(field.as_bytes()),
        _ => Err(KeyFault::Several),
    };
    key.map_err(|fault| Unfit {
        code: Code::RequestInvalid,
        detail: format!("Idempotency-Key: {fault}").into(),
        field: Some("Idempotency-Key"),
        closes: false,
    })
}

/// The tokens that a write to several objects presents, one for each, in the order of the objects.
fn presented_for<'a, const N: usize>(
    mut objects: [Cow<'a, str>; N],
    headers: &HeaderMap,
    marks: Marks<'_>,
) -> [Target<'a>; N] {
    objects.sort_unstable();
    let tokens = token_field(headers, marks).and_then(|field| {
        let tokens = field.into_iter().flat_map(|field| field.split(','));
        tokens.map(|token| FenceToken::parse(token.trim())).collect::<Result<Vec<_>, _>>()
    });
    let tokens = tokens.and_then(|tokens| {
        let is_missing = |object: &Cow<'_, str>| tokens.iter().all(|token| token.object.as_str() != *object);
        // A missing token is reported before a superfluous one.
        let fits = tokens.len() <= N || objects.iter().any(is_missing);
        if fits { Ok(tokens) } else { Err(TokenFault::TooMany) }
    });
    objects.map(|object| {
        let presented = match &tokens {
            Err(fault) => Presented::Unreadable(*fault),
            Ok(tokens) => {
                let own = tokens.iter().find(|token| token.object.as_str() == object);
                own.map_or(Presented::Nothing, |token| Presented::of(token, &token.object))
            }
        };
        Target { object, brought: Brought::Read(presented) }
    })
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
