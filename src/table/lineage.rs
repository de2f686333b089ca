//! The table's name: random, given by `init`. The table's backups and the tables restored from them keep the name,
//! so the numbers of one table are never mixed up with those of another.

use std::{fmt, io, str::FromStr};

/// The name of a table and of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage([u8; Self::BYTES]);

impl Lineage {
    pub const BYTES: usize = 16;

    /// Makes a new name.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn draw() -> io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self(bytes))
    }

    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub const fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for Lineage {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; Self::BYTES];
        hex::decode_to_slice(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_another_and_reads_back() {
        let (one, other) = (Lineage::draw().unwrap(), Lineage::draw().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.to_string().parse(), Ok(one));
        assert_eq!(Lineage::from_bytes(*one.bytes()), one);
        assert!("00".parse::<Lineage>().is_err());
    }
}
