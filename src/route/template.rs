//! Templates of paths, such as `/data/{domain}/{rest...}`. Templates of object ids are in [`super::object`].

use std::borrow::Cow;

use smallvec::SmallVec;
use thiserror::Error;

/// The whole segments that a path's template captures.
pub type Captures<'s, 'p> = SmallVec<[&'s Cow<'p, str>; 4]>;

/// Why a text is not a template.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TemplateFault {
    #[error("must begin with /")]
    NoSlash,
    #[error("has an empty segment; only {{rest...}} stands for more than one")]
    EmptySegment,
    #[error("{0:?}: a capture is a whole segment, such as {{bucket}}; its name is letters, digits and _")]
    Capture(String),
    #[error("{0:?} stands twice")]
    Twice(String),
    #[error("{{rest...}} must come last")]
    RestNotLast,
    #[error("must not be empty")]
    Empty,
    #[error("{0:?} is not captured by the route's match")]
    Unknown(String),
    #[error("{0:?} may hold several segments, so it names no single object")]
    RestInObject(String),
    #[error("holds a control character")]
    Control,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Capture,
}

/// A path's template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTemplate {
    segments: Vec<Segment>,
    /// The captures' names, in their order.
    pub(super) names: Vec<String>,
    pub(super) rest: Option<String>,
    literal_prefix: usize,
}

fn capture_name(segment: &str) -> Result<Option<&str>, TemplateFault> {
    let bad = || TemplateFault::Capture(segment.to_owned());
    match segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        None if segment.contains(['{', '}']) => Err(bad()),
        None => Ok(None),
        Some(inner) => {
            let name = inner.strip_suffix("...").unwrap_or(inner);
            let sound = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if sound { Ok(Some(inner)) } else { Err(bad()) }
        }
    }
}

impl PathTemplate {
    /// Reads a path's template.
    ///
    /// # Errors
    /// With what is wrong with the template.
    pub fn parse(text: &str) -> Result<Self, TemplateFault> {
        if text.chars().any(char::is_control) {
            return Err(TemplateFault::Control);
        }
        let body = text.strip_prefix('/').ok_or(TemplateFault::NoSlash)?;
        let mut template = Self { segments: vec![], names: vec![], rest: None, literal_prefix: 0 };
        for segment in body.split('/') {
            template.push(segment)?;
        }
        template.literal_prefix = text.find('{').unwrap_or(text.len());
        Ok(template)
    }

    fn push(&mut self, segment: &str) -> Result<(), TemplateFault> {
        if self.rest.is_some() {
            return Err(TemplateFault::RestNotLast);
        }
        if segment.is_empty() {
            return Err(TemplateFault::EmptySegment);
        }
        let Some(inner) = capture_name(segment)? else {
            self.segments.push(Segment::Literal(segment.to_owned()));
            return Ok(());
        };
        let name = inner.strip_suffix("...").unwrap_or(inner);
        if self.names.iter().any(|each| each == name) {
            return Err(TemplateFault::Twice(name.to_owned()));
        }
        if inner.ends_with("...") {
            self.rest = Some(name.to_owned());
        } else {
            self.segments.push(Segment::Capture);
            self.names.push(name.to_owned());
        }
        Ok(())
    }

    /// The length of the literal text before the first capture. A longer one is more specific.
    #[must_use]
    pub fn literal_prefix(&self) -> usize {
        self.literal_prefix
    }

    /// The captured segments; `None` if the path does not fit. Segments are decoded, and only the last may be empty.
    #[must_use]
    pub fn captures<'s, 'p>(&self, path: &'s [Cow<'p, str>]) -> Option<Captures<'s, 'p>> {
        let fits =
            if self.rest.is_some() { path.len() >= self.segments.len() } else { path.len() == self.segments.len() };
        if !fits {
            return None;
        }
        let mut captures = Captures::new();
        for (segment, given) in self.segments.iter().zip(path) {
            match segment {
                Segment::Literal(literal) if **given == **literal => {}
                // An empty segment names no object: `/data/` is the parent of all objects below it.
                Segment::Capture if !given.is_empty() => captures.push(given),
                Segment::Literal(_) | Segment::Capture => return None,
            }
        }
        Some(captures)
    }

    /// Whether the paths that fit are below this path: deeper, and the same as far as it goes.
    #[must_use]
    pub fn lies_below(&self, path: &[Cow<'_, str>]) -> bool {
        let path = if path.last().is_some_and(|last| last.is_empty()) { &path[..path.len() - 1] } else { path };
        self.segments.len() > path.len()
            && self.segments.iter().zip(path).all(|(segment, given)| match segment {
                Segment::Literal(literal) => **given == **literal,
                Segment::Capture => true,
            })
    }

    /// The same with these captures, by their places, in place of its own; for empty ones its own stay.
    #[must_use]
    pub fn filled(&self, captures: &[Cow<'_, str>]) -> Self {
        let mut given = captures.iter();
        let fill = |segment: &Segment| match segment {
            Segment::Literal(_) => segment.clone(),
            Segment::Capture => match given.next() {
                Some(text) if !text.is_empty() => Segment::Literal(text.to_string()),
                Some(_) | None => Segment::Capture,
            },
        };
        Self { segments: self.segments.iter().map(fill).collect(), ..self.clone() }
    }

    /// Whether every path that fits `other` also fits this one.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let lengths = match (&self.rest, &other.rest) {
            (None, None) => self.segments.len() == other.segments.len(),
            (Some(_), _) => self.segments.len() <= other.segments.len(),
            (None, Some(_)) => false,
        };
        lengths
            && self.segments.iter().zip(&other.segments).all(|pair| match pair {
                (Segment::Capture, _) => true,
                (Segment::Literal(one), Segment::Literal(two)) => one == two,
                (Segment::Literal(_), Segment::Capture) => false,
            })
    }

    /// The paths that fit both, as a template whose captures have no names; `None` where no path does.
    #[must_use]
    pub fn common(&self, other: &Self) -> Option<Self> {
        if !self.overlaps(other) {
            return None;
        }
        let most = self.segments.len().max(other.segments.len());
        let segments = (0..most).map(|at| match (self.segments.get(at), other.segments.get(at)) {
            (Some(Segment::Literal(text)), _) | (_, Some(Segment::Literal(text))) => Segment::Literal(text.clone()),
            _ => Segment::Capture,
        });
        Some(Self {
            segments: segments.collect(),
            names: vec![],
            rest: self.rest.clone().filter(|_| other.rest.is_some()),
            literal_prefix: self.literal_prefix.max(other.literal_prefix),
        })
    }

    /// Which segment of a path the capture at this place is.
    pub(super) fn segment_of(&self, capture: usize) -> Option<usize> {
        let captures = self.segments.iter().enumerate().filter(|(_, segment)| matches!(segment, Segment::Capture));
        captures.map(|(at, _)| at).nth(capture)
    }

    /// The text of a segment; `None` where it is not the same in every path.
    pub(super) fn literal_at(&self, segment: usize) -> Option<&str> {
        match self.segments.get(segment)? {
            Segment::Literal(text) => Some(text),
            Segment::Capture => None,
        }
    }

    /// Whether some path fits both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let lengths = match (&self.rest, &other.rest) {
            (None, None) => self.segments.len() == other.segments.len(),
            (Some(_), None) => other.segments.len() >= self.segments.len(),
            (None, Some(_)) => self.segments.len() >= other.segments.len(),
            (Some(_), Some(_)) => true,
        };
        lengths
            && self.segments.iter().zip(&other.segments).all(|pair| match pair {
                (Segment::Literal(one), Segment::Literal(two)) => one == two,
                _ => true,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_covers_what_fits_it() {
        let path = |text: &str| PathTemplate::parse(text).unwrap();
        for (one, two, covers) in [
            ("/users/{rest...}", "/users/{rest...}", true),
            ("/users/{rest...}", "/users/1", true),
            ("/users/{rest...}", "/users/1/{rest...}", true),
            ("/users/{id}", "/users/{rest...}", false),
            ("/users/{id}", "/users/1", true),
            ("/users/{id}", "/users/1/2", false),
            ("/users/{rest...}", "/{object}/{rest...}", false),
            ("/{object}/{rest...}", "/users/{rest...}", true),
        ] {
            assert_eq!(path(one).covers(&path(two)), covers, "{one} and {two}");
        }
        let filled = path("/{a}/x/{b}/{rest...}").filled(&[Cow::Borrowed("1"), Cow::Borrowed("")]);
        assert!(filled.covers(&path("/1/x/9/y")) && !filled.covers(&path("/2/x/9/y")));
    }

    #[test]
    fn templates_that_share_a_path_overlap() {
        let overlap = |one: &str, two: &str| {
            let (one, two) = (PathTemplate::parse(one).unwrap(), PathTemplate::parse(two).unwrap());
            assert_eq!(one.overlaps(&two), two.overlaps(&one));
            one.overlaps(&two)
        };
        assert!(overlap("/data/{a}/{rest...}", "/{x}/{rest...}"));
        assert!(overlap("/data/{a}", "/data/{b}/{rest...}"));
        assert!(!overlap("/data/{a}", "/logs/{a}"));
        assert!(!overlap("/data/{a}", "/data/{a}/b"));
        assert!(overlap("/{a}/b", "/c/{d}"));
    }

    #[test]
    fn what_two_templates_have_in_common_fits_both() {
        let path = |text: &str| PathTemplate::parse(text).unwrap();
        for (one, two, both) in [
            ("/data/{a}/{rest...}", "/{x}/{rest...}", Some("/data/{a}/{rest...}")),
            ("/{a}/b", "/c/{d}", Some("/c/b")),
            ("/{a}/{rest...}", "/c/{d}", Some("/c/{d}")),
            ("/{rest...}", "/a/{rest...}", Some("/a/{rest...}")),
            ("/a/{b}", "/c/{d}", None),
        ] {
            for common in [path(one).common(&path(two)), path(two).common(&path(one))] {
                let same = |found: &PathTemplate| {
                    both.is_some_and(|both| path(both).covers(found) && found.covers(&path(both)))
                };
                assert!(common.as_ref().map_or(both.is_none(), same), "{one} and {two}: {common:?}");
            }
        }
    }
}
