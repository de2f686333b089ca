//! Texts of rules that hold parts of a principal's identity, such as `/tenants/{serviceaccount.namespace}/`.
//!
//! A part that could change the meaning of the text around it is not put in, and the rule does not apply then: in an
//! object it must be one component.

use super::principal::Principal;

/// The parts of an identity that every source may have. Claims of a JWT are named `jwt.CLAIM`.
const CAPTURES: [&str; 5] = ["principal", "serviceaccount.namespace", "serviceaccount.name", "pod.name", "pod.uid"];
const CLAIM: &str = "jwt.";

/// A text with captures in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Capture(String),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut pieces, mut rest) = (vec![], text);
        while let Some(begin) = rest.find(['{', '}']) {
            let (before, brace) = rest.split_at(begin);
            let named = brace.strip_prefix('{').and_then(|inner| inner.split_once('}'));
            let (name, after) = named.ok_or_else(|| format!("{text:?} has a brace without its counterpart"))?;
            if !is_capture(name) {
                let known = CAPTURES.map(|capture| format!("{{{capture}}}")).join(", ");
                return Err(format!("{text:?} names {{{name}}}; there are {known} and {{jwt.CLAIM}}"));
            }
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(Piece::Capture(name.to_owned()));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    /// The text as a part of object ids. `None`: the principal lacks a capture, or its capture is not one component.
    #[must_use]
    pub fn object(&self, who: &Principal) -> Option<String> {
        self.render(who, |value| !value.contains('/') && !matches!(value, "." | ".."))
    }

    /// The text as a holder's name. `None`: the principal lacks a capture, or its capture could be taken for more than
    /// one part of a name.
    #[must_use]
    pub fn holder(&self, who: &Principal) -> Option<String> {
        self.render(who, |value| value == who.name() || (!value.contains('/') && who.may_be_called(value)))
    }

    fn render(&self, who: &Principal, fits: impl Fn(&str) -> bool) -> Option<String> {
        self.0.iter().try_fold(String::new(), |text, piece| match piece {
            Piece::Text(more) => Some(text + more),
            Piece::Capture(name) => who.capture(name).filter(|value| fits(value)).map(|value| text + value),
        })
    }

    /// The text with something in place of each capture, to check the text around them.
    #[must_use]
    pub fn sample(&self) -> String {
        self.0
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.as_str(),
                Piece::Capture(_) => "x",
            })
            .collect()
    }
}

fn is_capture(name: &str) -> bool {
    let is_claim = name.strip_prefix(CLAIM).is_some_and(|claim| !claim.is_empty() && !claim.contains('{'));
    is_claim || CAPTURES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::principal::Kind;

    fn account() -> Principal {
        Principal::new(Kind::Kubernetes, "cluster", "system:serviceaccount:shop:api").unwrap().with("pod.name", "api-0")
    }

    #[test]
    fn captures_are_put_in_and_a_missing_one_gives_nothing() {
        let objects = |text: &str| Template::parse(text).unwrap().object(&account());
        assert_eq!(objects("/tenants/{serviceaccount.namespace}/").as_deref(), Some("/tenants/shop/"));
        assert_eq!(objects("{serviceaccount.namespace}-{serviceaccount.name}").as_deref(), Some("shop-api"));
        assert_eq!(objects("/plain").as_deref(), Some("/plain"));
        assert_eq!(objects("/{pod.uid}/"), None);
        assert_eq!(objects("/{jwt.team}/"), None);
        let holder = Template::parse("{principal}/{pod.name}").unwrap().holder(&account());
        assert_eq!(holder.as_deref(), Some("system:serviceaccount:shop:api/api-0"));
    }

    #[test]
    fn a_capture_of_several_components_makes_no_object() {
        let template = Template::parse("/by/{jwt.team}/").unwrap();
        let with = |team| Principal::new(Kind::Jwt, "s", "a").unwrap().with("jwt.team", team);
        assert_eq!(template.object(&with("blue")).as_deref(), Some("/by/blue/"));
        for team in ["a/b", "/", ".", "..", ""] {
            assert_eq!(template.object(&with(team)), None, "{team:?}");
        }
    }

    #[test]
    fn a_template_with_a_fault_names_it() {
        for text in ["{", "a}", "{principal", "{prin{cipal}", "{}", "{nobody}", "{jwt.}", "}{"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
        assert_eq!(Template::parse("/a/{principal}/b").unwrap().sample(), "/a/x/b");
    }
}
