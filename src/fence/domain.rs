//! Domains: parts of all objects, by the components of their ids. Issuers and the rules of the api name them.

/// A part of all objects: those whose ids begin with these components. `/data/users` is `/data/users/` and everything
/// below it, but not `/data/usersX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain(Vec<String>);

fn components(text: &str) -> impl Iterator<Item = &str> {
    text.strip_suffix('/').unwrap_or(text).split('/')
}

impl Domain {
    /// Reads the beginning of object ids.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(
                "must be the beginning of an object id, such as \"/data\"; \"/\" is all that begin with it".to_owned()
            );
        }
        if components(text).any(|part| matches!(part, "." | "..")) {
            return Err(format!("{text:?} has a component that is . or .."));
        }
        Ok(Self(components(text).map(str::to_owned).collect()))
    }

    /// The id that all ids of this part are, or begin with and a slash behind it.
    #[must_use]
    pub fn root(&self) -> String {
        self.0.join("/")
    }

    /// Whether the object is in this part.
    #[must_use]
    pub fn covers(&self, object: &str) -> bool {
        let mut parts = components(object);
        let begins = self.0.iter().all(|wanted| parts.next() == Some(wanted.as_str()));
        begins && !components(object).any(|part| matches!(part, "." | ".."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(domain: &str, object: &str) -> bool {
        Domain::parse(domain).unwrap().covers(object)
    }

    #[test]
    fn a_domain_is_matched_by_component() {
        for domain in ["/data/users", "/data/users/"] {
            for object in ["/data/users", "/data/users/", "/data/users/1", "/data/users/a/b/"] {
                assert!(covers(domain, object), "{domain} {object}");
            }
            for object in [
                "/data/usersX",
                "/data",
                "/data/",
                "data/users",
                "/x/data/users",
                "/data/user",
                "users",
                "/data//users",
            ] {
                assert!(!covers(domain, object), "{domain} {object}");
            }
            // No spelling leads out of the domain.
            assert!(!covers(domain, "/data/users/../orders") && !covers(domain, "/data/users/./x"));
        }
        assert!(covers("/", "/data/x") && !covers("/", "users"));
        assert!(covers("users", "users") && covers("users", "users/1") && !covers("users", "users2"));
        for bad in ["", "a\nb", "/a/../b", "."] {
            assert!(Domain::parse(bad).is_err(), "{bad:?}");
        }
    }
}
