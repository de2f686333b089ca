//! One flat JSON object, written field by field: refusals are written often. A text that has nothing to be
//! escaped is copied as it is; for all others there is `serde_json`.

/// An object that is being written.
pub(super) struct Object(Vec<u8>);

impl Object {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        let mut object = Vec::with_capacity(bytes);
        object.push(b'{');
        Self(object)
    }

    fn name(&mut self, name: &'static str) {
        self.0.extend_from_slice(if self.0.len() > 1 { b",\"" } else { b"\"" });
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// A text that is known to have nothing to be escaped.
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
            // Writing to memory does not fail, and JSON has a word for every text.
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
        self.0.push(b'}');
        self.0
    }
}

/// Whether nothing in it has to be escaped. Without a way out in the middle, so that it goes many bytes at a
/// time.
fn is_plain(text: &str) -> bool {
    text.bytes().fold(true, |is_plain, byte| is_plain & !matches!(byte, 0..=0x1f | b'"' | b'\\'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(text in any::<String>(), plain in "[a-z ]{0,80}", number: u64, flag: bool) {
            let mut object = Object::with_capacity(0);
            object.text("text", &text);
            object.text("plain", &plain);
            object.number("number", number);
            object.flag("flag", flag);
            let read: serde_json::Value = serde_json::from_slice(&object.done()).unwrap();
            let wanted = serde_json::json!({ "text": text, "plain": plain, "number": number, "flag": flag });
            prop_assert_eq!(read, wanted);
        }
    }

    #[test]
    fn what_has_to_be_escaped_is_and_an_empty_object_is_one() {
        for text in ["\"", "\\", "\n", "\u{0}", "\u{1f}", "a\"b\\c\td", "käse\u{7f}漢"] {
            let mut object = Object::with_capacity(0);
            object.text("text", text);
            assert_eq!(object.done(), format!("{{\"text\":{}}}", serde_json::json!(text)).into_bytes());
        }
        assert_eq!(Object::with_capacity(0).done(), b"{}");
    }
}
