//! Templates of object ids, such as `/data/{domain}/`: filled in, read back, and compared where two routes could make
//! the same id.

use std::{borrow::Cow, collections::HashSet};

use super::template::{PathTemplate, TemplateFault};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Literal(String),
    Capture(usize),
}

/// What the captures of a wide template are in a narrower one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Narrowed(Vec<(usize, Piece)>);

impl Narrowed {
    /// Notes what a capture is; `None` where it would be two different things.
    fn note(&mut self, place: usize, piece: &Piece) -> Option<()> {
        match self.of(place) {
            Some(known) if known != piece => None,
            Some(_) => Some(()),
            None => {
                self.0.push((place, piece.clone()));
                Some(())
            }
        }
    }

    fn of(&self, place: usize) -> Option<&Piece> {
        self.0.iter().find(|(each, _)| *each == place).map(|(_, piece)| piece)
    }

    /// The captures that are a fixed text, by their places; the others are empty.
    #[must_use]
    pub fn texts(&self) -> Vec<Cow<'_, str>> {
        let mut texts = vec![Cow::Borrowed(""); self.0.iter().map(|(place, _)| place + 1).max().unwrap_or(0)];
        for (place, piece) in &self.0 {
            if let Piece::Literal(text) = piece {
                texts[*place] = Cow::Borrowed(text);
            }
        }
        texts
    }
}

/// A letter of an id, or one or more letters other than a slash.
#[derive(Clone, Copy)]
enum Letter {
    Fixed(char),
    Any,
}

/// An object id's template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectTemplate {
    pieces: Vec<Piece>,
}

impl ObjectTemplate {
    /// Reads an object id's template against the path that its captures come from.
    ///
    /// # Errors
    /// With what is wrong with the template.
    pub fn parse(text: &str, path: &PathTemplate) -> Result<Self, TemplateFault> {
        if text.is_empty() {
            return Err(TemplateFault::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(TemplateFault::Control);
        }
        let mut pieces = vec![];
        let mut left = text;
        while let Some(begin) = left.find(['{', '}']) {
            let end = left[begin..].find('}').map(|end| begin + end);
            let Some(end) = end.filter(|end| left.as_bytes()[begin] == b'{' && *end > begin + 1) else {
                return Err(TemplateFault::Capture(left.to_owned()));
            };
            let name = &left[begin + 1..end];
            if path.rest.as_deref() == Some(name.trim_end_matches("...")) {
                return Err(TemplateFault::RestInObject(name.to_owned()));
            }
            let place = path.names.iter().position(|each| each == name);
            let place = place.ok_or_else(|| TemplateFault::Unknown(name.to_owned()))?;
            if begin > 0 {
                pieces.push(Piece::Literal(left[..begin].to_owned()));
            }
            pieces.push(Piece::Capture(place));
            left = &left[end + 1..];
        }
        if !left.is_empty() {
            pieces.push(Piece::Literal(left.to_owned()));
        }
        Ok(Self { pieces })
    }

    /// Whether some captures would make this id. A capture has no slash, and is not empty.
    #[must_use]
    pub fn may_make(&self, id: &str) -> bool {
        fn fits(pieces: &[Piece], left: &str) -> bool {
            match pieces {
                [] => left.is_empty(),
                [Piece::Literal(literal), rest @ ..] => {
                    left.strip_prefix(literal.as_str()).is_some_and(|left| fits(rest, left))
                }
                [Piece::Capture(_), rest @ ..] => {
                    let most = left.find('/').unwrap_or(left.len());
                    let ends = left.char_indices().map(|(at, _)| at).skip(1).chain([left.len()]);
                    ends.take_while(|end| *end <= most).filter(|end| *end > 0).any(|end| fits(rest, &left[end..]))
                }
            }
        }
        fits(&self.pieces, id)
    }

    /// What each of its captures is in `other`, by its place. `Some` only where, segment by segment, all ids of `other`
    /// are also ids of this template.
    #[must_use]
    pub fn narrowed_to(&self, other: &Self) -> Option<Narrowed> {
        let (wide, narrow) = (self.segments(), other.segments());
        let mut found = Narrowed(vec![]);
        if wide.len() != narrow.len() {
            return None;
        }
        for (wide, narrow) in wide.iter().zip(&narrow) {
            match (&wide[..], &narrow[..]) {
                ([Piece::Capture(place)], [only]) => found.note(*place, only)?,
                (wide, narrow) if wide.len() == narrow.len() => {
                    for pair in wide.iter().zip(narrow) {
                        match pair {
                            (Piece::Literal(one), Piece::Literal(two)) if one == two => {}
                            (Piece::Capture(place), Piece::Capture(_)) => found.note(*place, pair.1)?,
                            _ => return None,
                        }
                    }
                }
                _ => return None,
            }
        }
        Some(found)
    }

    /// Its pieces between slashes. Empty pieces are left out, since no capture is empty.
    fn segments(&self) -> Vec<Vec<Piece>> {
        let mut all = vec![vec![]];
        for piece in &self.pieces {
            let Piece::Literal(text) = piece else {
                all.last_mut().expect("there is always one").push(piece.clone());
                continue;
            };
            for (n, part) in text.split('/').enumerate() {
                if n > 0 {
                    all.push(vec![]);
                }
                if !part.is_empty() {
                    all.last_mut().expect("there is always one").push(Piece::Literal(part.to_owned()));
                }
            }
        }
        all
    }

    /// The same template, with the pieces of a narrower object in place of its captures.
    #[must_use]
    pub fn in_narrow(&self, narrowed: &Narrowed) -> Self {
        self.with(|place| narrowed.of(place).cloned())
    }

    /// The template for those paths of `path` that also fit `common`. Captures are numbered by their segments, so that
    /// templates of two paths can be compared.
    #[must_use]
    pub fn within(&self, path: &PathTemplate, common: &PathTemplate) -> Self {
        self.with(|place| {
            let segment = path.segment_of(place)?;
            Some(common.literal_at(segment).map_or(Piece::Capture(segment), |text| Piece::Literal(text.to_owned())))
        })
    }

    /// The same template with other pieces in place of its captures; captures without one stay.
    fn with(&self, piece_of: impl Fn(usize) -> Option<Piece>) -> Self {
        let mut pieces: Vec<Piece> = vec![];
        for piece in &self.pieces {
            let piece = match piece {
                Piece::Literal(_) => piece.clone(),
                Piece::Capture(place) => piece_of(*place).unwrap_or_else(|| piece.clone()),
            };
            match (pieces.last_mut(), piece) {
                (Some(Piece::Literal(before)), Piece::Literal(text)) => before.push_str(&text),
                (_, piece) => pieces.push(piece),
            }
        }
        Self { pieces }
    }

    /// The only id that it makes; `None` if it has captures.
    #[must_use]
    pub fn literal(&self) -> Option<Cow<'_, str>> {
        self.captures().next().is_none().then(|| self.fill(&[]))
    }

    /// Whether both can make the same id. It finds every such id. Where a template uses a capture twice, it may also
    /// return true when there is none.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        let (one, two) = (self.letters(), other.letters());
        let (mut reached, mut seen) = (vec![(0, 0)], HashSet::from([(0, 0)]));
        while let Some((at, beside)) = reached.pop() {
            let (here, there) = (one.get(at), two.get(beside));
            let (Some(here), Some(there)) = (here, there) else {
                if here.is_none() && there.is_none() {
                    return true;
                }
                continue;
            };
            // A capture may take more letters, or end here.
            let steps: &[(usize, usize)] = match (here, there) {
                (Letter::Fixed(one), Letter::Fixed(two)) if one == two => &[(1, 1)],
                (Letter::Fixed(_), Letter::Fixed(_))
                | (Letter::Fixed('/'), Letter::Any)
                | (Letter::Any, Letter::Fixed('/')) => &[],
                (Letter::Fixed(_), Letter::Any) => &[(1, 0), (1, 1)],
                (Letter::Any, Letter::Fixed(_)) => &[(0, 1), (1, 1)],
                (Letter::Any, Letter::Any) => &[(0, 1), (1, 0), (1, 1)],
            };
            let next = steps.iter().map(|(far, wide)| (at + far, beside + wide));
            reached.extend(next.filter(|place| seen.insert(*place)));
        }
        false
    }

    fn letters(&self) -> Vec<Letter> {
        let letters = |piece: &Piece| match piece {
            Piece::Literal(text) => text.chars().map(Letter::Fixed).collect(),
            Piece::Capture(_) => vec![Letter::Any],
        };
        self.pieces.iter().flat_map(letters).collect()
    }

    /// The captures that it uses, by their places in the path.
    pub fn captures(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Capture(place) => Some(*place),
            Piece::Literal(_) => None,
        })
    }

    /// Whether an id shows which captures made it. A capture has no slash, so a slash between captures is enough.
    #[must_use]
    pub fn is_unambiguous(&self) -> bool {
        let mut since_capture = true;
        self.pieces.iter().all(|piece| match piece {
            Piece::Literal(literal) => {
                since_capture |= literal.contains('/');
                true
            }
            Piece::Capture(_) => std::mem::replace(&mut since_capture, false),
        })
    }

    /// The captures that make this id, by their places in the path; unused ones are empty. `None` unless there is
    /// exactly one way to make it.
    #[must_use]
    pub fn captures_of<'i>(&self, id: &'i str) -> Option<Vec<Cow<'i, str>>> {
        fn solve<'i>(pieces: &[Piece], left: &'i str, found: &mut Vec<&'i str>, all: &mut Vec<Vec<&'i str>>) {
            match pieces {
                [] if left.is_empty() => all.push(found.clone()),
                [] => {}
                [Piece::Literal(literal), rest @ ..] => {
                    if let Some(left) = left.strip_prefix(literal.as_str()) {
                        solve(rest, left, found, all);
                    }
                }
                [Piece::Capture(_), rest @ ..] => {
                    let most = left.find('/').unwrap_or(left.len());
                    for end in (1..=most).filter(|end| left.is_char_boundary(*end)) {
                        // Two ways are enough to know that there is not only one.
                        if all.len() > 1 {
                            return;
                        }
                        found.push(&left[..end]);
                        solve(rest, &left[end..], found, all);
                        found.pop();
                    }
                }
            }
        }
        let mut all = vec![];
        solve(&self.pieces, id, &mut vec![], &mut all);
        let [one] = &all[..] else { return None };
        let mut captures = vec![Cow::Borrowed(""); self.captures().max().map_or(0, |place| place + 1)];
        for (place, text) in self.captures().zip(one) {
            if !captures[place].is_empty() && captures[place] != *text {
                return None;
            }
            captures[place] = Cow::Borrowed(text);
        }
        Some(captures)
    }

    /// The object id that these captures make.
    #[must_use]
    pub fn fill<'p>(&'p self, captures: &[&Cow<'p, str>]) -> Cow<'p, str> {
        let text = |piece: &'p Piece| match piece {
            Piece::Literal(text) => Cow::Borrowed(text.as_str()),
            Piece::Capture(place) => captures[*place].clone(),
        };
        match &self.pieces[..] {
            [only] => text(only),
            pieces => Cow::Owned(pieces.iter().map(text).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str, object: &str, given: &str) -> Option<String> {
        let path = PathTemplate::parse(path).unwrap();
        let object = ObjectTemplate::parse(object, &path).unwrap();
        let segments: Vec<Cow<'_, str>> = given[1..].split('/').map(Cow::Borrowed).collect();
        path.captures(&segments).map(|captures| object.fill(&captures).into_owned())
    }

    #[test]
    fn a_path_names_one_object() {
        let domain = |given| object("/data/{domain}/{rest...}", "/data/{domain}/", given);
        assert_eq!(domain("/data/users/1").as_deref(), Some("/data/users/"));
        assert_eq!(domain("/data/users/").as_deref(), Some("/data/users/"));
        assert_eq!(domain("/data/users").as_deref(), Some("/data/users/"));
        assert_eq!(domain("/data/users/a/b/c").as_deref(), Some("/data/users/"));
        for other in ["/", "/data", "/data/", "/other/users/1", "/datax/users/1"] {
            assert_eq!(domain(other), None, "{other}");
        }
        assert_eq!(object("/{a}/x/{b}", "{b}-{a}", "/1/x/2").as_deref(), Some("2-1"));
        assert_eq!(object("/{a}/x/{b}", "{b}-{a}", "/1/x/2/3"), None);
        assert_eq!(object("/{a}/x/{b}", "one", "/1/x/2").as_deref(), Some("one"));
    }

    #[test]
    fn templates_that_can_make_one_id_meet() {
        let path = PathTemplate::parse("/{a}/{b}/{c}").unwrap();
        let template = |text: &str| ObjectTemplate::parse(text, &path).unwrap();
        for (one, two, meet) in [
            ("{a}", "{b}", true),
            ("{a}", "users", true),
            ("users", "users", true),
            ("users", "user", false),
            ("{a}", "x/{b}", false),
            ("x/{a}", "x/{b}", true),
            ("x/{a}", "y/{b}", false),
            ("{a}/x", "{b}/{c}", true),
            ("{a}/x", "{b}/y-{c}", false),
            ("a-{a}", "{b}-z", true),
            ("a-{a}", "b-{b}", false),
            ("{a}b", "ab{c}", true),
            ("ab", "ab{c}", false),
            ("{a}{b}", "x", false),
            ("{a}{b}", "xy", true),
            ("/data/{a}/", "/data/{b}/{c}", false),
        ] {
            assert_eq!(template(one).meets(&template(two)), meet, "{one} and {two}");
            assert_eq!(template(two).meets(&template(one)), meet, "{two} and {one}");
        }
    }

    #[test]
    fn what_is_no_template_is_named() {
        let path = |text: &str| PathTemplate::parse(text).unwrap_err();
        assert_eq!(path("data"), TemplateFault::NoSlash);
        assert_eq!(path("/data//x"), TemplateFault::EmptySegment);
        assert_eq!(path("/data/"), TemplateFault::EmptySegment);
        assert_eq!(path("/{a}/{a}"), TemplateFault::Twice("a".to_owned()));
        assert_eq!(path("/{rest...}/a"), TemplateFault::RestNotLast);
        for bad in ["/a{b}", "/{}", "/{...}", "/{a b}", "/{a", "/a}"] {
            assert!(matches!(path(bad), TemplateFault::Capture(_)), "{bad}");
        }
        let base = PathTemplate::parse("/{a}/{rest...}").unwrap();
        let object = |text: &str| ObjectTemplate::parse(text, &base).unwrap_err();
        assert_eq!(object(""), TemplateFault::Empty);
        assert_eq!(object("{b}"), TemplateFault::Unknown("b".to_owned()));
        assert_eq!(object("x{rest}"), TemplateFault::RestInObject("rest".to_owned()));
        for bad in ["{", "}", "{}", "a}b{"] {
            assert!(matches!(object(bad), TemplateFault::Capture(_)), "{bad}");
        }
    }
}
