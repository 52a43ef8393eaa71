//! A blob as it is once it has been written, and the count on the way.

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// A blob that has been written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its name.
    pub blob: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

/// Counts and hashes what passes by.
#[derive(Default)]
pub(super) struct Tally {
    hash: Sha256,
    size_bytes: u64,
}

impl Tally {
    pub(super) fn add(&mut self, piece: &Bytes) {
        self.hash.update(piece);
        self.size_bytes += piece.len() as u64;
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn written(self, blob: String) -> Written {
        let sha256 = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Written { blob, size_bytes: self.size_bytes, sha256 }
    }
}
