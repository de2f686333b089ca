//! The calls of the api, and what each needs of its caller. A call gets into the api through [`Calls::add`] only, so
//! none is without a need. The layers of [`super::admission`] look the need up before anything else is done.

use std::{collections::HashMap, sync::Arc};

use axum::http::Method;
use utoipa::openapi::{
    Content, OpenApi, Ref, RefOr, Response, ResponseBuilder,
    extensions::ExtensionsBuilder,
    path::{Operation as Described, PathItem},
    security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme},
};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use crate::{access::turns::Class, config::Operation, gate::Shared};

/// When a call gets a line in the audit log. Denied calls get one in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audited {
    /// It changes nothing.
    WhenDenied,
    /// When something was changed, or may have been.
    WhenChanged,
    /// When it is refused, or gives a new number.
    WhenRefused,
    /// Always. It is not carried out where the log cannot take the line.
    Always,
}

impl Audited {
    /// When calls of this kind get a line.
    #[must_use]
    pub const fn by(operation: Operation) -> Self {
        match operation {
            Operation::Read => Self::WhenDenied,
            Operation::Acquire => Self::WhenChanged,
            Operation::Operate | Operation::Issue | Operation::Advance => Self::Always,
        }
    }
}

/// What a call needs of its caller, and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its operation id.
    pub call: Arc<str>,
    /// `None`: the caller must be known, and may be anyone.
    pub operation: Option<Operation>,
    /// What it is counted as.
    pub class: Class,
    pub audited: Audited,
}

/// What calls of one kind need.
#[derive(Clone, Copy)]
struct Kind {
    operation: Option<Operation>,
    class: Class,
    audited: Audited,
}

impl Kind {
    fn of(self, call: &str) -> Need {
        let Self { operation, class, audited } = self;
        Need { call: Arc::from(call), operation, class, audited }
    }
}

/// The needs of calls, by method and path.
#[derive(Clone, Debug, Default)]
pub struct Needs(HashMap<String, Vec<(Method, Need)>>);

impl Needs {
    /// What this call needs. `None`: there is no such call.
    #[must_use]
    pub fn of(&self, method: &Method, path: &str) -> Option<Need> {
        // A HEAD is answered as a GET without the body.
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        self.0.get(path)?.iter().find(|(each, _)| each == method).map(|(_, need)| need.clone())
    }

    /// Also the calls of `other`.
    pub fn extend(&mut self, other: Self) {
        for (path, needs) in other.0 {
            self.0.entry(path).or_default().extend(needs);
        }
    }

    /// The description's own call: a caller must be known.
    pub fn add_description(&mut self, path: &str) {
        let kind = Kind { operation: None, class: Class::Other, audited: Audited::WhenDenied };
        self.put(path, Method::GET, kind.of("describe"));
    }

    fn put(&mut self, path: &str, method: Method, need: Need) {
        self.0.entry(path.to_owned()).or_default().push((method, need));
    }
}

/// Calls, and what each needs.
#[derive(Default)]
pub struct Calls {
    pub router: OpenApiRouter<Shared>,
    pub needs: Needs,
}

impl Calls {
    /// With one more call, which does this.
    #[must_use]
    pub fn add(self, operation: Operation, call: UtoipaMethodRouter<Shared>) -> Self {
        self.with(Kind { operation: Some(operation), class: Class::Other, audited: Audited::by(operation) }, call)
    }

    /// With one more call of a holder that keeps or gives back what it has.
    #[must_use]
    pub fn add_keeping(self, audited: Audited, call: UtoipaMethodRouter<Shared>) -> Self {
        self.with(Kind { operation: Some(Operation::Acquire), class: Class::Keep, audited }, call)
    }

    /// With one more call, which every known caller may make.
    #[must_use]
    pub fn add_for_all(self, call: UtoipaMethodRouter<Shared>) -> Self {
        self.with(Kind { operation: None, class: Class::Other, audited: Audited::WhenDenied }, call)
    }

    fn with(mut self, kind: Kind, mut call: UtoipaMethodRouter<Shared>) -> Self {
        for (path, item) in &mut call.1.paths {
            for (method, described) in methods(item) {
                describe(described, kind);
                let id = described.operation_id.as_deref().unwrap_or_default();
                self.needs.put(path, method, kind.of(id));
            }
        }
        self.router = self.router.routes(call);
        self
    }

    /// With all of `other`.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.needs.extend(other.needs);
        self.router = self.router.merge(other.router);
        self
    }
}

fn methods(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Described)> {
    let all = [
        (Method::GET, &mut item.get),
        (Method::POST, &mut item.post),
        (Method::PUT, &mut item.put),
        (Method::DELETE, &mut item.delete),
        (Method::PATCH, &mut item.patch),
        (Method::OPTIONS, &mut item.options),
    ];
    all.into_iter().filter_map(|(method, described)| Some((method, described.as_mut()?)))
}

const BEARER: &str = "bearer";
const CERTIFICATE: &str = "certificate";

/// Says in a call's description how callers prove who they are, which operation they need, and that every call may be
/// refused.
fn describe(call: &mut Described, need: Kind) {
    for status in ["4XX", "503"] {
        call.responses.responses.entry(status.to_owned()).or_insert_with(|| RefOr::T(refusal()));
    }
    let none = Vec::<String>::new();
    let proofs = [BEARER, CERTIFICATE].map(|scheme| SecurityRequirement::new(scheme, none.clone()));
    // Without a proof: on loopback, unless the gate asks there, too.
    call.security = Some(proofs.into_iter().chain([SecurityRequirement::default()]).collect());
    if let Some(operation) = need.operation {
        call.extensions = Some(ExtensionsBuilder::new().add("x-operation", operation.as_str()).build());
    }
}

fn refusal() -> Response {
    let problem = Content::new(Some(Ref::from_schema_name("Problem")));
    ResponseBuilder::new().description("").content("application/problem+json", problem).build()
}

/// Adds the ways in which callers prove who they are.
pub fn add_schemes(description: &mut OpenApi) {
    let components = description.components.get_or_insert_default();
    components.add_security_scheme(BEARER, SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    let what = "A client certificate from an authority that the gate trusts (api.tls_client_ca_file)".to_owned();
    let certificate = SecurityScheme::MutualTls { description: Some(what), deprecated: None, extensions: None };
    components.add_security_scheme(CERTIFICATE, certificate);
}
