//! Text that is said to be a message: whatever is taken can be signed, and reads back from what is signed.
#![no_main]

use fencegate::authority::{
    bls::{PublicKey, SecretKey, Signature},
    json::{
        AcknowledgedMessage, ActiveMessage, CertificateMessage, FenceRequestMessage, GrantMessage, Message, RelayMessage,
        hash,
    },
    statement::Statement,
};
use fencegate::fence::{FenceToken, Hlc};
use libfuzzer_sys::fuzz_target;

fn one<M: Message + serde_json_bounds::Read>(text: &[u8]) {
    let Some(message) = M::read(text) else { return };
    if let Ok(statement) = message.statement() {
        let bytes = statement.bytes();
        assert!(M::Statement::parse(&bytes).is_ok_and(|again| again.bytes() == bytes), "what is signed reads back");
    }
    if let Ok(signed) = message.signed() {
        assert!(M::of(&signed).signed().is_ok_and(|again| again.to_bytes() == signed.to_bytes()));
    }
}

mod serde_json_bounds {
    //! What all messages can be read from.
    pub(crate) trait Read: Sized {
        fn read(text: &[u8]) -> Option<Self>;
    }

    macro_rules! read {
        ($($message:ty),*) => {
            $(impl Read for $message {
                fn read(text: &[u8]) -> Option<Self> {
                    serde_json::from_slice(text).ok()
                }
            })*
        };
    }

    read!(
        super::AcknowledgedMessage,
        super::ActiveMessage,
        super::CertificateMessage,
        super::FenceRequestMessage,
        super::GrantMessage
    );
}

fuzz_target!(|text: &[u8]| {
    one::<FenceRequestMessage>(text);
    one::<CertificateMessage>(text);
    one::<AcknowledgedMessage>(text);
    one::<GrantMessage>(text);
    one::<ActiveMessage>(text);
    let _ = serde_json::from_slice::<RelayMessage>(text);
    let Ok(text) = std::str::from_utf8(text) else { return };
    // One spelling each.
    if let Ok(signature) = text.parse::<Signature>() {
        assert_eq!(signature.to_string(), text);
    }
    if let Ok(key) = text.parse::<PublicKey>() {
        assert_eq!(key.to_string(), text);
    }
    if let Ok(stamp) = text.parse::<Hlc>() {
        assert_eq!(stamp.to_string(), text);
    }
    if let Ok(token) = FenceToken::parse(text) {
        assert_eq!(token.expose(), text);
    }
    let _ = text.parse::<SecretKey>();
    let _ = hash("state_hash", text);
});
