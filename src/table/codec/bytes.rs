//! Bytes of a value: a writer, and a reader that accepts only what the writer makes.

use super::{CodecFault, FORMAT};
use crate::fence::{Hlc, HolderId, IssuerId, LeaseId, LeaseSeq, ObjectId, RequestId};

/// Room for most values.
const VALUE_BYTES: usize = 192;

pub(super) struct Writer(Vec<u8>);

impl Writer {
    /// Begins a value with its format.
    pub(super) fn row() -> Self {
        let mut bytes = Vec::with_capacity(VALUE_BYTES);
        bytes.push(FORMAT);
        Self(bytes)
    }

    pub(super) fn u8(mut self, n: u8) -> Self {
        self.0.push(n);
        self
    }

    pub(super) fn u32(mut self, n: u32) -> Self {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }

    pub(super) fn u64(mut self, n: u64) -> Self {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.blob(text.as_bytes())
    }

    /// Bytes, after their length.
    pub(super) fn blob(self, bytes: &[u8]) -> Self {
        let len = u32::try_from(bytes.len()).expect("nothing in the table is longer than 4 GiB");
        self.u32(len).bytes(bytes)
    }

    pub(super) fn hlc(self, stamp: Hlc) -> Self {
        self.u64(stamp.ms).u32(stamp.logical)
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Begins to read a value; its format must be [`FORMAT`](super::FORMAT).
    pub(super) fn row(value: &'a [u8]) -> Result<Self, CodecFault> {
        let mut reader = Self(value);
        if reader.u8()? == FORMAT {
            Ok(reader)
        } else {
            Err(CodecFault("a value of another format; this table was made by another version"))
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], CodecFault> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(CodecFault("a value that is too short"))?;
        self.0 = tail;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecFault> {
        let (head, tail) = self.0.split_first_chunk().ok_or(CodecFault("a value that is too short"))?;
        self.0 = tail;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, CodecFault> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn flag(&mut self) -> Result<bool, CodecFault> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CodecFault("a flag that is neither 0 nor 1")),
        }
    }

    pub(super) fn u32(&mut self) -> Result<u32, CodecFault> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, CodecFault> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn hlc(&mut self) -> Result<Hlc, CodecFault> {
        Ok(Hlc { ms: self.u64()?, logical: self.u32()? })
    }

    pub(super) fn seq(&mut self) -> Result<LeaseSeq, CodecFault> {
        LeaseSeq::new(self.u64()?).ok_or(CodecFault("lease_seq 0"))
    }

    pub(super) fn text(&mut self) -> Result<&'a str, CodecFault> {
        super::text(self.blob()?)
    }

    pub(super) fn object(&mut self) -> Result<ObjectId, CodecFault> {
        ObjectId::new(self.text()?).map_err(|_| CodecFault("a bad object id"))
    }

    pub(super) fn holder(&mut self) -> Result<HolderId, CodecFault> {
        HolderId::new(self.text()?).map_err(|_| CodecFault("a bad holder id"))
    }

    pub(super) fn issuer(&mut self) -> Result<IssuerId, CodecFault> {
        IssuerId::new(self.text()?).map_err(|_| CodecFault("a bad issuer id"))
    }

    pub(super) fn lease_id(&mut self) -> Result<LeaseId, CodecFault> {
        LeaseId::new(self.text()?).map_err(|_| CodecFault("a bad lease id"))
    }

    pub(super) fn request(&mut self) -> Result<Option<RequestId>, CodecFault> {
        if !self.flag()? {
            return Ok(None);
        }
        RequestId::new(self.text()?).map(Some).map_err(|_| CodecFault("a bad request id"))
    }

    /// Bytes, after their length.
    pub(super) fn blob(&mut self) -> Result<&'a [u8], CodecFault> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    /// Whether nothing is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn end(self) -> Result<(), CodecFault> {
        if self.0.is_empty() { Ok(()) } else { Err(CodecFault("bytes behind the end of a value")) }
    }
}
