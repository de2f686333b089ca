//! One flat JSON object, written field by field because refusals are written often. Text without characters to escape
//! is copied unchanged; `serde_json` writes all other text.

/// A JSON object while it is written.
pub(super) struct Object(Vec<u8>);

impl Object {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Adds a name. `name` has the form that [`field`] makes.
    fn name(&mut self, name: &'static str) {
        self.0.extend_from_slice(name.as_bytes());
    }

    /// Adds a text that contains nothing to escape.
    pub(super) fn plain(&mut self, name: &'static str, value: &'static str) {
        self.name(name);
        self.quote(value);
    }

    fn quote(&mut self, plain: &str) {
        self.0.push(b'"');
        self.0.extend_from_slice(plain.as_bytes());
        self.0.push(b'"');
    }

    pub(super) fn text(&mut self, name: &'static str, value: &str) {
        self.name(name);
        if is_plain(value) {
            self.quote(value);
        } else {
            // Writing to memory cannot fail, and JSON can express every text.
            let _ = serde_json::to_writer(&mut self.0, value);
        }
    }

    pub(super) fn number(&mut self, name: &'static str, value: u64) {
        self.name(name);
        self.0.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    pub(super) fn flag(&mut self, name: &'static str, value: bool) {
        self.name(name);
        self.0.extend_from_slice(if value { b"true" } else { b"false" });
    }

    pub(super) fn done(mut self) -> Vec<u8> {
        // The brace replaces the first comma.
        match self.0.first_mut() {
            Some(first) => *first = b'{',
            None => self.0.push(b'{'),
        }
        self.0.push(b'}');
        self.0
    }
}

/// A field's name, as it is written after another field.
macro_rules! field {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}
pub(super) use field;

/// Whether the text contains nothing to escape.
fn is_plain(text: &str) -> bool {
    let is_odd = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    // Each byte is looked at, so that the processor takes sixteen at once.
    let has_odd = |bytes: &[u8; 16]| bytes.iter().fold(false, |odd, byte| odd | is_odd(*byte));
    let (words, rest) = text.as_bytes().as_chunks::<16>();
    let mut last = [b' '; 16];
    last[..rest.len()].copy_from_slice(rest);
    !words.iter().fold(has_odd(&last), |odd, word| odd | has_odd(word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(text in any::<String>(), plain in "[a-z ]{0,80}", number: u64, flag: bool) {
            let mut object = Object::with_capacity(0);
            object.text(field!("text"), &text);
            object.text(field!("plain"), &plain);
            object.number(field!("number"), number);
            object.flag(field!("flag"), flag);
            let read: serde_json::Value = serde_json::from_slice(&object.done()).unwrap();
            let wanted = serde_json::json!({ "text": text, "plain": plain, "number": number, "flag": flag });
            prop_assert_eq!(read, wanted);
        }
    }

    #[test]
    fn every_byte_is_known_in_every_place() {
        for byte in 0..=0x7f_u8 {
            for place in 0..40 {
                let mut text = "x".repeat(40).into_bytes();
                text[place] = byte;
                let text = String::from_utf8(text).unwrap();
                let is_escaped = serde_json::to_string(&text).unwrap().len() > text.len() + 2;
                assert_eq!(is_plain(&text), !is_escaped, "{byte:#x} at {place}");
            }
        }
        assert!(is_plain("") && is_plain("käse 漢 \u{7f}"));
    }

    #[test]
    fn what_has_to_be_escaped_is_and_an_empty_object_is_one() {
        for text in ["\"", "\\", "\n", "\u{0}", "\u{1f}", "a\"b\\c\td", "käse\u{7f}漢"] {
            let mut object = Object::with_capacity(0);
            object.text(field!("text"), text);
            assert_eq!(object.done(), format!("{{\"text\":{}}}", serde_json::json!(text)).into_bytes());
        }
        assert_eq!(Object::with_capacity(0).done(), b"{}");
    }
}
